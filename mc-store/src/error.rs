//! Why a call of the client fails: one enum for each family of calls.

mod disk;
mod keep;
mod segment;

use std::io;
use std::time::Duration;

use mc_rpc::{Refusal, RpcError};
use mc_tier::TierError;
use mc_transport::{ConnectError, MemoryError, RegisterError, TransferError};
use mc_types::{Endpoint, ErrorCode, InfoTooLong, KeyError};
use thiserror::Error;

pub use disk::LocalDiskOpenError;
pub use keep::KeepError;
pub(crate) use segment::MAX_SEGMENTS;
pub use segment::SegmentError;

/// Why bytes did not move to or from a peer.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum PeerError {
    /// There is no connection to the peer.
    #[error("no connection to the peer that holds the bytes")]
    Connect(#[from] ConnectError),
    /// The peer, or the connection to it, failed during the transfer.
    #[error("the transfer with {endpoint} failed")]
    Transfer { endpoint: Endpoint, source: TransferError },
    /// The peer let a whole time limit pass without an answer a moment ago, and was not asked
    /// again: this call would have waited as long.
    #[error(
        "{endpoint} let a whole time limit pass without an answer {since:?} ago; it is asked again in \
         {retry_in:?}"
    )]
    Silent {
        endpoint: Endpoint,
        /// How long ago it was found silent.
        since: Duration,
        /// When it is asked again.
        retry_in: Duration,
    },
}

impl PeerError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        ErrorCode::TransferFail
    }

    /// Whether the peer gave no answer, and not one that says no.
    pub(crate) const fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Connect(
                ConnectError::Unreachable { .. }
                    | ConnectError::TimedOut { .. }
                    | ConnectError::CircuitOpen { .. }
            ) | Self::Transfer {
                source: TransferError::LinkLost { .. } | TransferError::TimedOut { .. },
                ..
            } | Self::Silent { .. }
        )
    }

    /// Whether a peer answered that these bytes cannot be moved, as it would to the next caller.
    pub(crate) const fn is_refusal(&self) -> bool {
        use TransferError::{AccessDenied, DeviceFailed, KeyRefused, OutOfBounds};
        matches!(
            self,
            Self::Transfer {
                source: KeyRefused | AccessDenied { .. } | OutOfBounds { .. } | DeviceFailed,
                ..
            }
        )
    }

    /// Whether the peer's device could not read the bytes, or an object is missing on its disk.
    pub(crate) const fn is_of_device(&self) -> bool {
        matches!(self, Self::Transfer { source: TransferError::DeviceFailed, .. })
    }

    /// Whether a whole time limit passed without an answer: the next caller would wait as long.
    pub(crate) const fn is_whole_time_limit(&self) -> bool {
        matches!(
            self,
            Self::Connect(ConnectError::TimedOut { .. })
                | Self::Transfer { source: TransferError::TimedOut { .. }, .. }
        )
    }
}

/// Why a client makes no requests: what the variants `Closed` and `PureServer` of the
/// families below have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    Closed,
    PureServer,
}

impl Unusable {
    pub(crate) const CLOSED: ErrorCode = ErrorCode::UnavailableInCurrentStatus;
    pub(crate) const PURE_SERVER: ErrorCode = ErrorCode::InvalidParams;
}

macro_rules! from_unusable {
    ($($error:ident),*) => {$(
        impl From<Unusable> for $error {
            fn from(why: Unusable) -> Self {
                match why {
                    Unusable::Closed => Self::Closed,
                    Unusable::PureServer => Self::PureServer,
                }
            }
        }
    )*};
}

#[cfg(feature = "c2c")]
pub(crate) use from_unusable;
from_unusable!(PutError, GetError, CallError);

/// Why an object is not stored.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum PutError {
    /// The key is not one.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The event info is too long; the code is [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(transparent)]
    EventInfo(#[from] InfoTooLong),
    /// The master refused, after whatever waiting its cause allows.
    #[error(transparent)]
    Refused(Refusal),
    /// The master could not be asked.
    #[error(transparent)]
    Rpc(RpcError),
    /// The bytes could not be written to a node that the master named, nor to
    /// others that were tried instead.
    #[error("the object's bytes could not be written")]
    Peer(#[from] PeerError),
    /// The caller's memory does not have the bytes any more that it had at the call. Nothing is
    /// stored; the code is [`ChecksumMismatch`](ErrorCode::ChecksumMismatch).
    #[error(
        "the memory changed during the put, so nothing is stored; change it only after the put has \
         ended"
    )]
    MemoryChanged,
    /// The put took longer than its time limit
    /// ([`put_timeout`](crate::ClientBuilder::put_timeout)), and does not read the caller's memory any
    /// more. It stores nothing, unless only the master's answer to its end is missing; the code is
    /// [`RpcTimeout`](ErrorCode::RpcTimeout).
    #[error(
        "the put reached its time limit of {after:?}; put less at a time or raise \
         put_timeout_ms"
    )]
    TimedOut {
        /// The time limit, with the time that the put may wait for room.
        after: Duration,
    },
    /// The client was [shut down](crate::Client::shutdown); the code is
    /// [`UnavailableInCurrentStatus`](ErrorCode::UnavailableInCurrentStatus).
    #[error("this client is closed; connect another one")]
    Closed,
    /// The client is a pure server; the code is [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(
        "this client is a pure server, which makes no requests; give it a local buffer \
         (local_buffer_size) of more than 0 bytes"
    )]
    PureServer,
}

impl PutError {
    /// The cause's number.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Key(_) => ErrorCode::InvalidKey,
            Self::EventInfo(_) => ErrorCode::InvalidParams,
            Self::Closed => Unusable::CLOSED,
            Self::PureServer => Unusable::PURE_SERVER,
            Self::Refused(refusal) => refusal.code,
            Self::Rpc(error) => error.code(),
            Self::Peer(error) => error.code(),
            Self::MemoryChanged => ErrorCode::ChecksumMismatch,
            Self::TimedOut { .. } => ErrorCode::RpcTimeout,
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Key(_) | Self::EventInfo(_) | Self::Closed | Self::PureServer => false,
            Self::MemoryChanged => false,
            Self::Refused(refusal) => refusal.is_retryable(),
            Self::Rpc(error) => error.is_retryable(),
            Self::Peer(_) | Self::TimedOut { .. } => true,
        }
    }
}

impl From<RpcError> for PutError {
    fn from(error: RpcError) -> Self {
        match error {
            RpcError::Refused(refusal) => Self::Refused(refusal),
            error => Self::Rpc(error),
        }
    }
}

/// Why an object is not read.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum GetError {
    /// The key is not one.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No object has this key.
    #[error("no such object")]
    NotFound,
    /// Its put is not finished, or every node that holds it is away.
    #[error("no replica can be read now: it is being written, or its nodes are away")]
    NotReady,
    /// The target is shorter than the object.
    #[error("the object has {needed} bytes, the target {given}; give it at least as many")]
    BufferTooSmall {
        /// The object's length in bytes.
        needed: u64,
        /// The target's length in bytes.
        given: u64,
    },
    /// The range that is asked for is none, or not one of this object.
    #[error("no range from {start} to {end}: the object has {len} bytes")]
    OutOfRange {
        /// The first byte of the range.
        start: u64,
        /// The byte behind its last.
        end: u64,
        /// The object's length in bytes.
        len: u64,
    },
    /// The target cannot be written: it is memory of another process, mapped for reading.
    #[error("the target's memory is mapped for reading only; read into other memory")]
    TargetReadOnly,
    /// The object went away while it was read: its lease ran out before the read
    /// finished, and could not be renewed.
    #[error(
        "the lease ran out before the read finished; read less at a time or lengthen the lease"
    )]
    LeaseExpired,
    /// The object is of another put than the one that was asked for, which is gone; the code is
    /// [`LeaseExpired`](ErrorCode::LeaseExpired).
    #[error("the object was replaced by another put; look it up again and read that one")]
    Replaced,
    /// No replica has the bytes that were put.
    #[error("the checksum does not match in any replica; the last one read was from {endpoint}")]
    ChecksumMismatch {
        /// Where the bytes came from.
        endpoint: Endpoint,
    },
    /// No replica could be read.
    #[error("no replica of the object could be read")]
    Peer(#[from] PeerError),
    /// The object is in storage below memory only, which could not be read.
    #[error("the object is on disk only, and could not be read")]
    Tier(#[source] std::sync::Arc<TierError>),
    /// The object is in storage below memory only, which gives no answer now: for an application that
    /// computes what it does not find, it is missing; the code is
    /// [`ReplicaIsNotReady`](ErrorCode::ReplicaIsNotReady).
    #[error(
        "the object is on disk only, and that gave no answer within {limit:?}, or is left alone for a \
         while because it gave others none; for slow media there are own_disk_timeout_ms, \
         peer_disk_timeout_ms and shared_tier_timeout_ms"
    )]
    TierTimedOut {
        /// The time limit of a read there.
        limit: Duration,
    },
    /// There is no memory for the object.
    #[error("no memory to read the object into")]
    Memory(#[source] std::sync::Arc<MemoryError>),
    /// The master refused or could not be asked.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The client was [shut down](crate::Client::shutdown); the code is
    /// [`UnavailableInCurrentStatus`](ErrorCode::UnavailableInCurrentStatus).
    #[error("this client is closed; connect another one")]
    Closed,
    /// The client is a pure server; the code is [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(
        "this client is a pure server, which makes no requests; give it a local buffer \
         (local_buffer_size) of more than 0 bytes"
    )]
    PureServer,
}

impl GetError {
    /// The cause's number.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Key(_) => ErrorCode::InvalidKey,
            Self::Closed => Unusable::CLOSED,
            Self::PureServer => Unusable::PURE_SERVER,
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::NotReady | Self::TierTimedOut { .. } => ErrorCode::ReplicaIsNotReady,
            Self::BufferTooSmall { .. } | Self::OutOfRange { .. } | Self::TargetReadOnly => {
                ErrorCode::InvalidParams
            }
            Self::LeaseExpired | Self::Replaced => ErrorCode::LeaseExpired,
            Self::ChecksumMismatch { .. } => ErrorCode::ChecksumMismatch,
            Self::Peer(error) => error.code(),
            Self::Tier(_) => ErrorCode::FileReadFail,
            Self::Memory(_) => ErrorCode::Internal,
            Self::Rpc(error) => error.code(),
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NotReady | Self::TierTimedOut { .. } | Self::LeaseExpired | Self::Peer(_) => true,
            Self::Tier(error) => error.is_retryable(),
            Self::Rpc(error) => error.is_retryable(),
            _ => false,
        }
    }

    pub(crate) fn refused(refusal: Refusal) -> Self {
        match refusal.code {
            ErrorCode::ObjectNotFound => Self::NotFound,
            ErrorCode::ReplicaIsNotReady => Self::NotReady,
            _ => Self::Rpc(RpcError::Refused(refusal)),
        }
    }
}

/// Why a call that moves no bytes fails.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The key is not one.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The master refused or could not be asked.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The client was [shut down](crate::Client::shutdown); the code is
    /// [`UnavailableInCurrentStatus`](ErrorCode::UnavailableInCurrentStatus).
    #[error("this client is closed; connect another one")]
    Closed,
    /// The client is a pure server; the code is [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(
        "this client is a pure server, which makes no requests; give it a local buffer \
         (local_buffer_size) of more than 0 bytes"
    )]
    PureServer,
}

impl CallError {
    /// The cause's number.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Key(_) => ErrorCode::InvalidKey,
            Self::Closed => Unusable::CLOSED,
            Self::PureServer => Unusable::PURE_SERVER,
            Self::Rpc(error) => error.code(),
        }
    }

    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Key(_) | Self::Closed | Self::PureServer => false,
            Self::Rpc(error) => error.is_retryable(),
        }
    }
}

impl From<SegmentError> for StartError {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::Memory { size, source } => Self::Memory { size, source },
            SegmentError::Register(error) => Self::Register(error),
            SegmentError::Rpc(error) => Self::Master(error),
            SegmentError::NoRandomness(error) => Self::NoRandomness(error),
            SegmentError::Thread(error) => Self::Thread(error),
            error => Self::Segment(error),
        }
    }
}

/// Why a client does not start.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum StartError {
    /// The builder was not told where the master is.
    #[error("no master given; name one as host:port")]
    NoMaster,
    /// The master is to be found in etcd, and this build cannot do that.
    #[cfg(not(feature = "etcd"))]
    #[error(
        "the master {address} is found in etcd, which this build cannot ask; build mc-store with \
         the feature \"etcd\", or name the masters as host:port;host:port"
    )]
    NeedsEtcd {
        /// The address as configured.
        address: Box<str>,
    },
    /// A label of the metrics has a name that Prometheus does not take.
    #[error(
        "{name:?} cannot be a label of metrics; use letters, digits and underscores, with no \
         digit first and no two underscores"
    )]
    BadLabel { name: Box<str> },
    /// The settings cannot be used.
    #[cfg(feature = "config")]
    #[error(transparent)]
    Config(#[from] crate::ConfigError),
    /// The client would neither contribute memory nor make requests.
    #[error(
        "the segment and the local buffer have 0 bytes, and no segment can be mounted later, so \
         the client would do nothing; give one of them a size, or an address to listen at"
    )]
    NoRole,
    /// The keys of what is encrypted below memory cannot be used.
    #[cfg(feature = "encryption")]
    #[error(transparent)]
    TierKeys(#[from] mc_tier::KeysError),
    /// The program ends.
    #[error("the program ends")]
    Ending,
    /// The client's local disk cannot be used.
    #[error("the local disk cannot be used")]
    Disk(#[from] LocalDiskOpenError),
    /// The master cannot be reached or refused the segment.
    #[error(transparent)]
    Master(#[from] RpcError),
    /// The data port cannot be opened.
    #[error(transparent)]
    Transport(#[from] mc_transport::NodeError),
    /// The segment's memory cannot be had.
    #[error("cannot take memory for the segment of {size}; contribute less")]
    Memory {
        /// The size asked for.
        size: mc_types::ByteSize,
        source: MemoryError,
    },
    /// The memory for values that the client reads or keeps cannot be had.
    #[error(
        "cannot take {size} for values that are read; make the local buffer or the hot cache smaller"
    )]
    LocalBuffer {
        /// The size asked for.
        size: mc_types::ByteSize,
        source: MemoryError,
    },
    /// The segment cannot be opened to peers.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The segment cannot be kept for the next process.
    #[error(transparent)]
    Keep(#[from] KeepError),
    /// The segment makes no sense.
    #[error(transparent)]
    Segment(SegmentError),
    /// The port for pages cannot be opened.
    #[cfg(feature = "http")]
    #[error(transparent)]
    Http(#[from] mc_http::BindError),
    /// No address of this host can be told to peers.
    #[error("cannot tell which address of this host peers should use; name it")]
    NoAddress { source: io::Error },
    /// The system has no randomness for an identity.
    #[error("the system gave no random bytes for an identity")]
    NoRandomness(#[source] io::Error),
    /// No thread for the heartbeat.
    #[error("cannot start the heartbeat's thread")]
    Thread(#[source] io::Error),
    /// The caller of a blocking client cancelled the call; see
    /// [`connect_blocking_unless`](crate::ClientBuilder::connect_blocking_unless).
    #[error(transparent)]
    GivenUp(#[from] GivenUp),
    /// No runtime for a blocking client.
    #[error("cannot start the runtime of a blocking client")]
    Runtime(#[source] io::Error),
}

/// The caller did not wait for a future's end; see [`Client::block_on_unless`](crate::blocking::Client::block_on_unless).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the caller stopped waiting; the operation may be carried out all the same")]
pub struct GivenUp;
