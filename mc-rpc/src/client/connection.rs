//! One connection of a client: calls go out together, answers come back in any
//! order.
//!
//! A call that finds the connection idle writes its own frame, which spares a
//! hop to another task. While calls are under way a writer task collects their
//! frames: it yields once before it takes them, so that every call that is ready
//! gets into the same write.

use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::config::ClientConfig;
use crate::error::{MalformedReply, RpcError};
use crate::frame::{
    ClientPreface, FrameError, HEADER_LEN, Hello, Kind, MAX_REFUSAL_LEN, MIN_MAX_PAYLOAD,
    SERVER_PREFACE_LEN, ServerPreface, append_request, first_frame, parse_refusal,
};
use crate::handshake::{PrefaceError, read_exactly, read_preface};
use crate::method::Method;

/// A call holds one permit for every so many bytes that it sends.
const PERMIT_BYTES: usize = 16 << 10;

/// Bytes asked from the socket at a time.
const READ_BYTES: usize = 64 << 10;

pub(super) struct Connection {
    wires: Arc<Wires>,
    tasks: [AbortHandle; 2],
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// What the calls and the two tasks of a connection share.
struct Wires {
    addr: Arc<str>,
    stream: OwnedWriteHalf,
    state: Mutex<State>,
    wake_writer: Notify,
    permits: Semaphore,
    max_permits: u32,
    /// Largest request that the master accepts.
    max_request: usize,
    /// Largest answer that this side accepts.
    max_answer: u32,
    /// Frames received. A call that times out while this stands still takes the
    /// connection for dead.
    heard: AtomicU64,
    alive: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Frames to be written.
    outbox: BytesMut,
    /// Whether somebody is writing; nobody else may then.
    writing: bool,
    calls: CallTable,
    /// Why the connection is gone.
    lost: Option<Arc<io::Error>>,
}

/// An answer with the number of the method that it says it belongs to.
struct Answered {
    kind: Kind,
    method: u16,
    payload: Bytes,
}

/// Calls under way, found by id: a place and how often it has been used, so that
/// a late answer finds nobody.
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

impl Connection {
    /// Connects and shakes hands, within the configured time.
    pub(super) async fn open(
        addr: &Arc<str>,
        config: &ClientConfig,
    ) -> Result<Arc<Self>, RpcError> {
        let max_answer = config.max_payload.max(MIN_MAX_PAYLOAD);
        let shake = async {
            let mut stream = TcpStream::connect(&**addr).await?;
            stream.set_nodelay(true)?;
            let preface = ClientPreface::with(max_answer, &Hello::default());
            stream.write_all(&preface).await?;
            let answer: [u8; SERVER_PREFACE_LEN] = read_preface(&mut stream, &[]).await?;
            let answer = ServerPreface::parse(&answer).map_err(PrefaceError::Handshake)?;
            let words = read_exactly(&mut stream, answer.message_len.into()).await?;
            match answer.refusal(&words) {
                Some(refusal) => Err(PrefaceError::Refused(refusal)),
                None => Ok((stream, answer)),
            }
        };
        let shaken = tokio::time::timeout(config.connect_timeout, shake).await;
        let (stream, server) = match shaken {
            Ok(Ok(shaken)) => shaken,
            Ok(Err(error)) => return Err(handshake_failed(addr, error)),
            Err(_) => {
                let text = format!("no answer within {:?}", config.connect_timeout);
                let error = io::Error::new(io::ErrorKind::TimedOut, text);
                return Err(handshake_failed(addr, error.into()));
            }
        };
        let max_permits = config.max_in_flight.min(server.max_in_flight).max(1);
        let (arriving, leaving) = stream.into_split();
        let wires = Arc::new(Wires {
            addr: Arc::clone(addr),
            stream: leaving,
            state: Mutex::default(),
            wake_writer: Notify::new(),
            permits: Semaphore::new(max_permits as usize),
            max_permits,
            max_request: server.max_payload as usize,
            max_answer,
            heard: AtomicU64::new(0),
            alive: AtomicBool::new(true),
        });
        let reader = tokio::spawn(Arc::clone(&wires).read(arriving));
        let writer = tokio::spawn(Arc::clone(&wires).write());
        Ok(Arc::new(Self { wires, tasks: [reader.abort_handle(), writer.abort_handle()] }))
    }

    pub(super) fn is_alive(&self) -> bool {
        self.wires.alive.load(Ordering::Acquire)
    }

    /// Sends the request that `write` writes; waits until `deadline`, which is
    /// `after` from the call's beginning.
    pub(super) async fn call(
        &self,
        method: Method,
        deadline: Instant,
        after: Duration,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<Bytes, RpcError> {
        let wires = &*self.wires;
        let mut frame = BytesMut::with_capacity(128);
        let timeout = deadline.saturating_duration_since(Instant::now());
        let written = append_request(&mut frame, 0, method.number(), None, Some(timeout), |out| {
            write(out);
            let len = out.len() - HEADER_LEN;
            if len <= wires.max_request { Ok(()) } else { Err(len) }
        });
        if let Err(len) = written {
            return Err(RpcError::RequestTooLarge { method, len, max: wires.max_request });
        }
        let heard = wires.heard.load(Ordering::Relaxed);
        let answered = tokio::time::timeout_at(deadline, wires.exchange(frame)).await;
        let Ok(answered) = answered else {
            let addr = Arc::clone(&wires.addr);
            if wires.heard.load(Ordering::Relaxed) == heard {
                let text = format!("nothing heard for {after:?}");
                wires.lose(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            return Err(RpcError::TimedOut { addr, method, after });
        };
        let answered = answered.ok_or_else(|| wires.lost())?;
        let malformed =
            |reason| RpcError::Malformed { addr: Arc::clone(&wires.addr), method, reason };
        match answered.kind {
            Kind::Error => Err(RpcError::Refused(parse_refusal(&answered.payload))),
            _ if answered.method != method.number() => {
                Err(malformed(MalformedReply::OtherMethod { number: answered.method }))
            }
            _ => Ok(answered.payload),
        }
    }
}

fn handshake_failed(addr: &Arc<str>, error: PrefaceError) -> RpcError {
    let addr = Arc::clone(addr);
    match error {
        PrefaceError::Io(source) => RpcError::Unreachable { addr, source: Arc::new(source) },
        PrefaceError::Refused(refusal) => RpcError::Refused(refusal),
        PrefaceError::Handshake(reason) => RpcError::NotAMaster { addr, reason },
    }
}

/// Takes a call out of the table when its caller stops waiting.
struct OpenCall<'a> {
    wires: &'a Wires,
    id: u64,
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        drop(self.wires.state.lock().calls.remove(self.id));
    }
}

impl Wires {
    /// Sends a frame and waits for its answer; `None` when the connection is
    /// gone.
    async fn exchange(&self, mut frame: BytesMut) -> Option<Answered> {
        let weight = 1 + (frame.len() / PERMIT_BYTES) as u32;
        let permit = self.permits.acquire_many(weight.min(self.max_permits)).await.ok()?;
        let (waiting, answered) = oneshot::channel();
        let call = {
            let mut state = self.state.lock();
            if state.lost.is_some() {
                return None;
            }
            let id = state.calls.insert(waiting);
            frame[4..12].copy_from_slice(&id.to_le_bytes());
            let idle = !state.writing && state.outbox.is_empty() && state.calls.open() == 1;
            if idle {
                state.writing = true;
            } else {
                state.outbox.extend_from_slice(&frame);
            }
            drop(state);
            if idle {
                self.write_now(&frame);
            } else {
                self.wake_writer.notify_one();
            }
            OpenCall { wires: self, id }
        };
        let answered = answered.await.ok();
        drop(call);
        drop(permit);
        answered
    }

    /// Writes as much of `frame` as the socket takes now and leaves the rest to
    /// the writer. The caller has set `writing`.
    fn write_now(&self, frame: &[u8]) {
        let written = match self.stream.try_write(frame) {
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
    async fn write(self: Arc<Self>) {
        loop {
            self.wake_writer.notified().await;
            tokio::task::yield_now().await;
            while let Some(mut frames) = self.take_outbox() {
                let mut sent = Ok(());
                while frames.has_remaining() && sent.is_ok() {
                    sent = self.write_some(&mut frames).await;
                }
                self.state.lock().writing = false;
                if let Err(error) = sent {
                    return self.lose(error);
                }
            }
        }
    }

    fn take_outbox(&self) -> Option<BytesMut> {
        let mut state = self.state.lock();
        // Whoever writes now wakes the writer when something is left.
        if state.writing || state.outbox.is_empty() {
            return None;
        }
        state.writing = true;
        Some(state.outbox.split())
    }

    async fn write_some(&self, frames: &mut BytesMut) -> io::Result<()> {
        self.stream.writable().await?;
        match self.stream.try_write(frames) {
            Ok(written) => frames.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The reader's task.
    async fn read(self: Arc<Self>, stream: OwnedReadHalf) {
        // Also when the runtime that runs this task ends.
        let _gone = LostWhenDropped(&self);
        let error = match self.read_frames(stream).await {
            Ok(()) => {
                io::Error::new(io::ErrorKind::UnexpectedEof, "the master closed the connection")
            }
            Err(error) => error,
        };
        self.lose(error);
    }

    async fn read_frames(&self, mut stream: OwnedReadHalf) -> io::Result<()> {
        let (mut buffer, mut answers) = (BytesMut::new(), Vec::new());
        loop {
            buffer.reserve(READ_BYTES);
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            let invalid = |error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error);
            while let Some((header, _)) = first_frame(&buffer, self.max_answer).map_err(invalid)? {
                let (kind, method, id) = (header.kind, header.method, header.id);
                let len = header.payload_len as usize;
                if !matches!(kind, Kind::Reply | Kind::Error) {
                    return Err(invalid(FrameError::WrongSide { id, method, kind }));
                }
                buffer.advance(HEADER_LEN);
                let mut payload = buffer.split_to(len).freeze();
                if kind == Kind::Error {
                    payload.truncate(MAX_REFUSAL_LEN);
                }
                answers.push((id, Answered { kind, method, payload }));
            }
            self.deliver(&mut answers);
        }
    }

    fn deliver(&self, answers: &mut Vec<(u64, Answered)>) {
        if answers.is_empty() {
            return;
        }
        self.heard.fetch_add(answers.len() as u64, Ordering::Relaxed);
        let mut state = self.state.lock();
        for (id, answer) in answers.drain(..) {
            if let Some(waiting) = state.calls.remove(id) {
                // An error means that the caller has stopped waiting.
                drop(waiting.send(answer));
            }
        }
    }

    /// Ends the connection: calls under way fail, new ones connect anew. The
    /// first cause counts.
    fn lose(&self, error: io::Error) {
        let mut state = self.state.lock();
        if state.lost.is_some() {
            return;
        }
        self.alive.store(false, Ordering::Release);
        tracing::debug!(addr = %self.addr, %error, "connection to the master lost");
        state.lost = Some(Arc::new(error));
        state.outbox = BytesMut::new();
        state.calls = CallTable::default();
        drop(state);
        self.permits.close();
        // So that the master notices, and so that the reader's task ends.
        drop(socket2::SockRef::from(self.stream.as_ref()).shutdown(std::net::Shutdown::Both));
    }

    fn lost(&self) -> RpcError {
        let source = self.state.lock().lost.clone().unwrap_or_else(|| {
            Arc::new(io::Error::new(io::ErrorKind::BrokenPipe, "the connection was given up"))
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
