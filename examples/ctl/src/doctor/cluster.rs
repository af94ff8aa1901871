//! The masters, the nodes and their memory, as seen from this host: the faults of each.

use std::collections::BTreeSet;
use std::time::Duration;

use mc_cli::{cause_chain, duration};
use mc_meta::SegmentStatus;
use mc_rpc::{ClientConfig, ClusterReport, SegmentReport};
use mc_store::{Client, ErrorCode, NodeConfig, StartError};
use mc_types::ByteSize;
use tokio::task::JoinSet;

use super::findings::Findings;
use super::reach::probe;
use super::{masters, transfers};
use crate::args::Doctor;
use crate::stat::{Pool, disks, segment_state};

/// A node that has had something to write to its disk for so long does not write.
const HANGS: Duration = Duration::from_secs(3);

/// A node says that its disk holds less when the file system has no more room.
const USEFUL: u64 = 1 << 20;

/// A round trip to the master beyond this makes every call slow.
const SLOW: Duration = Duration::from_millis(5);

pub(super) async fn look(
    findings: &mut Findings,
    master: &str,
    rpc: ClientConfig,
    node: NodeConfig,
    doctor: &Doctor,
) {
    if !masters::look(findings, master, &rpc, &node).await {
        return;
    }
    let client = Client::builder().master(master).rpc(rpc.clone()).node(node).connect();
    let client = match client.await {
        Ok(client) => client,
        Err(StartError::Master(error)) => {
            return masters::unreached(findings, &rpc, &error).await;
        }
        Err(error) => {
            return findings.fault(
                "client",
                cause_chain(&error),
                "correct the flags of this program",
            );
        }
    };
    round_trips(findings, &client).await;
    match client.cluster_report().await {
        Ok(report) => {
            pool(findings, &report);
            segments(findings, &report);
            let reached = ports(findings, &report, doctor.segments).await;
            storage(findings, &client).await;
            if !doctor.no_transfers {
                transfers::look(findings, &client, &reached).await;
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

/// Connects to the port of each segment that takes objects. Returns the segments whose port does.
async fn ports<'r>(
    findings: &mut Findings,
    report: &'r ClusterReport,
    most: usize,
) -> Vec<&'r SegmentReport> {
    // A node that is away is told of by then.
    let readable = report.segments.iter().filter(|it| segment_state(it) != "away").take(most);
    let mut usable: Vec<&SegmentReport> = readable.collect();
    let ports: BTreeSet<String> = usable.iter().filter_map(|it| tcp_port(it)).collect();
    let mut probes = JoinSet::new();
    for port in ports {
        probes.spawn(async move { (probe(&port).await, port) });
    }
    for (reached, port) in probes.join_all().await {
        let Err(error) = reached else { continue };
        let (blocked, rest): (Vec<_>, Vec<_>) =
            usable.into_iter().partition(|it| tcp_port(it).as_ref() == Some(&port));
        let names: Vec<&str> = blocked.iter().map(|it| &*it.name).collect();
        findings.fault(
            "port",
            format!("{} at {port}: {error}", names.join(", ")),
            error.advice("mc-node", "--host, --data_port"),
        );
        usable = rest;
    }
    usable.retain(|it| it.is_usable());
    usable
}

/// The `host:port` where a segment's node accepts TCP, if it does.
fn tcp_port(segment: &SegmentReport) -> Option<String> {
    let ways = std::iter::once(&segment.endpoint).chain(segment.endpoint.others());
    ways.into_iter().find(|way| way.scheme() == "tcp").map(|way| way.address().to_owned())
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
        if usage.waits_for >= HANGS {
            let (count, time) = (usage.queued + usage.writing, duration(usage.waits_for));
            let advice = "the device hangs, or is far too slow: look at the kernel's log (`dmesg`) and at \
                          `iostat -x` on that host; puts go on without it";
            let told = format!("{told}; it has written nothing for {time}, {count} objects wait");
            findings.fault("disk", told, advice);
        } else if usage.capacity != 0 && usage.capacity < USEFUL {
            let advice = "make room there (`df`), or use another file system (--ssd_offload_path); puts go \
                          on without it";
            findings.fault("disk", format!("{told}; its file system is full"), advice);
        } else if !usage.enabled {
            let advice = "writes to it fail, and its node's log has the error: the file system is \
                          read-only, or the device is broken (`dmesg`). Puts go on without it";
            findings.fault("disk", format!("{told}; it takes no objects"), advice);
        } else {
            findings.ok("disk", told);
        }
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
