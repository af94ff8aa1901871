//! The headers of requests and answers, as `docs/tcp-wire.md` and QUIC's
//! `mc-transport-quic/docs/quic-wire.md` define them.

use mc_ticket::Ticket;
use mc_trace::TraceContext;
use mc_types::{Extent, RemoteKey, Time};

use crate::error::TransferError;

/// Bytes of a request without its ticket and payload.
pub const REQUEST_LEN: usize = 40;
/// Bytes of the ticket that follows a request which shows one.
pub const TICKET_LEN: usize = 40;
/// Bytes of an answer without its payload.
pub const RESPONSE_LEN: usize = 16;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Asks for bytes.
    Read = 1,
    /// Brings bytes.
    Write = 2,
    /// Ends another link.
    Fence = 3,
    /// Names the trace of the next requests. Has no answer.
    Trace = 4,
}

/// Asks for one operation; the payload of a write follows. A fence has the id of the
/// connection to end where others have a key. See [`RequestHeader::trace`] for the last kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// The operation that is requested.
    pub opcode: Opcode,
    /// A ticket follows. Never with a fence.
    pub has_ticket: bool,
    /// The number that the answer names.
    pub id: u32,
    /// The key of the region.
    pub key: RemoteKey,
    /// The first byte in the region.
    pub offset: u64,
    /// Bytes of the operation.
    pub len: u64,
}

/// The header is not one that this version defines; the id is all that can be
/// trusted enough to name in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The number of the request.
    pub id: u32,
}

impl RequestHeader {
    /// Names the trace of the next `count` requests. Its number is in place of the key, that of
    /// the span in place of the offset; the length is 1 where it is recorded.
    #[must_use]
    pub fn trace(context: &TraceContext, count: u32) -> Self {
        Self {
            opcode: Opcode::Trace,
            has_ticket: false,
            id: count,
            key: RemoteKey::from_bytes(context.trace().to_be_bytes()),
            offset: context.span(),
            len: context.is_sampled().into(),
        }
    }

    /// Returns the trace that a header of this kind names, if any.
    #[must_use]
    pub fn named_trace(&self) -> Option<TraceContext> {
        let trace = u128::from_be_bytes(self.key.to_bytes());
        TraceContext::new(trace, self.offset, self.len & 1 == 1)
            .filter(|_| self.opcode == Opcode::Trace)
    }

    /// Returns the bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[0] = self.opcode as u8;
        bytes[1] = u8::from(self.has_ticket);
        bytes[4..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.key.to_bytes());
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Parses the bytes on the wire.
    ///
    /// # Errors
    /// [`Malformed`] when this version does not define them.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Result<Self, Malformed> {
        let id = u32::from_le_bytes(field(bytes, 4));
        let (opcode, has_ticket) = match bytes[0..4] {
            [1, ticket @ (0 | 1), 0, 0] => (Opcode::Read, ticket == 1),
            [2, ticket @ (0 | 1), 0, 0] => (Opcode::Write, ticket == 1),
            [3, 0, 0, 0] => (Opcode::Fence, false),
            [4, 0, 0, 0] => (Opcode::Trace, false),
            _ => return Err(Malformed { id }),
        };
        Ok(Self {
            opcode,
            has_ticket,
            id,
            key: RemoteKey::from_bytes(field(bytes, 8)),
            offset: u64::from_le_bytes(field(bytes, 24)),
            len: u64::from_le_bytes(field(bytes, 32)),
        })
    }
}

/// A ticket as it follows a request.
pub fn encode_ticket(ticket: &Ticket) -> [u8; TICKET_LEN] {
    let mut bytes = [0; TICKET_LEN];
    bytes[0..8].copy_from_slice(&ticket.extent.offset().to_le_bytes());
    bytes[8..16].copy_from_slice(&ticket.extent.len().to_le_bytes());
    bytes[16..24].copy_from_slice(&ticket.until.as_millis().to_le_bytes());
    bytes[24..40].copy_from_slice(&ticket.tag);
    bytes
}

/// The ticket that follows a request; `None` when its extent is none.
pub fn decode_ticket(bytes: &[u8; TICKET_LEN]) -> Option<Ticket> {
    let [offset, len, until] = [0, 8, 16].map(|at| u64::from_le_bytes(field(bytes, at)));
    let extent = Extent::new(offset, len)?;
    Some(Ticket { extent, until: Time::from_millis(until), tag: field(bytes, 24) })
}

/// The status of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The operation was carried out.
    Done = 0,
    /// No region has the key, or the ticket is not one for it.
    KeyRefused = 1,
    /// The region is not open for this.
    AccessDenied = 2,
    /// The bytes leave the region.
    OutOfBounds = 3,
    /// Larger than the server's limit; the connection ends.
    TooLarge = 4,
    /// The bytes are no request of this version; the connection ends.
    Malformed = 5,
    /// The ticket's time is over.
    GrantEnded = 6,
    /// The device that has the memory failed.
    DeviceFailed = 7,
}

impl Status {
    /// The answer to an operation that the region table refused.
    pub fn of(refusal: &TransferError) -> Self {
        match refusal {
            TransferError::AccessDenied { .. } => Self::AccessDenied,
            TransferError::OutOfBounds { .. } => Self::OutOfBounds,
            TransferError::GrantEnded => Self::GrantEnded,
            TransferError::DeviceFailed => Self::DeviceFailed,
            _ => Self::KeyRefused,
        }
    }
}

/// Answers one operation; the payload of a read that is done follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The outcome of the operation.
    pub status: Status,
    /// The number of the request.
    pub id: u32,
    /// Bytes of payload that follow.
    pub len: u64,
}

/// Why bytes are not a response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadResponse {
    /// The status is not one of [`Status`].
    Status(u8),
    /// A byte that must be zero is not.
    Reserved,
}

impl ResponseHeader {
    /// Returns the bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; RESPONSE_LEN] {
        let mut bytes = [0; RESPONSE_LEN];
        bytes[0] = self.status as u8;
        bytes[4..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Parses the bytes on the wire.
    ///
    /// # Errors
    /// [`BadResponse`] when this version does not define them.
    pub fn decode(bytes: &[u8; RESPONSE_LEN]) -> Result<Self, BadResponse> {
        let status = match bytes[0] {
            0 => Status::Done,
            1 => Status::KeyRefused,
            2 => Status::AccessDenied,
            3 => Status::OutOfBounds,
            4 => Status::TooLarge,
            5 => Status::Malformed,
            6 => Status::GrantEnded,
            7 => Status::DeviceFailed,
            other => return Err(BadResponse::Status(other)),
        };
        if bytes[1..4] != [0; 3] {
            return Err(BadResponse::Reserved);
        }
        let id = u32::from_le_bytes(field(bytes, 4));
        Ok(Self { status, id, len: u64::from_le_bytes(field(bytes, 8)) })
    }
}

/// The `N` bytes at `at` of a header whose length the types fix.
fn field<const N: usize, const LEN: usize>(bytes: &[u8; LEN], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice was cut to N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // The golden bytes are those of the examples in docs/tcp-wire.md.

    #[test]
    fn request_bytes() {
        let request = RequestHeader {
            opcode: Opcode::Write,
            has_ticket: false,
            id: 7,
            key: RemoteKey::from_bytes(*b"0123456789abcdef"),
            offset: 0x1000,
            len: 5,
        };
        let mut bytes = *b"\x02\x00\x00\x00\x07\x00\x00\x000123456789abcdef\
            \x00\x10\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00";
        assert_eq!(request.encode(), bytes);
        assert_eq!(RequestHeader::decode(&bytes), Ok(request));
        for (at, value) in [(0, 0), (0, 5), (1, 2), (2, 1), (3, 1)] {
            let kept = std::mem::replace(&mut bytes[at], value);
            assert_eq!(RequestHeader::decode(&bytes), Err(Malformed { id: 7 }));
            bytes[at] = kept;
        }
    }

    #[test]
    fn trace_bytes() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let header = RequestHeader::trace(&text.parse().unwrap(), 2);
        let bytes =
            *b"\x04\x00\x00\x00\x02\x00\x00\x00\x4b\xf9\x2f\x35\x77\xb3\x4d\xa6\xa3\xce\x92\x9d\
            \x0e\x0e\x47\x36\xb7\x02\xa9\x0b\xaa\x67\xf0\x00\x01\x00\x00\x00\x00\x00\x00\x00";
        assert_eq!(header.encode(), bytes);
        assert_eq!(RequestHeader::decode(&bytes), Ok(header));
        assert_eq!(header.named_trace().map(|trace| trace.to_string()).as_deref(), Some(text));
        assert_eq!(RequestHeader { opcode: Opcode::Fence, ..header }.named_trace(), None);
    }

    #[test]
    fn ticket_bytes() {
        let ticket = Ticket {
            extent: Extent::new(0x1000, 0x2000).unwrap(),
            until: Time::from_millis(5_000),
            tag: *b"0123456789abcdef",
        };
        let bytes = *b"\x00\x10\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00\x00\x00\x00\
            \x88\x13\x00\x00\x00\x00\x00\x000123456789abcdef";
        assert_eq!(encode_ticket(&ticket), bytes);
        assert_eq!(decode_ticket(&bytes), Some(ticket));
        let mut endless = bytes;
        endless[8..16].fill(0xff);
        assert_eq!(decode_ticket(&endless), None);
    }

    #[test]
    fn response_bytes() {
        let response = ResponseHeader { status: Status::Done, id: 7, len: 5 };
        let mut bytes = *b"\x00\x00\x00\x00\x07\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00";
        assert_eq!(response.encode(), bytes);
        assert_eq!(ResponseHeader::decode(&bytes), Ok(response));
        bytes[3] = 1;
        assert_eq!(ResponseHeader::decode(&bytes), Err(BadResponse::Reserved));
        bytes[0] = 8;
        assert_eq!(ResponseHeader::decode(&bytes), Err(BadResponse::Status(8)));
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(
            request in any::<[u8; 32]>(), op in 0u8..6, flag in 0u8..3,
            response in any::<[u8; 12]>(), status in 0u8..9
        ) {
            let mut bytes = [0; REQUEST_LEN];
            (bytes[0], bytes[1]) = (op, flag);
            bytes[8..].copy_from_slice(&request);
            if let Ok(header) = RequestHeader::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
            let mut bytes = [0; RESPONSE_LEN];
            bytes[0] = status;
            bytes[4..].copy_from_slice(&response);
            if let Ok(header) = ResponseHeader::decode(&bytes) {
                prop_assert_eq!(header.encode(), bytes);
            }
        }
    }
}
