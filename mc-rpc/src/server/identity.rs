//! Identifies a peer: from its connection alone, and from its credential.

use std::net::IpAddr;
use std::sync::Arc;

use mc_meta::TenantId;

use super::peer::{Peer, host};
use crate::access::{Authenticate, Presented};
use crate::caller::{Caller, Role};
use crate::refusal::Refusal;

/// The identity that a connection itself shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown {
    /// The names in its certificate, when it has shown one that the server trusts.
    certificate: Vec<Box<str>>,
    certified: bool,
    uid: Option<u32>,
    /// The host, where the connection comes over IP.
    from: Option<IpAddr>,
}

impl Shown {
    pub(super) fn by(peer: Peer) -> Self {
        match peer {
            Peer::Ip(address) => Self { from: Some(host(address)), ..Self::default() },
            #[cfg(unix)]
            Peer::Local { uid } => Self { uid, ..Self::default() },
        }
    }

    /// The same, with the certificate that the TLS handshake has verified.
    #[cfg(feature = "tls")]
    pub(super) fn with_certificate(
        self,
        connection: &crate::tls::rustls::ServerConnection,
    ) -> Self {
        let certified = connection.peer_certificates().is_some();
        Self { certificate: crate::tls::client_names(connection), certified, ..self }
    }

    /// The host that the connection comes from, where it tells.
    pub(super) const fn from(&self) -> Option<IpAddr> {
        self.from
    }

    /// Returns the caller, given its credential.
    pub(super) fn identify(
        &self,
        authenticator: Option<&dyn Authenticate>,
        token: Option<&[u8]>,
        tenant: &str,
    ) -> Result<Arc<Caller>, Refusal> {
        let presented = Presented { token, certificate: &self.certificate, uid: self.uid, tenant };
        if let Some(authenticator) = authenticator {
            return authenticator.identify(&presented);
        }
        // No client asks for credentials, so that a token is not looked at.
        let tenant = TenantId::new(tenant)
            .map_err(|error| Refusal::invalid(format!("the tenant asked for: {error}")))?;
        let anybody = match self.certificate.first() {
            Some(name) => Caller::new(String::from(&**name), Role::Admin),
            None if self.certified => Caller::new("a certificate without names", Role::Admin),
            None => Caller::ANYBODY,
        };
        Ok(Arc::new(anybody.of_tenant(tenant)))
    }
}
