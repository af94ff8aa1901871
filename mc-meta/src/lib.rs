#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod command;
mod config;
mod error;
mod segment;

pub use command::{
    ClientStatus, KeyInfo, KeyPage, ListCursor, MAX_PREFERRED_SEGMENTS, MAX_REPLICAS, MAX_SLICES,
    MasterReport, ObjectInfo, Pong, Placement, Placements, PutEnd, PutGrant, PutStart, ReplicaInfo,
    ReplicaList, ReplicaStatus, ReplicateConfig, Slice, Slices,
};
pub use config::{ConfigError, MasterConfig};
pub use error::{
    GetError, MountError, PutFinishError, PutStartError, RemoveError, UnmountError,
};
pub use segment::{MAX_SEGMENT_NAME_LEN, Segment, SegmentInfo, SegmentSpec};
