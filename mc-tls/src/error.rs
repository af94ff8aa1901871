//! Why there are no settings for TLS.

use core::fmt;
use std::path::PathBuf;

use rustls::pki_types::pem;
use thiserror::Error;

use crate::reload::FileError;

/// Why files do not make settings for TLS. Nothing of a private key is in it.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not PEM.
    #[error("{}: {problem}; write the file again", path.display())]
    Pem { path: PathBuf, problem: PemProblem },
    /// No certificate is in the file.
    #[error("no certificate is in {} (-----BEGIN CERTIFICATE-----)", path.display())]
    NoCertificate { path: PathBuf },
    /// No private key is in the file, or only an encrypted one.
    #[error(
        "no private key is in {}; it has to be PEM of PKCS#8, PKCS#1 or SEC 1 without a pass \
         phrase", path.display()
    )]
    NoKey { path: PathBuf },
    /// A block that is marked as a certificate is none.
    #[error("certificate {number} in {} cannot be used: {source}", path.display())]
    BadCertificate {
        path: PathBuf,
        /// The number of the certificate in its file, from 1.
        number: usize,
        source: rustls::Error,
    },
    /// The private key is of a kind that is not known here, or damaged.
    #[error("the private key in {} cannot be used: {source}", path.display())]
    BadKey { path: PathBuf, source: rustls::Error },
    /// The certificate is for another key.
    #[error("the private key in {} is not that of the certificate in {}", key.display(), cert.display())]
    KeyMismatch { cert: PathBuf, key: PathBuf },
    /// No certificate can be for a server of this name.
    #[error(
        "{name:?} is neither a DNS name nor an IP address; set the name in the server's certificate"
    )]
    ServerName { name: Box<str> },
}

/// A fault in a file in PEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PemProblem {
    /// A part has no end.
    Truncated,
    /// A line that should begin a part does not.
    Header,
    /// The text between the markers is not Base64.
    Base64,
    /// Another fault of the file.
    Other,
}

impl From<&pem::Error> for PemProblem {
    /// Leaves out the lines that the error repeats: they may be a key's.
    fn from(error: &pem::Error) -> Self {
        match error {
            pem::Error::MissingSectionEnd { .. } => Self::Truncated,
            pem::Error::IllegalSectionStart { .. } => Self::Header,
            pem::Error::Base64Decode(_) => Self::Base64,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for PemProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "a part has no END line",
            Self::Header => "a BEGIN line is malformed",
            Self::Base64 => "a part is not Base64",
            Self::Other => "it is not PEM",
        })
    }
}
