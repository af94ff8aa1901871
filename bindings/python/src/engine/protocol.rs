//! The messages that engines exchange beside the bytes: where a peer's memory is, and notifies.
//!
//! A connection begins with a [`Hello`] of each side, the client's first. Then the client sends
//! requests, and the server answers each before it reads the next. Request and reply are frames: a
//! [`Header`] of eight bytes and a body. All numbers are little-endian.
//!
//! | frame | kind | body |
//! |---|---|---|
//! | describe | 1 | |
//! | probe | 2 | |
//! | notify | 3 | name, message: each a length (u32) and as many bytes of UTF-8 |
//! | description | 129 | number of endpoints (u8), each a length (u16) and text; the first range's address (u64, 0 for none), number of ranges (u32), each an address (u64), a length (u64), and a key (16 bytes) |
//! | done | 130 | |
//! | full | 131 | |
//!
//! Nothing here does I/O. A decoder allocates no more than the bytes that it was given are worth.

use mc_types::{Endpoint, EndpointError, RemoteKey};

use super::ranges::{MAX_RANGES, Range, Ranges, RangesError};

/// The version of the protocol. Both sides must have the same.
pub(crate) const VERSION: u16 = 1;

/// The longest name, and the longest message, of a notify in bytes.
pub(crate) const MAX_TEXT: usize = 64 << 10;

/// The longest body of a request.
pub(crate) const MAX_REQUEST: usize = 2 * (4 + MAX_TEXT);

/// The longest body of a reply.
pub(crate) const MAX_REPLY: usize =
    1 + MAX_ENDPOINTS * (2 + mc_types::MAX_ENDPOINT_LEN) + 8 + 4 + MAX_RANGES * RANGE_LEN;

const MAX_ENDPOINTS: usize = 1 + mc_types::MAX_OTHER_ENDPOINTS;
const RANGE_LEN: usize = 8 + 8 + 16;
const MAGIC: [u8; 4] = *b"MCTE";

const DESCRIBE: u8 = 1;
const PROBE: u8 = 2;
const NOTIFY: u8 = 3;
const DESCRIPTION: u8 = 129;
const DONE: u8 = 130;
const FULL: u8 = 131;

/// Why bytes are not a message of a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtocolError {
    /// The connection does not begin as one of this protocol.
    #[error("it does not speak the protocol of transfer engines, or only inside TLS")]
    NotAPeer,
    /// The peer has another version of the protocol.
    #[error("it speaks version {theirs} of the protocol, this side version {VERSION}")]
    Version { theirs: u16 },
    /// A frame that is none of those that may come.
    #[error("it sent a frame of kind {kind}, which is not expected")]
    Kind { kind: u8 },
    /// A reply to another request.
    #[error("it sent the reply to another request")]
    Unexpected,
    /// A frame that is longer than it may be.
    #[error("it sent a frame of {len} bytes, more than {max}")]
    TooLong { len: usize, max: usize },
    /// A body that ends too early.
    #[error("it sent a frame that ends too early")]
    TooShort,
    /// A body with bytes behind its end, or a reserved field that is not zero.
    #[error("it sent a frame with bytes that mean nothing")]
    Excess,
    /// A text that is not UTF-8.
    #[error("it sent a text that is not UTF-8")]
    Text,
    /// A description without an endpoint, or with too many.
    #[error("it named {count} endpoints")]
    Endpoints { count: u8 },
    /// A text that is not an endpoint.
    #[error("it named an endpoint that is none")]
    Endpoint(#[source] EndpointError),
    /// Ranges that no engine has.
    #[error("it named ranges that it cannot have")]
    Ranges(#[from] RangesError),
}

/// Names one run of an engine: drawn at random when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance(pub(crate) [u8; 16]);

/// The first message of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) instance: Instance,
}

impl Hello {
    /// Bytes of a hello.
    pub(crate) const LEN: usize = 24;

    pub(crate) fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..].copy_from_slice(&self.instance.0);
        bytes
    }

    /// Decodes a hello. The two bytes behind the version are for later versions.
    pub(crate) fn decode(bytes: &[u8; Self::LEN]) -> Result<Self, ProtocolError> {
        let mut rest = Reader(bytes);
        if rest.array()? != MAGIC {
            return Err(ProtocolError::NotAPeer);
        }
        let theirs = u16::from_le_bytes(rest.array()?);
        if theirs != VERSION {
            return Err(ProtocolError::Version { theirs });
        }
        let [_, _] = rest.array()?;
        Ok(Self { instance: Instance(rest.array()?) })
    }
}

/// The beginning of a frame: its kind, three bytes of zero, and the length of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    kind: u8,
    len: u32,
}

impl Header {
    /// Bytes of a header.
    pub(crate) const LEN: usize = 8;

    /// Decodes the header of a frame whose body may have `max` bytes.
    pub(crate) fn decode(bytes: [u8; Self::LEN], max: usize) -> Result<Self, ProtocolError> {
        let [kind, zeros @ .., a, b, c, d] = bytes;
        if zeros != [0; 3] {
            return Err(ProtocolError::Excess);
        }
        let len = u32::from_le_bytes([a, b, c, d]);
        match usize::try_from(len) {
            Ok(fits) if fits <= max => Ok(Self { kind, len }),
            _ => Err(ProtocolError::TooLong { len: len as usize, max }),
        }
    }

    /// The length of the body in bytes.
    pub(crate) fn body_len(self) -> usize {
        self.len as usize
    }
}

/// A message for the program that runs the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notify {
    pub(crate) name: String,
    pub(crate) message: String,
}

impl Notify {
    /// Returns the length of a text that is longer than [`MAX_TEXT`] bytes; `None` if none is.
    pub(crate) fn excess(&self) -> Option<usize> {
        [&self.name, &self.message].map(String::len).into_iter().find(|len| *len > MAX_TEXT)
    }
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// The peer's memory and the way to it.
    Describe,
    /// A sign of life.
    Probe,
    /// To keep a notify for the program.
    Notify(Notify),
}

/// The memory of an engine, and where its node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) endpoint: Endpoint,
    pub(crate) ranges: Ranges,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Description(Description),
    /// The request was carried out.
    Done,
    /// The peer keeps as many notifies as it can.
    Full,
}

impl Request {
    /// Returns the frame.
    ///
    /// # Errors
    /// [`ProtocolError::TooLong`] for a notify with a text of more than [`MAX_TEXT`] bytes.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, ProtocolError> {
        match self {
            Self::Describe => Ok(frame(DESCRIBE, &[])),
            Self::Probe => Ok(frame(PROBE, &[])),
            Self::Notify(notify) => {
                let mut body = Vec::new();
                if let Some(len) = notify.excess() {
                    return Err(ProtocolError::TooLong { len, max: MAX_TEXT });
                }
                for text in [&notify.name, &notify.message] {
                    body.extend((text.len() as u32).to_le_bytes());
                    body.extend(text.as_bytes());
                }
                Ok(frame(NOTIFY, &body))
            }
        }
    }

    /// Decodes the body of a frame.
    pub(crate) fn decode(header: Header, body: &[u8]) -> Result<Self, ProtocolError> {
        let mut rest = Reader(body);
        let request = match header.kind {
            DESCRIBE => Self::Describe,
            PROBE => Self::Probe,
            NOTIFY => Self::Notify(Notify { name: rest.long_text()?, message: rest.long_text()? }),
            kind => return Err(ProtocolError::Kind { kind }),
        };
        rest.end().map(|()| request)
    }
}

impl Reply {
    /// Returns the frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Description(description) => frame(DESCRIPTION, &description.encode()),
            Self::Done => frame(DONE, &[]),
            Self::Full => frame(FULL, &[]),
        }
    }

    /// Decodes the body of a frame.
    pub(crate) fn decode(header: Header, body: &[u8]) -> Result<Self, ProtocolError> {
        let mut rest = Reader(body);
        let reply = match header.kind {
            DESCRIPTION => Self::Description(Description::decode(&mut rest)?),
            DONE => Self::Done,
            FULL => Self::Full,
            kind => return Err(ProtocolError::Kind { kind }),
        };
        rest.end().map(|()| reply)
    }
}

impl Description {
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(MAX_ENDPOINTS + self.ranges.len() * RANGE_LEN);
        let endpoints = || std::iter::once(&self.endpoint).chain(self.endpoint.others());
        // At most four of at most 256 bytes.
        body.push(endpoints().count() as u8);
        for endpoint in endpoints() {
            body.extend((endpoint.as_str().len() as u16).to_le_bytes());
            body.extend(endpoint.as_str().as_bytes());
        }
        body.extend(self.ranges.first().unwrap_or(0).to_le_bytes());
        body.extend((self.ranges.len() as u32).to_le_bytes());
        for Range { address, len, key } in &*self.ranges {
            body.extend(address.to_le_bytes());
            body.extend(len.to_le_bytes());
            body.extend(key.to_bytes());
        }
        body
    }

    fn decode(rest: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let [count] = rest.array()?;
        if count == 0 || usize::from(count) > MAX_ENDPOINTS {
            return Err(ProtocolError::Endpoints { count });
        }
        let endpoint = rest.endpoint()?;
        let others: Vec<Endpoint> =
            (1..count).map(|_| rest.endpoint()).collect::<Result<_, _>>()?;
        let first = Some(u64::from_le_bytes(rest.array()?)).filter(|first| *first != 0);
        let count = u32::from_le_bytes(rest.array()?) as usize;
        // Looked at before there is room for as many.
        let list = rest.take(count.checked_mul(RANGE_LEN).ok_or(ProtocolError::TooShort)?)?;
        let ranges = list.chunks_exact(RANGE_LEN).map(decode_range).collect::<Result<_, _>>()?;
        let ranges = Ranges::new(ranges, first)?;
        Ok(Self { endpoint: endpoint.with_others(others), ranges })
    }
}

fn decode_range(bytes: &[u8]) -> Result<Range, ProtocolError> {
    let mut rest = Reader(bytes);
    Ok(Range {
        address: u64::from_le_bytes(rest.array()?),
        len: u64::from_le_bytes(rest.array()?),
        key: RemoteKey::from_bytes(rest.array()?),
    })
}

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(Header::LEN + body.len());
    frame.extend([kind, 0, 0, 0]);
    // No body is longer than `MAX_REPLY`.
    frame.extend((body.len() as u32).to_le_bytes());
    frame.extend(body);
    frame
}

/// The bytes of a body that are not decoded yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ProtocolError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ProtocolError::TooShort)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(ProtocolError::TooShort)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn text(&mut self, len: usize) -> Result<&'a str, ProtocolError> {
        std::str::from_utf8(self.take(len)?).map_err(|_| ProtocolError::Text)
    }

    fn long_text(&mut self) -> Result<String, ProtocolError> {
        let len = u32::from_le_bytes(self.array()?) as usize;
        if len > MAX_TEXT {
            return Err(ProtocolError::TooLong { len, max: MAX_TEXT });
        }
        self.text(len).map(ToOwned::to_owned)
    }

    fn endpoint(&mut self) -> Result<Endpoint, ProtocolError> {
        let len = u16::from_le_bytes(self.array()?);
        self.text(usize::from(len))?.parse().map_err(ProtocolError::Endpoint)
    }

    fn end(&self) -> Result<(), ProtocolError> {
        if self.0.is_empty() { Ok(()) } else { Err(ProtocolError::Excess) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    fn some_ranges() -> Ranges {
        let key = RemoteKey::from_bytes(*b"0123456789abcdef");
        let range = |address, len| Range { address, len, key };
        Ranges::new(vec![range(0x1000, 0x10), range(0x2000, 5)], Some(0x2000)).unwrap()
    }

    fn described(ranges: Ranges) -> Reply {
        let endpoint = endpoint("quic://a:1").with_others([endpoint("tcp://a:2")]);
        Reply::Description(Description { endpoint, ranges })
    }

    fn split(frame: &[u8], max: usize) -> Result<(Header, &[u8]), ProtocolError> {
        let (header, body) = frame.split_first_chunk().unwrap();
        Header::decode(*header, max).map(|header| (header, body))
    }

    fn decoded_reply(frame: &[u8]) -> Result<Reply, ProtocolError> {
        split(frame, MAX_REPLY).and_then(|(header, body)| Reply::decode(header, body))
    }

    fn decoded_request(frame: &[u8]) -> Result<Request, ProtocolError> {
        split(frame, MAX_REQUEST).and_then(|(header, body)| Request::decode(header, body))
    }

    #[test]
    fn the_bytes_are_those_of_the_documentation() {
        let hello = Hello { instance: Instance(*b"0123456789abcdef") };
        assert_eq!(&hello.encode(), b"MCTE\x01\0\0\x000123456789abcdef");
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let notify = Request::Notify(Notify { name: "n".into(), message: "é".into() });
        let bytes = b"\x03\0\0\0\x0b\0\0\0\x01\0\0\0n\x02\0\0\0\xc3\xa9";
        assert_eq!(notify.encode().unwrap(), bytes);
        let bytes = [
            &b"\x81\0\0\0\x64\0\0\0\x02\x0a\0quic://a:1\x09\0tcp://a:2"[..],
            b"\0\x20\0\0\0\0\0\0\x02\0\0\0",
            b"\0\x10\0\0\0\0\0\0\x10\0\0\0\0\0\0\x000123456789abcdef",
            b"\0\x20\0\0\0\0\0\0\x05\0\0\0\0\0\0\x000123456789abcdef",
        ];
        assert_eq!(described(some_ranges()).encode(), bytes.concat());
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let notify = Notify { name: String::new(), message: "x".repeat(MAX_TEXT) };
        for request in [Request::Describe, Request::Probe, Request::Notify(notify)] {
            let frame = request.encode().unwrap();
            assert_eq!(decoded_request(&frame), Ok(request));
            assert_eq!(decoded_reply(&frame), Err(ProtocolError::Kind { kind: frame[0] }));
        }
        for reply in
            [described(some_ranges()), described(Ranges::default()), Reply::Done, Reply::Full]
        {
            let decoded = decoded_reply(&reply.encode()).unwrap();
            if let (Reply::Description(one), Reply::Description(other)) = (&reply, &decoded) {
                assert_eq!(one.endpoint.others(), other.endpoint.others());
            }
            assert_eq!(decoded, reply);
        }
    }

    #[test]
    fn the_longest_messages_fit() {
        let long = "x".repeat(MAX_TEXT);
        let notify = Request::Notify(Notify { name: long.clone(), message: long });
        assert_eq!(notify.encode().unwrap().len(), Header::LEN + MAX_REQUEST);
        assert_eq!(decoded_request(&notify.encode().unwrap()), Ok(notify));
        let key = RemoteKey::from_bytes([1; 16]);
        let many = (1..=MAX_RANGES as u64).map(|at| Range { address: at * 8, len: 8, key });
        let reply = described(Ranges::new(many.collect(), Some(8)).unwrap());
        assert!(reply.encode().len() <= Header::LEN + MAX_REPLY);
        assert_eq!(decoded_reply(&reply.encode()), Ok(reply));
    }

    #[test]
    fn what_is_too_long_is_rejected_before_it_is_read() {
        let text = "x".repeat(MAX_TEXT + 1);
        let notify = Request::Notify(Notify { name: text, message: String::new() });
        let max = MAX_TEXT;
        assert_eq!(notify.encode(), Err(ProtocolError::TooLong { len: max + 1, max }));
        let header = [NOTIFY, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        let refused = Header::decode(header, MAX_REQUEST);
        assert!(matches!(refused, Err(ProtocolError::TooLong { .. })), "{refused:?}");
        // Four thousand million ranges in a body of twelve bytes more than an endpoint.
        let body = [&b"\x01\x09\0tcp://a:2"[..], &[0; 8], &[0xff; 4]].concat();
        assert_eq!(decoded_reply(&frame(DESCRIPTION, &body)), Err(ProtocolError::TooShort));
        let body = [&b"\xff\xff\xff\xff"[..], &[0; 8]].concat();
        let refused = decoded_request(&frame(NOTIFY, &body));
        assert!(matches!(refused, Err(ProtocolError::TooLong { .. })), "{refused:?}");
    }

    #[test]
    fn malformed_messages_have_names() {
        let mut hello = Hello { instance: Instance([7; 16]) }.encode();
        hello[4] = 9;
        assert_eq!(Hello::decode(&hello), Err(ProtocolError::Version { theirs: 9 }));
        hello[0] = b'G';
        assert_eq!(Hello::decode(&hello), Err(ProtocolError::NotAPeer));
        assert_eq!(decoded_request(&frame(PROBE, b"x")), Err(ProtocolError::Excess));
        assert_eq!(decoded_request(&frame(99, b"")), Err(ProtocolError::Kind { kind: 99 }));
        assert_eq!(Header::decode([1, 1, 0, 0, 0, 0, 0, 0], 9), Err(ProtocolError::Excess));
        let body = [1, 0, 0, 0, 0xff, 0, 0, 0, 0];
        assert_eq!(decoded_request(&frame(NOTIFY, &body)), Err(ProtocolError::Text));
        for count in [0, 5] {
            let refused = decoded_reply(&frame(DESCRIPTION, &[count, 0, 0]));
            assert_eq!(refused, Err(ProtocolError::Endpoints { count }));
        }
        let refused = decoded_reply(&frame(DESCRIPTION, b"\x01\x03\0abc"));
        assert!(matches!(refused, Err(ProtocolError::Endpoint(_))), "{refused:?}");
        let overlap = b"\x01\x09\0tcp://a:2\x08\0\0\0\0\0\0\0\x02\0\0\0".to_vec();
        let range = [&8_u64.to_le_bytes()[..], &8_u64.to_le_bytes(), &[0; 16]].concat();
        let refused = decoded_reply(&frame(DESCRIPTION, &[overlap, range.clone(), range].concat()));
        assert!(matches!(refused, Err(ProtocolError::Ranges(_))), "{refused:?}");
    }

    proptest! {
        /// No bytes panic; what is decoded is encoded as the same bytes.
        #[test]
        fn no_bytes_are_too_strange(
            kind in prop_oneof![1_u8..=3, 129_u8..=131, any::<u8>()],
            body in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let frame = frame(kind, &body);
            if let Ok(request) = decoded_request(&frame) {
                prop_assert_eq!(request.encode().unwrap(), frame.clone());
            }
            let _ = decoded_reply(&frame);
        }

        /// A description with any byte changed, or cut anywhere, is decoded or rejected, and is
        /// never larger than its bytes.
        #[test]
        fn a_damaged_description_is_no_danger(at in 0_usize..120, byte: u8, cut in 0_usize..120) {
            let mut bytes = described(some_ranges()).encode();
            let place = Header::LEN + at % (bytes.len() - Header::LEN);
            bytes[place] = byte;
            bytes.truncate(Header::LEN.max(cut.min(bytes.len())));
            let len = (bytes.len() - Header::LEN) as u32;
            bytes[4..8].copy_from_slice(&len.to_le_bytes());
            if let Ok(Reply::Description(description)) = decoded_reply(&bytes) {
                prop_assert!(description.ranges.len() * RANGE_LEN <= bytes.len());
            }
        }

        #[test]
        fn no_hello_or_header_is_too_strange(hello: [u8; Hello::LEN], header: [u8; Header::LEN]) {
            let _ = Hello::decode(&hello);
            if let Ok(header) = Header::decode(header, MAX_REQUEST) {
                prop_assert!(header.body_len() <= MAX_REQUEST);
            }
        }
    }
}
