//! The alerts of `docs/monitoring/alerts.yml` that hold at this moment, as far as one master can judge
//! them by itself. Those about rates and other processes are Prometheus' alone.

use std::time::Duration;

use mc_meta::{SegmentInfo, SegmentStatus};
use mc_rpc::{HaRole, HaStatus};
use mc_server::{MasterReport, TickerState};
use serde_json::{Value, json};

use crate::figures::Pool;

/// The part of the pool that is in use above which eviction does not keep up.
const NEARLY_FULL: f64 = 0.97;
/// A time without a tick that no load explains.
const NO_TICK: Duration = Duration::from_secs(10);
/// An outage of etcd that no takeover explains.
const ETCD_SILENT: Duration = Duration::from_secs(10);
/// Unfinished puts that are many whatever the cluster has.
const UNFINISHED: u64 = 1000;
/// Most segments that an alert names.
const NAMED: usize = 5;

/// Every alert that holds, the most severe first.
pub(super) fn of(
    report: &MasterReport,
    ticker: &TickerState,
    problem: Option<String>,
    ha: Option<&HaStatus>,
) -> Vec<Value> {
    let (pool, totals) = (Pool::of(report), &report.totals);
    let mut alerts = Vec::new();
    let mut critical = |name, says: String, act| alerts.push(alert(name, "critical", says, act));
    if ticker.since_last >= NO_TICK {
        let says = format!("No tick was completed for {} s", ticker.since_last.as_secs());
        critical("McMasterNotTicking", says, "Have another master lead, or restart this one.");
    } else if let Some(problem) = problem {
        let act = "Make room in the file system of --metadata_dir, or mend the disk.";
        critical("McJournalFailing", problem, act);
    }
    if let Some(outage) = ha.and_then(|ha| ha.election_outage.as_ref())
        && outage.lasts >= ETCD_SILENT
    {
        let says = format!("etcd has not answered for {} s", outage.lasts.as_secs());
        critical("McEtcdSilent", says, "Restore etcd's quorum. The nodes keep their caches.");
    }
    let mut warning = |name, says: String, act| alerts.push(alert(name, "warning", says, act));
    if pool.usable.size > 0 && pool.usable.used as f64 > NEARLY_FULL * pool.usable.size as f64 {
        let act = "Add nodes, or lower --eviction_high_watermark_ratio.";
        warning("McPoolNearlyFull", "Eviction does not keep up with puts".into(), act);
    }
    let away = in_state(report, "away");
    if let Some(names) = named(&away) {
        let act = "Mend the network between the node and the master, or the node. Do not restart a node \
                   that runs.";
        warning("McSegmentAway", format!("The nodes of {names} are silent"), act);
    }
    let suspect = in_state(report, "suspect");
    if let Some(names) = named(&suspect) {
        let act = "Check the firewall, --data_port and --host of the node, and whether it has CPU to answer.";
        warning("McSegmentSuspect", format!("Clients do not reach {names}"), act);
    }
    if totals.processing > UNFINISHED && totals.processing > totals.objects / 20 {
        let says = format!("{} puts have not ended", totals.processing);
        let act = "Look at the logs of the writers, and at the nodes that they write to.";
        warning("McUnfinishedPutsPileUp", says, act);
    }
    if let Some(ha) = ha.filter(|ha| ha.role == HaRole::Leader)
        && ha.in_sync.len() < 2
    {
        let act = "Start the standbys that are down; look at why the others do not follow.";
        warning("McNoStandbyInSync", "No standby is in sync".into(), act);
    }
    alerts
}

fn alert(name: &str, severity: &str, says: impl Into<Value>, act: &str) -> Value {
    let (says, runbook) = (says.into(), format!("docs/operations.md#{}", name.to_lowercase()));
    json!({ "name": name, "severity": severity, "says": says, "do": act, "runbook": runbook })
}

/// Where a segment is in its life, or that clients cannot reach it.
pub(super) const fn state(segment: &SegmentInfo) -> &'static str {
    match segment.status {
        SegmentStatus::Ok if segment.is_suspect => "suspect",
        SegmentStatus::Suspended => "away",
        SegmentStatus::GracefullyUnmounting => "leaving",
        status => status.as_str(),
    }
}

fn in_state<'a>(report: &'a MasterReport, wanted: &str) -> Vec<&'a SegmentInfo> {
    report.segments.iter().filter(|segment| state(segment) == wanted).collect()
}

/// The first of them by name, and how many more there are; `None` without any.
fn named(segments: &[&SegmentInfo]) -> Option<String> {
    let mut names: Vec<&str> = segments.iter().map(|segment| &*segment.spec.name).collect();
    names.sort_unstable();
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    names.truncate(NAMED);
    (!names.is_empty()).then(|| names.join(", ") + &more)
}
