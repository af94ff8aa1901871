//! The masters, the nodes and their memory, as seen from this host: the faults of each.

use std::time::{Duration, Instant};

use mc_cli::{cause_chain, duration};
use mc_meta::SegmentStatus;
use mc_rpc::{ClientConfig, ClusterReport, HaRole, SegmentReport};
use mc_store::{Client, ErrorCode, NodeConfig, PutOutcome, ReplicateConfig};
use mc_types::{ByteSize, SplitMix64};
use tokio::time::timeout;

use super::findings::Findings;
use crate::args::Doctor;
use crate::ha;
use crate::stat::{Pool, disks, segment_state};

/// Bytes of the value that is put into each segment, got and compared.
const VALUE: usize = 1 << 20;

/// How long one segment may take for that.
const PATIENCE: Duration = Duration::from_secs(10);

/// Records that a standby may lack although it keeps up.
const LAG: u64 = 10_000;

/// A round trip to the master beyond this makes every call slow.
const SLOW: Duration = Duration::from_millis(5);

pub(super) async fn look(
    findings: &mut Findings,
    master: &str,
    rpc: ClientConfig,
    node: NodeConfig,
    doctor: &Doctor,
) {
    masters(findings, master, &rpc, &node).await;
    let client = Client::builder().master(master).rpc(rpc).node(node).connect();
    let client = match client.await {
        Ok(client) => client,
        Err(error) => {
            let advice = "start it, or name it with --master; a firewall and a wrong certificate or \
                          token look alike: its log says which";
            return findings.fault("master", cause_chain(&error), advice);
        }
    };
    round_trips(findings, &client).await;
    match client.cluster_report().await {
        Ok(report) => {
            pool(findings, &report);
            segments(findings, &report);
            storage(findings, &client).await;
            if !doctor.no_transfers {
                transfers(findings, &client, &report, doctor.segments).await;
            }
        }
        Err(error) if error.code() == ErrorCode::PermissionDenied => findings.warn(
            "rights",
            cause_chain(&error),
            "with an administrator's token more is seen: --token_file",
        ),
        Err(error) => findings.fault("master", cause_chain(&error), "its log says more"),
    }
    client.shutdown().await;
}

/// Every master that is named or known to another, by itself.
async fn masters(findings: &mut Findings, master: &str, rpc: &ClientConfig, node: &NodeConfig) {
    let Ok(said) = ha::statuses(master, rpc.clone(), node.clone()).await else { return };
    if said.len() < 2 {
        return;
    }
    let leads = said.values().flatten().any(|status| status.role == HaRole::Leader);
    if leads {
        findings.ok("leader", format!("one of {} masters leads", said.len()));
    } else {
        let advice = "with two of three down, or etcd, nobody leads: start them; `ha status` says why \
                      each one waits";
        findings.fault("leader", format!("none of {} masters leads", said.len()), advice);
    }
    for (address, said) in &said {
        let status = match said {
            Ok(status) => status,
            Err(error) => {
                let advice = "until it is back one more failure may stop the cluster: start it";
                findings.fault("master", format!("{address}: {error}"), advice);
                continue;
            }
        };
        if let Some(outage) = &status.election_outage {
            let lasts = duration(outage.lasts);
            let told = format!("{address} has no answer from etcd for {lasts}: {}", outage.cause);
            findings.fault(
                "etcd",
                told,
                "while it is away no other master can take over: look there",
            );
        }
        for follower in &status.followers {
            let (behind, lag) = (duration(follower.behind_for), follower.lag);
            let told = format!("{} lacks {lag} records, for {behind}", follower.address);
            if lag > LAG {
                let advice = "it would take over late: look at its CPU, its disk and its network";
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
}

async fn round_trips(findings: &mut Findings, client: &Client) {
    let mut times = Vec::new();
    for _ in 0..21 {
        match client.ping().await {
            Ok(time) => times.push(time),
            Err(error) => {
                return findings.fault(
                    "master",
                    cause_chain(&error),
                    "it answered a moment ago: see its log",
                );
            }
        }
    }
    times.sort();
    let (middle, longest) = (times[times.len() / 2], times[times.len() - 1]);
    let told = format!("{middle:.1?} to the master and back, {longest:.1?} at the longest");
    if middle > SLOW {
        findings.warn(
            "round trip",
            told,
            "every call takes as long: run clients nearer to the master",
        );
    } else {
        findings.ok("round trip", told);
    }
}

fn pool(findings: &mut Findings, report: &ClusterReport) {
    let pool = Pool::of(report).usable;
    if pool.size == 0 {
        let advice =
            "start a node (mc-node --global_segment_size=…), or `stat` says why none is used";
        return findings.fault("pool", "no segment takes objects", advice);
    }
    let percent = 100.0 * pool.filled();
    let told = format!("{percent:.1} % of {} used", ByteSize::bytes(pool.size));
    let refused = report.totals.put_start_no_room;
    if refused > 0 {
        let told = format!("{told}, {refused} puts found no room");
        let advice = "objects under lease or pin leave no room: add nodes, shorten leases, or put less \
                      at a time; `top` shows whether it goes on";
        findings.warn("pool", told, advice);
    } else {
        findings.ok("pool", told);
    }
    let damaged = report.totals.damage_confirmed;
    if damaged > 0 {
        let advice = "their checksums were wrong; none was given to a reader. Test the memory of the \
                      node that the master's log names";
        findings.fault("damage", format!("{damaged} replicas were found damaged"), advice);
    }
}

fn segments(findings: &mut Findings, report: &ClusterReport) {
    let host = |segment: &SegmentReport| host_of(segment.endpoint.as_str()).to_owned();
    let mut hosts: Vec<String> = report.segments.iter().map(host).collect();
    hosts.sort();
    hosts.dedup();
    for segment in &report.segments {
        let name = format!("{} at {}", segment.name, segment.endpoint);
        match segment_state(segment) {
            "ok" => {}
            "away" => findings.fault(
                "node",
                format!("{name} is silent"),
                "its process or host is down, or cannot reach the master: start it; what it held \
                 alone cannot be read until then",
            ),
            "suspect" => findings.fault(
                "node",
                format!("{name} cannot be reached by clients, though by the master"),
                "its advertised address is wrong or its port is blocked: --host, --data_port",
            ),
            state => findings.warn(
                "node",
                format!("{name} is {state}"),
                "it takes no new objects; `reopen` it if it is to stay",
            ),
        }
        let own = host(segment);
        if hosts.len() > 1 && is_local(&own) && segment.status == SegmentStatus::Ok {
            findings.fault(
                "address",
                format!("{name} is advertised to other hosts by an address of its own host"),
                "start it with --host=ADDRESS, one that the others reach",
            );
        }
    }
    findings.ok("segments", format!("{} on {} hosts", report.segments.len(), hosts.len()));
}

/// The host of an endpoint such as `tcp://host:port`.
fn host_of(endpoint: &str) -> &str {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    rest.rsplit_once(':').map_or(rest, |(host, _)| host)
}

/// Returns whether other hosts have an address of this name, too.
fn is_local(host: &str) -> bool {
    host == "localhost" || host.starts_with("127.") || matches!(host, "[::1]" | "0.0.0.0" | "[::]")
}

async fn storage(findings: &mut Findings, client: &Client) {
    let known = match disks(client).await {
        Ok(disks) => disks,
        Err(error) => {
            return findings.warn("disks", cause_chain(&error), "the master's log says more");
        }
    };
    for disk in known {
        let usage = &disk.usage;
        let told = format!(
            "{}: {} of {} used, {} objects",
            disk.endpoint,
            ByteSize::bytes(usage.used),
            ByteSize::bytes(usage.capacity),
            disk.objects
        );
        if usage.enabled {
            findings.ok("disk", told);
        } else {
            let advice =
                "it is full, fails or hangs: the node's log says which; puts go on without it";
            findings.fault("disk", format!("{told}, takes no objects"), advice);
        }
    }
}

/// Puts a value into each segment, gets and compares it.
async fn transfers(findings: &mut Findings, client: &Client, report: &ClusterReport, most: usize) {
    let usable: Vec<&SegmentReport> = report.segments.iter().filter(|it| it.is_usable()).collect();
    let (mut good, mut elsewhere, mut slowest) = (0, 0, None);
    let mut random = SplitMix64::new(u64::from(std::process::id()));
    for (number, segment) in usable.iter().take(most).enumerate() {
        let value: Vec<u8> = (0..VALUE / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
        let key = format!("mc-ctl doctor {} {number}", std::process::id());
        let tried = timeout(PATIENCE, there_and_back(client, segment, &key, value)).await;
        let failed = match tried {
            Ok(Ok(Tried::Elsewhere)) => {
                elsewhere += 1;
                None
            }
            Ok(Ok(Tried::There(time))) => {
                good += 1;
                if slowest.is_none_or(|(longest, _)| time > longest) {
                    slowest = Some((time, &segment.name));
                }
                None
            }
            Ok(Err(told)) => Some(told),
            Err(_) => Some(format!("no end within {}", duration(PATIENCE))),
        };
        // What is left of it goes by itself when room is needed.
        let _ = timeout(PATIENCE, client.remove(&key, true)).await;
        if let Some(told) = failed {
            let advice =
                "from this host: its port is blocked, its address is wrong, or the node hangs";
            let told = format!("{} at {}: {told}", segment.name, segment.endpoint);
            findings.fault("transfer", told, advice);
        }
    }
    if elsewhere > 0 {
        let told = format!("{elsewhere} segments had no room for it, and others took it");
        findings.warn(
            "transfer",
            told,
            "nothing is known of the way there: ask again with more room",
        );
    }
    if let Some((time, name)) = slowest {
        let told = format!(
            "{good} of {} segments took and gave back {}; the slowest, {name}, in {time:.1?}",
            usable.len(),
            ByteSize::bytes(VALUE as u64)
        );
        findings.ok("transfer", told);
    }
}

/// How a value went there and back.
enum Tried {
    There(Duration),
    /// The segment has no room for it.
    Elsewhere,
}

/// Puts a value into a segment and gets it; says how long it took, or what went wrong.
async fn there_and_back(
    client: &Client,
    segment: &SegmentReport,
    key: &str,
    value: Vec<u8>,
) -> Result<Tried, String> {
    let mut config = ReplicateConfig::default();
    config.preferred_segments = vec![segment.name.as_ref().into()];
    let begun = Instant::now();
    let outcome =
        client.put_with(key, value.clone(), &config).await.map_err(|e| cause_chain(&e))?;
    if outcome != PutOutcome::Stored {
        return Err(format!("the put of a new key is {outcome:?}"));
    }
    let found = client.get(key).await.map_err(|error| cause_chain(&error))?;
    let took = begun.elapsed();
    let object = client.describe(key).await.map_err(|error| cause_chain(&error))?;
    if !object.replicas.iter().any(|replica| replica.segment_name == segment.name) {
        // A client that does not reach a segment puts elsewhere, too.
        return match segment.largest_free < VALUE as u64 {
            true => Ok(Tried::Elsewhere),
            false => Err("another segment had to take the value, though this one has room".into()),
        };
    }
    match found == value {
        true => Ok(Tried::There(took)),
        false => Err("other bytes came back than were put".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_mean_each_host_itself_are_known() {
        for (endpoint, host, local) in [
            ("tcp://127.0.0.1:9", "127.0.0.1", true),
            ("tcp://localhost:9", "localhost", true),
            ("tcp://[::1]:9", "[::1]", true),
            ("tcp://0.0.0.0:9", "0.0.0.0", true),
            ("tcp://10.1.2.3:9", "10.1.2.3", false),
            ("rdma://node-7:9", "node-7", false),
            ("tcp://[fd00::1]:9", "[fd00::1]", false),
        ] {
            assert_eq!((host_of(endpoint), is_local(host_of(endpoint))), (host, local));
        }
    }
}
