//! The status of a master without others.

use mc_ha::Durability;
use mc_rpc::{DurabilityMode, HaReport, HaRole, HaStatus, Refusal, SnapshotStatus};
use mc_types::ErrorCode;

use super::journal::JournalWatch;

/// The report of a master that has a journal, and no masters beside it.
#[derive(Debug)]
pub(crate) struct Alone(pub(crate) JournalWatch);

impl HaReport for Alone {
    fn ha_status(&self) -> HaStatus {
        let report = self.0.read();
        HaStatus {
            role: HaRole::Alone,
            epoch: Some(report.writer.durable.epoch),
            position: Some(report.writer.durable.sequence),
            durability: mode(report.settings.durability),
            snapshot: report.last_snapshot.map(|snapshot| SnapshotStatus {
                position: snapshot.at.sequence,
                age: snapshot.finished.elapsed().unwrap_or_default(),
            }),
            journal_bytes: report.usage.journal_bytes,
            snapshot_bytes: report.usage.snapshot_bytes,
            failed_snapshots: report.failed_snapshots,
            notice: self.0.trouble().map(|trouble| trouble.to_string().into()),
            ..HaStatus::default()
        }
    }

    fn hand_over(&self, _: Option<&str>) -> Result<(), Refusal> {
        let message = "this master is alone: there is none to hand over to";
        Err(Refusal::new(ErrorCode::UnavailableInCurrentMode, message))
    }
}

/// Returns the promise of replies with this setting.
pub(crate) fn mode(durability: Durability) -> DurabilityMode {
    match durability {
        Durability::Sync => DurabilityMode::Sync,
        Durability::Async(_) => DurabilityMode::Async,
    }
}
