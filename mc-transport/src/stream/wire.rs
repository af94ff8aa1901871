//! The bytes on the wire, as `docs/tcp-wire.md` defines them.

pub(crate) use crate::backend::headers::{
    BadResponse, Opcode, REQUEST_LEN, RESPONSE_LEN, RequestHeader, ResponseHeader, Status,
    TICKET_LEN, decode_ticket, encode_ticket,
};

/// First bytes of both prefaces.
pub(crate) const MAGIC: [u8; 4] = *b"MCT1";
/// Version of the protocol that this code speaks.
pub(crate) const VERSION: u16 = 3;

/// First byte of a client that begins with TLS: a record of a handshake (RFC 8446, section 5.1).
pub(crate) const TLS_HANDSHAKE: u8 = 22;

pub(crate) const PREFACE_LEN: usize = 16;
/// Bytes of the longest request, without its payload.
pub(crate) const MAX_REQUEST_LEN: usize = REQUEST_LEN + TICKET_LEN;

/// The first message of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preface {
    pub(crate) version: u16,
    /// Zero from a client; a [`Verdict`] from a server.
    pub(crate) verdict: u16,
    /// Bytes of the largest operation that the sender takes part in.
    pub(crate) max_operation: u64,
}

/// A server's verdict on a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Verdict {
    Welcome = 0,
    Busy = 1,
    UnknownVersion = 2,
    /// The server speaks TLS only, and the client did not.
    TlsRequired = 3,
    /// The client speaks TLS, and the server does not.
    TlsUnavailable = 4,
}

impl Preface {
    pub(crate) fn encode(self) -> [u8; PREFACE_LEN] {
        let mut bytes = [0; PREFACE_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.verdict.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.max_operation.to_le_bytes());
        bytes
    }

    /// `None` when the magic is missing: the sender is no peer of ours.
    pub(crate) fn decode(bytes: &[u8; PREFACE_LEN]) -> Option<Self> {
        let [m0, m1, m2, m3, v0, v1, s0, s1, max @ ..] = *bytes;
        ([m0, m1, m2, m3] == MAGIC).then(|| Self {
            version: u16::from_le_bytes([v0, v1]),
            verdict: u16::from_le_bytes([s0, s1]),
            max_operation: u64::from_le_bytes(max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The golden bytes are those of the examples in docs/tcp-wire.md.

    #[test]
    fn preface_bytes() {
        let preface = Preface { version: 3, verdict: 0, max_operation: 1 << 30 };
        let bytes = *b"MCT1\x03\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00";
        assert_eq!(preface.encode(), bytes);
        assert_eq!(Preface::decode(&bytes), Some(preface));
        assert_eq!(Preface::decode(b"PRI * HTTP/2.0\r\n"), None);
        assert_eq!([Verdict::Welcome as u16, Verdict::Busy as u16], [0, 1]);
        assert_eq!(Verdict::UnknownVersion as u16, 2);
        assert_eq!([Verdict::TlsRequired as u16, Verdict::TlsUnavailable as u16], [3, 4]);
    }
}
