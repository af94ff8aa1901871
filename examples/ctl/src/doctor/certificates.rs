//! How long certificates are valid.

use std::io::{self, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use mc_cli::cause_chain;
use mc_rpc::tls::rustls::ClientConnection;
use mc_rpc::tls::rustls::pki_types::CertificateDer;
use mc_rpc::tls::{ALPN, ClientTls, Protocol, ends_at};
use mc_store::ClientConfig;

use super::findings::Findings;
use super::reach::PATIENCE;

/// A certificate that ends sooner is to be renewed now.
const SOON: u64 = 30 * DAY;
const DAY: u64 = 24 * 60 * 60;

const RENEW: &str = "renew it; programs read the new file without a restart";

/// Looks at the files that flags and variables of this host name.
pub(super) fn own(findings: &mut Findings, settings: &ClientConfig) {
    let places = [
        (&settings.tls_ca, &settings.tls_cert, &settings.tls_key),
        (&settings.transfer_tls_ca, &settings.transfer_tls_cert, &settings.transfer_tls_key),
        (&settings.etcd_tls_ca, &settings.etcd_tls_cert, &settings.etcd_tls_key),
    ];
    let mut seen: Vec<(PathBuf, CertificateDer<'static>)> = Vec::new();
    for (ca, cert, key) in places {
        let Some(ca) = ca else { continue };
        let mut tls = ClientTls::new(ca);
        if let (Some(cert), Some(key)) = (cert, key) {
            tls = tls.identity(cert, key);
        }
        let found = match tls.certificates() {
            Ok(found) => found,
            Err(error) => {
                findings.fault(
                    "certificate",
                    cause_chain(&error),
                    "correct the flag or the file: nothing connects with it",
                );
                continue;
            }
        };
        for one in found {
            if !seen.contains(&one) {
                // Peers check the end of this side's own. Some trust an authority whose own is over.
                judge(findings, &one.0.display().to_string(), &one.1, one.0 != *ca);
                seen.push(one);
            }
        }
    }
}

/// Looks at the certificate that a master shows. One that is refused is told of where it is.
pub(super) async fn shown(findings: &mut Findings, tls: &ClientTls, address: &str) {
    let (tls, at) = (tls.clone(), address.to_owned());
    let handshake = tokio::task::spawn_blocking(move || handshake(&tls, &at));
    if let Ok(Ok(Some(certificate))) = handshake.await {
        judge(findings, &format!("that of {address}"), &certificate, true);
    }
}

/// Returns the certificate of a server that is trusted. Blocks.
fn handshake(tls: &ClientTls, address: &str) -> io::Result<Option<CertificateDer<'static>>> {
    let config = tls.connect_config(Protocol::new(&ALPN[..1])).map_err(io::Error::other)?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let name = tls.expected_name(host).map_err(io::Error::other)?;
    let mut connection =
        ClientConnection::new(Arc::clone(&config), name).map_err(io::Error::other)?;
    let Some(at) = address.to_socket_addrs()?.next() else { return Ok(None) };
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    let chain = connection.peer_certificates().unwrap_or_default();
    let shown = chain.first().map(|certificate| certificate.clone().into_owned());
    connection.send_close_notify();
    connection.write_tls(&mut stream)?;
    stream.flush()?;
    Ok(shown)
}

fn judge(findings: &mut Findings, name: &str, certificate: &CertificateDer<'_>, is_checked: bool) {
    let Some(end) = ends_at(certificate) else {
        let advice = "write the file again: it is no X.509 certificate of version 3";
        return findings.warn("certificate", format!("{name} cannot be read"), advice);
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let (left, over) = (end.saturating_sub(now), now.saturating_sub(end));
    if left == 0 && is_checked {
        findings.fault("certificate", format!("{name} expired {} ago", days(over)), RENEW);
    } else if left == 0 {
        findings.warn("certificate", format!("{name} expired {} ago", days(over)), RENEW);
    } else if left < SOON {
        findings.warn("certificate", format!("{name} expires in {}", days(left)), RENEW);
    } else {
        findings.ok("certificate", format!("{name} is valid for {}", days(left)));
    }
}

/// `12 days`; below two days hours.
pub(super) fn days(seconds: u64) -> String {
    match seconds / DAY {
        0 | 1 => format!("{} hours", seconds / 3600),
        days => format!("{days} days"),
    }
}
