#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod config;
mod encoding;
mod error;
mod event;
mod pack;
mod queue;
pub mod replay;
mod snapshot;
mod socket;
mod stats;
mod stream;
mod system;
#[cfg(test)]
mod tests;
mod zmq;

pub use config::{EndpointConfig, Limits, MAX_TOPIC, PublisherConfig};
pub use encoding::Encoding;
pub use error::{SocketBusy, StartError};
pub use event::{
    BlockRemovedEvent, BlockStoreEvent, BlockUpdateEvent, Event, KvEvent, MAX_EVENT_BYTES, Medium,
    RemoveAllEvent, Replica,
};
pub use mc_types::{InfoTooLong, MAX_BLOCK_HASH, MAX_MODEL_NAME, MAX_TOKEN_IDS, StoreEventInfo};
pub use pack::Packer;
pub use snapshot::{Snapshot, SnapshotPage};
pub use socket::{EventSocket, SocketStats};
pub use stats::EventStats;
pub use stream::Message;
pub use system::{BoundEndpoint, EventSystem, Parts, Published};
