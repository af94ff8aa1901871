//! The server's side.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    NoClientAuth, NoServerSessionStorage, ServerSessionMemoryCache, StoresServerSessions,
    WebPkiClientVerifier,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ServerConfig, ServerConnection};
use webpki::EndEntityCert;

use crate::error::TlsError;
use crate::identity::{provider, read_authorities, read_identity};
use crate::protocol::Protocol;
use crate::reload::{Reload, Reloading};

/// Sessions that clients may resume, until others take their place.
const MAX_SESSIONS: usize = 256;

/// Most names that count of one certificate.
const MAX_NAMES: usize = 32;

/// Longest of them, in bytes.
const MAX_NAME_LEN: usize = 256;

/// Whether a client needs a certificate where authorities for them are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientAuth {
    /// Without one there is no connection.
    #[default]
    Required,
    /// A client may come without a certificate, and show a token instead. One that it shows has to
    /// be good.
    Optional,
}

/// The files of a server, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The server's certificate, followed by those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities whose certificates clients may show. None: no client is asked.
    pub client_ca: Option<PathBuf>,
    /// Whether a client has to show one.
    pub client_auth: ClientAuth,
}

impl TlsFiles {
    /// These, and no certificates of clients.
    #[must_use]
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        let client_auth = ClientAuth::default();
        Self { cert: cert.into(), key: key.into(), client_ca: None, client_auth }
    }

    /// Clients show certificates of these authorities.
    #[must_use]
    pub fn client_ca(mut self, file: impl Into<PathBuf>, client_auth: ClientAuth) -> Self {
        (self.client_ca, self.client_auth) = (Some(file.into()), client_auth);
        self
    }
}

/// A server's settings for TLS, from files that may be renewed while it runs. Listeners of
/// several protocols may share it.
#[derive(Debug)]
pub struct ServerTls(Reloading<Loaded, TlsError>);

struct Loaded {
    provider: Arc<CryptoProvider>,
    identity: Arc<CertifiedKey>,
    verifier: Arc<dyn ClientCertVerifier>,
    sessions: Arc<dyn StoresServerSessions>,
    names: Vec<Box<str>>,
    /// Whether clients are asked for certificates.
    asks: bool,
    requires_certificates: bool,
}

impl ServerTls {
    /// Reads the files. Blocks the thread meanwhile.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what is wrong with it. A certificate that
    /// has expired is none: it is logged as a warning.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let mut watched = vec![files.cert.clone(), files.key.clone()];
        watched.extend(files.client_ca.clone());
        Reloading::new("the files for TLS", watched, move || load(&files), news).map(Self)
    }

    /// The settings for a connection that begins now, with this protocol inside. Reads no
    /// file; costs little beside the handshake that follows.
    #[must_use]
    pub fn current(&self, protocol: Protocol) -> Arc<ServerConfig> {
        let loaded = self.0.current();
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&loaded.provider))
            .with_protocol_versions(protocol.versions)
            .expect("the provider has cipher suites of both versions")
            .with_client_cert_verifier(Arc::clone(&loaded.verifier))
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&loaded.identity))));
        config.alpn_protocols = protocol.names();
        config.session_storage = Arc::clone(&loaded.sessions);
        if loaded.asks {
            config.send_tls13_tickets = 0;
        }
        Arc::new(config)
    }

    /// Returns whether every client has to show a certificate.
    #[must_use]
    pub fn requires_certificates(&self) -> bool {
        self.0.current().requires_certificates
    }

    /// Looks whether the files have changed, and reads them again if so. Files that
    /// cannot be used, or that do not go with each other because only one of them is
    /// there yet, are logged once and do not take the place of those before. Connections
    /// that are there stay as they are. Blocks the thread meanwhile.
    pub fn check(&self) -> Reload {
        self.0.check()
    }
}

fn load(files: &TlsFiles) -> Result<Loaded, TlsError> {
    let provider = provider();
    let identity = read_identity(&files.cert, &files.key, &provider)?;
    let verifier: Arc<dyn ClientCertVerifier> = match &files.client_ca {
        None => Arc::new(NoClientAuth),
        Some(path) => {
            let roots = read_authorities(path)?;
            let verifier =
                WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
            let verifier = match files.client_auth {
                ClientAuth::Required => verifier,
                ClientAuth::Optional => verifier.allow_unauthenticated(),
            };
            verifier.build().map_err(|_| TlsError::NoCertificate { path: path.clone() })?
        }
    };
    let asks = files.client_ca.is_some();
    // A resumed connection would keep a client's certificate that may have expired.
    let sessions: Arc<dyn StoresServerSessions> = match asks {
        true => Arc::new(NoServerSessionStorage {}),
        false => ServerSessionMemoryCache::new(MAX_SESSIONS),
    };
    let names = certificate_names(&identity.cert[0]);
    let requires_certificates = asks && matches!(files.client_auth, ClientAuth::Required);
    Ok(Loaded { provider, identity, verifier, sessions, names, asks, requires_certificates })
}

fn news(_: &Loaded, new: &Loaded) -> String {
    format!("a certificate for {:?}", new.names)
}

/// The names in the certificate that the client has shown and the handshake has verified:
/// URIs, then DNS names, these in small letters. Empty when it has shown none. The common
/// name of the subject is not among them.
///
/// No more than 32 names, and none that is longer than 256 bytes or has invisible
/// characters: no access list has such a name.
#[must_use]
pub fn client_names(connection: &ServerConnection) -> Vec<Box<str>> {
    let certificate = connection.peer_certificates().and_then(<[_]>::first);
    certificate.map(certificate_names).unwrap_or_default()
}

fn certificate_names(certificate: &rustls::pki_types::CertificateDer<'_>) -> Vec<Box<str>> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let sound =
        |name: &str| name.len() <= MAX_NAME_LEN && name.bytes().all(|byte| byte.is_ascii_graphic());
    // A URI has a scheme, and with it a colon; without one it could pass for a DNS name.
    let uris = certificate.valid_uri_names().filter(|name| sound(name) && name.contains(':'));
    let dns = certificate.valid_dns_names().filter(|name| sound(name));
    let dns = dns.map(|name| name.to_ascii_lowercase().into());
    uris.map(Box::from).chain(dns).take(MAX_NAMES).collect()
}
