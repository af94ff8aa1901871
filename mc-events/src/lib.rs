#![doc = include_str!("../README.md")]
#![cfg_attr(not(feature = "libzmq"), forbid(unsafe_code))]

mod config;
mod encoding;
mod error;
mod event;
#[cfg(feature = "libzmq")]
mod libzmq;
mod pack;
mod queue;
pub mod replay;
mod snapshot;
mod socket;
mod stats;
mod stream;
pub mod subscribe;
mod system;
#[cfg(test)]
mod tests;
mod zmq;

pub use config::{EndpointConfig, Limits, MAX_TOPIC, PublisherConfig};
pub use encoding::Encoding;
pub use error::{SocketBusy, StartError};
pub use event::{
    BlockRemovedEvent, BlockStoreEvent, BlockUpdateEvent, Event, KvEvent, MAX_EVENT_BYTES, Medium,
    RemovalReason, RemoveAllEvent, Replica,
};
#[cfg(feature = "libzmq")]
pub use libzmq::{LibzmqError, LibzmqSocket};
pub use mc_types::{InfoTooLong, MAX_BLOCK_HASH, MAX_MODEL_NAME, MAX_TOKEN_IDS, StoreEventInfo};
pub use pack::Packer;
pub use snapshot::{Snapshot, SnapshotPage};
pub use socket::{EventSocket, SocketStats};
pub use stats::EventStats;
pub use stream::Message;
pub use system::{BoundEndpoint, EventSystem, Parts, Published};
