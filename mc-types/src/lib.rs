#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod checksum;
mod endpoint;
mod error_code;
mod event_info;
mod extent;
mod future;
mod id;
mod key;
mod media;
mod remote_key;
mod size;
mod splitmix64;
mod time;

pub use checksum::Checksum;
pub use endpoint::{Endpoint, EndpointError, MAX_ENDPOINT_LEN, MAX_OTHER_ENDPOINTS};
pub use error_code::ErrorCode;
pub use event_info::{InfoTooLong, MAX_BLOCK_HASH, MAX_MODEL_NAME, MAX_TOKEN_IDS, StoreEventInfo};
pub use extent::Extent;
pub use future::BoxFuture;
pub use id::{
    ClientId, Epoch, Generation, JobId, LocalDiskId, ParseIdError, SegmentId, Sequence, TaskId,
    TransferId,
};
pub use key::{KeyError, KeyRef, MAX_KEY_LEN, ObjectKey};
pub use media::{MediaType, ParseMediaTypeError};
pub use remote_key::RemoteKey;
pub use size::{ByteSize, ParseByteSizeError};
pub use splitmix64::SplitMix64;
pub use time::Time;
