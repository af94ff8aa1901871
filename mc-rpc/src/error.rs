//! Why a call fails.

use core::time::Duration;
use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use mc_tls::FileError;
use mc_types::ErrorCode;
use thiserror::Error;

use crate::frame::MAX_TOKEN_LEN;
use crate::frame::preface::HandshakeError;
use crate::method::Method;
use crate::refusal::Refusal;

/// Why a call has no answer.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
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
        source: Arc<io::Error>,
    },
    /// The text is no address; nothing was sent.
    #[error("the master's address {reason}")]
    Address {
        /// The address as configured.
        addr: Arc<str>,
        /// The fault of the address.
        reason: AddressError,
    },
    /// No resolver found a master; nothing was sent.
    #[error("cannot find the master {addr}: {source}")]
    Unresolved {
        /// The address as configured.
        addr: Arc<str>,
        source: Arc<ResolveError>,
    },
    /// A resolver cannot find a master before its settings are changed; nothing was sent.
    #[error("cannot find the master {addr}: {source}")]
    Unresolvable {
        /// The address as configured.
        addr: Arc<str>,
        source: Arc<ResolveError>,
    },
    /// The client's credential is invalid; nothing was sent.
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
        /// The fault of its answer.
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
        source: Arc<io::Error>,
    },
    /// No answer came in time. The call may have been executed.
    #[error("{method} had no answer from {addr} after {after:?}; the call may have been executed")]
    TimedOut {
        /// The address as configured.
        addr: Arc<str>,
        method: Method,
        /// How long was waited.
        after: Duration,
    },
    /// The caller no longer wanted the answer, see
    /// [`blocking::in_place`](crate::blocking::in_place). The call may have been executed.
    #[error("the caller of {method} did not wait for {addr}; the call may have been executed")]
    GivenUp {
        /// The address as configured.
        addr: Arc<str>,
        method: Method,
    },
    /// The answer is not what the protocol says.
    #[error("the answer of {addr} to {method} is malformed: {reason}")]
    Malformed {
        /// The address as configured.
        addr: Arc<str>,
        method: Method,
        /// The fault of the answer.
        reason: MalformedReply,
    },
    /// The request is larger than the master accepts; nothing was sent.
    #[error("{method} would send {len} bytes, the master accepts {max}; send fewer at a time")]
    RequestTooLarge {
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
            Self::Address { .. }
            | Self::Unresolvable { .. }
            | Self::Credential(_)
            | Self::RequestTooLarge { .. } => ErrorCode::InvalidParams,
        }
    }

    /// Returns whether the same call may succeed later without intervention. After
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
            | Self::Unresolvable { .. }
            | Self::Credential(_)
            | Self::NotAMaster { .. }
            | Self::GivenUp { .. }
            | Self::Malformed { .. }
            | Self::RequestTooLarge { .. } => false,
        }
    }
}

/// The error of an answer that is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MalformedReply {
    /// Its bytes are not a message.
    #[error(transparent)]
    Wire(#[from] crate::wire::WireError),
    /// The bytes are not the message that the `.proto` declares.
    #[error(transparent)]
    Message(#[from] prost::DecodeError),
    /// A field is missing or out of range.
    #[error("the field {field} {problem}")]
    Field {
        /// The field's name in the `.proto`.
        field: &'static str,
        /// The fault of the field.
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

/// Why a server does not begin to listen.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum BindError {
    /// Something else listens there.
    #[error("{addr} is in use by another process; stop it or choose another port")]
    AddressInUse {
        /// The address asked for.
        addr: Box<str>,
        source: io::Error,
    },
    /// The system does not let it.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address asked for.
        addr: Box<str>,
        source: io::Error,
    },
    /// The settings do not make sense.
    #[error("{name} is {value}; {advice}")]
    Config {
        name: &'static str,
        value: u64,
        /// The advice to the operator.
        advice: &'static str,
    },
}

impl BindError {
    /// Returns whether the same bind may succeed later: the address may become free.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::AddressInUse { .. })
    }
}

/// Why a text is no master's address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum AddressError {
    /// The address is empty, or an element of its list is.
    #[error("names no master; write host:port, unix:/path, or several with commas in between")]
    Empty,
    /// There is no port.
    #[error("{element:?} has no port; write host:port")]
    NoPort {
        /// The element of the list.
        element: Box<str>,
    },
    /// There is no host.
    #[error("{element:?} has no host; write host:port")]
    NoHost {
        /// The element of the list.
        element: Box<str>,
    },
    /// The port is no number from 1 to 65535.
    #[error("{element:?} has a bad port; ports are 1 to 65535")]
    BadPort {
        /// The element of the list.
        element: Box<str>,
    },
    /// The host contains a colon and no brackets around it.
    #[error("{element:?} has a bad host; write an IPv6 address as [::1]:port")]
    BadHost {
        /// The element of the list.
        element: Box<str>,
    },
    /// The path of a Unix socket is relative or too long.
    #[error("{element:?} has a bad path; a socket's path begins with / and has at most 107 bytes")]
    BadPath {
        /// The element of the list.
        element: Box<str>,
    },
    /// The address begins with a scheme without a resolver.
    #[error(
        "begins with {scheme}://, which nothing here resolves; give the client a resolver for it \
         (ClientConfig::resolver), or write host:port"
    )]
    UnknownScheme { scheme: Box<str> },
    /// There are too many addresses, or the text is too long.
    #[error("is too long: at most 64 addresses and 4096 bytes are accepted")]
    TooLong,
}

/// Why a target could not be resolved.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct ResolveError {
    message: Box<str>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    is_lasting: bool,
}

impl ResolveError {
    /// A failure in words: what happened and what to do.
    #[must_use]
    pub fn new(message: impl Into<Box<str>>) -> Self {
        Self { message: message.into(), source: None, is_lasting: false }
    }

    /// The same failure, which lasts until the settings are changed: calls fail at once, with
    /// [`RpcError::Unresolvable`].
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.is_lasting = true;
        self
    }

    pub(crate) const fn is_lasting(&self) -> bool {
        self.is_lasting
    }

    /// The same with what caused it.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }
}

/// The error of a client's credentials; nothing was sent.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum CredentialError {
    /// The token is empty.
    #[error("the token is empty; leave it out, or give one")]
    EmptyToken,
    /// The token is too long.
    #[error("the token has {len} bytes; at most {MAX_TOKEN_LEN} are accepted")]
    LongToken { len: usize },
    /// The token contains a character that no token has.
    #[error("the token's byte {at} is no visible ASCII character")]
    BadToken {
        /// Where, counted from 0.
        at: usize,
    },
    /// The token's file cannot be read.
    #[error("no token: {0}")]
    File(#[from] Arc<FileError>),
    /// The tenant's name is none.
    #[error("{tenant:?} is no tenant's name: {reason}")]
    BadTenant {
        tenant: Box<str>,
        /// The fault of the tenant's name.
        reason: mc_meta::TenantIdError,
    },
}
