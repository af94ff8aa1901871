//! Why a registration, a connection or a transfer failed.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_types::{Endpoint, ErrorCode};

use mc_memory::Access;

/// Why memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The system has no randomness for a key that cannot be guessed.
    #[error("the system gave no random bytes for a remote key")]
    NoRandomness {
        /// The system's error.
        source: io::Error,
    },
    /// The memory is mapped for reading only, and peers were to write it.
    #[error("the memory is mapped for reading only; register it for reading")]
    ReadOnly,
    /// The network card cannot register the memory.
    #[error("the memory cannot be registered with an RDMA device")]
    Device {
        /// The error of the transport that drives the card, such as RDMA's `VerbsError`.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// This transport does not verify tickets.
    #[error("this transport does not verify tickets; register the memory under a plain key")]
    NoTickets,
    /// The transport does not copy through memory of the host, or not what peers write.
    #[error("this transport cannot serve staged memory; use TCP or QUIC")]
    NoStaging,
    /// The transport opens regions under keys of its own only.
    #[error("this transport opens no region under the key of an earlier process; register it anew")]
    NoReuse,
    /// Another region of this node has the key.
    #[error("a region of this node has the key already; register the memory anew")]
    KeyTaken,
    /// The transport was shut down.
    #[error("the transport was shut down; register with a running one")]
    Closed,
}

/// Why there is no link to a peer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The endpoint belongs to another transport.
    #[error("{endpoint} cannot be reached by the transport {scheme}")]
    WrongScheme {
        /// The scheme that this transport serves.
        scheme: &'static str,
        /// The endpoint asked for.
        endpoint: Endpoint,
    },
    /// The endpoint's address is not one that this transport can use.
    #[error("{endpoint} is not an address of the form {expected}")]
    BadAddress {
        /// The endpoint asked for.
        endpoint: Endpoint,
        /// The form that this transport takes.
        expected: &'static str,
    },
    /// No process answers there.
    #[error("{endpoint} cannot be reached; is the peer running there?")]
    Unreachable {
        /// The endpoint asked for.
        endpoint: Endpoint,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The peer took too long to connect or to greet.
    #[error("{endpoint} did not answer within {after:?}")]
    TimedOut {
        /// The endpoint asked for.
        endpoint: Endpoint,
        /// Its time limit.
        after: Duration,
    },
    /// Another service answers there, or a peer that requires TLS.
    #[error(
        "what answers at {endpoint} does not speak this transport's protocol, or speaks it in \
         TLS only"
    )]
    NotAPeer {
        /// The endpoint asked for.
        endpoint: Endpoint,
    },
    /// The peer speaks TLS only, and this side does not.
    #[error("{endpoint} speaks TLS only; switch TLS on at this side")]
    TlsRequired {
        /// The endpoint asked for.
        endpoint: Endpoint,
    },
    /// TLS did not come about.
    #[cfg(feature = "tls")]
    #[error("no TLS with {endpoint}")]
    Tls {
        /// The endpoint asked for.
        endpoint: Endpoint,
        /// Why.
        source: crate::tls_failure::TlsFailure,
    },
    /// The peer speaks another version of the protocol.
    #[error("{endpoint} speaks version {theirs} of the protocol, this side version {ours}")]
    VersionMismatch {
        /// The endpoint asked for.
        endpoint: Endpoint,
        /// Version of this side.
        ours: u16,
        /// Version of the peer.
        theirs: u16,
    },
    /// The peer has as many connections as it allows.
    #[error("{endpoint} has as many connections as it allows; try again later")]
    Busy {
        /// The endpoint asked for.
        endpoint: Endpoint,
    },
    /// Attempts failed too often just now; this one was not made.
    #[error(
        "{endpoint} could not be reached several times; the next attempt is due in {retry_in:?}"
    )]
    CircuitOpen {
        /// The endpoint asked for.
        endpoint: Endpoint,
        /// When an attempt will be made again.
        retry_in: Duration,
    },
    /// The peer does not let us in.
    #[error(
        "{endpoint} does not admit this process; does it run as a user that is allowed there, and know the secret?"
    )]
    NotAdmitted {
        /// The endpoint asked for.
        endpoint: Endpoint,
    },
    /// Another process answers there, or the peer runs as a user that is not trusted.
    #[error(
        "what answers at {endpoint} is not the peer that was asked for; is that on this host, and runs as a user that is allowed here?"
    )]
    Impostor {
        /// The endpoint asked for.
        endpoint: Endpoint,
    },
    /// This side's transport was shut down.
    #[error("the transport was shut down; connect with a running one")]
    Closed,
}

impl ConnectError {
    /// Returns whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Busy { .. }
            | Self::CircuitOpen { .. } => true,
            #[cfg(feature = "tls")]
            Self::Tls { source, .. } => source.is_retryable(),
            _ => false,
        }
    }

    /// Returns whether the failure says that the peer is gone, so that it counts for its
    /// [`Breaker`](crate::Breaker).
    pub(crate) fn speaks_of_the_peer(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::TimedOut { .. } | Self::NotAPeer { .. })
    }

    /// The cause as it travels between nodes.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::WrongScheme { .. } | Self::BadAddress { .. } => ErrorCode::InvalidParams,
            Self::VersionMismatch { .. } => ErrorCode::InvalidVersion,
            Self::Busy { .. } => ErrorCode::Overloaded,
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::NotAPeer { .. }
            | Self::TlsRequired { .. }
            | Self::CircuitOpen { .. }
            | Self::NotAdmitted { .. }
            | Self::Impostor { .. }
            | Self::Closed => ErrorCode::TransferFail,
            #[cfg(feature = "tls")]
            Self::Tls { .. } => ErrorCode::TransferFail,
        }
    }
}

/// Why one operation of a batch failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The operation contradicts itself; nothing was sent.
    #[error("the operation is not valid")]
    InvalidOperation(#[source] InvalidOperation),
    /// No region of the peer has this key: it was never given out, or withdrawn. Or the
    /// ticket is not one for this region and direction.
    #[error("the peer has no region with this key; ask for the object's place again")]
    KeyRefused,
    /// The grant of these bytes has ended: its time was over before they were moved.
    #[error("the grant for these bytes has ended; ask for the object's place again")]
    GrantEnded,
    /// The device that has the region's memory, such as a GPU, failed to copy the bytes.
    #[error("the device that has the peer's memory failed; the peer's log says why")]
    DeviceFailed,
    /// The region is not open for this kind of operation.
    #[error("the region is not open to {wanted:?}")]
    AccessDenied {
        /// The access that the operation needs.
        wanted: Access,
    },
    /// The extent leaves the region.
    #[error("{len} bytes at {offset} leave the region")]
    OutOfBounds {
        /// First byte of the extent.
        offset: u64,
        /// Bytes of the extent.
        len: u64,
    },
    /// One operation moves at most `max` bytes over this link.
    #[error("an operation of {len} bytes exceeds the limit of {max}; split it")]
    TooLarge {
        /// Bytes of the operation.
        len: u64,
        /// The smaller limit of the two sides.
        max: u64,
    },
    /// A batch of more operations than the link takes; none was carried out.
    #[error("a batch of {len} operations exceeds the limit of {max}; submit several")]
    BatchTooLarge {
        /// Operations of the batch.
        len: usize,
        /// Operations of the largest batch.
        max: usize,
    },
    /// This link, or the memory behind the region, cannot do that.
    #[error("this link cannot give {what}; use a read or a write")]
    Unsupported {
        /// The feature that it lacks.
        what: &'static str,
    },
    /// The link broke before the operation was answered; it may or may not have
    /// been carried out.
    #[error("the link to the peer was lost")]
    LinkLost {
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// No byte moved for too long; the link was closed.
    #[error("the peer made no progress for {after:?}; the link was given up")]
    TimedOut {
        /// The time that the peer had.
        after: Duration,
    },
    /// The peer said something that the protocol does not allow; the link was
    /// closed.
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[source] ProtocolViolation),
    /// The network card of this host or of the peer refused the operation. The source is the
    /// error of the transport that drives the card, such as RDMA's `WorkError`.
    #[error("the RDMA device refused the operation")]
    WorkFailed(#[source] Arc<dyn Error + Send + Sync>),
    /// The caller [cancelled](crate::Cancel) the read.
    #[error("the read was cancelled")]
    Cancelled,
    /// This side's transport was shut down.
    #[error("the transport was shut down")]
    Closed,
}

impl TransferError {
    /// Returns whether the same operation may succeed over a new link.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::LinkLost { .. } | Self::TimedOut { .. })
    }

    /// Returns whether bytes of a write that failed so may still arrive: it is not known how far it
    /// came. Its target has no other use until the peer has [fenced](crate::Link::fence)
    /// the link, or the write's grant has ended.
    #[must_use]
    pub fn leaves_late_writes(&self) -> bool {
        matches!(
            self,
            Self::LinkLost { .. } | Self::TimedOut { .. } | Self::Protocol(_) | Self::Closed
        )
    }

    /// The cause as it travels between nodes.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidOperation(_)
            | Self::TooLarge { .. }
            | Self::BatchTooLarge { .. }
            | Self::Unsupported { .. } => ErrorCode::InvalidParams,
            Self::KeyRefused
            | Self::GrantEnded
            | Self::DeviceFailed
            | Self::AccessDenied { .. }
            | Self::OutOfBounds { .. }
            | Self::LinkLost { .. }
            | Self::TimedOut { .. }
            | Self::Protocol(_)
            | Self::WorkFailed(_)
            | Self::Cancelled
            | Self::Closed => ErrorCode::TransferFail,
        }
    }
}

/// A contradiction in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOperation {
    /// The two sides differ in size.
    #[error("the local side has {local} bytes and the remote side {remote}")]
    LengthMismatch {
        /// Bytes of the local pieces.
        local: u64,
        /// Bytes of the remote extent.
        remote: u64,
    },
    /// A read into memory that this process may only read.
    #[error("the memory to be filled is mapped for reading only")]
    ReadOnly,
}

/// A violation of the protocol by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolViolation {
    /// A response to an operation that is not the oldest unanswered one.
    #[error("response {got} where {expected:?} was due")]
    WrongId {
        /// The oldest unanswered operation; none when all were answered.
        expected: Option<u32>,
        /// The operation that the response names.
        got: u32,
    },
    /// A response with another number of bytes than asked for.
    #[error("a response of {got} bytes where {expected} were due")]
    WrongLength {
        /// Bytes that the operation asked for.
        expected: u64,
        /// Bytes that the response announces.
        got: u64,
    },
    /// A write was called done before all of it was sent.
    #[error("write {id} was answered before it was sent")]
    EarlyAnswer {
        /// The operation that the response names.
        id: u32,
    },
    /// A response with a status that does not exist.
    #[error("unknown status {status}")]
    UnknownStatus {
        /// The status byte.
        status: u8,
    },
    /// The answers ended before every operation had one.
    #[error("the answers ended with {missing} operations unanswered")]
    EarlyEnd {
        /// Operations without an answer.
        missing: usize,
    },
    /// More than the answers that were due.
    #[error("bytes behind the last answer")]
    TrailingBytes,
    /// The peer called a well-formed request malformed.
    #[error("the peer could not parse a request")]
    RequestNotUnderstood,
    /// A field that must be zero is not.
    #[error("a reserved field is not zero")]
    ReservedNotZero,
    /// An answer with another number of descriptors than it has to bring.
    #[error("an answer with {got} descriptors where {expected} were due")]
    WrongDescriptors {
        /// Descriptors that the answer has to bring.
        expected: usize,
        /// Descriptors that came.
        got: usize,
    },
    /// The peer granted something else than it was asked for.
    #[error("the peer granted something else than it was asked for")]
    WrongGrant,
    /// The memory that the peer offers could be taken away under this process.
    #[error("the peer offers memory that is not safe to touch")]
    UnsafeMemory,
}
