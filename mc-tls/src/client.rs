//! The client's side.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::SingleCertAndKey;

use crate::error::TlsError;
use crate::identity::{provider, read_authorities, read_certificates, read_identity};
use crate::protocol::Protocol;

/// TLS settings of a client: files in PEM, which it reads anew for each connection, so that
/// renewed ones are used without a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    ca: PathBuf,
    identity: Option<(PathBuf, PathBuf)>,
    server_name: Option<Box<str>>,
}

impl ClientTls {
    /// Trusts servers whose certificate is of one of the authorities in this file, and no
    /// others: those that browsers trust would let every owner of a domain in.
    #[must_use]
    pub fn new(ca: impl Into<PathBuf>) -> Self {
        Self { ca: ca.into(), identity: None, server_name: None }
    }

    /// Shows this certificate, with the private key in the other file, to a server that
    /// asks.
    #[must_use]
    pub fn identity(mut self, cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((cert.into(), key.into()));
        self
    }

    /// Expects the server's certificate to be for this name, or address, rather than for
    /// the host that it connects to.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<Box<str>>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// The settings for one connection with this protocol inside, from the files as they
    /// are now. Blocks the thread meanwhile.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what is wrong with it.
    pub fn connect_config(&self, protocol: Protocol) -> Result<Arc<ClientConfig>, TlsError> {
        let roots = read_authorities(&self.ca)?;
        let provider = provider();
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(protocol.versions)
            .expect("the provider has cipher suites of both versions")
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let identity = read_identity(cert, key, &provider)?;
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity)))
            }
        };
        config.alpn_protocols = protocol.names();
        Ok(Arc::new(config))
    }

    /// The certificates in the files, each with the file that it is in: those of the authorities and this
    /// side's own. Blocks the thread meanwhile.
    ///
    /// # Errors
    /// [`TlsError`], which names the file and what is wrong with it.
    pub fn certificates(&self) -> Result<Vec<(PathBuf, CertificateDer<'static>)>, TlsError> {
        let files = [Some(&self.ca), self.identity.as_ref().map(|(cert, _)| cert)];
        let mut found = Vec::new();
        for file in files.into_iter().flatten() {
            found.extend(read_certificates(file)?.into_iter().map(|read| (file.clone(), read)));
        }
        Ok(found)
    }

    /// The certificate's name that is expected at `host`, a name or an address without a port.
    ///
    /// # Errors
    /// [`TlsError::ServerName`] when no certificate can be for it.
    pub fn expected_name(&self, host: &str) -> Result<ServerName<'static>, TlsError> {
        let name = self.server_name.as_deref().unwrap_or(host);
        // An IPv6 address stands in brackets in front of a port.
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        ServerName::try_from(bare.unwrap_or(name).to_owned())
            .map_err(|_| TlsError::ServerName { name: name.into() })
    }
}
