//! Why a conversion on request fails.

use std::sync::Arc;

use mc_c2c::{ConvertError, LoadError};
use mc_transport::MemoryError;
use mc_types::ErrorCode;
use thiserror::Error;

use crate::client::conversions::Failure;
use crate::error::{GetError, PutError, Unusable, from_unusable};

/// Why an object is not converted.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum C2cError {
    /// The master has clients convert nothing; the code is
    /// [`NotSupported`](ErrorCode::NotSupported).
    #[error(
        "the master gave this client no rules of conversions; start it with --enable_c2c and \
         --c2c_config_file"
    )]
    Disabled,
    /// No rule applies; the code is [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(
        "no rule applies to the key {key:?}; it needs a source model's name, and _k or _v at its end"
    )]
    NoRule { key: Box<str> },
    /// Several rules apply; the code is [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(
        "several rules apply to the key {key:?}; name one of the objects {targets:?} as the target"
    )]
    SeveralRules {
        key: Box<str>,
        /// The target keys of the rules.
        targets: Vec<String>,
    },
    /// The weights, or the shape of a model, cannot be had.
    #[error("the rule has no converter")]
    Load(#[source] Arc<LoadError>),
    /// An object cannot be read.
    #[error("cannot read {key:?}")]
    Read { key: Box<str>, source: GetError },
    /// The objects do not fit the rule or each other, or have elements that are not finite; the code
    /// is [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(transparent)]
    Convert(ConvertError),
    /// There is no memory for the result.
    #[error("no memory for the converted object")]
    Memory(#[source] Arc<MemoryError>),
    /// The result cannot be stored.
    #[error("cannot store {key:?}")]
    Put { key: Box<str>, source: PutError },
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

impl C2cError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Read { source, .. } => source.is_retryable(),
            Self::Put { source, .. } => source.is_retryable(),
            _ => false,
        }
    }

    /// The cause's number.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Disabled => ErrorCode::NotSupported,
            Self::NoRule { .. } | Self::SeveralRules { .. } | Self::Convert(_) => {
                ErrorCode::InvalidParams
            }
            Self::Load(_) | Self::Memory(_) => ErrorCode::Internal,
            Self::Read { source, .. } => source.code(),
            Self::Put { source, .. } => source.code(),
            Self::Closed => Unusable::CLOSED,
            Self::PureServer => Unusable::PURE_SERVER,
        }
    }
}

from_unusable!(C2cError);

impl From<Failure> for C2cError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Convert(error) => Self::Convert(error),
            Failure::Memory(error) => Self::Memory(Arc::new(error)),
        }
    }
}
