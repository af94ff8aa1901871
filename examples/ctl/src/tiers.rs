//! `tiers`: what there is below memory, and for how long it has room.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use mc_cli::{duration, table};
use mc_meta::LocalDiskInfo;
use mc_rpc::ClusterReport;
use mc_store::Client;
use mc_types::{ByteSize, ClientId};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::args;
use crate::error::CtlError;
use crate::stat::{disk_json, disk_state, disks};
use crate::text::print;

pub(crate) async fn tiers(client: &Client, tiers: &args::Tiers) -> Result<ExitCode, CtlError> {
    let mut look = Look::at(client).await?;
    let mut growth = None;
    if !tiers.interval.is_zero() {
        tokio::time::sleep(tiers.interval).await;
        let before = std::mem::replace(&mut look, Look::at(client).await?);
        growth = Some(Growth::between(&before, &look));
    }
    let text = match tiers.json {
        true => look.json(growth.as_ref()).to_string() + "\n",
        false => look.text(growth.as_ref()),
    };
    print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The tiers at one time.
struct Look {
    at: Instant,
    report: ClusterReport,
    disks: Vec<LocalDiskInfo>,
}

/// Bytes a second that came to each tier between two looks; fewer than none where more went.
struct Growth {
    time: Duration,
    shared: f64,
    disks: HashMap<ClientId, f64>,
}

impl Growth {
    fn between(before: &Look, now: &Look) -> Self {
        let time = now.at - before.at;
        let rate =
            |before: u64, now: u64| (now as f64 - before as f64) / time.as_secs_f64().max(1e-3);
        let used: HashMap<ClientId, u64> =
            before.disks.iter().map(|disk| (disk.client, disk.usage.used)).collect();
        // Of a disk that has just come nothing is known.
        let disk = |disk: &LocalDiskInfo| {
            Some((disk.client, rate(*used.get(&disk.client)?, disk.usage.used)))
        };
        Self {
            time,
            shared: rate(before.report.totals.files_used, now.report.totals.files_used),
            disks: now.disks.iter().filter_map(disk).collect(),
        }
    }
}

/// The time after which a tier is full that grows like this; `None` if it does not grow, or has no known limit.
fn full_in(used: u64, capacity: u64, growth: Option<f64>) -> Option<Duration> {
    let growth = growth.filter(|growth| *growth > 0.0 && capacity > 0)?;
    Duration::try_from_secs_f64(capacity.saturating_sub(used) as f64 / growth).ok()
}

impl Look {
    async fn at(client: &Client) -> Result<Self, CtlError> {
        let (report, disks) = (client.cluster_report().await?, disks(client).await?);
        Ok(Self { at: Instant::now(), report, disks })
    }

    /// The time after which the shared tier is full.
    fn shared_full_in(&self, growth: Option<&Growth>) -> Option<Duration> {
        let capacity = self.report.files_capacity?;
        full_in(self.report.totals.files_used, capacity, growth.map(|growth| growth.shared))
    }

    fn disk_full_in(&self, disk: &LocalDiskInfo, growth: Option<&Growth>) -> Option<Duration> {
        let growth = growth.and_then(|growth| growth.disks.get(&disk.client).copied());
        full_in(disk.usage.used, disk.usage.capacity, growth)
    }

    fn text(&self, growth: Option<&Growth>) -> String {
        let size = |bytes| ByteSize::bytes(bytes).to_string();
        let time = |time: Option<Duration>| time.map_or_else(|| "-".into(), duration);
        let (used, capacity) = (self.report.totals.files_used, self.report.files_capacity);
        // Zero is no shared tier.
        let shared = (capacity != Some(0)).then(|| {
            [
                "shared tier".into(),
                if capacity.is_some_and(|capacity| used >= capacity) { "full" } else { "ok" }
                    .into(),
                capacity.map_or_else(|| "unlimited".into(), size),
                size(used),
                // The master counts bytes alone.
                "-".into(),
                time(self.shared_full_in(growth)),
            ]
        });
        let disk = |disk: &LocalDiskInfo| {
            [
                disk.endpoint.to_string(),
                disk_state(disk).into(),
                // 0 before the node has said how much.
                if disk.usage.capacity == 0 { "unknown".into() } else { size(disk.usage.capacity) },
                size(disk.usage.used),
                disk.objects.to_string(),
                time(self.disk_full_in(disk, growth)),
            ]
        };
        let rows: Vec<[String; 6]> =
            shared.into_iter().chain(self.disks.iter().map(disk)).collect();
        if rows.is_empty() {
            return "no tiers below memory\n".into();
        }
        let head = ["TIER", "STATE", ">SIZE", ">USED", ">OBJECTS", ">FULL IN"];
        let mut text = table(head, &rows);
        text +=
            &format!("{} objects have nothing in memory\n", self.report.totals.tier_only_objects);
        if let Some(growth) = growth {
            text += &format!(
                "FULL IN is what the growth of the last {} would take\n",
                duration(growth.time)
            );
        }
        text
    }

    /// As `/api/v1/tiers`, with the times after which tiers are full.
    fn json(&self, growth: Option<&Growth>) -> Value {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs());
        let disks = self.disks.iter().map(|disk| {
            let mut line = disk_json(disk);
            line["full_in_seconds"] = seconds(self.disk_full_in(disk, growth)).into();
            line
        });
        let totals = &self.report.totals;
        json!({
            "shared_tier": {
                "used": totals.files_used,
                "capacity": self.report.files_capacity,
                "unfinished": totals.files_unfinished,
                "refused": totals.files_no_room,
                "full_in_seconds": seconds(self.shared_full_in(growth)),
            },
            "disk_only_objects": totals.tier_only_objects,
            "disks": disks.collect::<Vec<_>>(),
            "looked_for_ms": growth.map_or(0, |growth| growth.time.as_millis() as u64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_that_does_not_grow_is_never_full() {
        let second = Duration::from_secs(1);
        assert_eq!(full_in(10, 110, Some(100.0)), Some(second));
        for (used, capacity, growth) in
            [(10, 110, None), (10, 110, Some(0.0)), (10, 110, Some(-5.0)), (10, 0, Some(1.0))]
        {
            assert_eq!(full_in(used, capacity, growth), None, "{used} {capacity} {growth:?}");
        }
        assert_eq!(full_in(120, 110, Some(1.0)), Some(Duration::ZERO));
        // Longer than there are names for.
        assert_eq!(full_in(0, u64::MAX, Some(f64::MIN_POSITIVE)), None);
    }
}
