//! Moving bytes between a socket and memory: frames out, headers and payloads in.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};

use mc_environment::BootTime;
use mc_memory::MemorySlice;

use super::plain::PlainSocket;
use super::raw_io::{ToFill, ToSend};
use super::socket::Stream;
use super::wire::{
    MAX_REQUEST_LEN, Opcode, REQUEST_LEN, RESPONSE_LEN, RequestHeader, ResponseHeader, Status,
    encode_ticket,
};
use crate::completion::Transferred;
use crate::operation::{Pieces, RemoteSpan, Source};
use crate::region::Admitted;
use crate::slice_sums::Summing;
use crate::staged::Room;

/// Bytes received ahead of their parsing, per connection. Payloads that fit are
/// copied out of here, which is cheaper than a system call for each; what is
/// larger goes straight to its target. 32 KiB hold the headers of 800 requests.
const RECEIVE_BUFFER: usize = 32 << 10;

/// The same of a connection whose peer has proved nothing: what a stranger's socket may cost.
const SMALL_RECEIVE_BUFFER: usize = 256;

/// From this size on a payload is worth a system call that leaves it in the
/// socket until its target is known.
pub(super) const DIRECT: u64 = 16 << 10;

/// Most bytes that one system call receives: what the second cache still has when they
/// are summed. It also opens the peer's window earlier, which is worth 5 % at 16 MiB.
/// Bytes that are summed on their way out are cut alike.
const CHUNK: usize = 256 << 10;

/// Longest header of either direction.
const MAX_HEADER: usize = MAX_REQUEST_LEN;

/// A header and the payload behind it, partly sent.
pub(super) struct Frame {
    header: [u8; MAX_HEADER],
    header_len: usize,
    header_sent: usize,
    payload: Pieces<Source>,
    cursor: Cursor,
    summed: Option<SummedPayload>,
    /// The claim to the payload, where that is memory of a region.
    admitted: Option<Admitted>,
    /// The room that the payload lies in, where that is staged memory.
    room: Option<Room>,
    /// When nothing more of a write may leave.
    until: Option<BootTime>,
}

/// The checksums of a payload on its way out.
struct SummedPayload {
    digest: Box<Summing>,
    /// Where they go when all is sent or encrypted.
    sums: Arc<OnceLock<Transferred>>,
}

impl SummedPayload {
    fn finish(self) {
        // No other code sets these.
        let _ = self.sums.set(self.digest.finish());
    }
}

impl Frame {
    pub(super) fn new<const N: usize>(header: &[u8; N], payload: Pieces<Source>) -> Self {
        let mut bytes = [0; MAX_HEADER];
        bytes[..N].copy_from_slice(header);
        Self {
            header: bytes,
            header_len: N,
            header_sent: 0,
            payload,
            cursor: Cursor::default(),
            summed: None,
            admitted: None,
            room: None,
            until: None,
        }
    }

    /// A request for `remote`, with the ticket that it shows, if any.
    pub(super) fn request(
        header: &RequestHeader,
        remote: &RemoteSpan,
        payload: Pieces<Source>,
    ) -> Self {
        let mut frame = Self::new(&header.encode(), payload);
        if let Some(ticket) = &remote.ticket {
            frame.header[REQUEST_LEN..].copy_from_slice(&encode_ticket(ticket));
            frame.header_len = MAX_REQUEST_LEN;
        }
        if header.opcode == Opcode::Write {
            frame.until = remote.until;
        }
        frame
    }

    /// An answer that brings memory of a region.
    pub(super) fn of_region<const N: usize>(header: &[u8; N], admitted: Admitted) -> Self {
        let payload = admitted.memory().clone().into();
        Self { admitted: Some(admitted), ..Self::new(header, payload) }
    }

    /// A part of an answer that brings staged memory, in the first `len` bytes of `room`; behind
    /// the header if it is the first part.
    pub(super) fn of_room<const N: usize>(
        header: Option<&[u8; N]>,
        room: Room,
        len: usize,
    ) -> Self {
        let payload = room.front(len).into();
        let frame = match header {
            Some(header) => Self::new(header, payload),
            None => Self::new(&[], payload),
        };
        Self { room: Some(room), ..frame }
    }

    /// Bytes of the payload that were not sent.
    fn unsent(&self) -> usize {
        let left = self.payload[self.cursor.piece..].iter().map(Source::len).sum::<usize>();
        left - self.cursor.at
    }

    /// The same, with the payload's checksums put in `sums` once all of it is sent, or, on its
    /// way through TLS, encrypted.
    pub(super) fn summed(mut self, digest: Box<Summing>, sums: Arc<OnceLock<Transferred>>) -> Self {
        self.summed = Some(SummedPayload { digest, sums });
        self
    }

    /// A header alone.
    pub(super) fn bare<const N: usize>(header: &[u8; N]) -> Self {
        Self::new(header, Vec::new().into())
    }

    /// Whether nothing more of a write may leave.
    fn is_over(&self) -> bool {
        self.until.is_some_and(BootTime::has_passed)
    }

    /// Adds what is left; `false` when not all of it found a place.
    fn push_to<'a>(&'a self, out: &mut ToSend<'a>) -> bool {
        if !out.push_bytes(&self.header[self.header_sent..self.header_len]) {
            return false;
        }
        let mut skip = self.cursor.at;
        self.payload[self.cursor.piece..].iter().all(|source| {
            let skipped = std::mem::take(&mut skip);
            match source {
                Source::Bytes(bytes) => out.push_bytes(&bytes[skipped..]),
                Source::Memory(slice) => out.push_memory(slice, skipped),
            }
        })
    }

    /// Takes note of `sent` bytes, and adds them to the checksum unless they are
    /// `summed` already; the count that belongs to later frames, or `None` when this
    /// one is not finished.
    fn advance(&mut self, sent: usize, summed: bool) -> Option<usize> {
        let of_header = sent.min(self.header_len - self.header_sent);
        self.header_sent += of_header;
        let mut passed = |source: &Source, at, len| {
            if let Some(summing) = self.summed.as_mut().filter(|_| !summed) {
                match source {
                    Source::Bytes(bytes) => summing.digest.update(&bytes[at..at + len]),
                    Source::Memory(slice) => summing.digest.update_part(slice, at, len),
                }
            }
        };
        let rest = self.cursor.advance(&self.payload, Source::len, sent - of_header, &mut passed);
        if self.header_sent < self.header_len || self.cursor.piece < self.payload.len() {
            return None;
        }
        if let Some(summing) = self.summed.take() {
            summing.finish();
        }
        Some(rest)
    }
}

/// Frames on their way out, in order.
#[derive(Default)]
pub(super) struct SendQueue {
    frames: VecDeque<Frame>,
}

impl SendQueue {
    pub(super) fn push(&mut self, frame: Frame) {
        self.frames.push_back(frame);
    }

    pub(super) fn append(&mut self, other: &mut Self) {
        self.frames.append(&mut other.frames);
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The room of the answer that is being sent, where that brings staged memory.
    pub(super) fn room(&self) -> Option<&Room> {
        self.frames.front()?.room.as_ref()
    }

    /// Moves the payload that is being sent to another room, by `copy`, which is told the length;
    /// `false` when it could not be copied.
    pub(super) fn set_aside(&mut self, copy: impl FnOnce(&mut Room, usize) -> bool) -> bool {
        let Some(frame) = self.frames.front_mut() else { return true };
        let len = frame.payload.iter().map(Source::len).sum();
        let Some(room) = frame.room.as_mut() else { return true };
        let is_aside = copy(room, len);
        if is_aside {
            // The same bytes: what TLS has encrypted of them stays valid.
            frame.payload = room.front(len).into();
        }
        is_aside
    }

    /// Gives back the room of the answer that is being sent; how many bytes of its payload were
    /// not sent. It has to be [refilled](Self::refill) with these before it is sent on.
    pub(super) fn give_back_room(&mut self) -> usize {
        let Some(frame) = self.frames.front_mut() else { return 0 };
        let unsent = frame.unsent();
        (frame.payload, frame.cursor, frame.room) = (Vec::new().into(), Cursor::default(), None);
        unsent
    }

    /// Gives the answer whose room was given back the first `len` bytes of another one.
    pub(super) fn refill(&mut self, room: Room, len: usize) {
        if let Some(frame) = self.frames.front_mut() {
            (frame.payload, frame.room) = (room.front(len).into(), Some(room));
        }
    }

    /// When nothing more of the write may leave that is being sent; `None` for other
    /// requests.
    pub(super) fn until(&self) -> Option<BootTime> {
        self.frames.front()?.until
    }

    /// Returns whether a region was withdrawn whose bytes are among those to be sent.
    pub(super) fn are_withdrawn(&self) -> bool {
        let mut admitted = self.frames.iter().filter_map(|frame| frame.admitted.as_ref());
        admitted.any(Admitted::is_withdrawn)
    }

    /// Turns the answers into refusals whose regions were withdrawn, and of which nothing
    /// has left; `false` when that is too late for one.
    pub(super) fn refuse_withdrawn(&mut self, stream: &Stream) -> bool {
        // What TLS has encrypted may be on its way, whatever was counted as sent.
        let can_refuse = matches!(stream, Stream::Plain(_));
        let is_withdrawn =
            |frame: &&mut Frame| frame.admitted.as_ref().is_some_and(Admitted::is_withdrawn);
        self.frames.iter_mut().filter(is_withdrawn).all(|frame| {
            let header = frame.header.first_chunk::<RESPONSE_LEN>().map(ResponseHeader::decode);
            let Some(Ok(header)) = header.filter(|_| can_refuse && frame.header_sent == 0) else {
                return false;
            };
            let refusal = ResponseHeader { status: Status::KeyRefused, len: 0, ..header };
            *frame = Frame::bare(&refusal.encode());
            true
        })
    }

    /// Sends as much as one system call can, many small frames together; the
    /// bytes that left.
    ///
    /// # Errors
    /// `WouldBlock` when the socket takes nothing now; what the socket said
    /// otherwise.
    pub(super) fn try_send(&mut self, stream: &Stream) -> io::Result<usize> {
        match stream {
            Stream::Plain(socket) => self.try_send_plain(socket),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => {
                let mut frames = Plaintext::of(&mut self.frames);
                let left = stream.try_send(|chunk| frames.fill(chunk))?;
                // A frame is kept until the last of it has left, as without TLS.
                self.advance(left.plaintext, true);
                Ok(left.bytes)
            }
        }
    }

    fn try_send_plain(&mut self, socket: &PlainSocket) -> io::Result<usize> {
        let mut out = ToSend::new();
        for (nth, frame) in self.frames.iter().enumerate() {
            // The link looks at the first. One behind it may have less time.
            if (nth > 0 && frame.is_over()) || !frame.push_to(&mut out) {
                break;
            }
        }
        if self.frames.front().is_some_and(|frame| frame.summed.is_some()) {
            out.truncate(CHUNK);
        }
        let sent = socket.try_send(&mut out)?;
        self.advance(sent, false);
        Ok(sent)
    }

    fn advance(&mut self, sent: usize, summed: bool) {
        let mut left = sent;
        while let Some(front) = self.frames.front_mut() {
            match front.advance(left, summed) {
                Some(rest) => left = rest,
                None => break,
            }
            self.frames.pop_front();
        }
    }
}

/// The bytes of frames, from where they are sent up to, for code that encrypts them
/// before they are sent. Reads each byte of memory once, and leaves the frames where
/// they are.
#[cfg(feature = "tls")]
struct Plaintext<'a> {
    frames: std::collections::vec_deque::IterMut<'a, Frame>,
    /// The frame at hand, the bytes of its header that were read, and of its payload.
    current: Option<(&'a mut Frame, usize, Cursor)>,
}

#[cfg(feature = "tls")]
impl<'a> Plaintext<'a> {
    fn of(frames: &'a mut VecDeque<Frame>) -> Self {
        let mut plaintext = Self { frames: frames.iter_mut(), current: None };
        plaintext.step(true);
        plaintext
    }

    /// Goes on with the next frame, unless its time is over. The link looks at the first.
    fn step(&mut self, is_first: bool) {
        let next = self.frames.next().filter(|frame| is_first || !frame.is_over());
        self.current = next.map(|frame| {
            let (header, cursor) = (frame.header_sent, frame.cursor);
            (frame, header, cursor)
        });
    }

    /// Copies the next bytes into `chunk`, and adds those of payloads to their
    /// checksums; how many, fewer than fit at the end of the last frame alone.
    fn fill(&mut self, chunk: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some((frame, header, cursor)) = &mut self.current {
            let out = &mut chunk[filled..];
            let of_header = out.len().min(frame.header_len - *header);
            out[..of_header].copy_from_slice(&frame.header[*header..*header + of_header]);
            *header += of_header;
            filled += of_header;
            let out = &mut out[of_header..];
            let mut copied = 0;
            while let Some(source) = frame.payload.get(cursor.piece) {
                let len = (source.len() - cursor.at).min(out.len() - copied);
                let part = &mut out[copied..copied + len];
                match source {
                    Source::Bytes(bytes) => {
                        part.copy_from_slice(&bytes[cursor.at..cursor.at + len]);
                    }
                    Source::Memory(slice) => slice
                        .copy_to(cursor.at, part)
                        .expect("the length was cut to what the piece has left"),
                }
                copied += len;
                cursor.at += len;
                if cursor.at < source.len() {
                    break;
                }
                *cursor = Cursor { piece: cursor.piece + 1, at: 0 };
            }
            if let Some(summing) = &mut frame.summed {
                summing.digest.update(&out[..copied]);
            }
            filled += copied;
            if *header < frame.header_len || cursor.piece < frame.payload.len() {
                break;
            }
            // The peer may answer while records of later frames wait for room in the socket.
            if let Some(summing) = frame.summed.take() {
                summing.finish();
            }
            self.step(false);
        }
        filled
    }
}

/// The position of a transfer in a list of pieces. Pieces without bytes are passed
/// as soon as they are reached.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    piece: usize,
    at: usize,
}

impl Cursor {
    /// Moves on by `moved` bytes, and past empty pieces; the bytes that were too
    /// many. Calls `passed` with each piece, and the range of it that is passed now.
    fn advance<T>(
        &mut self,
        pieces: &[T],
        len: impl Fn(&T) -> usize,
        mut moved: usize,
        passed: &mut impl FnMut(&T, usize, usize),
    ) -> usize {
        while let Some(piece) = pieces.get(self.piece) {
            let step = moved.min(len(piece) - self.at);
            passed(piece, self.at, step);
            self.at += step;
            moved -= step;
            if self.at < len(piece) {
                break;
            }
            *self = Self { piece: self.piece + 1, at: 0 };
        }
        moved
    }
}

/// Where a payload goes, and how much of it is there.
pub(super) struct Target<'a> {
    pieces: &'a [MemorySlice],
    cursor: Cursor,
    missing: u64,
    digest: Option<&'a mut Summing>,
}

impl<'a> Target<'a> {
    pub(super) fn new(pieces: &'a [MemorySlice], len: u64) -> Self {
        Self { pieces, cursor: Cursor::default(), missing: len, digest: None }
    }

    /// The same, with what arrives added to `digest`.
    pub(super) fn summed(self, digest: &'a mut Summing) -> Self {
        Self { digest: Some(digest), ..self }
    }

    /// Bytes still to come.
    pub(super) fn missing(&self) -> u64 {
        self.missing
    }

    /// Copies as much of `bytes` as is missing to where it belongs; how much.
    fn put(&mut self, bytes: &[u8]) -> usize {
        let mut put = 0;
        while self.missing > 0 && put < bytes.len() {
            let piece = &self.pieces[self.cursor.piece];
            let len = (piece.len() - self.cursor.at).min(bytes.len() - put);
            let part = &bytes[put..put + len];
            piece
                .copy_from(self.cursor.at, part)
                .expect("the length was cut to what the piece has left");
            if let Some(digest) = &mut self.digest {
                digest.update(part);
            }
            self.cursor.advance(self.pieces, MemorySlice::len, len, &mut |_, _, _| {});
            self.missing -= len as u64;
            put += len;
        }
        put
    }

    fn advance(&mut self, moved: usize) -> usize {
        let mut passed = |piece: &MemorySlice, at, len| {
            if let Some(digest) = &mut self.digest {
                digest.update_part(piece, at, len);
            }
        };
        let excess = self.cursor.advance(self.pieces, MemorySlice::len, moved, &mut passed);
        self.missing -= (moved - excess) as u64;
        excess
    }
}

/// Bytes received and not yet parsed.
pub(super) struct ReceiveBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; RECEIVE_BUFFER].into(), start: 0, end: 0 }
    }

    /// Returns a buffer with room for a few requests, for a peer that has proved nothing yet.
    pub(super) fn small() -> Self {
        Self { bytes: vec![0; SMALL_RECEIVE_BUFFER].into(), start: 0, end: 0 }
    }

    /// Gives a [small](Self::small) buffer the size of the others.
    pub(super) fn enlarge(&mut self) {
        let mut larger = Self::new();
        let len = self.len();
        larger.bytes[..len].copy_from_slice(&self.bytes[self.start..self.end]);
        larger.end = len;
        *self = larger;
    }

    /// Bytes waiting.
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Takes a header of `N` bytes when that many wait.
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let header = *self.bytes[self.start..self.end].first_chunk()?;
        self.start += N;
        Some(header)
    }

    /// Takes the first `len` bytes, which must wait.
    pub(super) fn take_front(&mut self, len: usize) -> &[u8] {
        let from = self.start;
        self.start += len;
        &self.bytes[from..self.start]
    }

    /// Drops up to `len` bytes; how many.
    pub(super) fn discard(&mut self, len: u64) -> u64 {
        let dropped = len.min(self.len() as u64);
        self.start += dropped as usize; // at most the buffer's length
        dropped
    }

    /// Moves waiting bytes to where a payload goes.
    pub(super) fn drain_to(&mut self, target: &mut Target<'_>) {
        self.start += target.put(&self.bytes[self.start..self.end]);
    }

    /// Receives at most `limit` bytes behind those that wait.
    ///
    /// # Errors
    /// `WouldBlock` when there is nothing now, `UnexpectedEof` at the end of the
    /// stream, what the socket said otherwise.
    pub(super) fn try_receive(&mut self, stream: &Stream, limit: usize) -> io::Result<usize> {
        self.try_receive_payload(stream, &mut Target::new(&[], 0), limit)
    }

    /// Receives a payload straight into its target, and behind its end at most
    /// `limit` bytes of what follows. The buffer must have been drained first if
    /// the target still misses bytes.
    ///
    /// # Errors
    /// As [`try_receive`](Self::try_receive).
    pub(super) fn try_receive_payload(
        &mut self,
        stream: &Stream,
        target: &mut Target<'_>,
        limit: usize,
    ) -> io::Result<usize> {
        self.compact();
        match stream {
            Stream::Plain(socket) => self.try_receive_plain(socket, target, limit),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => {
                let mut room = limit.min(self.bytes.len() - self.end);
                stream.try_receive(|plaintext| {
                    let put = target.put(plaintext);
                    let behind = room.min(plaintext.len() - put);
                    let end = self.end + behind;
                    self.bytes[self.end..end].copy_from_slice(&plaintext[put..put + behind]);
                    self.end = end;
                    room -= behind;
                    put + behind
                })
            }
        }
    }

    fn try_receive_plain(
        &mut self,
        socket: &PlainSocket,
        target: &mut Target<'_>,
        limit: usize,
    ) -> io::Result<usize> {
        let mut fill = ToFill::new();
        let mut skip = target.cursor.at;
        let all_pieces = target.pieces[target.cursor.piece..]
            .iter()
            .all(|piece| fill.push_memory(piece, std::mem::take(&mut skip)));
        if all_pieces {
            let room = limit.min(self.bytes.len() - self.end);
            fill.push_buffer(&mut self.bytes[self.end..self.end + room]);
        }
        fill.truncate(CHUNK);
        let room = fill.bytes();
        let received = socket.try_receive(&mut fill)?;
        if received == 0 && room > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.end += target.advance(received);
        Ok(received)
    }

    /// Makes room behind the waiting bytes, which are fewer than a header when
    /// more must be received.
    fn compact(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use mc_memory::Memory;
    use proptest::prelude::*;
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    async fn tcp_pair() -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap());
        let (near, far) = tokio::join!(near, listener.accept());
        (near.unwrap().into(), far.unwrap().0.into())
    }

    fn unix_pair() -> (Stream, Stream) {
        let (near, far) = UnixStream::pair().unwrap();
        (near.into(), far.into())
    }

    #[cfg(feature = "tls")]
    struct Certified {
        server: mc_tls::ServerTls,
        client: mc_tls::ClientTls,
        _dir: tempfile::TempDir,
    }

    #[cfg(feature = "tls")]
    impl Certified {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
            std::fs::write(&cert, made.cert.pem()).unwrap();
            std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
            let server = mc_tls::ServerTls::load(mc_tls::TlsFiles::new(&cert, key)).unwrap();
            Self { server, client: mc_tls::ClientTls::new(cert), _dir: dir }
        }

        async fn pair(&self, (near, far): (UnixStream, UnixStream)) -> (Stream, Stream) {
            use crate::stream::tls::{PROTOCOL, TlsStream};
            let name = self.client.expected_name("localhost").unwrap();
            let settings = self.client.connect_config(PROTOCOL).unwrap();
            let near = TlsStream::client(near.into(), settings, name).unwrap();
            let far = TlsStream::server(far.into(), self.server.current(PROTOCOL)).unwrap();
            let (client, server) = tokio::join!(near.shake_hands(), far.shake_hands());
            client.and(server).unwrap();
            (Stream::Tls(Box::new(near)), Stream::Tls(Box::new(far)))
        }
    }

    /// A peer can have all of a write, and answer it, while what follows it is held up.
    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn a_write_is_summed_though_the_next_one_is_held_up() {
        let pair = UnixStream::pair().unwrap();
        socket2::SockRef::from(&pair.0).set_send_buffer_size(4096).unwrap();
        let (near, _far) = Certified::new().pair(pair).await;
        let mut queue = SendQueue::default();
        let places = [1000, 1 << 20].map(|len| {
            let place = Arc::default();
            let frame = Frame::new(&[0; RESPONSE_LEN], Bytes::from(vec![7; len]).into());
            let summing = Summing::Whole(mc_memory::Digest::new());
            queue.push(frame.summed(Box::new(summing), Arc::clone(&place)));
            place
        });
        while queue.try_send(&near).is_ok() {}
        assert_eq!(queue.len(), 2, "nothing is known to have left as a whole");
        assert!(places[0].get().is_some() && places[1].get().is_none());
    }

    /// Sends frames of the given payload sizes, cut into pieces, and receives
    /// them with headers of 16 bytes into scattered memory.
    async fn roundtrip((near, far): (Stream, Stream), sizes: &[(usize, usize)], limit: usize) {
        let total: usize = sizes.iter().map(|(len, _)| len).sum();
        let source = Memory::allocate(total).unwrap();
        let pattern: Vec<u8> = (0..total).map(|at| (at * 7 + at / 251) as u8).collect();
        source.whole().copy_from(0, &pattern).unwrap();
        let mut queue = SendQueue::default();
        let mut at = 0;
        for &(len, cut) in sizes {
            let cut = cut.min(len);
            let front = Source::Bytes(Bytes::copy_from_slice(&pattern[at..at + cut]));
            let back = Source::Memory(source.slice(at + cut, len - cut).unwrap());
            queue.push(Frame::new(&(len as u128).to_le_bytes(), vec![front, back].into()));
            at += len;
        }
        let send = async {
            while !queue.is_empty() {
                match queue.try_send(&near) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        near.writable().await.unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let sink = Memory::allocate(total).unwrap();
        let receive = async {
            let mut buffer = ReceiveBuffer::new();
            let mut at = 0;
            for &(len, cut) in sizes {
                let header: [u8; 16] = loop {
                    if let Some(header) = buffer.take() {
                        break header;
                    }
                    match buffer.try_receive(&far, limit) {
                        Ok(_) => {}
                        Err(_) => far.readable().await.unwrap(),
                    }
                };
                assert_eq!(u128::from_le_bytes(header), len as u128);
                let cut = len - cut.min(len);
                let pieces =
                    [sink.slice(at, cut).unwrap(), sink.slice(at + cut, len - cut).unwrap()];
                let mut target = Target::new(&pieces, len as u64);
                buffer.drain_to(&mut target);
                while target.missing() > 0 {
                    match buffer.try_receive_payload(&far, &mut target, limit) {
                        Ok(_) => {}
                        Err(_) => far.readable().await.unwrap(),
                    }
                }
                at += len;
            }
        };
        tokio::join!(send, receive);
        assert_eq!(sink.whole().to_vec(), pattern);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn frames_arrive_whole_and_in_order(
            sizes in prop::collection::vec(
                (prop_oneof![0usize..100, 0usize..5000, 0usize..300_000], 0usize..6000), 1..40
            ),
            limit in prop_oneof![Just(16usize), Just(40), Just(usize::MAX), 17usize..9000],
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                roundtrip(tcp_pair().await, &sizes, limit).await;
                roundtrip(unix_pair(), &sizes, limit).await;
            });
        }

        #[cfg(feature = "tls")]
        #[test]
        fn frames_arrive_encrypted(
            sizes in prop::collection::vec(
                (prop_oneof![0usize..100, 0usize..5000, 0usize..300_000], 0usize..6000), 1..40
            ),
            limit in prop_oneof![Just(16usize), Just(40), Just(usize::MAX), 17usize..9000],
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let pair = UnixStream::pair().unwrap();
                roundtrip(Certified::new().pair(pair).await, &sizes, limit).await;
            });
        }
    }
}
