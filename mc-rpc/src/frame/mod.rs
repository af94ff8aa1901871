//! The native framing: how a connection begins and how calls follow each other.
//! Bytes in, bytes out; no I/O. `docs/protocol.md` is the specification.

pub(crate) mod preface;
mod welcome;

use core::time::Duration;

use bytes::{BufMut, BytesMut};
use mc_meta::ReadProgress;
use mc_trace::TraceContext;
use mc_types::ErrorCode;
use thiserror::Error;

use crate::refusal::{MAX_MESSAGE_LEN, Refusal};

pub(crate) use preface::other_version;
pub use preface::{
    ClientPreface, Hello, MAGIC, MAX_HELLO_LEN, MAX_SOFTWARE_LEN, MAX_TOKEN_LEN, PREFACE_LEN,
    Purpose, SERVER_PREFACE_LEN, ServerPreface, check_magic,
};
pub use welcome::{MAX_SOCKET_NAME_LEN, SOCKET_NAME_PREFIX, Welcome};

/// The version of the protocol that this crate speaks. Fields and calls are added without another
/// number, see "Versions" in `docs/protocol.md`.
pub const VERSION: u16 = 2;

/// Length of a frame's header in bytes.
pub const HEADER_LEN: usize = 20;

/// Length of the call token that comes before the payload of a tracked call, in bytes.
pub const TOKEN_LEN: usize = 8;

/// Length of the send time that comes before the payload, and before the token, of a request, in
/// bytes.
pub const SEND_TIME_LEN: usize = 8;

/// Length of what a request says of its client's reads, behind the send time and before the token,
/// in bytes.
pub const READS_LEN: usize = 32;

/// Length of the trace context of a request, behind what it says of reads and before the token, in bytes.
pub const TRACE_LEN: usize = TraceContext::LEN;

/// Largest payload that either side accepts unless told otherwise: 16 MiB.
pub const DEFAULT_MAX_PAYLOAD: u32 = 16 << 20;

/// Smallest limit on payloads that either side may announce: room for any
/// refusal and for any call on a single key, except the end of a put with the
/// checksums of a gigabyte or with more than 10,000 token ids.
pub const MIN_MAX_PAYLOAD: u32 = 64 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A call; the payload is the method's request message.
    Request = 0,
    /// Its answer; the payload is the method's response message.
    Reply = 1,
    /// Its refusal; the payload is a number (`i32`) and a message in UTF-8.
    Error = 2,
    /// The client does not want the answer to a call any more. No payload; the id is
    /// the call's.
    Cancel = 3,
    /// The server takes no new calls on this connection and answers those that have
    /// arrived. No payload; id and method are 0.
    GoAway = 4,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Request, Self::Reply, Self::Error, Self::Cancel, Self::GoAway];
}

/// Set in a request whose payload begins with a token.
const TRACKED: u8 = 1;

/// Set in a request whose payload begins with its send time.
const TIMED: u8 = 2;

/// Set in a request that another server may have executed.
const MOVED: u8 = 4;

/// Set in a request that says which reads of its client are over.
const READS: u8 = 8;

/// Set in a request that has a trace context.
const TRACED: u8 = 16;

/// The header of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of payload that follow.
    pub payload_len: u32,
    /// Names the call among those of its connection; chosen by the client,
    /// repeated in the answer.
    pub id: u64,
    /// The method's number, known here or not.
    pub method: u16,
    /// The kind of the frame.
    pub kind: Kind,
    /// Whether the payload bears a call token of [`TOKEN_LEN`] bytes, by which the server
    /// knows a second attempt at the same call: at its beginning, or behind what comes first.
    pub tracked: bool,
    /// Whether the payload begins with the time of [`SEND_TIME_LEN`] bytes at which the
    /// request was sent.
    pub timed: bool,
    /// Whether an attempt at the same call was sent to another server before, which may have
    /// executed it: one with another [incarnation](Welcome::incarnation).
    pub moved: bool,
    /// Whether the payload says in [`READS_LEN`] bytes which reads of the client are over: at its
    /// beginning, or behind the send time.
    pub reads: bool,
    /// Whether the payload bears the context of a trace in [`TRACE_LEN`] bytes: at its beginning, or behind
    /// the send time and what it says of reads.
    pub traced: bool,
    /// In a request: the milliseconds within which the client wants the answer,
    /// counted from when it sent it; 0 when it has no such wish.
    pub timeout_ms: u32,
}

impl FrameHeader {
    /// A header of a frame without payload, token, send time, reads, trace and time-out.
    #[must_use]
    pub const fn new(id: u64, method: u16, kind: Kind) -> Self {
        Self {
            payload_len: 0,
            id,
            method,
            kind,
            tracked: false,
            timed: false,
            moved: false,
            reads: false,
            traced: false,
            timeout_ms: 0,
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.id.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.method.to_le_bytes());
        bytes[14] = self.kind as u8;
        bytes[15] = (self.tracked as u8 * TRACKED)
            | (self.timed as u8 * TIMED)
            | (self.moved as u8 * MOVED)
            | (self.reads as u8 * READS)
            | (self.traced as u8 * TRACED);
        bytes[16..20].copy_from_slice(&self.timeout_ms.to_le_bytes());
        bytes
    }

    /// Reads a header and bounds its payload.
    ///
    /// # Errors
    /// [`FrameError`] when the payload is longer than `max_payload`, or too short for
    /// the send time and the token that it should begin with, or the kind or a flag is unknown.
    /// Where the next frame begins is not to be trusted then.
    pub fn parse(bytes: &[u8; HEADER_LEN], max_payload: u32) -> Result<Self, FrameError> {
        let payload_len = u32::from_le_bytes(array(&bytes[..4]));
        let id = u64::from_le_bytes(array(&bytes[4..12]));
        let method = u16::from_le_bytes(array(&bytes[12..14]));
        let Some(kind) = Kind::ALL.get(usize::from(bytes[14])).copied() else {
            return Err(FrameError::UnknownKind { id, method, kind: bytes[14] });
        };
        let flags = bytes[15];
        let is_known = flags & !(TRACKED | TIMED | MOVED | READS | TRACED) == 0;
        if !is_known || (flags != 0 && kind != Kind::Request) {
            return Err(FrameError::UnknownFlags { id, method, flags });
        }
        if payload_len > max_payload {
            return Err(FrameError::TooLong { id, method, len: payload_len, max: max_payload });
        }
        let (tracked, timed) = (flags & TRACKED != 0, flags & TIMED != 0);
        let (moved, reads, traced) = (flags & MOVED != 0, flags & READS != 0, flags & TRACED != 0);
        let timeout_ms = u32::from_le_bytes(array(&bytes[16..20]));
        let header = Self {
            payload_len,
            id,
            method,
            kind,
            tracked,
            timed,
            moved,
            reads,
            traced,
            timeout_ms,
        };
        if (payload_len as usize) < header.before_token() + usize::from(tracked) * TOKEN_LEN {
            return Err(FrameError::NoToken { id, method });
        }
        Ok(header)
    }

    /// Bytes of payload in front of the trace context.
    const fn before_trace(self) -> usize {
        self.timed as usize * SEND_TIME_LEN + self.reads as usize * READS_LEN
    }

    /// Bytes of payload in front of the token.
    const fn before_token(self) -> usize {
        self.before_trace() + self.traced as usize * TRACE_LEN
    }

    /// The time within which the answer is wanted.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        (self.timeout_ms != 0).then(|| Duration::from_millis(self.timeout_ms.into()))
    }
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum FrameError {
    /// The payload is longer than this side accepts.
    #[error("the frame announces {len} bytes; the limit is {max}")]
    TooLong {
        /// The call it belongs to.
        id: u64,
        method: u16,
        /// The announced length in bytes.
        len: u32,
        /// The limit in bytes.
        max: u32,
    },
    /// No such kind of frame.
    #[error("the frame has the unknown kind {kind}")]
    UnknownKind {
        /// The call it belongs to.
        id: u64,
        method: u16,
        kind: u8,
    },
    /// No such flag for a frame of its kind.
    #[error("the frame has the unknown flags {flags:#04x}")]
    UnknownFlags {
        /// The call it belongs to.
        id: u64,
        method: u16,
        /// All of its flags.
        flags: u8,
    },
    /// The send time or the token that the flags announce does not fit into the payload.
    #[error("the frame's payload is too short for its send time or its token")]
    NoToken {
        /// The call it belongs to.
        id: u64,
        method: u16,
    },
    /// A kind of frame that this side never gets.
    #[error("a frame of kind {kind:?} came from the wrong side")]
    WrongSide {
        /// The call it belongs to.
        id: u64,
        method: u16,
        kind: Kind,
    },
}

impl FrameError {
    /// The id and the method's number that the frame bears.
    #[must_use]
    pub const fn call(&self) -> (u64, u16) {
        let (Self::TooLong { id, method, .. }
        | Self::UnknownKind { id, method, .. }
        | Self::UnknownFlags { id, method, .. }
        | Self::NoToken { id, method }
        | Self::WrongSide { id, method, .. }) = *self;
        (id, method)
    }
}

/// Finds the frame at the beginning of `bytes`; `None` when it is not complete
/// yet. It takes [`HEADER_LEN`] and the payload's length from `bytes`.
///
/// # Errors
/// [`FrameError`], as [`FrameHeader::parse`].
pub fn first_frame(
    bytes: &[u8],
    max_payload: u32,
) -> Result<Option<(FrameHeader, &[u8])>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    let header = FrameHeader::parse(header, max_payload)?;
    Ok(rest.get(..header.payload_len as usize).map(|payload| (header, payload)))
}

/// Returns the time at which a request was sent: microseconds since its client sent the hello of
/// the connection.
#[must_use]
pub fn send_time_of(header: FrameHeader, payload: &[u8]) -> Option<u64> {
    let time = payload.first_chunk::<SEND_TIME_LEN>().filter(|_| header.timed)?;
    Some(u64::from_le_bytes(*time))
}

/// Returns what a request says of its client's reads.
#[must_use]
pub fn reads_of(header: FrameHeader, payload: &[u8]) -> Option<ReadProgress> {
    let payload = payload.get(usize::from(header.timed) * SEND_TIME_LEN..)?;
    let said = payload.first_chunk::<READS_LEN>().filter(|_| header.reads)?;
    let number = |at: usize| u64::from_le_bytes(array(&said[at..at + 8]));
    let reader = u128::from_le_bytes(array(&said[..16]));
    Some(ReadProgress { reader, begun: number(16), over: number(24) })
}

/// Writes what a request says of its client's reads into its first [`READS_LEN`] bytes.
pub(crate) fn put_reads(out: &mut [u8], said: &ReadProgress) {
    out[..16].copy_from_slice(&said.reader.to_le_bytes());
    out[16..24].copy_from_slice(&said.begun.to_le_bytes());
    out[24..READS_LEN].copy_from_slice(&said.over.to_le_bytes());
}

/// Returns the trace that a request belongs to.
#[must_use]
pub fn trace_of(header: FrameHeader, payload: &[u8]) -> Option<TraceContext> {
    let context = payload.get(header.before_trace()..)?.first_chunk::<TRACE_LEN>();
    context.filter(|_| header.traced).and_then(TraceContext::decode)
}

/// Splits what comes before the token, and that, off the payload of a request, and returns the token.
#[must_use]
pub fn token_of(header: FrameHeader, payload: &[u8]) -> (Option<u64>, &[u8]) {
    let payload = payload.get(header.before_token()..).unwrap_or(payload);
    match payload.split_first_chunk::<TOKEN_LEN>() {
        Some((token, payload)) if header.tracked => (Some(u64::from_le_bytes(*token)), payload),
        _ => (None, payload),
    }
}

/// Appends a request whose message `fill` writes, with `token` when the call is tracked
/// and the time within which its answer is wanted. When `fill` fails nothing stays in
/// `out`.
///
/// # Errors
/// What `fill` returns.
///
/// # Panics
/// When the message is longer than 4 GiB, which no limit allows.
pub fn append_request<T, E>(
    out: &mut BytesMut,
    id: u64,
    method: u16,
    token: Option<u64>,
    timeout: Option<Duration>,
    fill: impl FnOnce(&mut BytesMut) -> Result<T, E>,
) -> Result<T, E> {
    // A fraction of a millisecond is not none.
    let millis = |timeout: Duration| timeout.as_nanos().div_ceil(1_000_000).max(1);
    let timeout_ms =
        timeout.map_or(0, |timeout| u32::try_from(millis(timeout)).unwrap_or(u32::MAX));
    let header = FrameHeader {
        tracked: token.is_some(),
        timeout_ms,
        ..FrameHeader::new(id, method, Kind::Request)
    };
    append(out, header, |out| {
        if let Some(token) = token {
            out.put_u64_le(token);
        }
        fill(out)
    })
}

/// Appends a frame whose payload `fill` writes, and puts its length right
/// afterwards. When `fill` fails nothing stays in `out`.
///
/// # Errors
/// What `fill` returns.
///
/// # Panics
/// When the payload is longer than 4 GiB, which no limit allows.
pub fn append_frame<T, E>(
    out: &mut BytesMut,
    id: u64,
    method: u16,
    kind: Kind,
    fill: impl FnOnce(&mut BytesMut) -> Result<T, E>,
) -> Result<T, E> {
    append(out, FrameHeader::new(id, method, kind), fill)
}

fn append<T, E>(
    out: &mut BytesMut,
    header: FrameHeader,
    fill: impl FnOnce(&mut BytesMut) -> Result<T, E>,
) -> Result<T, E> {
    let start = out.len();
    out.put_slice(&header.encode());
    match fill(out) {
        Ok(value) => {
            let len = out.len() - start - HEADER_LEN;
            let len = u32::try_from(len).expect("payloads are bounded below 4 GiB");
            out[start..start + 4].copy_from_slice(&len.to_le_bytes());
            Ok(value)
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

/// Appends an error frame.
pub fn append_refusal(out: &mut BytesMut, id: u64, method: u16, refusal: &Refusal) {
    let message = refusal.message.as_bytes();
    let payload_len = 4 + message.len() as u32; // bounded by MAX_MESSAGE_LEN
    let header = FrameHeader { payload_len, ..FrameHeader::new(id, method, Kind::Error) };
    out.put_slice(&header.encode());
    out.put_i32_le(refusal.code.code());
    out.put_slice(message);
}

/// Reads the payload of an error frame.
#[must_use]
pub fn parse_refusal(payload: &[u8]) -> Refusal {
    match payload.split_first_chunk::<4>() {
        Some((number, message)) => Refusal::from_wire(i32::from_le_bytes(*number), message),
        None => Refusal::new(ErrorCode::Internal, "the refusal carries no cause"),
    }
}

/// Longest payload of an error frame in bytes.
pub const MAX_REFUSAL_LEN: usize = 4 + MAX_MESSAGE_LEN;

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the range has this length")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut out = BytesMut::new();
        let fill = |out: &mut BytesMut| {
            out.put_slice(b"\x0a\x01k");
            Ok::<(), ()>(())
        };
        let soon = Some(Duration::from_millis(1500));
        append_request(&mut out, 0x0102, 7, None, soon, fill).unwrap();
        assert_eq!(&out[..], b"\x03\0\0\0\x02\x01\0\0\0\0\0\0\x07\0\0\0\xdc\x05\0\0\x0a\x01k");
        out.clear();
        append_request(&mut out, 3, 5, Some(0xab), None, fill).unwrap();
        assert_eq!(
            &out[..],
            b"\x0b\0\0\0\x03\0\0\0\0\0\0\0\x05\0\0\x01\0\0\0\0\
              \xab\0\0\0\0\0\0\0\x0a\x01k"
        );
        let (header, payload) = first_frame(&out, 64).unwrap().unwrap();
        assert_eq!(token_of(header, payload), (Some(0xab), &b"\x0a\x01k"[..]));
        out.clear();
        append_refusal(&mut out, 9, 5, &Refusal::new(ErrorCode::ObjectNotFound, "no"));
        assert_eq!(&out[..], b"\x06\0\0\0\x09\0\0\0\0\0\0\0\x05\0\x02\0\0\0\0\0\x40\xfd\xff\xffno");
        assert_eq!(
            FrameHeader::new(9, 5, Kind::Cancel).encode(),
            *b"\0\0\0\0\x09\0\0\0\0\0\0\0\x05\0\x03\0\0\0\0\0"
        );
        assert_eq!(
            FrameHeader::new(0, 0, Kind::GoAway).encode(),
            *b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0\0"
        );
    }

    #[test]
    fn a_time_out_is_rounded_up_and_bounded() {
        for (timeout, millis) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_micros(1001), 2),
            (Duration::MAX, u32::MAX),
        ] {
            let mut out = BytesMut::new();
            append_request::<(), ()>(&mut out, 1, 1, None, Some(timeout), |_| Ok(())).unwrap();
            let (header, _) = first_frame(&out, 64).unwrap().unwrap();
            assert_eq!(header.timeout_ms, millis);
        }
        assert_eq!(FrameHeader::new(1, 1, Kind::Request).timeout(), None);
    }

    #[test]
    fn flags_are_those_that_are_known() {
        let good = FrameHeader { payload_len: 8, ..FrameHeader::new(1, 2, Kind::Request) };
        let mut bytes = good.encode();
        for (flags, kind, len, expected) in [
            (1, 0, 8, Ok(FrameHeader { tracked: true, ..good })),
            (1, 0, 7, Err(FrameError::NoToken { id: 1, method: 2 })),
            (2, 0, 8, Ok(FrameHeader { timed: true, ..good })),
            (4, 0, 8, Ok(FrameHeader { moved: true, ..good })),
            (8, 0, 8, Err(FrameError::NoToken { id: 1, method: 2 })),
            (2, 0, 7, Err(FrameError::NoToken { id: 1, method: 2 })),
            (3, 0, 15, Err(FrameError::NoToken { id: 1, method: 2 })),
            (16, 0, 25, Ok(FrameHeader { payload_len: 25, traced: true, ..good })),
            (16, 0, 24, Err(FrameError::NoToken { id: 1, method: 2 })),
            (17, 0, 32, Err(FrameError::NoToken { id: 1, method: 2 })),
            (32, 0, 8, Err(FrameError::UnknownFlags { id: 1, method: 2, flags: 32 })),
            (1, 1, 8, Err(FrameError::UnknownFlags { id: 1, method: 2, flags: 1 })),
            (2, 3, 8, Err(FrameError::UnknownFlags { id: 1, method: 2, flags: 2 })),
            (0, 5, 8, Err(FrameError::UnknownKind { id: 1, method: 2, kind: 5 })),
        ] {
            (bytes[0], bytes[14], bytes[15]) = (len, kind, flags);
            let parsed = FrameHeader::parse(&bytes, 64);
            assert_eq!(parsed, expected);
            if let Err(error) = parsed {
                assert_eq!(error.call(), (1, 2));
            }
        }
    }

    #[test]
    fn a_frame_too_long_is_named_before_its_payload_arrives() {
        let header = FrameHeader { payload_len: 65, ..FrameHeader::new(4, 2, Kind::Request) };
        assert_eq!(
            first_frame(&header.encode(), 64),
            Err(FrameError::TooLong { id: 4, method: 2, len: 65, max: 64 })
        );
    }

    #[test]
    fn a_failed_fill_leaves_nothing() {
        let mut out = BytesMut::from(&b"before"[..]);
        let failed = append_frame::<(), &str>(&mut out, 1, 1, Kind::Reply, |out| {
            out.put_slice(b"half");
            Err("no")
        });
        assert_eq!((failed, &out[..]), (Err("no"), &b"before"[..]));
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop::sample::select(Kind::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_frames(
            frames in prop::collection::vec(
                (any::<u64>(), any::<u16>(), kind(), prop::collection::vec(any::<u8>(), 0..200)),
                0..20,
            ),
            cuts in prop::collection::vec(1usize..64, 1..40),
        ) {
            let mut stream = BytesMut::new();
            for (id, method, kind, payload) in &frames {
                append_frame::<(), ()>(&mut stream, *id, *method, *kind, |out| {
                    out.put_slice(payload);
                    Ok(())
                }).unwrap();
            }
            let (mut arrived, mut decoded, mut rest) = (Vec::new(), Vec::new(), &stream[..]);
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                rest = later;
                arrived.extend_from_slice(now);
                while let Some((header, payload)) = first_frame(&arrived, 200).unwrap() {
                    decoded.push((header.id, header.method, header.kind, payload.to_vec()));
                    let taken = HEADER_LEN + payload.len();
                    arrived.drain(..taken);
                }
            }
            prop_assert!(arrived.is_empty());
            prop_assert_eq!(decoded, frames);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((header, payload))) = first_frame(&bytes, 1 << 20) {
                let (token, message) = token_of(header, payload);
                let first = token.map_or(0, |_| TOKEN_LEN)
                    + send_time_of(header, payload).map_or(0, |_| SEND_TIME_LEN)
                    + reads_of(header, payload).map_or(0, |_| READS_LEN)
                    + usize::from(header.traced) * TRACE_LEN;
                prop_assert!(header.traced || trace_of(header, payload).is_none());
                prop_assert_eq!(payload.len() - message.len(), first);
            }
            let _ = parse_refusal(&bytes);
        }
    }
}
