//! The message of each side on the first stream of a connection.

use mc_tls::Protocol;

use mc_transport::LinkId;
use mc_transport::backend::MAX_DESCRIPTION;

/// The protocol's demands on TLS.
pub(super) const PROTOCOL: Protocol = Protocol::new(&[b"mc-transport/3"]).tls13_only();

/// Bytes of a hello.
pub(super) const HELLO_LEN: usize = 32;

/// A node's hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Bytes of the largest operation that it takes part in.
    pub(super) max_operation: u64,
    /// The link that the connection belongs to, from a client; zeros from a server.
    pub(super) link: LinkId,
    /// Bytes of the description that follows, from a server; zero from a client.
    pub(super) description_len: u64,
}

impl Hello {
    pub(super) fn encode(self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&self.max_operation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.description_len.to_le_bytes());
        bytes[16..].copy_from_slice(&self.link.to_bytes());
        bytes
    }

    /// `None` when this is no hello of this version.
    pub(super) fn decode(bytes: &[u8; HELLO_LEN]) -> Option<Self> {
        let (max_operation, rest) = bytes.split_first_chunk::<8>()?;
        let (description_len, link) = rest.split_first_chunk::<8>()?;
        let link = LinkId::from_bytes(*link.first_chunk()?);
        let max_operation = u64::from_le_bytes(*max_operation);
        let description_len = u64::from_le_bytes(*description_len);
        let is_bounded = description_len <= MAX_DESCRIPTION as u64;
        is_bounded.then_some(Self { max_operation, link, description_len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The golden bytes are those of the example in docs/quic-wire.md.
    #[test]
    fn hello_bytes() {
        let mut bytes =
            *b"\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x000123456789abcdef";
        let link = LinkId::from_bytes(*b"0123456789abcdef");
        let hello = Hello { max_operation: 1 << 30, link, description_len: 0 };
        assert_eq!(hello.encode(), bytes);
        assert_eq!(Hello::decode(&bytes), Some(hello));
        bytes[15] = 1;
        assert_eq!(Hello::decode(&bytes), None);
    }
}
