//! Certificates and keys in PEM files.

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use webpki::{EndEntityCert, KeyUsage};

use crate::error::{PemProblem, TlsError};
use crate::reload::read_file;

/// Most bytes of one file.
const MAX_FILE_LEN: usize = 1 << 20;

/// The cryptography of every connection, whatever other providers a process has.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificates in a file: at least one.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read_file(path, MAX_FILE_LEN)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes);
    let certificates: Vec<_> = certificates
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Pem { path: path.into(), problem: PemProblem::from(&error) })?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: path.into() });
    }
    Ok(certificates)
}

/// The first private key in a file: PKCS#8, PKCS#1 or SEC 1, not encrypted.
fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read_file(path, MAX_FILE_LEN)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match &error {
        pem::Error::NoItemsFound => TlsError::NoKey { path: path.into() },
        other => TlsError::Pem { path: path.into(), problem: PemProblem::from(other) },
    })
}

/// The authorities in a file, each of which is trusted.
pub(crate) fn read_authorities(path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for (number, certificate) in (1..).zip(read_certificates(path)?) {
        roots.add(certificate).map_err(|source| TlsError::BadCertificate {
            path: path.into(),
            number,
            source,
        })?;
    }
    Ok(Arc::new(roots))
}

/// A certificate with its chain, and its key.
pub(crate) fn read_identity(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = read_certificates(cert)?;
    ParsedCertificate::try_from(&chain[0]).map_err(|source| TlsError::BadCertificate {
        path: cert.into(),
        number: 1,
        source,
    })?;
    let private = read_key(key)?;
    if let Some(problem) = untimely(&chain[0]) {
        tracing::warn!("peers will not accept the certificate in {}: {problem}", cert.display());
    }
    // Each file is good in itself; only together they may not be.
    let certified = CertifiedKey::from_der(chain, private, provider);
    certified.map(Arc::new).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::KeyMismatch { cert: cert.into(), key: key.into() }
        }
        source => TlsError::BadKey { path: key.into(), source },
    })
}

/// The end of a certificate's time in seconds since 1970; `None` for what is no certificate.
///
/// ```
/// let own = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
/// assert!(mc_tls::ends_at(own.cert.der()).is_some());
/// assert_eq!(mc_tls::ends_at(&[1, 2, 3].as_slice().into()), None);
/// ```
#[must_use]
pub fn ends_at(certificate: &CertificateDer<'_>) -> Option<u64> {
    // After the end of any, the latest that ASN.1 can write.
    let late = UnixTime::since_unix_epoch(Duration::from_secs(253_402_300_800));
    match time_error(certificate, late)? {
        webpki::Error::CertExpired { not_after, .. } => Some(not_after.as_secs()),
        _ => None,
    }
}

/// Checks a certificate at a time.
fn time_error(certificate: &CertificateDer<'_>, at: UnixTime) -> Option<webpki::Error> {
    let leaf = EndEntityCert::try_from(certificate).ok()?;
    // No authority is trusted here, so this always fails; the time is checked first.
    let (no_authorities, usage) = (&[], KeyUsage::server_auth());
    leaf.verify_for_usage(&[], no_authorities, &[], at, usage, None, None).err()
}

/// Fails when a certificate is not valid now.
fn untimely(certificate: &CertificateDer<'_>) -> Option<String> {
    let checked = time_error(certificate, UnixTime::now())?;
    let apart = |later: UnixTime, earlier: UnixTime| {
        Duration::from_secs(later.as_secs().saturating_sub(earlier.as_secs()))
    };
    match checked {
        webpki::Error::CertExpired { time, not_after } => {
            Some(format!("it expired {:?} ago", apart(time, not_after)))
        }
        webpki::Error::CertNotValidYet { time, not_before } => {
            Some(format!("it becomes valid in {:?}", apart(not_before, time)))
        }
        _ => None,
    }
}
