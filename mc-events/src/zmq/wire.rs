//! ZMTP 3.0, the protocol of ZeroMQ, as far as PUB and ROUTER sockets without encryption need it.
//!
//! The source is <https://rfc.zeromq.org/spec/23/>.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Length limit of a frame from a subscriber. Subscriptions and requests are shorter.
pub(crate) const MAX_FRAME: usize = 512;

/// Limits of a message from a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Frames; further ones are not kept.
    pub(crate) frames: usize,
    /// Bytes of a frame.
    pub(crate) frame_bytes: usize,
}

impl Bounds {
    /// The bounds of subscriptions and requests.
    pub(crate) const REQUEST: Self = Self { frames: 3, frame_bytes: MAX_FRAME };
}

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Memory for a frame of which nothing has arrived yet.
const FIRST_READ: usize = 64 << 10;
/// Signature, version 3.0, mechanism NULL, client or server, filler.
const GREETING: [u8; 64] = {
    let mut greeting = [0; 64];
    greeting[0] = 0xFF;
    greeting[9] = 0x7F;
    greeting[10] = 3;
    greeting[12] = b'N';
    greeting[13] = b'U';
    greeting[14] = b'L';
    greeting[15] = b'L';
    greeting
};

fn invalid(problem: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, problem)
}

/// A message or command from a peer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Incoming {
    /// The frames of a message. Those beyond the limit are not kept.
    Message { frames: Vec<Vec<u8>>, too_many: bool },
    /// A heartbeat, with what has to come back.
    Ping(Vec<u8>),
}

/// Begins a connection of a socket of type `ours` with one of the types `theirs`.
pub(crate) async fn shake_hands<C>(peer: &mut C, ours: &str, theirs: &[&str]) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    peer.write_all(&GREETING).await?;
    let mut greeting = [0; 64];
    peer.read_exact(&mut greeting).await?;
    if greeting[0] != 0xFF || greeting[9] & 1 == 0 || greeting[10] < 3 {
        return Err(invalid("the peer does not speak ZMTP 3"));
    }
    if greeting[12..32] != GREETING[12..32] {
        return Err(invalid("the peer wants another security mechanism than NULL"));
    }
    let mut ready = Vec::from(*b"\x05READY");
    for (name, value) in [("Socket-Type", ours), ("Identity", "")] {
        ready.push(u8::try_from(name.len()).expect("a short name"));
        ready.extend_from_slice(name.as_bytes());
        ready.extend_from_slice(&u32::try_from(value.len()).expect("a short name").to_be_bytes());
        ready.extend_from_slice(value.as_bytes());
    }
    let mut out = Vec::new();
    append_frame(&mut out, COMMAND, &ready);
    peer.write_all(&out).await?;
    let (flags, body) = read_frame(peer, MAX_FRAME).await?;
    let properties = body.strip_prefix(b"\x05READY").filter(|_| flags & COMMAND != 0);
    let kind = properties.and_then(|properties| property(properties, b"socket-type"));
    match kind {
        Some(kind) if theirs.iter().any(|theirs| theirs.as_bytes() == kind) => Ok(()),
        Some(_) => Err(invalid("the peer's socket has a type that does not go with this one")),
        None => Err(invalid("the peer does not say what type its socket has")),
    }
}

fn property<'a>(mut properties: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    loop {
        let (&len, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(len.into())?;
        let (len, rest) = rest.split_first_chunk()?;
        let len = usize::try_from(u32::from_be_bytes(*len)).ok()?;
        let (value, rest) = rest.split_at_checked(len)?;
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        properties = rest;
    }
}

async fn read_frame<R: AsyncRead + Unpin>(
    peer: &mut R,
    max_bytes: usize,
) -> io::Result<(u8, Vec<u8>)> {
    let flags = peer.read_u8().await?;
    let long = flags & LONG != 0;
    let len = if long { peer.read_u64().await? } else { peer.read_u8().await?.into() };
    // Nothing is allocated for a length that a peer makes up: a long frame grows as it arrives.
    let len = usize::try_from(len).ok().filter(|len| *len <= max_bytes);
    let len = len.ok_or_else(|| invalid("the peer sends a frame that is too long"))?;
    let mut body = Vec::with_capacity(len.min(FIRST_READ));
    if peer.take(len as u64).read_to_end(&mut body).await? < len {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok((flags, body))
}

/// Reads the next message or heartbeat. Other commands are skipped.
pub(crate) async fn read<R: AsyncRead + Unpin>(
    peer: &mut R,
    bounds: Bounds,
) -> io::Result<Incoming> {
    let (mut frames, mut too_many) = (Vec::new(), false);
    loop {
        let (flags, body) = read_frame(peer, bounds.frame_bytes).await?;
        if flags & COMMAND != 0 {
            // The name, a time to live of two bytes, and a context.
            match body.strip_prefix(b"\x04PING").and_then(|ping| ping.get(2..)) {
                Some(context) if frames.is_empty() => return Ok(Incoming::Ping(context.into())),
                _ => continue,
            }
        }
        if frames.len() < bounds.frames {
            frames.push(body);
        } else {
            too_many = true;
        }
        if flags & MORE == 0 {
            return Ok(Incoming::Message { frames, too_many });
        }
    }
}

/// The answer to a heartbeat.
pub(crate) fn pong(context: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    append_frame(&mut out, COMMAND, &[b"\x04PONG", context].concat());
    out
}

/// Appends a message; there must be a frame.
pub(crate) fn append_message(out: &mut Vec<u8>, frames: &[&[u8]]) {
    let (last, others) = frames.split_last().expect("a message has a frame");
    append_head(out, others, last.len());
    out.extend_from_slice(last);
}

fn append_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    append_frame_head(out, flags, body.len());
    out.extend_from_slice(body);
}

/// Appends a message but for its last frame's body of `len` bytes, which follows.
pub(crate) fn append_head(out: &mut Vec<u8>, frames: &[&[u8]], len: usize) {
    for frame in frames {
        append_frame(out, MORE, frame);
    }
    append_frame_head(out, 0, len);
}

fn append_frame_head(out: &mut Vec<u8>, flags: u8, len: usize) {
    match u8::try_from(len) {
        Ok(len) => out.extend_from_slice(&[flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[tokio::test]
    async fn a_made_up_length_allocates_nothing() {
        let mut bytes = vec![LONG];
        bytes.extend_from_slice(&(1_u64 << 61).to_be_bytes());
        let error = read(&mut bytes.as_slice(), Bounds::REQUEST).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn messages_are_read_as_written() {
        let mut bytes = Vec::new();
        append_message(&mut bytes, &[b"", &[7; 300]]);
        append_frame(&mut bytes, COMMAND, b"\x04PING\0\x01abc");
        append_message(&mut bytes, &[b"1", b"2", b"3", b"4"]);
        let mut bytes = bytes.as_slice();
        let frames = vec![vec![], vec![7; 300]];
        let message = Incoming::Message { frames, too_many: false };
        assert_eq!(read(&mut bytes, Bounds::REQUEST).await.unwrap(), message);
        assert_eq!(read(&mut bytes, Bounds::REQUEST).await.unwrap(), Incoming::Ping(b"abc".into()));
        let frames = vec![b"1".into(), b"2".into(), b"3".into()];
        assert_eq!(
            read(&mut bytes, Bounds::REQUEST).await.unwrap(),
            Incoming::Message { frames, too_many: true }
        );
        assert_eq!(
            read(&mut bytes, Bounds::REQUEST).await.unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
    }
}
