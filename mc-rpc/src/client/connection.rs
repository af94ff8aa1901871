//! One connection of a client: calls go out together, answers come back in any
//! order.
//!
//! A call that finds the connection idle writes its own frame, which spares a
//! hop to another task. While calls are under way a writer task collects their
//! frames: it yields once before it takes them, so that every call that is ready
//! gets into the same write. A call whose caller stops waiting is cancelled, and gives its
//! place back when the word of that has left, so that what waits to be sent is bounded.

use core::mem;
use core::pin::pin;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use mc_types::Epoch;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::address::Address;
use super::call::Call;
use super::config::ClientConfig;
use super::credentials::{Identity, Prepared};
use super::dial::{handshake_failed, no_answer, offers, shorter_way};
use super::metrics::Counters;
use super::read_counter::ReadCounter;
use super::request::{Said, address as address_frame, has_room, is_too_late};
use super::socket::{Arriving, Leaving, Writer, connect, split};
use super::youngest_term::YoungestTerm;
use crate::error::RpcError;
use crate::frame::{
    FrameError, FrameHeader, HEADER_LEN, Kind, MAX_REFUSAL_LEN, MIN_MAX_PAYLOAD,
    SERVER_PREFACE_LEN, ServerPreface, Welcome, first_frame,
};
use crate::handshake::{PrefaceError, read_exactly, read_preface};
use crate::method::Method;
use crate::stream::Stream;

/// A call holds one permit for every so many bytes that it sends.
const PERMIT_BYTES: usize = 16 << 10;

/// Bytes asked from the socket at a time.
const READ_BYTES: usize = 64 << 10;

/// Answers up to this length are copied out of the buffer that they arrived in, so that the buffer can
/// be used for the next ones; longer ones keep it.
const COPIED_BYTES: usize = 1 << 10;

pub(super) struct Connection {
    wires: Arc<Wires>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The state that the calls and the two tasks of a connection share.
struct Wires {
    addr: Arc<str>,
    counters: Arc<Counters>,
    socket: Leaving,
    state: Mutex<State>,
    wake_writer: Notify,
    permits: Semaphore,
    max_permits: u32,
    /// When the hello was sent, where requests say how long after that they were.
    hello: Option<Instant>,
    /// The client's reads, where requests say which of them are over.
    reads: Option<ReadCounter>,
    /// Whether requests may bear the context of a trace.
    traces: bool,
    /// Largest request that the master accepts.
    max_request: usize,
    /// Largest answer that this side accepts.
    max_answer: u32,
    /// Times that bytes were received. A call that times out while this stands still takes
    /// the connection for dead.
    heard: AtomicU64,
    /// Whether new calls may come.
    open: AtomicBool,
    /// The term of the master.
    epoch: Option<Epoch>,
    terms: YoungestTerm,
    /// The server's incarnation.
    incarnation: u64,
}

#[derive(Default)]
struct State {
    /// Frames to be written.
    outbox: BytesMut,
    /// Whether a caller or the writer task is writing; no other may then.
    writing: bool,
    /// Permits of cancelled calls whose frames are in the outbox.
    owed: usize,
    calls: CallTable,
    /// Whether the master takes no new calls here.
    going: bool,
    /// Why the connection is gone.
    lost: Option<Arc<io::Error>>,
}

/// An answer with the number of the method that it says it belongs to.
pub(super) struct Answered {
    pub(super) kind: Kind,
    pub(super) method: u16,
    pub(super) payload: Bytes,
}

/// Calls under way, found by id: a place and how often it has been used, so that
/// a late answer finds no call.
#[derive(Default)]
struct CallTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Slot {
    uses: u32,
    waiting: Option<oneshot::Sender<Answered>>,
}

impl CallTable {
    fn open(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, waiting: oneshot::Sender<Answered>) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32 // bounded by the permits
        });
        let slot = &mut self.slots[place as usize];
        slot.waiting = Some(waiting);
        u64::from(slot.uses) << 32 | u64::from(place)
    }

    fn remove(&mut self, id: u64) -> Option<oneshot::Sender<Answered>> {
        let place = id as u32;
        let slot = self.slots.get_mut(place as usize)?;
        if slot.uses != (id >> 32) as u32 {
            return None;
        }
        let waiting = slot.waiting.take()?;
        slot.uses = slot.uses.wrapping_add(1);
        self.free.push(place);
        Some(waiting)
    }
}

/// Why a call has no answer from a connection.
pub(super) enum Failed {
    /// The connection takes no calls any more; nothing was sent.
    NotSent,
    /// The master did not execute the call because its time was over, and it is not: the two
    /// clocks no longer agree. The connection takes no other calls.
    TooEarly(Answered),
    Call(RpcError),
}

impl Connection {
    /// Connects and shakes hands, within the configured time.
    pub(super) async fn open(
        address: &Address,
        prepared: &Prepared,
        identity: &Identity,
        config: &ClientConfig,
        counters: &Arc<Counters>,
    ) -> Result<Arc<Self>, RpcError> {
        let addr = address.text();
        let greeting = async {
            let (greeted, shorter) = greet(address, prepared, identity, config).await?;
            // Where the offer leads nowhere, this client is in another container.
            if let Some(way) = shorter
                && let Ok((greeted, _)) = greet(&way, prepared, identity, config).await
            {
                return Ok((
                    split(greeted.stream)?,
                    greeted.server,
                    greeted.welcome,
                    greeted.hello,
                ));
            }
            Ok((split(greeted.stream)?, greeted.server, greeted.welcome, greeted.hello))
        };
        let greeted = tokio::time::timeout(config.connect_timeout, greeting).await;
        let ((arriving, leaving, writer), server, welcome, hello) = match greeted {
            Ok(greeted) => greeted.map_err(|error| handshake_failed(addr, error))?,
            Err(_) => return Err(no_answer(addr, config.connect_timeout)),
        };
        counters.connections_made.fetch_add(1, Ordering::Relaxed);
        let max_permits = config.max_in_flight.min(server.max_in_flight);
        // As many as a semaphore counts, at the most.
        let max_permits = max_permits.clamp(1, (Semaphore::MAX_PERMITS as u32) >> 1);
        let wires = Arc::new(Wires {
            addr: Arc::clone(addr),
            counters: Arc::clone(counters),
            socket: leaving,
            state: Mutex::default(),
            wake_writer: Notify::new(),
            permits: Semaphore::new(max_permits as usize),
            max_permits,
            hello: welcome.send_times.then_some(hello),
            reads: welcome.reads.then(|| config.reads.clone()),
            traces: welcome.traces,
            max_request: server.max_payload as usize,
            max_answer: config.max_payload.max(MIN_MAX_PAYLOAD),
            heard: AtomicU64::new(0),
            open: AtomicBool::new(true),
            epoch: welcome.epoch.filter(|_| !config.administration),
            terms: config.terms.clone(),
            incarnation: welcome.incarnation,
        });
        let reader = tokio::spawn(Arc::clone(&wires).read(arriving));
        let writer = tokio::spawn(Arc::clone(&wires).write(writer));
        let mut tasks = vec![reader.abort_handle(), writer.abort_handle()];
        if let Some(epoch) = wires.epoch {
            tasks.push(tokio::spawn(Arc::clone(&wires).end_with(epoch)).abort_handle());
        }
        Ok(Arc::new(Self { wires, tasks }))
    }

    /// Returns whether it takes new calls.
    pub(super) fn is_open(&self) -> bool {
        let wires = &*self.wires;
        wires.open.load(Ordering::Acquire) && wires.terms.check(wires.epoch).is_ok()
    }

    /// Takes no new calls from now on; those under way have their answers.
    pub(super) fn retire(&self) {
        self.wires.take_leave();
    }

    /// Returns the incarnation of its server, 0 for an older one.
    pub(super) fn incarnation(&self) -> u64 {
        self.wires.incarnation
    }

    /// Returns the largest request that the master accepts.
    pub(super) fn max_request(&self) -> usize {
        self.wires.max_request
    }

    /// How many calls are under way, each counted by what it sends.
    pub(super) fn load(&self) -> usize {
        self.wires.max_permits as usize - self.wires.permits.available_permits()
    }

    /// Sends a call's request and waits for its answer until the deadline. Without a sign of life
    /// for as long as the call's [`silence`](Call::silence) the connection counts as lost.
    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        request: &mut [u8],
        deadline: Instant,
    ) -> Result<Answered, Failed> {
        let (method, header, after) = (call.method, call.header, call.timeout());
        let silence = call.silence();
        let wires = &*self.wires;
        let heard = wires.heard.load(Ordering::Relaxed);
        let mut look = silence.map_or(deadline, |time| deadline.min(Instant::now() + time));
        let mut exchange = pin!(wires.exchange(method, header, request, deadline));
        loop {
            if let Ok(answered) = tokio::time::timeout_at(look, &mut exchange).await {
                let answered = answered?;
                let is_late = is_too_late(answered.kind, &answered.payload);
                if is_late && wires.hello.is_some() && Instant::now() < deadline {
                    wires.take_leave();
                    return Err(Failed::TooEarly(answered));
                }
                return Ok(answered);
            }
            if wires.heard.load(Ordering::Relaxed) == heard {
                let time = silence.filter(|_| look < deadline).unwrap_or(after);
                let text = format!("nothing heard for {time:?}");
                wires.lose(io::Error::new(io::ErrorKind::TimedOut, text));
                if look < deadline {
                    return Err(Failed::Call(wires.lost()));
                }
            }
            if look == deadline {
                let addr = Arc::clone(&wires.addr);
                return Err(Failed::Call(RpcError::TimedOut { addr, method, after }));
            }
            // The connection lives: others had answers.
            look = deadline;
        }
    }
}

/// A connection that the master has taken.
pub(super) struct Greeted {
    pub(super) stream: Stream,
    server: ServerPreface,
    pub(super) welcome: Welcome,
    /// When the hello was sent.
    hello: Instant,
}

/// Connects to this address and shakes hands, unless its master led before another one that has been
/// met. Says which address is better.
pub(super) async fn greet(
    address: &Address,
    prepared: &Prepared,
    identity: &Identity,
    config: &ClientConfig,
) -> Result<(Greeted, Option<Address>), PrefaceError> {
    let mut stream = connect(address, prepared, identity, config).await?;
    let hello = Instant::now();
    stream.write_all(&prepared.preface).await?;
    stream.flush().await?;
    let server: [u8; SERVER_PREFACE_LEN] = read_preface(&mut stream, &[]).await?;
    let server = ServerPreface::parse(&server).map_err(PrefaceError::Handshake)?;
    let words = read_exactly(&mut stream, server.message_len.into()).await?;
    if let Some(refusal) = server.refusal(&words) {
        return Err(PrefaceError::Refused(refusal));
    }
    let welcome = offers(&words);
    let shorter = shorter_way(address.text(), &welcome, stream.local_addr());
    if !config.administration {
        config.terms.admit(welcome.epoch)?;
    }
    Ok((Greeted { stream, server, welcome, hello }, shorter))
}

/// A call under way. When its caller stops waiting before the answer has come, the master
/// is told.
struct OpenCall<'a> {
    wires: &'a Wires,
    id: u64,
    method: Method,
    permit: Option<SemaphorePermit<'a>>,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        let mut state = self.wires.state.lock();
        if state.calls.remove(self.id).is_none() || state.lost.is_some() {
            return;
        }
        let cancel = FrameHeader::new(self.id, self.method.number(), Kind::Cancel);
        state.outbox.extend_from_slice(&cancel.encode());
        if let Some(permit) = self.permit.take() {
            state.owed += permit.num_permits();
            permit.forget();
        }
        drop(state);
        self.wires.wake_writer.notify_one();
    }
}

impl Wires {
    /// Sends a request and waits for its answer.
    async fn exchange(
        &self,
        method: Method,
        header: FrameHeader,
        request: &mut [u8],
        deadline: Instant,
    ) -> Result<Answered, Failed> {
        let len = header.payload_len as usize;
        let weight = 1 + (len / PERMIT_BYTES) as u32;
        let permit = self.permits.acquire_many(weight.min(self.max_permits)).await;
        let permit = permit.map_err(|_| Failed::NotSent)?;
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        let said = if has_room(len, self.max_request) {
            Said {
                sent: self.hello.map(|hello| now.saturating_duration_since(hello)),
                reads: self.reads.as_ref().and_then(|reads| reads.progress(method)),
                trace: self.traces.then(mc_trace::current).flatten(),
            }
        } else {
            Said::default()
        };
        let (waiting, answered) = oneshot::channel();
        let call = {
            let mut state = self.state.lock();
            if state.lost.is_some() || state.going {
                return Err(Failed::NotSent);
            }
            let id = state.calls.insert(waiting);
            let begin = address_frame(request, header, id, left, said);
            let frame = &request[begin..];
            let idle = !state.writing && state.outbox.is_empty() && state.calls.open() == 1;
            if idle {
                state.writing = true;
            } else {
                state.outbox.extend_from_slice(frame);
            }
            drop(state);
            if idle {
                self.write_now(frame);
            } else {
                self.wake_writer.notify_one();
            }
            OpenCall { wires: self, id, method, permit: Some(permit) }
        };
        let answered = answered.await;
        drop(call);
        answered.map_err(|_| Failed::Call(self.lost()))
    }

    /// Writes as much of `frame` as the socket takes now and leaves the rest to
    /// the writer. The caller has set `writing`.
    fn write_now(&self, frame: &[u8]) {
        let written = match self.socket.try_write(frame) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return self.lose(error),
        };
        let mut state = self.state.lock();
        state.writing = false;
        if written < frame.len() {
            // Before whatever other calls have added meanwhile.
            let mut rest = BytesMut::from(&frame[written..]);
            rest.unsplit(state.outbox.split());
            state.outbox = rest;
        }
        if !state.outbox.is_empty() {
            drop(state);
            self.wake_writer.notify_one();
        }
    }

    /// The writer's task.
    async fn write(self: Arc<Self>, mut writer: Writer) {
        loop {
            self.wake_writer.notified().await;
            tokio::task::yield_now().await;
            while let Some((mut frames, owed)) = self.take_outbox() {
                let mut sent = Ok(());
                while frames.has_remaining() && sent.is_ok() {
                    sent = writer.write_some(&self.socket, &mut frames).await;
                }
                self.state.lock().writing = false;
                match sent {
                    Ok(()) => self.permits.add_permits(owed),
                    Err(error) => return self.lose(error),
                }
            }
            if self.is_done() {
                writer.end(&self.socket).await;
            }
        }
    }

    /// Returns whether the master goes and has answered everything.
    fn is_done(&self) -> bool {
        let state = self.state.lock();
        state.going && state.calls.open() == 0 && state.outbox.is_empty() && !state.writing
    }

    /// Takes the bytes to write, and the permits that are free when they are written.
    fn take_outbox(&self) -> Option<(BytesMut, usize)> {
        let mut state = self.state.lock();
        // The client that writes now wakes the writer when something is left.
        if state.writing || state.outbox.is_empty() {
            return None;
        }
        state.writing = true;
        Some((state.outbox.split(), mem::take(&mut state.owed)))
    }

    /// The reader's task.
    async fn read(self: Arc<Self>, socket: Arriving) {
        // Also when the runtime that runs this task ends.
        let _gone = LostWhenDropped(&self);
        let error = match self.read_frames(socket).await {
            Ok(()) => {
                io::Error::new(io::ErrorKind::UnexpectedEof, "the master closed the connection")
            }
            Err(error) => error,
        };
        self.lose(error);
    }

    async fn read_frames(&self, mut socket: Arriving) -> io::Result<()> {
        let (mut buffer, mut answers) = (BytesMut::new(), Vec::new());
        loop {
            buffer.reserve(READ_BYTES);
            if socket.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            self.heard.fetch_add(1, Ordering::Relaxed);
            let invalid = |error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error);
            while let Some((header, _)) = first_frame(&buffer, self.max_answer).map_err(invalid)? {
                let (kind, method, id) = (header.kind, header.method, header.id);
                let len = header.payload_len as usize;
                if matches!(kind, Kind::Request | Kind::Cancel) {
                    return Err(invalid(FrameError::WrongSide { id, method, kind }));
                }
                buffer.advance(HEADER_LEN);
                let mut payload = if len <= COPIED_BYTES {
                    let payload = Bytes::copy_from_slice(&buffer[..len]);
                    buffer.advance(len);
                    payload
                } else {
                    buffer.split_to(len).freeze()
                };
                if kind == Kind::GoAway {
                    self.take_leave();
                    continue;
                }
                if kind == Kind::Error {
                    payload.truncate(MAX_REFUSAL_LEN);
                }
                answers.push((id, Answered { kind, method, payload }));
            }
            // What a former leader says is not believed.
            self.terms.check(self.epoch)?;
            self.deliver(&mut answers);
        }
    }

    /// The task that ends the connection with the master's term.
    async fn end_with(self: Arc<Self>, epoch: Epoch) {
        let over = self.terms.end(epoch).await;
        self.lose(over);
    }

    fn deliver(&self, answers: &mut Vec<(u64, Answered)>) {
        if answers.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for (id, answer) in answers.drain(..) {
            if let Some(waiting) = state.calls.remove(id) {
                // An error means that the caller has stopped waiting.
                drop(waiting.send(answer));
            }
        }
        if state.going && state.calls.open() == 0 {
            self.wake_writer.notify_one();
        }
    }

    /// No new calls come here: those under way are answered, then this half of
    /// the connection ends.
    fn take_leave(&self) {
        self.open.store(false, Ordering::Release);
        self.state.lock().going = true;
        self.permits.close();
        self.wake_writer.notify_one();
    }

    /// Ends the connection: calls under way fail, new ones connect anew. The
    /// first cause counts.
    fn lose(&self, error: io::Error) {
        let mut state = self.state.lock();
        if state.lost.is_some() {
            return;
        }
        self.open.store(false, Ordering::Release);
        if !state.going || state.calls.open() != 0 {
            self.counters.connections_lost.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(addr = %self.addr, %error, "connection to the master lost");
        }
        state.lost = Some(Arc::new(error));
        state.outbox = BytesMut::new();
        state.calls = CallTable::default();
        drop(state);
        self.permits.close();
        // So that the master notices, and so that the reader's task ends.
        self.socket.shut_down(Shutdown::Both);
    }

    fn lost(&self) -> RpcError {
        let source = self.state.lock().lost.clone().unwrap_or_else(|| {
            Arc::new(io::Error::new(io::ErrorKind::BrokenPipe, "the client closed the connection"))
        });
        RpcError::ConnectionLost { addr: Arc::clone(&self.addr), source }
    }
}

struct LostWhenDropped<'a>(&'a Wires);

impl Drop for LostWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.lose(io::Error::new(
            io::ErrorKind::BrokenPipe,
            "the runtime of the connection has ended",
        ));
    }
}
