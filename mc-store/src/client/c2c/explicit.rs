//! Conversions that the application asks for.

use std::sync::Arc;

use mc_c2c::{ConvertError, KeyMatch, LoadError};
use mc_meta::ReplicateConfig;
use mc_transport::MemoryError;
use mc_types::ErrorCode;
use thiserror::Error;

use super::worker::Failure;
use crate::client::Client;
use crate::client::put::{Put, PutMode, PutOutcome};
use crate::client::read::{Item, Target};
use crate::error::{GetError, PutError, Unusable};

impl Client {
    /// Converts an object and stores the result under the key `out`, now. This is how a full
    /// projector is used, which needs `target`: the target model's own object of the same tokens.
    /// A simplified one has none.
    ///
    /// The rule is one that applies to the key `source`. When there are several, it is the one whose
    /// target key is `target`, or `out` without a target. [`docs/c2c.md`](https://docs.rs/mc-c2c)
    /// describes rules.
    ///
    /// # Errors
    /// [`C2cError`]; nothing is stored then.
    ///
    /// # Cancellation
    /// As of a [put](Client::put): a conversion goes on in the background, and its result is dropped.
    pub async fn convert(
        &self,
        source: &str,
        target: Option<&str>,
        out: &str,
    ) -> Result<PutOutcome, C2cError> {
        self.core.request()?;
        let conversions = Arc::clone(self.core.c2c.as_ref().ok_or(C2cError::Disabled)?);
        let KeyMatch { rule, part, .. } =
            choose(conversions.config.matching(source), source, target.unwrap_or(out))?;
        let keys: Vec<&str> = [Some(source), target].into_iter().flatten().collect();
        let mut items: Vec<Item<'_>> =
            keys.iter().map(|key| Item::new(key, None, None, Target::OWNED)).collect();
        self.core.get_all(&mut items).await;
        let mut values = Vec::with_capacity(items.len());
        for (item, key) in items.into_iter().zip(keys) {
            let refused = |source| C2cError::Read { key: key.into(), source };
            values.push(item.into_bytes().map_err(refused)?);
        }
        let pool = self.core.pool.clone();
        let work = move || {
            let converter = conversions.converter(rule).map_err(C2cError::Load)?;
            let objects = (&*values[0], values.get(1).map(|value| &**value));
            let value = conversions.compute(&converter, part, objects, &mut Vec::new(), &pool);
            Ok::<_, C2cError>(value?)
        };
        let environment = &self.core.settings.environment;
        let value = match environment.in_background(work).await {
            Some(Ok(value)) => value?,
            // The runtime ends, or the work panicked, which was reported.
            _ => return Err(C2cError::Closed),
        };
        let put = Put::new(out, value.whole());
        let config = ReplicateConfig::default();
        let outcomes = self.core.store_own(vec![put], &config, PutMode::Put).await;
        let outcome = outcomes.into_iter().next().expect("one outcome for each put");
        outcome.map_err(|source| C2cError::Put { key: out.into(), source })
    }
}

/// The rule of those that apply to `source` which makes `expected`, or the only one.
fn choose(mut found: Vec<KeyMatch>, source: &str, expected: &str) -> Result<KeyMatch, C2cError> {
    if let Some(at) = found.iter().position(|it| it.target_key == expected) {
        return Ok(found.swap_remove(at));
    }
    match found.pop() {
        None => Err(C2cError::NoRule { key: source.into() }),
        Some(only) if found.is_empty() => Ok(only),
        Some(last) => {
            found.push(last);
            let targets = found.into_iter().map(|it| it.target_key).collect();
            Err(C2cError::SeveralRules { key: source.into(), targets })
        }
    }
}

/// Why an object is not converted.
#[derive(Clone, Debug, Error)]
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
    NoRule {
        /// The key.
        key: Box<str>,
    },
    /// Several rules apply; the code is [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(
        "several rules apply to the key {key:?}; name one of the objects {targets:?} as the target"
    )]
    SeveralRules {
        /// The key.
        key: Box<str>,
        /// The target keys of the rules.
        targets: Vec<String>,
    },
    /// The weights, or the shape of a model, cannot be had.
    #[error("the rule has no converter")]
    Load(#[source] Arc<LoadError>),
    /// An object cannot be read.
    #[error("cannot read {key:?}")]
    Read {
        /// Its key.
        key: Box<str>,
        /// The cause.
        source: GetError,
    },
    /// The objects do not fit the rule or each other, or have elements that are not finite; the code
    /// is [`InvalidParams`](ErrorCode::InvalidParams).
    #[error(transparent)]
    Convert(ConvertError),
    /// There is no memory for the result.
    #[error("no memory for the converted object")]
    Memory(#[source] Arc<MemoryError>),
    /// The result cannot be stored.
    #[error("cannot store {key:?}")]
    Put {
        /// Its key.
        key: Box<str>,
        /// The cause.
        source: PutError,
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
            Self::Closed => GetError::Closed.code(),
            Self::PureServer => GetError::PureServer.code(),
        }
    }
}

impl From<Unusable> for C2cError {
    fn from(why: Unusable) -> Self {
        match why {
            Unusable::Closed => Self::Closed,
            Unusable::PureServer => Self::PureServer,
        }
    }
}

impl From<Failure> for C2cError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Convert(error) => Self::Convert(error),
            Failure::Memory(error) => Self::Memory(Arc::new(error)),
        }
    }
}
