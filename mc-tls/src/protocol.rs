//! A protocol's demands on TLS.

use rustls::{ALL_VERSIONS, SupportedProtocolVersion, version};

/// The versions of those that need no older one.
const TLS13_ONLY: &[&SupportedProtocolVersion] = &[&version::TLS13];

/// The demands on TLS of the protocol inside, whichever certificates are used.
///
/// ```
/// use mc_tls::Protocol;
///
/// const CALLS: Protocol = Protocol::new(&[b"calls/1", b"h2"]);
/// const BYTES: Protocol = Protocol::new(&[b"bytes/1"]).tls13_only();
/// # let _ = (CALLS, BYTES);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub(crate) alpn: &'static [&'static [u8]],
    pub(crate) versions: &'static [&'static SupportedProtocolVersion],
}

impl Protocol {
    /// A protocol that goes by these names in ALPN (RFC 7301), the preferred one first.
    /// TLS 1.3 is spoken, and 1.2 with those that know no better.
    ///
    /// A server ends the handshake with a client that offers other names only. Whether
    /// one that offers none may go on is for the protocol to say, by
    /// [`alpn_protocol`](rustls::CommonState::alpn_protocol).
    #[must_use]
    pub const fn new(alpn: &'static [&'static [u8]]) -> Self {
        Self { alpn, versions: ALL_VERSIONS }
    }

    /// Without TLS 1.2.
    #[must_use]
    pub const fn tls13_only(mut self) -> Self {
        self.versions = TLS13_ONLY;
        self
    }

    /// The names as the settings want them.
    pub(crate) fn names(self) -> Vec<Vec<u8>> {
        self.alpn.iter().map(|&name| name.into()).collect()
    }
}
