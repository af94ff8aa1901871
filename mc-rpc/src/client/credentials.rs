//! The credentials that a client shows when a connection begins.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::net::IpAddr;
#[cfg(feature = "tls")]
use std::sync::Arc;

use bytes::BytesMut;
use mc_meta::TenantId;

use super::config::ClientConfig;
use super::token::Token;
use crate::error::{CredentialError, RpcError};
use crate::frame::{ClientPreface, Hello, MAX_SOFTWARE_LEN, MIN_MAX_PAYLOAD, Purpose};

/// One client, across its connections.
pub(super) struct Identity {
    /// 0 when calls are not tracked.
    session: u128,
    next_token: AtomicU64,
    warned: AtomicBool,
}

impl Identity {
    /// A new one. Without random bytes no call is tracked.
    pub(super) fn new(config: &ClientConfig) -> Self {
        let mut session = [0; 16];
        let random = config.retry && config.random(&mut session);
        let session = if random { u128::from_ne_bytes(session) } else { 0 };
        Self { session, next_token: AtomicU64::new(1), warned: AtomicBool::new(false) }
    }

    /// A token for a call that may not be executed twice; `None` when this client does not
    /// track calls.
    pub(super) fn next_token(&self) -> Option<u64> {
        (self.session != 0).then(|| self.next_token.fetch_add(1, Ordering::Relaxed))
    }

    /// Prepares the next attempt to connect. Reads files, if any are named.
    pub(super) fn prepare(&self, config: &ClientConfig) -> Result<Prepared, RpcError> {
        let tenant = &config.tenant;
        if !tenant.is_empty()
            && let Err(reason) = TenantId::new(tenant)
        {
            return Err(
                CredentialError::BadTenant { tenant: tenant.as_str().into(), reason }.into()
            );
        }
        let token = config.token.as_ref().map(Token::read).transpose()?.unwrap_or_default();
        let (tenant, local) = (tenant.as_str().into(), config.local_socket);
        let purpose = match (config.journal, config.administration) {
            (true, _) => Purpose::Journal,
            (false, true) => Purpose::Administration,
            (false, false) => Purpose::Calls,
        };
        let (session, software) = (self.session, software_of(config));
        let send_times = true;
        let hello = Hello { session, token, tenant, local, send_times, purpose, software };
        Ok(Prepared {
            preface: ClientPreface::with(config.max_payload.max(MIN_MAX_PAYLOAD), &hello),
            #[cfg(feature = "tls")]
            tls: match &config.tls {
                Some(tls) => Some(tls.connect_config(crate::tls::SPOKEN).map_err(Arc::new)?),
                None => None,
            },
        })
    }

    /// Warns once of a token that goes over a network as it is.
    pub(super) fn note_clear_text(&self, config: &ClientConfig, peer: IpAddr) {
        let clear = config.token.is_some() && !peer.to_canonical().is_loopback();
        if clear && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %peer,
                "the token goes to the master unencrypted: an eavesdropper could use it; connect with TLS"
            );
        }
    }
}

/// As much of the software's name as a hello may have.
fn software_of(config: &ClientConfig) -> Box<str> {
    let name = &*config.software;
    let mut end = name.len().min(MAX_SOFTWARE_LEN);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].into()
}

/// The settings of one attempt to connect.
pub(super) struct Prepared {
    /// The first bytes of the connection.
    pub(super) preface: BytesMut,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Arc<crate::tls::rustls::ClientConfig>>,
}

/// Returns whether preparing an attempt may block.
pub(super) fn reads_files(config: &ClientConfig) -> bool {
    #[cfg(feature = "tls")]
    if config.tls.is_some() {
        return true;
    }
    config.token.as_ref().is_some_and(Token::is_in_file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_said_is_not_sent() {
        let mut config = ClientConfig::default();
        let identity = Identity::new(&config);
        config.tenant = "x".repeat(5000);
        let error = identity.prepare(&config).err().unwrap();
        assert!(error.to_string().contains("no tenant's name"), "{error}");
        config.tenant = "team-a".into();
        config.token = Some(Token::new("abc").unwrap());
        config.software = "me/7".into();
        let preface = identity.prepare(&config).unwrap().preface;
        assert!(preface.ends_with(b"\x12\x03abc\x1a\x06team-a\x20\x01\x28\x01\x3a\x04me/7"));
        // What is too long is cut, between two characters.
        config.software = "é".repeat(70).into();
        assert_eq!(&*software_of(&config), "é".repeat(64));
        config.software = format!("x{}", "é".repeat(70)).into();
        assert_eq!(software_of(&config).len(), 127);
        assert_eq!((identity.next_token(), identity.next_token()), (Some(1), Some(2)));
        config.retry = false;
        assert_eq!(Identity::new(&config).next_token(), None);
    }
}
