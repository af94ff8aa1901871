//! Why settings cannot be used.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use mc_tier::InvalidPlace;
use mc_transport::topology::TopologyError;
use thiserror::Error;

use super::MAX_FILE_LEN;
use crate::local_host::HostError;

/// Where settings were written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigSource {
    /// In a text that the program gave.
    Text,
    /// In a file.
    File(PathBuf),
    /// In variables of the environment.
    Environment,
}

impl ConfigSource {
    pub(super) fn file(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("the configuration"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment => f.write_str("the environment"),
        }
    }
}

/// Why a [`ClientConfig`](crate::ClientConfig) cannot be had, or not be used.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file, or the text, is larger than any configuration is.
    #[error("{source_name} is larger than {MAX_FILE_LEN} bytes; it can be no configuration")]
    TooLarge {
        /// The source that is too large.
        source_name: ConfigSource,
    },
    /// The file's name does not say what is in it.
    #[error("cannot tell what {} contains; name it something.json or something.toml", .path.display())]
    UnknownFormat { path: PathBuf },
    /// The text is not JSON, or not TOML, or not a table.
    #[error("{source_name} is not a table in {format}")]
    Syntax {
        /// The source that was read.
        source_name: ConfigSource,
        /// `JSON` or `TOML`.
        format: &'static str,
        /// Where and what is wrong.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// There is no such setting.
    #[error(
        "{source_name} has the setting {key:?}, which does not exist{}",
        nearest.map(|near| format!("; did you mean {near}?")).unwrap_or_default()
    )]
    UnknownKey {
        /// Where it is.
        source_name: ConfigSource,
        /// The key; the beginning, when it is long.
        key: String,
        /// The most similar key that exists, if one is similar.
        nearest: Option<&'static str>,
    },
    /// A setting is there twice, perhaps under two names.
    #[error("{source_name} has the setting {key} twice, as {first} and as {second}; leave one out")]
    Duplicate {
        /// Where it is.
        source_name: ConfigSource,
        key: &'static str,
        /// The name under which it came first.
        first: String,
        /// The name under which it came again.
        second: String,
    },
    /// A setting has a value that it cannot have.
    #[error("{source_name} has {name} = {value}; it must be {expected}")]
    BadValue {
        /// Where it is.
        source_name: ConfigSource,
        /// The key or the variable.
        name: String,
        /// The value; the beginning, when it is long.
        value: String,
        expected: &'static str,
    },
    /// A setting needs another one.
    #[error("the setting {key} needs {needs}: {reason}")]
    Missing {
        key: &'static str,
        /// The setting that is missing.
        needs: &'static str,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// Two settings contradict each other.
    #[error("the settings {first} and {second} do not go together: {reason}")]
    Conflict {
        /// One setting.
        first: &'static str,
        second: &'static str,
        /// The fault, and what to do.
        reason: &'static str,
    },
    /// The setting needs a part of this library that was left out when it was built.
    #[error("the setting {key} needs the feature {feature}; build mc-store with it")]
    NeedsFeature { key: &'static str, feature: &'static str },
    /// The name of this host has no address, or its port is none.
    #[error(
        "local_hostname is {host:?}, which is no name or address of this host, with or without a \
         port"
    )]
    Host { host: String, source: HostError },
    /// The files of certificates cannot be used.
    #[cfg(feature = "tls")]
    #[error(
        "the certificates of transfer_tls_ca, transfer_tls_cert and transfer_tls_key cannot be used"
    )]
    Certificates(#[from] mc_rpc::tls::TlsError),
    /// The setting `shared_tier` names no place.
    #[error("the setting shared_tier: {0}")]
    SharedTier(#[from] InvalidPlace),
    /// The network devices cannot be used.
    #[error("the network devices of the settings cannot be used")]
    Devices(#[from] TopologyError),
}
