//! How a connection begins.

use core::fmt;

use bytes::BytesMut;
use mc_types::ErrorCode;
use thiserror::Error;

use super::{MIN_MAX_PAYLOAD, VERSION, Welcome, array};
use crate::refusal::{MAX_MESSAGE_LEN, Refusal};
use crate::wire::{Fields, put_bytes, put_u64};

/// The first bytes of either side. The first is no ASCII character, so that no
/// text protocol and neither the HTTP/2 preface (`PRI * HTTP/2.0`) nor a TLS
/// record (`0x16`) can begin with them; the last two show when a link that
/// changes line ends is in between.
pub const MAGIC: [u8; 8] = *b"\xa7MCRPC\r\n";

/// Length of that part of the client's preface in bytes that is the same in every
/// version.
pub const PREFACE_LEN: usize = 16;

/// Length of the server's preface in bytes, without the words that may follow it.
pub const SERVER_PREFACE_LEN: usize = 24;

/// Longest [`Hello`] in bytes.
pub const MAX_HELLO_LEN: usize = 8192;

/// Longest name of a client's software in bytes.
pub const MAX_SOFTWARE_LEN: usize = 128;

/// Longest token in bytes.
pub const MAX_TOKEN_LEN: usize = 4096;

/// The purpose of a client's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Purpose {
    /// Calls of a store's client, which a standby refuses.
    #[default]
    Calls = 0,
    /// Administration: a standby takes it too, and answers `HaStatus`.
    Administration = 1,
    /// The leader's journal: what follows the [`Welcome`] are no frames.
    Journal = 2,
}

impl Purpose {
    const ALL: [Self; 3] = [Self::Calls, Self::Administration, Self::Journal];

    fn from_number(number: u64) -> Result<Self, Refusal> {
        let at = usize::try_from(number).ok();
        at.and_then(|at| Self::ALL.get(at)).copied().ok_or_else(|| {
            Refusal::new(
                ErrorCode::NotSupported,
                format!("hello: this master knows no connection of purpose {number}; upgrade it"),
            )
        })
    }
}

/// The first bytes of a client; its [`Hello`] follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPreface {
    /// The version of the protocol that it speaks.
    pub version: u16,
    /// Bytes of the [`Hello`] that follows.
    pub hello_len: u16,
    /// The largest payload that it accepts, in bytes.
    pub max_payload: u32,
}

impl ClientPreface {
    /// The preface's bytes.
    #[must_use]
    pub fn encode(self) -> [u8; PREFACE_LEN] {
        let mut bytes = [0; PREFACE_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.hello_len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.max_payload.to_le_bytes());
        bytes
    }

    /// A preface of this version and its [`Hello`], as they go out.
    ///
    /// # Panics
    /// When the hello is longer than [`MAX_HELLO_LEN`]: its token is longer than
    /// [`MAX_TOKEN_LEN`] or its tenant no tenant's name.
    #[must_use]
    pub fn with(max_payload: u32, hello: &Hello) -> BytesMut {
        let hello = hello.encode();
        assert!(hello.len() <= MAX_HELLO_LEN, "a hello of {} bytes", hello.len());
        let preface = Self { version: VERSION, hello_len: hello.len() as u16, max_payload };
        let mut bytes = BytesMut::from(&preface.encode()[..]);
        bytes.extend_from_slice(&hello);
        bytes
    }

    /// Reads a preface; the version is the caller's to check.
    ///
    /// # Errors
    /// [`HandshakeError::OtherProtocol`] when the first bytes are not
    /// [`MAGIC`]; [`HandshakeError::Limit`] when a client of this version
    /// accepts less than [`MIN_MAX_PAYLOAD`] or announces a hello longer than
    /// [`MAX_HELLO_LEN`].
    pub fn parse(bytes: &[u8; PREFACE_LEN]) -> Result<Self, HandshakeError> {
        check_magic(bytes)?;
        let version = u16::from_le_bytes(array(&bytes[8..10]));
        let hello_len = u16::from_le_bytes(array(&bytes[10..12]));
        let max_payload = u32::from_le_bytes(array(&bytes[12..16]));
        if version == VERSION {
            check_max_payload(max_payload)?;
            if usize::from(hello_len) > MAX_HELLO_LEN {
                return Err(HandshakeError::Limit { name: "hello", value: hello_len.into() });
            }
        }
        Ok(Self { version, hello_len, max_payload })
    }
}

/// A client's own description. The message `Hello` of the `.proto`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hello {
    /// Names the client across its connections, so that a tracked call that is sent
    /// again on another connection is known. Drawn at random, and as hard to guess as a
    /// secret; 0 for a client that tracks no call.
    pub session: u128,
    /// A bearer token; empty for none.
    pub token: Box<[u8]>,
    /// The tenant that it wants to act for; empty for the one that its credential says.
    pub tenant: Box<str>,
    /// Whether it wants to know of a shorter way to a server of its own host: whether a
    /// [`Welcome`] may follow the preface that takes it.
    pub local: bool,
    /// Whether it can say when it sent its requests, and a [`Welcome`] may follow the preface
    /// that takes it.
    pub send_times: bool,
    /// The purpose of the connection. A [`Welcome`] may follow the preface that takes one that is
    /// not for calls.
    pub purpose: Purpose,
    /// The client's software with its version, such as `mc-node/0.1.0`; empty where it is not said.
    pub software: Box<str>,
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither the token nor the session, which are secrets.
        f.debug_struct("Hello").field("tenant", &self.tenant).finish_non_exhaustive()
    }
}

impl Hello {
    /// The message's bytes.
    #[must_use]
    pub fn encode(&self) -> BytesMut {
        let mut out = BytesMut::new();
        if self.session != 0 {
            put_bytes(&mut out, 1, &self.session.to_be_bytes());
        }
        put_bytes(&mut out, 2, &self.token);
        put_bytes(&mut out, 3, self.tenant.as_bytes());
        put_u64(&mut out, 4, self.local.into());
        put_u64(&mut out, 5, self.send_times.into());
        put_u64(&mut out, 6, self.purpose as u64);
        put_bytes(&mut out, 7, self.software.as_bytes());
        out
    }

    /// Reads the message. Fields of younger versions are skipped.
    ///
    /// # Errors
    /// A [`Refusal`] that names the field that is wrong.
    pub fn parse(message: &[u8]) -> Result<Self, Refusal> {
        let (mut fields, mut hello) = (Fields::new(message), Self::default());
        while let Some(field) = fields.next()? {
            match field.number {
                1 => {
                    let session = field
                        .bytes()?
                        .try_into()
                        .map_err(|_| Refusal::invalid("hello: session has 16 bytes"))?;
                    hello.session = u128::from_be_bytes(session);
                }
                2 => {
                    let token = field.bytes()?;
                    if token.len() > MAX_TOKEN_LEN {
                        let message = format!("hello: a token has at most {MAX_TOKEN_LEN} bytes");
                        return Err(Refusal::invalid(message));
                    }
                    hello.token = token.into();
                }
                3 => hello.tenant = field.text()?.into(),
                4 => hello.local = field.bool()?,
                5 => hello.send_times = field.bool()?,
                6 => hello.purpose = Purpose::from_number(field.u64()?)?,
                7 => {
                    let software = field.text()?;
                    if software.len() > MAX_SOFTWARE_LEN {
                        let message =
                            format!("hello: software has at most {MAX_SOFTWARE_LEN} bytes");
                        return Err(Refusal::invalid(message));
                    }
                    hello.software = software.into();
                }
                _ => {}
            }
        }
        Ok(hello)
    }
}

/// The first bytes of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerPreface {
    /// The version of the protocol that it speaks.
    pub version: u16,
    /// Bytes that follow: of the words when the connection is refused, of the [`Welcome`]
    /// when it is taken from a client that asked for one.
    pub message_len: u16,
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
        bytes[10..12].copy_from_slice(&self.message_len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.status.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.max_payload.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.max_in_flight.to_le_bytes());
        bytes
    }

    /// The preface's bytes, with the welcome behind them.
    #[must_use]
    pub fn welcoming(self, welcome: &Welcome) -> BytesMut {
        let message = welcome.encode();
        let preface = Self { message_len: message.len() as u16, ..self }; // of a name and an address
        let mut bytes = BytesMut::from(&preface.encode()[..]);
        bytes.extend_from_slice(&message);
        bytes
    }

    /// A preface that refuses the connection, with the words that say why.
    #[must_use]
    pub fn refusing(refusal: &Refusal) -> BytesMut {
        let message = refusal.message.as_bytes();
        let preface = Self {
            version: VERSION,
            message_len: message.len() as u16, // bounded by MAX_MESSAGE_LEN
            status: refusal.code.code(),
            max_payload: 0,
            max_in_flight: 0,
        };
        let mut bytes = BytesMut::from(&preface.encode()[..]);
        bytes.extend_from_slice(message);
        bytes
    }

    /// Reads and checks a preface. One that refuses the connection is an answer too;
    /// [`refusal`](Self::refusal) reads the words behind it.
    ///
    /// # Errors
    /// [`HandshakeError`] when the server speaks another protocol or version, or
    /// announces limits that cannot work.
    pub fn parse(bytes: &[u8; SERVER_PREFACE_LEN]) -> Result<Self, HandshakeError> {
        check_magic(bytes)?;
        let preface = Self {
            version: u16::from_le_bytes(array(&bytes[8..10])),
            message_len: u16::from_le_bytes(array(&bytes[10..12])),
            status: i32::from_le_bytes(array(&bytes[12..16])),
            max_payload: u32::from_le_bytes(array(&bytes[16..20])),
            max_in_flight: u32::from_le_bytes(array(&bytes[20..24])),
        };
        if preface.version != VERSION {
            return Err(HandshakeError::Version { theirs: preface.version, ours: VERSION });
        }
        if usize::from(preface.message_len) > MAX_MESSAGE_LEN {
            let value = preface.message_len.into();
            return Err(HandshakeError::Limit { name: "message", value });
        }
        if preface.status == 0 {
            check_max_payload(preface.max_payload)?;
            if preface.max_in_flight == 0 {
                return Err(HandshakeError::Limit { name: "max_in_flight", value: 0 });
            }
        }
        Ok(preface)
    }

    /// Why the connection is refused, with the words that followed; `None` when it is
    /// taken.
    #[must_use]
    pub fn refusal(&self, message: &[u8]) -> Option<Refusal> {
        (self.status != 0).then(|| Refusal::from_wire(self.status, message))
    }
}

/// The words for a client of another version.
pub(crate) fn other_version(theirs: u16) -> Refusal {
    Refusal::new(
        ErrorCode::InvalidVersion,
        format!("this master speaks version {VERSION}, not {theirs}; upgrade the older side"),
    )
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

/// Why the first bytes of a connection are not those of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum HandshakeError {
    /// The first bytes are another protocol's.
    #[error("the first bytes are {}, not this protocol's", .found.name())]
    OtherProtocol {
        /// The other protocol, as far as can be told.
        found: ForeignProtocol,
    },
    /// The other side speaks another version.
    #[error("it speaks version {theirs}, this side version {ours}; upgrade the older one")]
    Version {
        /// The other side's version.
        theirs: u16,
        /// This side's version.
        ours: u16,
    },
    /// The limits announced cannot work.
    #[error("it announces a limit of {value} for {name}")]
    Limit {
        /// The limit's name.
        name: &'static str,
        value: u32,
    },
}

impl HandshakeError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Version { .. } => ErrorCode::InvalidVersion,
            Self::OtherProtocol { .. } | Self::Limit { .. } => ErrorCode::RpcFail,
        }
    }
}

/// Another protocol that a peer spoke on this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignProtocol {
    /// HTTP/2, as gRPC clients begin.
    Http2,
    /// HTTP/1.
    Http1,
    /// TLS.
    Tls,
    /// Something else.
    Unknown,
}

impl ForeignProtocol {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http2 => "HTTP/2",
            Self::Http1 => "HTTP/1",
            Self::Tls => "TLS",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for ForeignProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto;
    use proptest::prelude::*;
    use prost::Message;

    #[test]
    fn golden_bytes() {
        let (token, tenant) = ((*b"secret").into(), "a".into());
        let hello = Hello { session: 1, token, tenant, ..Hello::default() };
        assert_eq!(
            ClientPreface::with(16 << 20, &hello),
            b"\xa7MCRPC\r\n\x02\0\x1d\0\0\0\0\x01\
              \x0a\x10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x12\x06secret\x1a\x01a"[..]
        );
        let server = ServerPreface {
            version: 2,
            message_len: 0,
            status: 0,
            max_payload: 1 << 20,
            max_in_flight: 4096,
        };
        assert_eq!(&server.encode(), b"\xa7MCRPC\r\n\x02\0\0\0\0\0\0\0\0\0\x10\0\0\x10\0\0");
        let refusal = Refusal::new(ErrorCode::Overloaded, "full");
        let bytes = ServerPreface::refusing(&refusal);
        assert_eq!(&bytes[..], b"\xa7MCRPC\r\n\x02\0\x04\0\x7a\xfc\xff\xff\0\0\0\0\0\0\0\0full");
        let preface = ServerPreface::parse(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(preface.refusal(b"full"), Some(refusal));
        assert_eq!(server.refusal(b""), None);
    }

    #[test]
    fn a_hello_is_the_message_and_keeps_its_secrets() {
        let (token, tenant) = ((*b"tok").into(), "t".into());
        let purpose = Purpose::Journal;
        let software = "mc-node/7".into();
        let hello =
            Hello { session: 7, token, tenant, local: true, send_times: true, purpose, software };
        let message = proto::Hello {
            session: 7_u128.to_be_bytes().to_vec(),
            token: b"tok".to_vec(),
            tenant: "t".into(),
            local: true,
            send_times: true,
            purpose: proto::hello::Purpose::Journal.into(),
            software: "mc-node/7".into(),
        };
        assert_eq!(message.encode_to_vec(), hello.encode());
        let long = proto::Hello { software: "x".repeat(129), ..proto::Hello::default() };
        let refusal = Hello::parse(&long.encode_to_vec()).unwrap_err();
        assert!(refusal.message.contains("at most 128 bytes"), "{refusal:?}");
        assert_eq!(Hello::parse(b"\x30\x03").unwrap_err().code, ErrorCode::NotSupported);
        assert_eq!(Hello::parse(&message.encode_to_vec()).unwrap(), hello);
        assert_eq!(Hello::parse(b"").unwrap(), Hello::default());
        assert!(!format!("{hello:?}").contains("tok"));
        for bad in [
            &b"\x0a\x01a"[..],
            b"\x08\x01",
            b"\x1a\x01\xff",
            &[b"\x12\x81\x20", &[b'x'; MAX_TOKEN_LEN + 1][..]].concat(),
        ] {
            assert_eq!(Hello::parse(bad).unwrap_err().code, ErrorCode::InvalidParams);
        }
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
    fn limits_that_cannot_work_are_refused() {
        let client = ClientPreface { version: VERSION, hello_len: 0, max_payload: 1 };
        assert!(ClientPreface::parse(&client.encode()).is_err());
        let client = ClientPreface { hello_len: 8193, max_payload: 1 << 20, ..client };
        assert!(ClientPreface::parse(&client.encode()).is_err());
        // In the preface of another version only the version counts.
        let client = ClientPreface { version: 1, ..client };
        assert_eq!(ClientPreface::parse(&client.encode()), Ok(client));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = check_magic(&bytes);
            let _ = Hello::parse(&bytes);
            if let Some(preface) = bytes.first_chunk() {
                let _ = ClientPreface::parse(preface);
            }
            if let Some(preface) = bytes.first_chunk() {
                let _ = ServerPreface::parse(preface);
            }
        }
    }
}
