//! Why a call fails.

use core::fmt;
use core::time::Duration;
use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use mc_types::ErrorCode;
use thiserror::Error;

use crate::client::{AddressError, CredentialError, ResolveError};
use crate::method::Method;

/// Longest message of a refusal, in bytes. What goes beyond is cut off.
pub const MAX_MESSAGE_LEN: usize = 1024;

/// A call that reached the master and was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message} [{code}]")]
pub struct Refusal {
    /// The cause.
    pub code: ErrorCode,
    /// What happened and what to do, in words.
    pub message: Box<str>,
}

impl Refusal {
    /// A refusal for this cause. A message longer than [`MAX_MESSAGE_LEN`] is cut.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE_LEN {
            let cut = (0..=MAX_MESSAGE_LEN).rev().find(|&at| message.is_char_boundary(at));
            message.truncate(cut.unwrap_or(0));
        }
        Self { code, message: message.into_boxed_str() }
    }

    /// Reads a refusal from the wire. A number that this version does not know
    /// becomes [`ErrorCode::Internal`] and is kept in the message.
    pub(crate) fn from_wire(number: i32, message: &[u8]) -> Self {
        let message = String::from_utf8_lossy(&message[..message.len().min(MAX_MESSAGE_LEN)]);
        match ErrorCode::from_code(number) {
            Some(code) => Self::new(code, message),
            None => Self::new(
                ErrorCode::Internal,
                format!("{message} (cause {number}, which this version does not know)"),
            ),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidParams, message)
    }

    /// Whether the same call may succeed later without intervention.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(
            self.code,
            ErrorCode::Full
                | ErrorCode::Fragmented
                | ErrorCode::AllLeased
                | ErrorCode::PutInProgress
                | ErrorCode::ReplicaIsNotReady
                | ErrorCode::ObjectHasLease
                | ErrorCode::ObjectHasReplicationTask
                | ErrorCode::TaskPendingLimitExceeded
                | ErrorCode::TenantNotEmpty
                | ErrorCode::Overloaded
        )
    }
}

macro_rules! refusal_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Refusal {
            fn from(error: $error) -> Self {
                Self::new(error.code(), error.to_string())
            }
        }
    )*};
}

refusal_from!(
    mc_meta::ScopeError,
    mc_meta::MountError,
    mc_meta::UnmountError,
    mc_meta::PutStartError,
    mc_meta::PutFinishError,
    mc_meta::GetError,
    mc_meta::PatternError,
    mc_meta::RemoveError,
    mc_meta::RenewError,
    mc_meta::DiskEvictError,
    mc_meta::TransferError,
    mc_meta::TransferFinishError,
    mc_meta::CreateTaskError,
    mc_meta::TaskError,
    mc_meta::DrainError,
    mc_meta::PolicyError,
    mc_meta::QuotaError,
    mc_meta::LocalDiskError,
    mc_meta::OffloadError,
    mc_meta::FoundError,
    mc_meta::PromotionStartError,
    mc_meta::PromotionError
);

/// Why a call has no answer.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The master refused the call.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No connection could be made; nothing was sent.
    #[error(
        "cannot reach the master at {addr}: {source}; check that it runs there and that the \
         address and port are right"
    )]
    Unreachable {
        /// The address as configured.
        addr: Arc<str>,
        /// The last cause.
        source: Arc<io::Error>,
    },
    /// The text is no address; nothing was sent.
    #[error("the master's address {addr:?} {reason}")]
    Address {
        /// The address as configured.
        addr: Arc<str>,
        /// What is wrong with it.
        reason: AddressError,
    },
    /// No resolver found a master; nothing was sent.
    #[error("cannot find the master {addr}: {source}")]
    Unresolved {
        /// The address as configured.
        addr: Arc<str>,
        /// What the resolver said.
        source: Arc<ResolveError>,
    },
    /// What the client would say of itself is no credential; nothing was sent.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The files for TLS cannot be used; nothing was sent.
    #[cfg(feature = "tls")]
    #[error(transparent)]
    TlsSettings(#[from] Arc<crate::tls::TlsError>),
    /// The two sides do not agree on TLS, or do not trust each other's certificates;
    /// no call was sent.
    #[cfg(feature = "tls")]
    #[error(
        "no encrypted connection to {addr}: {source}; check that the master speaks TLS there, \
         and which authorities and names both sides expect"
    )]
    TlsHandshake {
        /// The address as configured.
        addr: Arc<str>,
        /// What went wrong.
        source: Arc<io::Error>,
    },
    /// Other calls had all the connections for all of the time; nothing was sent.
    #[error("all {max} connections were busy for {after:?}; raise connections_max or call less")]
    NoFreeConnection {
        /// How many there may be.
        max: usize,
        /// How long was waited.
        after: Duration,
    },
    /// The peer at the address does not speak this protocol.
    #[error("{addr} does not answer as a master: {reason}")]
    NotAMaster {
        /// The address as configured.
        addr: Arc<str>,
        /// What it did instead.
        reason: HandshakeError,
    },
    /// The connection broke before the answer came. The call may have been
    /// executed.
    #[error(
        "lost the connection to the master at {addr}: {source}; the call may have been executed"
    )]
    ConnectionLost {
        /// The address as configured.
        addr: Arc<str>,
        /// What broke it.
        source: Arc<io::Error>,
    },
    /// No answer came in time. The call may have been executed.
    #[error("{method} had no answer from {addr} after {after:?}; the call may have been executed")]
    TimedOut {
        /// The address as configured.
        addr: Arc<str>,
        /// The call.
        method: Method,
        /// How long was waited.
        after: Duration,
    },
    /// The caller no longer wanted the answer, see
    /// [`blocking::in_place`](crate::blocking::in_place). The call may have been executed.
    #[error("{method} was given up before {addr} had answered; the call may have been executed")]
    GivenUp {
        /// The address as configured.
        addr: Arc<str>,
        /// The call.
        method: Method,
    },
    /// The answer is not what the protocol says.
    #[error("the answer of {addr} to {method} is malformed: {reason}")]
    Malformed {
        /// The address as configured.
        addr: Arc<str>,
        /// The call.
        method: Method,
        /// What is wrong with it.
        reason: MalformedReply,
    },
    /// The request is larger than the master accepts; nothing was sent.
    #[error("{method} would send {len} bytes, the master accepts {max}; send fewer at a time")]
    RequestTooLarge {
        /// The call.
        method: Method,
        /// The request's length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
}

impl RpcError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(refusal) => refusal.code,
            Self::Unreachable { .. }
            | Self::Unresolved { .. }
            | Self::ConnectionLost { .. }
            | Self::Malformed { .. } => ErrorCode::RpcFail,
            Self::NoFreeConnection { .. } => ErrorCode::Overloaded,
            #[cfg(feature = "tls")]
            Self::TlsSettings(_) => ErrorCode::InvalidParams,
            #[cfg(feature = "tls")]
            Self::TlsHandshake { .. } => ErrorCode::Unauthenticated,
            Self::NotAMaster { reason, .. } => reason.code(),
            Self::TimedOut { .. } => ErrorCode::RpcTimeout,
            Self::GivenUp { .. } => ErrorCode::Cancelled,
            Self::Address { .. } | Self::Credential(_) | Self::RequestTooLarge { .. } => {
                ErrorCode::InvalidParams
            }
        }
    }

    /// Whether the same call may succeed later without intervention. After
    /// [`ConnectionLost`](Self::ConnectionLost) and [`TimedOut`](Self::TimedOut)
    /// the first attempt may have been executed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.is_retryable(),
            Self::Unreachable { .. }
            | Self::Unresolved { .. }
            | Self::NoFreeConnection { .. }
            | Self::ConnectionLost { .. }
            | Self::TimedOut { .. } => true,
            #[cfg(feature = "tls")]
            Self::TlsSettings(_) | Self::TlsHandshake { .. } => false,
            Self::Address { .. }
            | Self::Credential(_)
            | Self::NotAMaster { .. }
            | Self::GivenUp { .. }
            | Self::Malformed { .. }
            | Self::RequestTooLarge { .. } => false,
        }
    }
}

/// What is wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MalformedReply {
    /// Its bytes are not a message.
    #[error(transparent)]
    Wire(#[from] crate::wire::WireError),
    /// It is not the message that the `.proto` declares.
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    /// A field is missing or out of range.
    #[error("the field {field} {problem}")]
    Field {
        /// The field's name in the `.proto`.
        field: &'static str,
        /// What is wrong with it.
        problem: Cow<'static, str>,
    },
    /// A batch answer has another number of items than the request.
    #[error("{items} items answer {asked}")]
    ItemCount {
        /// Items asked for.
        asked: usize,
        /// Items that came.
        items: usize,
    },
    /// The answer belongs to another method.
    #[error("it carries the method number {number}")]
    OtherMethod {
        /// That number.
        number: u16,
    },
}

/// Why the first bytes of a connection are not those of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The first bytes are another protocol's.
    #[error("the first bytes are {}, not this protocol's", .found.name())]
    OtherProtocol {
        /// Which one, as far as can be told.
        found: ForeignProtocol,
    },
    /// The other side speaks another version.
    #[error("it speaks version {theirs}, this side version {ours}; upgrade the older one")]
    Version {
        /// The other side's version.
        theirs: u16,
        /// This side's version.
        ours: u16,
    },
    /// The limits announced cannot work.
    #[error("it announces a limit of {value} for {name}")]
    Limit {
        /// Which limit.
        name: &'static str,
        /// Its value.
        value: u32,
    },
}

impl HandshakeError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Version { .. } => ErrorCode::InvalidVersion,
            Self::OtherProtocol { .. } | Self::Limit { .. } => ErrorCode::RpcFail,
        }
    }
}

/// Another protocol that a peer spoke on this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignProtocol {
    /// HTTP/2, as gRPC clients begin.
    Http2,
    /// HTTP/1.
    Http1,
    /// TLS.
    Tls,
    /// Something else.
    Unknown,
}

impl ForeignProtocol {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http2 => "HTTP/2",
            Self::Http1 => "HTTP/1",
            Self::Tls => "TLS",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for ForeignProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a server does not begin to listen.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// Something else listens there.
    #[error("{addr} is in use by another process; stop it or choose another port")]
    AddressInUse {
        /// The address asked for.
        addr: Box<str>,
        /// What the system said.
        source: io::Error,
    },
    /// The system does not let it.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address asked for.
        addr: Box<str>,
        /// What the system said.
        source: io::Error,
    },
    /// The settings do not make sense.
    #[error("{name} is {value}; {advice}")]
    Config {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What to choose instead.
        advice: &'static str,
    },
}

impl BindError {
    /// Whether the same bind may succeed later: the address may become free.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::AddressInUse { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_retried_can_be_over_the_wire() {
        use mc_meta::{
            GetError, PolicyError, PutStartError, RemoveError, TaskError, TenantId, TransferError,
        };
        let told = |refusal: Refusal| {
            let read = Refusal::from_wire(refusal.code.code(), refusal.message.as_bytes());
            assert_eq!(read, refusal);
            read.is_retryable()
        };
        for error in [
            RemoveError::NotFound,
            RemoveError::Leased { remaining: Duration::from_secs(1) },
            RemoveError::NotReady,
            RemoveError::InTransfer,
        ] {
            assert_eq!(told(error.into()), error.is_retryable(), "{error}");
        }
        for error in [GetError::NotFound, GetError::NotReady] {
            assert_eq!(told(error.into()), error.is_retryable(), "{error}");
        }
        for error in [
            PutStartError::AlreadyExists,
            PutStartError::InProgress { age: Duration::ZERO },
            PutStartError::OtherGroup,
            PutStartError::TooFewSegments { mounted: 0 },
            PutStartError::Full { len: 1 },
            PutStartError::Fragmented { len: 1, free: 1 },
            PutStartError::AllLeased { len: 1 },
        ] {
            assert_eq!(told(error.clone().into()), error.is_retryable(), "{error}");
        }
        for error in [TaskError::NotFound, TaskError::PendingLimit { limit: 1 }] {
            assert_eq!(told(error.into()), error.is_retryable(), "{error}");
        }
        let tenant = TenantId::DEFAULT;
        for error in [
            PolicyError::Off,
            PolicyError::NotRegistered { tenant: tenant.clone() },
            PolicyError::NotEmpty { tenant, charged: 1, objects: 1 },
        ] {
            assert_eq!(told(error.clone().into()), error.is_retryable(), "{error}");
        }
        for error in [TransferError::NotFound, TransferError::NotReady, TransferError::InTransfer] {
            assert_eq!(told(error.clone().into()), error.is_retryable(), "{error}");
        }
    }

    #[test]
    fn refusals_keep_unknown_causes_and_cut_long_messages() {
        let unknown = Refusal::from_wire(-31_337, b"odd");
        assert_eq!(unknown.code, ErrorCode::Internal);
        assert!(unknown.message.contains("-31337"), "{unknown}");
        let long = Refusal::new(ErrorCode::Full, "é".repeat(MAX_MESSAGE_LEN));
        assert!(long.message.len() <= MAX_MESSAGE_LEN);
        let torn = Refusal::from_wire(ErrorCode::Full.code(), &[0xff, b'x']);
        assert_eq!((torn.code, &*torn.message), (ErrorCode::Full, "\u{fffd}x"));
    }
}
