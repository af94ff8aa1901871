//! A master whose metadata outlives it, alone or among others.

mod alone;
mod cluster;
mod journal;
mod keeping;
mod snapshots;
mod status;
mod term;

pub(crate) use alone::Alone;
pub use cluster::{ClusterConfig, LeaderSeat, Standby, StandbyError};
pub use journal::{JournalConfig, JournalReport, JournalStartError, JournalTrouble, JournalWatch};
pub(crate) use keeping::{Keeper, Keeping, Kept};
pub use mc_ha::SnapshotPolicy;
pub use term::HandOverError;
