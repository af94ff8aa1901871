//! How a master's part among several is shown.

use mc_http::MetricKind::Gauge;
use mc_http::MetricsText;
use mc_rpc::{HaRole, HaStatus};
use mc_types::{Epoch, Sequence};
use serde_json::{Value, json};

/// Appends it to the metrics.
pub(crate) fn metrics(text: &mut MetricsText, status: &HaStatus) {
    let name = "master_ha_role";
    text.metric(name, Gauge, "1 for the part that this master has.");
    for role in [HaRole::Leader, HaRole::Standby, HaRole::Recovering] {
        text.sample(name, &[("role", role.as_str())], u8::from(role == status.role));
    }
    for (name, help, value) in [
        ("master_ha_epoch", "The term that it leads or follows.", status.epoch.map(Epoch::as_u64)),
        (
            "master_ha_position",
            "The last change in its journal that is durable.",
            status.position.map(Sequence::as_u64),
        ),
        (
            "master_ha_in_sync",
            "Masters in sync, the leader included.",
            Some(status.in_sync.len() as u64),
        ),
        ("master_ha_followers", "Standbys that follow it.", Some(status.followers.len() as u64)),
        ("master_ha_journal_bytes", "Bytes of its journal.", Some(status.journal_bytes)),
        ("master_ha_snapshot_bytes", "Bytes of its snapshots.", Some(status.snapshot_bytes)),
        (
            "master_ha_snapshots_failed",
            "Snapshots that could not be written since it leads or follows.",
            Some(status.failed_snapshots),
        ),
        (
            "master_ha_snapshot_age_seconds",
            "Age of its last snapshot; 0 without one.",
            Some(status.snapshot.map_or(0, |snapshot| snapshot.age.as_secs())),
        ),
    ] {
        text.metric(name, Gauge, help);
        text.sample(name, &[], value.unwrap_or(0));
    }
    let name = "master_ha_election_outage_seconds";
    let help = "Time for which the election service (etcd) has not answered; 0 while it answers.";
    text.metric(name, Gauge, help);
    let lasts = status.election_outage.as_ref().map_or(0.0, |outage| outage.lasts.as_secs_f64());
    text.sample(name, &[], lasts);
    let name = "master_ha_follower_lag_changes";
    text.metric(name, Gauge, "Changes that a standby lacks.");
    for follower in &status.followers {
        text.sample(name, &[("member", &*follower.member)], follower.lag);
    }
}

/// The page /ha_status.
pub(crate) fn json(status: &HaStatus) -> Value {
    let followers = status.followers.iter().map(|follower| {
        json!({
            "member": follower.member,
            "address": follower.address,
            "position": follower.position.as_u64(),
            "lag": follower.lag,
            "behind_for_ms": follower.behind_for.as_millis() as u64,
        })
    });
    json!({
        "role": status.role.as_str(),
        "epoch": status.epoch.map(Epoch::as_u64),
        "member": status.member,
        "address": status.address,
        "leader": status.leader,
        "position": status.position.map(Sequence::as_u64),
        "followers": followers.collect::<Vec<_>>(),
        "in_sync": status.in_sync,
        "snapshot": status.snapshot.map(|snapshot| json!({
            "position": snapshot.position.as_u64(),
            "age_s": snapshot.age.as_secs(),
        })),
        "journal_bytes": status.journal_bytes,
        "snapshot_bytes": status.snapshot_bytes,
        "failed_snapshots": status.failed_snapshots,
        "notice": status.notice,
        "durability": status.durability.as_str(),
        "election_outage": outage_json(status),
        "waits_because": status.waits_because,
        "version": status.version,
    })
}

/// The outage of the election service; null while it answers.
pub(crate) fn outage_json(status: &HaStatus) -> Value {
    status.election_outage.as_ref().map_or(
        Value::Null,
        |outage| json!({ "lasts_ms": outage.lasts.as_millis() as u64, "cause": outage.cause }),
    )
}
