//! Why a file is not there.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::checksum::Sha256Sum;
use super::hf_config::HfConfigError;

/// A file cannot be fetched. Nothing is left under its name in the cache; what was received stays
/// beside it as far as the next attempt can continue it.
///
/// URLs are shown without credentials and query.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum FetchError {
    /// The URL is malformed.
    #[error("{url:?} is no URL: {cause}")]
    BadUrl {
        url: String,
        /// The fault of the value.
        cause: &'static str,
    },
    /// The URL has another scheme than http and https.
    #[error("{url} has the scheme {scheme}; use https or http, or give a file by its path")]
    Scheme { url: String, scheme: String },
    /// The name of a model is malformed.
    #[error(
        "{name:?} is no name of a model; it is OWNER/NAME, of letters, digits, '.', '_' and '-'"
    )]
    ModelName { name: String },
    /// There is no home directory for the cache.
    #[error("there is no home directory for the cache; set HOME or choose a directory")]
    NoHome,
    /// The token for the hub has characters that a header cannot have.
    #[error("the token for the hub (HF_TOKEN) has characters that no token has; check it")]
    Token,
    /// The file of trusted authorities cannot be used.
    #[error("{} has no certificate in PEM of an authority", path.display())]
    Authorities { path: PathBuf },
    /// The network may not be used, and the file is not in the cache.
    #[error(
        "{url} is not in the cache, and offline mode is on; turn it off (HF_HUB_OFFLINE) or put \
         the file at {}", path.display()
    )]
    Offline {
        url: String,
        /// Where it would be.
        path: PathBuf,
    },
    /// The server answers with another status than success.
    #[error("{url} is answered with status {status}{}", advice(*status))]
    Status {
        /// The URL, behind redirects.
        url: String,
        status: u16,
    },
    /// Redirects do not end.
    #[error("{url} is redirected more than {limit} times; check the URL")]
    Redirects {
        /// The URL at the beginning.
        url: String,
        /// How many redirects are followed.
        limit: usize,
    },
    /// A redirect leads from https to http.
    #[error(
        "{url} is redirected to {target}, which is not encrypted; use a URL that stays at https"
    )]
    Downgrade {
        /// The URL that is redirected.
        url: String,
        target: String,
    },
    /// The server cannot be reached or the connection breaks.
    #[error("{url} cannot be fetched; check the network and the server")]
    Network { url: String, source: Box<dyn StdError + Send + Sync> },
    /// The server sends nothing, or next to nothing.
    #[error("{url} stalls: the server sent next to nothing for {timeout:?}; try again later")]
    Stalled {
        url: String,
        /// The timeout: that of connecting, or that of idling.
        timeout: Duration,
    },
    /// The server does not say how long the file is, so that its end cannot be recognised.
    #[error("{url} has no length; give its SHA-256 or use another server")]
    NoLength { url: String },
    /// The server ends an answer before the length that it announced.
    #[error(
        "{url} ends after {received} of the {announced} bytes that the server announced; try again"
    )]
    Short {
        url: String,
        /// The file's length, as announced.
        announced: u64,
        /// Where the answer ended in the file.
        received: u64,
    },
    /// The server sends another part of the file than it was asked for, or of another length than
    /// it says.
    #[error("{url} was asked for the bytes from {start} and sent {answered:?}; check the server")]
    Range {
        url: String,
        /// The first byte that was asked for.
        start: u64,
        /// Its `Content-Range` and `Content-Length`.
        answered: String,
    },
    /// The server sends the file in an encoding that it was not asked for.
    #[error("{url} is encoded as {encoding:?}; use a server that sends the file as it is")]
    Encoding {
        url: String,
        /// Its `Content-Encoding`.
        encoding: String,
    },
    /// The file changed while it was fetched.
    #[error("{url} changed while it was fetched; try again")]
    Changed { url: String },
    /// The file has another checksum. It is deleted, unless it was in the cache before.
    #[error("{url} has the SHA-256 {actual}, and {expected} is expected; check both")]
    Checksum {
        url: String,
        /// The checksum that the caller gave.
        expected: Sha256Sum,
        actual: Sha256Sum,
    },
    /// The file is longer than allowed.
    #[error(
        "{url} has {at_least} bytes or more, and {limit} are allowed; raise the limit or check the URL"
    )]
    TooLarge {
        url: String,
        /// Its length, as far as it is known.
        at_least: u64,
        limit: u64,
    },
    /// The configuration of a model does not tell its shape.
    #[error("{url} does not tell the shape of the model's cache")]
    Config { url: String, source: HfConfigError },
    /// The disk of the cache is full. What was received is deleted.
    #[error("no space is left for {}; free some or choose another directory", path.display())]
    DiskFull { path: PathBuf, source: io::Error },
    /// A file of the cache cannot be read or written.
    #[error("{} cannot be read or written; check its directory", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// A thread cannot be started.
    #[error("cannot start a thread; raise the limit of processes")]
    Thread(#[source] io::Error),
}

impl FetchError {
    /// Returns whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500 | 502..=504),
            Self::Network { source, .. } => match source.downcast_ref() {
                // Certificates that are not accepted are invalid data.
                Some(ureq::Error::Io(error)) => error.kind() != io::ErrorKind::InvalidData,
                Some(ureq::Error::HostNotFound) => true,
                _ => false,
            },
            Self::Stalled { .. }
            | Self::Short { .. }
            | Self::Changed { .. }
            | Self::DiskFull { .. }
            | Self::Thread(_) => true,
            _ => false,
        }
    }

    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self + '_ {
        move |source| {
            let path = path.to_owned();
            match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    Self::DiskFull { path, source }
                }
                _ => Self::Io { path, source },
            }
        }
    }
}

const fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 => {
            "; it needs a permission: on the hub, set HF_TOKEN to a token that may read it"
        }
        404 | 410 => ": there is no such file; check the URL",
        408 | 429 | 500..=599 => "; the server has a problem, try again later",
        _ => "; check the URL",
    }
}
