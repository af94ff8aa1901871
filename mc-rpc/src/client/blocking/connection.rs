//! One connection of a blocking client, with one call at a time.

use core::ops::Range;
use core::time::Duration;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use mc_types::Epoch;

use super::in_place::{CHECK_INTERVAL, is_wanted, was_given_up};
use super::spin::Spin;
use super::stream::Stream;
use crate::client::address::Address;
use crate::client::backoff::bounded;
use crate::client::config::ClientConfig;
use crate::client::credentials::{Identity, Prepared};
use crate::client::dial::{cancelled, handshake_failed, no_answer, offers, shorter_way};
use crate::client::read_counter::ReadCounter;
use crate::client::request::{Said, address as address_frame, has_room, is_too_late};
use crate::client::youngest_term::YoungestTerm;
use crate::error::RpcError;
use crate::frame::{
    FrameError, FrameHeader, HEADER_LEN, Kind, MAX_REFUSAL_LEN, MIN_MAX_PAYLOAD,
    SERVER_PREFACE_LEN, ServerPreface, check_magic,
};
use crate::handshake::PrefaceError;
use crate::method::Method;

/// Room for an answer on a connection at rest; longer ones are given room while they
/// arrive.
const INBOX_BYTES: usize = 8 << 10;

/// Larger buffers are not kept for the next call.
const MAX_KEPT_BYTES: usize = 256 << 10;

pub(super) struct Connection {
    pub(super) addr: Arc<str>,
    stream: Stream,
    /// The request.
    pub(super) outbox: BytesMut,
    /// Where in it the bytes that are sent begin.
    begin: usize,
    /// When the hello was sent, where requests say how long after that they were.
    hello: Option<Instant>,
    /// The client's reads, where requests say which of them are over.
    reads: Option<ReadCounter>,
    /// Whether requests may bear the context of a trace.
    traces: bool,
    /// The buffer of received bytes; all of it is room for bytes.
    inbox: Vec<u8>,
    /// Where in it the answer's payload is.
    answer: Range<usize>,
    /// The socket's time-out now.
    timeout: Duration,
    spin: Spin,
    /// Largest request that the master accepts.
    pub(super) max_request: usize,
    /// Largest answer that this side accepts.
    max_answer: u32,
    last_id: u64,
    /// The term of the master.
    epoch: Option<Epoch>,
    terms: YoungestTerm,
    /// The server's incarnation, 0 for an older one.
    pub(super) incarnation: u64,
    /// Whether the master takes no other call here.
    pub(super) going: bool,
    /// The pool's generation that the connection belongs to.
    pub(super) generation: u64,
}

/// Why no bytes came or went.
enum Broken {
    Late,
    GivenUp,
    Io(io::Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<FrameError> for Broken {
    fn from(error: FrameError) -> Self {
        Self::Io(io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

fn waits(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Connection {
    /// Connects and shakes hands within `time`, until `deadline` at the latest.
    pub(super) fn open(
        address: &Address,
        identity: &Identity,
        config: &ClientConfig,
        time: Duration,
        deadline: Instant,
    ) -> Result<Self, RpcError> {
        let prepared = identity.prepare(config)?;
        let deadline = deadline.min(Instant::now() + bounded(time));
        let (connection, shorter) = Self::open_one(address, &prepared, identity, config, deadline)?;
        let shorter =
            shorter.map(|way| Self::open_one(&way, &prepared, identity, config, deadline));
        // Where the offer leads nowhere, this client is in another container.
        Ok(shorter.and_then(Result::ok).map_or(connection, |(connection, _)| connection))
    }

    /// Connects to this address, unless its master led before another one that has been met. Says
    /// which address is better.
    fn open_one(
        address: &Address,
        prepared: &Prepared,
        identity: &Identity,
        config: &ClientConfig,
        deadline: Instant,
    ) -> Result<(Self, Option<Address>), RpcError> {
        let addr = address.text();
        let stream =
            Stream::connect(address, prepared, identity, config, deadline).map_err(|error| {
                match waits(&error) {
                    true => no_answer(addr, config.connect_timeout),
                    false => handshake_failed(addr, error.into()),
                }
            })?;
        let mut connection = Self {
            addr: Arc::clone(addr),
            stream,
            outbox: prepared.preface.clone(),
            begin: 0,
            hello: None,
            reads: None,
            traces: false,
            inbox: vec![0; INBOX_BYTES],
            answer: 0..0,
            timeout: Duration::ZERO,
            spin: Spin::new(config.spin),
            max_request: 0,
            max_answer: config.max_payload.max(MIN_MAX_PAYLOAD),
            last_id: 0,
            epoch: None,
            terms: config.terms.clone(),
            incarnation: 0,
            going: false,
            generation: 0,
        };
        let hello = Instant::now();
        match connection.shake_hands(deadline) {
            Ok(Ok(server)) => {
                connection.max_request = server.max_payload as usize;
                let words = &connection.inbox[SERVER_PREFACE_LEN..][..server.message_len.into()];
                let welcome = offers(words);
                connection.hello = welcome.send_times.then_some(hello);
                connection.reads = welcome.reads.then(|| config.reads.clone());
                connection.traces = welcome.traces;
                connection.incarnation = welcome.incarnation;
                if !config.administration {
                    connection.epoch = welcome.epoch;
                    let admitted = config.terms.admit(welcome.epoch);
                    admitted.map_err(|error| handshake_failed(addr, error.into()))?;
                }
                let shorter = shorter_way(addr, &welcome, connection.stream.local_addr());
                Ok((connection, shorter))
            }
            Ok(Err(error)) => Err(handshake_failed(addr, error)),
            Err(Broken::Io(error)) => Err(handshake_failed(addr, error.into())),
            Err(Broken::Late) => Err(no_answer(addr, config.connect_timeout)),
            Err(Broken::GivenUp) => Err(cancelled(addr)),
        }
    }

    fn shake_hands(
        &mut self,
        deadline: Instant,
    ) -> Result<Result<ServerPreface, PrefaceError>, Broken> {
        self.send(deadline)?;
        let (mut filled, mut wanted, mut preface) = (0, SERVER_PREFACE_LEN, None);
        loop {
            while filled < wanted {
                let read = self.receive(filled..wanted, deadline)?;
                if read == 0 {
                    let text = "the connection was closed during the handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text).into());
                }
                filled += read;
                if let Err(error) = check_magic(&self.inbox[..filled]) {
                    return Ok(Err(PrefaceError::Handshake(error)));
                }
            }
            let server: ServerPreface = match preface {
                Some(server) => server,
                None => match self.inbox.first_chunk().map(ServerPreface::parse) {
                    Some(Ok(server)) => server,
                    Some(Err(error)) => return Ok(Err(PrefaceError::Handshake(error))),
                    None => return Err(io::Error::from(io::ErrorKind::InvalidData).into()),
                },
            };
            // Bounded by the preface's check, far below the inbox.
            wanted = SERVER_PREFACE_LEN + usize::from(server.message_len);
            if filled == wanted {
                let words = &self.inbox[SERVER_PREFACE_LEN..wanted];
                return Ok(server
                    .refusal(words)
                    .map_or(Ok(server), |refusal| Err(PrefaceError::Refused(refusal))));
            }
            preface = Some(server);
        }
    }

    /// Sends the request in the outbox, which has this header, and waits for its answer, which is
    /// in [`answer`](Self::answer) then. Without a sign of life for as long as `silence` the
    /// connection is lost. After an error the connection is of no more use.
    pub(super) fn exchange(
        &mut self,
        method: Method,
        header: FrameHeader,
        silence: Option<Duration>,
        after: Duration,
        deadline: Instant,
    ) -> Result<FrameHeader, RpcError> {
        self.last_id += 1;
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        let said = if has_room(header.payload_len as usize, self.max_request) {
            Said {
                sent: self.hello.map(|hello| now.saturating_duration_since(hello)),
                reads: self.reads.as_ref().and_then(|reads| reads.progress(method)),
                trace: self.traces.then(mc_trace::current).flatten(),
            }
        } else {
            Said::default()
        };
        self.begin = address_frame(&mut self.outbox, header, self.last_id, left, said);
        let silence = silence.filter(|silence| *silence < left);
        let first = silence.map_or(deadline, |silence| now + silence);
        let answered = match left.is_zero() {
            true => Err(Broken::Late),
            false => self
                .send_within(first.saturating_duration_since(now), first)
                .and_then(|()| self.read_answer(first, deadline)),
        };
        self.going |= answered.is_err();
        let addr = || Arc::clone(&self.addr);
        answered.map_err(|broken| match (broken, silence) {
            (Broken::Late, Some(silence)) if Instant::now() < deadline => {
                let text = format!("nothing heard for {silence:?}");
                let source = Arc::new(io::Error::new(io::ErrorKind::TimedOut, text));
                RpcError::ConnectionLost { addr: addr(), source }
            }
            (Broken::Late, _) => RpcError::TimedOut { addr: addr(), method, after },
            (Broken::GivenUp, _) => RpcError::GivenUp { addr: addr(), method },
            (Broken::Io(source), _) => {
                RpcError::ConnectionLost { addr: addr(), source: Arc::new(source) }
            }
        })
    }

    /// Returns whether the last answer refuses the call because its time is over, and it is not: the
    /// clocks of the two sides no longer agree. The connection takes no other calls then.
    pub(super) fn is_too_early(&mut self, kind: Kind, deadline: Instant) -> bool {
        let is_late = is_too_late(kind, self.answer());
        let is_too_early = is_late && self.hello.is_some() && Instant::now() < deadline;
        self.going |= is_too_early;
        is_too_early
    }

    /// The payload of the last answer.
    pub(super) fn answer(&self) -> &[u8] {
        &self.inbox[self.answer.clone()]
    }

    /// Returns whether the master has ended a connection at rest, or is about to: it sends nothing
    /// else there.
    pub(super) fn has_ended(&self) -> bool {
        self.stream.try_read(&mut [0]).is_some()
    }

    /// Fails when the master led before another one that has been met.
    pub(super) fn check_term(&self) -> io::Result<()> {
        self.terms.check(self.epoch)
    }

    /// Makes ready for the next call.
    pub(super) fn rest(&mut self) {
        self.outbox.clear();
        if self.outbox.capacity() > MAX_KEPT_BYTES {
            self.outbox = BytesMut::new();
        }
        if self.inbox.len() > MAX_KEPT_BYTES {
            self.inbox = vec![0; INBOX_BYTES];
        }
    }

    /// Waits until `first` for the answer's first bytes, and for all of it until `deadline`.
    fn read_answer(&mut self, first: Instant, deadline: Instant) -> Result<FrameHeader, Broken> {
        let mut filled = 0;
        loop {
            if filled == self.inbox.len() {
                // A frame's end is bounded, and so is the room for it.
                self.inbox.resize(2 * filled, 0);
            }
            let read = match filled {
                0 => self.read_first(first)?,
                _ => self.receive(filled..self.inbox.len(), deadline)?,
            };
            if read == 0 {
                let text = "the master closed the connection";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text).into());
            }
            filled += read;
            while let Some(header) = self.inbox[..filled].first_chunk::<HEADER_LEN>() {
                let mut header = FrameHeader::parse(header, self.max_answer)?;
                let end = HEADER_LEN + header.payload_len as usize;
                if end > filled {
                    break;
                }
                match header.kind {
                    Kind::Reply | Kind::Error if header.id == self.last_id => {
                        // What a former leader says is not believed.
                        self.check_term()?;
                        // Nothing is to follow an answer but the connection's end.
                        self.going |= filled > end;
                        if header.kind == Kind::Error {
                            let most = MAX_REFUSAL_LEN as u32;
                            header.payload_len = header.payload_len.min(most);
                        }
                        self.answer = HEADER_LEN..HEADER_LEN + header.payload_len as usize;
                        return Ok(header);
                    }
                    Kind::GoAway => {
                        self.going = true;
                        self.inbox.copy_within(end..filled, 0);
                        filled -= end;
                    }
                    kind => {
                        let FrameHeader { id, method, .. } = header;
                        return Err(FrameError::WrongSide { id, method, kind }.into());
                    }
                }
            }
        }
    }

    fn send(&mut self, deadline: Instant) -> Result<(), Broken> {
        self.send_within(deadline.saturating_duration_since(Instant::now()), deadline)
    }

    /// Writes the outbox, in most cases at once. `left` is the time until `deadline`.
    fn send_within(&mut self, left: Duration, deadline: Instant) -> Result<(), Broken> {
        self.allow(left)?;
        let mut sent = self.begin;
        loop {
            match self.stream.write(&self.outbox[sent..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(written) => sent += written,
                Err(error) if waits(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            if sent == self.outbox.len() {
                return self.flush(deadline);
            }
            self.allow(deadline.saturating_duration_since(Instant::now()))?;
        }
    }

    /// Sends what encryption has held back.
    fn flush(&mut self, deadline: Instant) -> Result<(), Broken> {
        loop {
            match self.stream.flush() {
                Ok(()) => return Ok(()),
                Err(error) if waits(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            self.allow(deadline.saturating_duration_since(Instant::now()))?;
        }
    }

    /// Reads the first bytes of an answer, most often all of it.
    fn read_first(&mut self, deadline: Instant) -> Result<usize, Broken> {
        let waiting = self.spin.begin();
        let Self { spin, stream, inbox, .. } = self;
        match spin.look(&waiting, || stream.try_read(inbox)) {
            Some(read) => Ok(read?),
            // What is left of the socket's time-out after the request is as good as all.
            None => self.read_once(0..self.inbox.len(), deadline),
        }
    }

    /// Reads into this part of the inbox.
    fn receive(&mut self, into: Range<usize>, deadline: Instant) -> Result<usize, Broken> {
        self.allow(deadline.saturating_duration_since(Instant::now()))?;
        self.read_once(into, deadline)
    }

    /// As [`receive`](Self::receive), with the time-out that the socket has.
    fn read_once(&mut self, into: Range<usize>, deadline: Instant) -> Result<usize, Broken> {
        loop {
            match self.stream.read(&mut self.inbox[into.clone()]) {
                Ok(read) => return Ok(read),
                Err(error) if waits(&error) || error.kind() == io::ErrorKind::Interrupted => {
                    if was_given_up() {
                        return Err(Broken::GivenUp);
                    }
                    self.check_term()?;
                }
                Err(error) => return Err(error.into()),
            }
            self.allow(deadline.saturating_duration_since(Instant::now()))?;
        }
    }

    /// Lets the socket wait for so long, in whole milliseconds: calls that have all of
    /// their time left find the time-out set. Calls that their caller may cancel, and those of a
    /// master whose term may end, wait in pieces.
    fn allow(&mut self, left: Duration) -> Result<(), Broken> {
        if left.is_zero() {
            return Err(Broken::Late);
        }
        let in_pieces = is_wanted() || self.epoch.is_some();
        let left = if in_pieces { left.min(CHECK_INTERVAL) } else { left };
        let millis = left.subsec_nanos().div_ceil(1_000_000).into();
        let timeout =
            Duration::from_secs(left.as_secs()).saturating_add(Duration::from_millis(millis));
        if timeout != self.timeout {
            self.stream.set_timeout(timeout)?;
            self.timeout = timeout;
        }
        Ok(())
    }
}
