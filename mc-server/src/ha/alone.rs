//! The status of a master without others.

use std::time::SystemTime;

use mc_ha::Durability;
use mc_rpc::{DurabilityMode, HaReport, HaRole, HaStatus, Refusal, SnapshotStatus};
use mc_types::ErrorCode;

use super::journal::JournalWatch;

/// The report of a master that has no masters beside it, with its journal if it has one.
#[derive(Debug)]
pub(crate) struct Alone(pub(crate) Option<JournalWatch>);

impl HaReport for Alone {
    fn ha_status(&self) -> HaStatus {
        let Some(journal) = &self.0 else { return of_this_program() };
        let report = journal.read();
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
            notice: journal.trouble().map(|trouble| trouble.to_string().into()),
            ..of_this_program()
        }
    }

    fn hand_over(&self, _: Option<&str>) -> Result<(), Refusal> {
        let message = "this master is alone: there is none to hand over to";
        Err(Refusal::new(ErrorCode::UnavailableInCurrentMode, message))
    }
}

/// Returns the part of a status that does not depend on the master's part: the program's version and
/// the time of its wall clock.
pub(crate) fn of_this_program() -> HaStatus {
    HaStatus {
        version: Some(env!("CARGO_PKG_VERSION").into()),
        clock: Some(SystemTime::now()),
        ..HaStatus::default()
    }
}

/// Returns the promise of replies with this setting.
pub(crate) fn mode(durability: Durability) -> DurabilityMode {
    match durability {
        Durability::Sync => DurabilityMode::Sync,
        Durability::Async(_) => DurabilityMode::Async,
    }
}
