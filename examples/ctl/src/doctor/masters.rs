//! The masters: whether they can be reached, which leads, their versions and clocks.

use std::cmp::Ordering;
use std::io;
use std::time::Duration;

use mc_cli::{cause_chain, duration};
use mc_rpc::tls::rustls::{self, AlertDescription, CertificateError};
use mc_rpc::{ClientConfig, ForeignProtocol, HaRole, HaStatus, HandshakeError, RpcError, Token};
use mc_store::{ErrorCode, NodeConfig, StartError};

use super::certificates::{self, days};
use super::findings::Findings;
use super::reach::probe;
use crate::error::CtlError;
use crate::ha::{self, Told};

/// Records that a standby may lack although it keeps up.
const LAG: u64 = 10_000;

/// How long a standby that keeps up may lack a record.
const LAGS_FOR: Duration = Duration::from_secs(3);

/// Clocks of one cluster may be so far apart.
const SKEW: Duration = Duration::from_secs(5);

/// The version of this program.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// Looks at every master that is named or known to another. Returns whether one of them may lead.
pub(super) async fn look(
    findings: &mut Findings,
    master: &str,
    rpc: &ClientConfig,
    node: &NodeConfig,
) -> bool {
    if let Some(endpoints) = master.strip_prefix("etcd://") {
        etcd(findings, endpoints).await;
    }
    let said = match ha::statuses(master, rpc.clone(), node.clone()).await {
        Ok(said) => said,
        Err(CtlError::Start(StartError::Master(error)) | CtlError::Rpc(error)) => {
            unreached(findings, rpc, &error).await;
            return false;
        }
        Err(error) => {
            findings.fault("master", cause_chain(&error), "correct --master");
            return false;
        }
    };
    let leads = said
        .values()
        .flatten()
        .any(|told| matches!(told.status.role, HaRole::Leader | HaRole::Alone));
    if leads {
        if said.len() > 1 {
            findings.ok("leader", format!("one of {} masters leads", said.len()));
        }
    } else if said.values().any(Result::is_ok) {
        let mut found = format!("none of {} masters leads", said.len());
        for Told { status, .. } in said.values().flatten() {
            if let Some(why) = &status.waits_because {
                found += &format!("; {}: {why}", status.address);
            }
        }
        let advice = "with two of three down, or etcd, nobody leads: start them";
        findings.fault("leader", found, advice);
    }
    for (address, said) in &said {
        match said {
            Ok(Told { status, .. }) => journals(findings, address, status),
            Err(error) => unreached(findings, rpc, error).await,
        }
        if let (Some(tls), Ok(_)) = (&rpc.tls, said) {
            certificates::shown(findings, tls, address).await;
        }
    }
    let told: Vec<_> =
        said.iter().filter_map(|(at, said)| Some((&**at, said.as_ref().ok()?))).collect();
    versions(findings, &told);
    clocks(findings, &told);
    // A master that does not know the question is older, and may lead.
    let may_lead =
        |said: &ha::Said| said.as_ref().is_err_and(|error| error.code() == ErrorCode::NotSupported);
    leads || said.values().any(may_lead)
}

/// Asks each endpoint of etcd for a connection.
async fn etcd(findings: &mut Findings, endpoints: &str) {
    let (mut all, mut reached) = (0, 0);
    for endpoint in endpoints.split([';', ',']).map(str::trim) {
        let endpoint = endpoint.trim_start_matches("http://").trim_start_matches("https://");
        // The cluster follows the last.
        let endpoint = endpoint.split('/').next().unwrap_or_default();
        all += 1;
        match probe(endpoint).await {
            Ok(()) => reached += 1,
            Err(error) => findings.fault(
                "etcd",
                format!("{endpoint}: {error}"),
                error.advice("this member of etcd", "the etcd:// address"),
            ),
        }
    }
    let told = format!("{reached} of {all} members take connections");
    if 2 * reached <= all {
        let advice = "start the members that are missing: until then no master can be elected";
        findings.fault("etcd", format!("etcd has no quorum: {told}"), advice);
    } else {
        findings.ok("etcd", told);
    }
}

/// Looks at a master's followers, its snapshots and its election service.
fn journals(findings: &mut Findings, address: &str, status: &HaStatus) {
    if let Some(outage) = &status.election_outage {
        let lasts = duration(outage.lasts);
        let told = format!("{address} has no answer from etcd for {lasts}: {}", outage.cause);
        findings.fault(
            "etcd",
            told,
            "while it is away no other master can take over: start the members that are missing",
        );
    }
    for follower in &status.followers {
        let (behind, lag) = (duration(follower.behind_for), follower.lag);
        let told = format!("{} lacks {lag} records, for {behind}", follower.address);
        if follower.address.is_empty() {
            // The leader knows the addresses of those that renew their leases.
            let told = format!("the standby {} has let its lease in etcd end", follower.member);
            let advice = "its process is stopped or hangs, or it does not reach etcd: until it is back one \
                          more failure may stop the cluster";
            findings.fault("standby", told, advice);
        } else if lag > LAG || (lag > 0 && follower.behind_for > LAGS_FOR) {
            let advice = "it would take over late: look at its CPU, its disk and its network, and \
                          whether its process is stopped";
            findings.warn("standby", told, advice);
        } else {
            findings.ok("standby", told);
        }
    }
    if status.failed_snapshots > 0 {
        let told = format!("{address}: {} could not be written", status.failed_snapshots);
        findings.warn("snapshots", told, "the journal grows until they can: look at its disk");
    }
}

fn versions(findings: &mut Findings, masters: &[(&str, &Told)]) {
    let upgrade = "upgrade the older side: standbys first, then the leader, then nodes and clients";
    let mut are_same = true;
    for (address, told) in masters {
        let found = match &told.status.version {
            None => format!("{address} runs an older version than {OWN}, and does not say which"),
            Some(version) if **version == *OWN => continue,
            Some(version) => {
                let order = numbers(version).cmp(&numbers(OWN));
                let order = match order {
                    Ordering::Less => "older than",
                    Ordering::Equal => "another than",
                    Ordering::Greater => "newer than",
                };
                format!("{address} runs {version}, which is {order} this program, {OWN}")
            }
        };
        are_same = false;
        findings.warn("version", found, upgrade);
    }
    if are_same && !masters.is_empty() {
        findings.ok("version", format!("{OWN}, as this program"));
    }
}

/// The numbers that a version begins with.
fn numbers(version: &str) -> [u64; 3] {
    let release = version.split(['-', '+']).next().unwrap_or_default();
    let mut parts = release.split('.').map(|part| part.parse().unwrap_or(0));
    [(); 3].map(|()| parts.next().unwrap_or(0))
}

fn clocks(findings: &mut Findings, masters: &[(&str, &Told)]) {
    let mut largest = None;
    for (address, told) in masters {
        let Some((apart, is_ahead)) = told.skew() else { continue };
        if apart > SKEW {
            let way = if is_ahead { "ahead of" } else { "behind" };
            let found = format!("the clock of {address} is {} {way} this host's", duration(apart));
            let advice = "set both by NTP (`timedatectl`, chronyd): certificates, signatures for object \
                          stores and the times in logs go by it; leases do not";
            findings.warn("clock", found, advice);
        } else {
            largest = largest.max(Some(apart));
        }
    }
    if let Some(apart) = largest {
        findings.ok("clock", format!("{apart:.1?} from this host's at the most"));
    }
}

/// Tells why a master is not reached, and what to do about this cause.
pub(super) async fn unreached(findings: &mut Findings, rpc: &ClientConfig, error: &RpcError) {
    let found = cause_chain(error);
    match error {
        RpcError::Unresolved { .. } | RpcError::Unresolvable { .. } => {
            let advice = "without etcd no master is found by its address: name the masters by \
                          host:port meanwhile";
            findings.fault("etcd", found, advice);
        }
        RpcError::Unreachable { addr, source } => {
            let (about, cause, advice) = silent(addr, source, rpc.tls.is_some()).await;
            findings.fault(about, format!("{addr}: {cause}"), advice);
        }
        RpcError::TlsHandshake { addr, source } => {
            let (cause, advice) = refused_by_tls(source);
            findings.fault("certificate", format!("{addr}: {cause}"), advice);
        }
        RpcError::TlsSettings(_) => {
            findings.fault("certificate", found, "correct --tls_ca, --tls_cert or --tls_key");
        }
        RpcError::Credential(_) => findings.fault("token", found, "correct --token_file"),
        RpcError::NotAMaster { reason, .. } => {
            findings.fault("master", found, other_protocol(reason));
        }
        _ if error.code() == ErrorCode::NotSupported => {
            let found = format!("a master runs an older version than {OWN}: {found}");
            findings.warn("version", found, "upgrade it");
        }
        _ if error.code() == ErrorCode::Unauthenticated && found.contains("TLS") => {
            findings.fault("certificate", found, "name the file of its authority with --tls_ca");
        }
        _ if error.code() == ErrorCode::Unauthenticated => {
            let shown = match rpc.token.as_ref().and_then(Token::file) {
                Some(file) => format!("the token is that of {}", file.display()),
                None => "this program shows no token".into(),
            };
            let advice = format!(
                "{shown}: correct --token_file or --tls_cert, or the master's --access_file"
            );
            findings.fault("token", found, advice);
        }
        _ if error.code() == ErrorCode::PermissionDenied => {
            findings.fault("rights", found, "correct --tenant, or the line in --access_file");
        }
        _ => findings.fault("master", found, "its log says more"),
    }
}

/// Why nothing came from a master.
async fn silent(address: &str, error: &io::Error, is_tls: bool) -> (&'static str, String, String) {
    if address.starts_with("unix:") {
        let advice = "start the master with this --rpc_socket, or correct the path";
        return ("master", error.to_string(), advice.into());
    }
    let (about, cause, advice) = match probe(address).await {
        Err(unreached) => {
            let advice = unreached.advice("the master", "--master");
            return ("master", unreached.to_string(), advice);
        }
        Ok(()) if error.kind() == io::ErrorKind::TimedOut => (
            "master",
            "takes connections and does not answer",
            "the process at this port hangs, is stopped, or is no master: see its log, and `ss -ltnp` on \
             that host",
        ),
        Ok(()) if is_tls => (
            "certificate",
            "no TLS is spoken at this port, it closes the connection",
            "leave --tls_ca out, start the master with --tls_cert, or correct the port",
        ),
        Ok(()) => (
            "master",
            "takes connections and closes them",
            "another program has this port, or the master ends just now: see its log, and `ss -ltnp` on \
             that host",
        ),
    };
    (about, format!("{cause}: {error}"), advice.into())
}

/// Why there is no TLS session with a master.
fn refused_by_tls(error: &io::Error) -> (String, String) {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let told = error.to_string();
    let of_master = |cause: String| (cause, "renew the master's --tls_cert".to_owned());
    match inner {
        Some(rustls::Error::InvalidCertificate(cause)) => match cause {
            CertificateError::Expired => of_master("the master's certificate expired".into()),
            CertificateError::ExpiredContext { time, not_after } => {
                let over = time.as_secs().saturating_sub(not_after.as_secs());
                of_master(format!("the master's certificate expired {} ago", days(over)))
            }
            CertificateError::NotValidYet => not_valid_yet("not valid yet"),
            CertificateError::NotValidYetContext { time, not_before } => {
                let until = not_before.as_secs().saturating_sub(time.as_secs());
                not_valid_yet(&format!("valid in {} only", days(until)))
            }
            // An authority of the same name may have another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => (
                "the master's certificate is of an authority that this host does not trust".into(),
                "name the file of the master's authority with --tls_ca".into(),
            ),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                (
                    format!("the master's certificate is for another name: {told}"),
                    "use the name in the certificate as address, or set --tls_server_name".into(),
                )
            }
            _ => of_master(format!("the master's certificate is refused: {told}")),
        },
        Some(rustls::Error::AlertReceived(alert)) => {
            let cause = match alert {
                AlertDescription::CertificateExpired => "as expired",
                AlertDescription::UnknownCA => "as of an unknown authority",
                AlertDescription::CertificateRequired => "because it shows none",
                _ => "",
            };
            (
                format!("the master refuses this host's certificate {cause} ({told})"),
                "renew or correct --tls_cert and --tls_key".into(),
            )
        }
        Some(rustls::Error::InvalidMessage(_)) => (
            format!("no TLS is spoken at this port: {told}"),
            "leave --tls_ca out, start the master with --tls_cert, or correct the port".into(),
        ),
        _ => (told, "the master's log says why the connection ended".into()),
    }
}

fn not_valid_yet(when: &str) -> (String, String) {
    let advice = "set the clocks of both hosts by NTP, or wait";
    (format!("the master's certificate is {when}"), advice.into())
}

/// The remedy for a port where another protocol is spoken.
const fn other_protocol(reason: &HandshakeError) -> &'static str {
    match reason {
        HandshakeError::Version { .. } => "upgrade the older side",
        HandshakeError::OtherProtocol { found: ForeignProtocol::Http1 } => {
            "this is a port for pages, such as --metrics_port: use the master's --rpc_port"
        }
        HandshakeError::OtherProtocol { found: ForeignProtocol::Tls } => {
            "it speaks TLS: name the file of its authority with --tls_ca"
        }
        _ => "another program has this port: correct the port, or stop that program",
    }
}
