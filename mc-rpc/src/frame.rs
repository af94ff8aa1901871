//! The native framing: how a connection begins and how calls follow each other.
//! Bytes in, bytes out; no I/O. `docs/protocol.md` is the specification.

use bytes::{BufMut, BytesMut};
use mc_types::ErrorCode;
use thiserror::Error;

use crate::error::{ForeignProtocol, HandshakeError, MAX_MESSAGE_LEN, Refusal};

/// The first bytes of either side. The first is no ASCII character, so that no
/// text protocol and neither the HTTP/2 preface (`PRI * HTTP/2.0`) nor a TLS
/// record (`0x16`) can begin with them; the last two show when a link that
/// changes line ends is in between.
pub const MAGIC: [u8; 8] = *b"\xa7MCRPC\r\n";

/// The version of the framing that this crate speaks.
pub const VERSION: u16 = 1;

/// Length of the client's preface in bytes.
pub const CLIENT_PREFACE_LEN: usize = 16;

/// Length of the server's preface in bytes.
pub const SERVER_PREFACE_LEN: usize = 24;

/// Length of a frame's header in bytes.
pub const HEADER_LEN: usize = 16;

/// Largest payload that either side accepts unless told otherwise: 16 MiB.
pub const DEFAULT_MAX_PAYLOAD: u32 = 16 << 20;

/// Smallest limit on payloads that either side may announce: room for any
/// refusal and for any call on a single key.
pub const MIN_MAX_PAYLOAD: u32 = 64 << 10;

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPreface {
    /// The version of the framing that it speaks.
    pub version: u16,
    /// The largest payload that it accepts, in bytes.
    pub max_payload: u32,
}

impl ClientPreface {
    /// The preface's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; CLIENT_PREFACE_LEN] {
        let mut bytes = [0; CLIENT_PREFACE_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.max_payload.to_le_bytes());
        bytes
    }

    /// Reads a preface; the version is the caller's to check.
    ///
    /// # Errors
    /// [`HandshakeError::OtherProtocol`] when the first bytes are not
    /// [`MAGIC`]; [`HandshakeError::Limit`] when a client of this version
    /// accepts less than [`MIN_MAX_PAYLOAD`].
    pub fn parse(bytes: &[u8; CLIENT_PREFACE_LEN]) -> Result<Self, HandshakeError> {
        check_magic(bytes)?;
        let version = u16::from_le_bytes(array(&bytes[8..10]));
        let max_payload = u32::from_le_bytes(array(&bytes[12..16]));
        if version == VERSION {
            check_max_payload(max_payload)?;
        }
        Ok(Self { version, max_payload })
    }
}

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerPreface {
    /// The version of the framing that it speaks.
    pub version: u16,
    /// 0 when the connection is taken, otherwise the number of the cause; the
    /// server then closes it.
    pub status: i32,
    /// The largest payload that it accepts, in bytes.
    pub max_payload: u32,
    /// The most calls that a client may have open at a time.
    pub max_in_flight: u32,
}

impl ServerPreface {
    /// The preface's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; SERVER_PREFACE_LEN] {
        let mut bytes = [0; SERVER_PREFACE_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.status.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.max_payload.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.max_in_flight.to_le_bytes());
        bytes
    }

    /// Reads and checks a preface.
    ///
    /// # Errors
    /// [`HandshakeError`] when the server speaks another protocol or version,
    /// refuses the connection, or announces limits that cannot work.
    pub fn parse(bytes: &[u8; SERVER_PREFACE_LEN]) -> Result<Self, HandshakeError> {
        check_magic(bytes)?;
        let preface = Self {
            version: u16::from_le_bytes(array(&bytes[8..10])),
            status: i32::from_le_bytes(array(&bytes[12..16])),
            max_payload: u32::from_le_bytes(array(&bytes[16..20])),
            max_in_flight: u32::from_le_bytes(array(&bytes[20..24])),
        };
        if preface.version != VERSION {
            return Err(HandshakeError::Version { theirs: preface.version, ours: VERSION });
        }
        if preface.status != 0 {
            return Err(HandshakeError::Refused { code: preface.status });
        }
        check_max_payload(preface.max_payload)?;
        if preface.max_in_flight == 0 {
            return Err(HandshakeError::Limit { name: "max_in_flight", value: 0 });
        }
        Ok(preface)
    }
}

/// Checks as much of [`MAGIC`] as has arrived, so that a peer of another
/// protocol need not be waited for.
///
/// # Errors
/// [`HandshakeError::OtherProtocol`].
pub fn check_magic(bytes: &[u8]) -> Result<(), HandshakeError> {
    let len = bytes.len().min(MAGIC.len());
    if bytes[..len] == MAGIC[..len] {
        return Ok(());
    }
    let found = match bytes {
        [b'P', b'R', b'I', ..] => ForeignProtocol::Http2,
        [0x16, ..] => ForeignProtocol::Tls,
        [b'G', b'E', b'T', ..] | [b'P', b'O', b'S', ..] | [b'P', b'U', b'T', ..] => {
            ForeignProtocol::Http1
        }
        [b'H', b'T', b'T', ..] | [b'H', b'E', b'A', ..] => ForeignProtocol::Http1,
        _ => ForeignProtocol::Unknown,
    };
    Err(HandshakeError::OtherProtocol { found })
}

fn check_max_payload(max_payload: u32) -> Result<(), HandshakeError> {
    if max_payload < MIN_MAX_PAYLOAD {
        return Err(HandshakeError::Limit { name: "max_payload", value: max_payload });
    }
    Ok(())
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A call; the payload is the method's request message.
    Request = 0,
    /// Its answer; the payload is the method's response message.
    Reply = 1,
    /// Its refusal; the payload is a number (`i32`) and a message in UTF-8.
    Error = 2,
}

/// What precedes a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of payload that follow.
    pub payload_len: u32,
    /// Names the call among those of its connection; chosen by the client,
    /// repeated in the answer.
    pub id: u64,
    /// The method's number, known here or not.
    pub method: u16,
    /// What the frame carries.
    pub kind: Kind,
}

impl FrameHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.id.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.method.to_le_bytes());
        bytes[14..16].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes
    }

    /// Reads a header and bounds its payload.
    ///
    /// # Errors
    /// [`FrameError`] when the payload is longer than `max_payload` or the kind
    /// is unknown. Where the next frame begins cannot be known then.
    pub fn parse(bytes: &[u8; HEADER_LEN], max_payload: u32) -> Result<Self, FrameError> {
        let payload_len = u32::from_le_bytes(array(&bytes[..4]));
        let id = u64::from_le_bytes(array(&bytes[4..12]));
        let method = u16::from_le_bytes(array(&bytes[12..14]));
        let kind = match u16::from_le_bytes(array(&bytes[14..16])) {
            0 => Kind::Request,
            1 => Kind::Reply,
            2 => Kind::Error,
            kind => return Err(FrameError::UnknownKind { id, method, kind }),
        };
        if payload_len > max_payload {
            return Err(FrameError::TooLong { id, method, len: payload_len, max: max_payload });
        }
        Ok(Self { payload_len, id, method, kind })
    }
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The payload is longer than this side accepts.
    #[error("the frame announces {len} bytes; the limit is {max}")]
    TooLong {
        /// The call it belongs to.
        id: u64,
        /// The method's number.
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
        /// The method's number.
        method: u16,
        /// The kind's number.
        kind: u16,
    },
    /// A kind of frame that this side never gets.
    #[error("a frame of kind {kind:?} came from the wrong side")]
    WrongSide {
        /// The call it belongs to.
        id: u64,
        /// The method's number.
        method: u16,
        /// The kind.
        kind: Kind,
    },
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
    let start = out.len();
    let header = FrameHeader { payload_len: 0, id, method, kind };
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
    out.put_slice(&FrameHeader { payload_len, id, method, kind: Kind::Error }.encode());
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
        let client = ClientPreface { version: 1, max_payload: 16 << 20 };
        assert_eq!(&client.encode(), b"\xa7MCRPC\r\n\x01\x00\x00\x00\x00\x00\x00\x01");
        let server =
            ServerPreface { version: 1, status: -902, max_payload: 1 << 20, max_in_flight: 4096 };
        assert_eq!(
            &server.encode(),
            b"\xa7MCRPC\r\n\x01\x00\x00\x00\x7a\xfc\xff\xff\x00\x00\x10\x00\x00\x10\x00\x00"
        );
        let mut out = BytesMut::new();
        append_frame::<(), ()>(&mut out, 0x0102, 7, Kind::Request, |out| {
            out.put_slice(b"\x0a\x01k");
            Ok(())
        })
        .unwrap();
        assert_eq!(
            &out[..],
            b"\x03\x00\x00\x00\x02\x01\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x0a\x01k"
        );
        out.clear();
        append_refusal(&mut out, 9, 5, &Refusal::new(ErrorCode::ObjectNotFound, "no"));
        assert_eq!(
            &out[..],
            b"\x06\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x05\x00\x02\x00\x40\xfd\xff\xffno"
        );
    }

    #[test]
    fn other_protocols_are_named() {
        for (bytes, found) in [
            (&b"PRI * HTTP/2.0\r\n\r\n"[..], ForeignProtocol::Http2),
            (b"\x16\x03\x01\x02\x00", ForeignProtocol::Tls),
            (b"GET / HTTP/1.1", ForeignProtocol::Http1),
            (b"\xa7MCRPC\n\n", ForeignProtocol::Unknown),
        ] {
            assert_eq!(check_magic(bytes), Err(HandshakeError::OtherProtocol { found }));
        }
        for len in 0..=MAGIC.len() {
            assert_eq!(check_magic(&MAGIC[..len]), Ok(()));
        }
    }

    #[test]
    fn a_frame_too_long_is_named_before_its_payload_arrives() {
        let header = FrameHeader { payload_len: 65, id: 4, method: 2, kind: Kind::Request };
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
        prop_oneof![Just(Kind::Request), Just(Kind::Reply), Just(Kind::Error)]
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
            let _ = first_frame(&bytes, 1 << 20);
            let _ = parse_refusal(&bytes);
            let _ = check_magic(&bytes);
            if let Some(preface) = bytes.first_chunk() {
                let _ = ClientPreface::parse(preface);
            }
            if let Some(preface) = bytes.first_chunk() {
                let _ = ServerPreface::parse(preface);
            }
        }
    }
}
