#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod apart;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "sled")]
mod directory;
pub mod election;
pub mod encoding;
#[cfg(feature = "etcd")]
pub mod etcd;
mod faulty;
mod identity;
mod journal;
mod memory;
mod order;
mod position;
mod recover;
pub mod replication;
mod snapshot;
mod writer;

pub use apart::Apart;
#[cfg(feature = "sled")]
pub use directory::DirectoryJournal;
pub use encoding::Batch;
pub use faulty::{Faults, FaultyJournal};
pub use identity::{HistoryId, Identity};
pub use journal::{
    DamagedBatch, JournalError, JournalUsage, MetadataJournal, SnapshotInfo, SnapshotWriter,
};
pub use memory::MemoryJournal;
pub use order::check_follows;
pub use position::Position;
pub use recover::{Damage, RecoverError, ReplayReport, Replica};
pub use snapshot::{
    SnapshotError, SnapshotPolicy, SnapshotSchedule, take_snapshot, take_snapshot_async,
};
pub use writer::{
    Durability, JournalProgress, JournalSink, JournalWriter, WriterSettings, WriterStartError,
    WriterState, WriterWatch,
};
