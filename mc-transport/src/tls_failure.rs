//! Why TLS did not come about, over TCP or inside QUIC.

use std::io;
use std::sync::Arc;

use mc_tls::TlsError;
use mc_tls::rustls::{self, AlertDescription, CertificateError};

/// Why there is no TLS with a peer that was reached.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFailure {
    /// This side has no settings for it.
    #[error("this side was given no certificates; set the authorities that it is to trust in")]
    NoSettings,
    /// The files of this side cannot be used.
    #[error("the files of this side cannot be used")]
    Settings(#[source] Arc<TlsError>),
    /// The peer does not speak TLS.
    #[error("the peer does not speak TLS; give it a certificate, or switch TLS off on both sides")]
    NotSpoken,
    /// The peer's certificate is not one to trust: of another authority, for another
    /// name, or not valid now.
    #[error("the peer's certificate is not to be trusted: {0}")]
    Untrusted(CertificateError),
    /// The peer refused, for the most part because of the certificate of this side: none
    /// where it wants one (`CertificateRequired`), one of an authority that it does not
    /// know (`UnknownCA`), one that is not valid now (`CertificateExpired`).
    #[error("the peer refused with {0:?}; look at this side's certificate, and at the peer's log")]
    Refused(AlertDescription),
    /// The protocol inside TLS is not this transport's.
    #[error("the peer speaks TLS, but another protocol inside")]
    OtherProtocol,
    /// The peer broke the protocol of TLS.
    #[error("the two sides did not come to speak TLS")]
    Broken(#[source] rustls::Error),
    /// The connection ended during the handshake.
    #[error("the connection ended during the handshake; does the peer speak TLS?")]
    Ended(#[source] Arc<io::Error>),
}

impl From<rustls::Error> for TlsFailure {
    fn from(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(reason) => Self::Untrusted(reason),
            rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)
            | rustls::Error::NoApplicationProtocol => Self::OtherProtocol,
            rustls::Error::AlertReceived(alert) => Self::Refused(alert),
            // Records begin otherwise.
            rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => {
                Self::NotSpoken
            }
            other => Self::Broken(other),
        }
    }
}

impl TlsFailure {
    /// Returns whether the same call may succeed later without a change of settings.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// The error of TLS, when that is why a stream failed.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        let said = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        Some(said.clone().into())
    }
}
