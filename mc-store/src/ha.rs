//! A master whose metadata outlives it.

mod journal;
mod snapshots;

pub use journal::{JournalConfig, JournalReport, JournalStartError, JournalWatch};
pub(crate) use journal::{Recovered, RunningJournal, recover};
pub use snapshots::SnapshotPolicy;
