#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod abort_on_drop;
mod access_warnings;
mod error;
mod events;
mod grpc;
mod ha;
mod master;
mod ticker;

pub use error::MasterStartError;
pub use events::EventPublisher;
pub use ha::{
    ClusterConfig, HandOverError, JournalConfig, JournalReport, JournalStartError, JournalTrouble,
    JournalWatch, LeaderSeat, SnapshotPolicy, Standby, StandbyError,
};
pub use master::{Master, MasterBuilder};
pub use mc_meta::{MasterConfig, MasterReport};
pub use mc_rpc::{C2cSettings, ServerConfig, ServerWatch, StorageSettings};
pub use ticker::{Ticker, TickerProblem, TickerState, TickerWatch};
