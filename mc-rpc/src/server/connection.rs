//! One connection of the native protocol, after its handshake.
//!
//! What has arrived is read into a buffer of the thread, every complete short call in it
//! is answered in place, and the answers leave in one write. Calls that take long run
//! beside the connection, and are answered when they are done. A connection owns memory
//! only for half a request, for long calls, and for answers that its peer does not take;
//! while it has such answers it reads nothing.

use core::future::poll_fn;
use core::mem;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use core::time::Duration;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mc_places::{Seat, Stage};
use mc_types::{ErrorCode, Sequence};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::close_reason::CloseReason;
use super::dispatch::{CallSource, answer_call, refuse_cancelled, refuse_frame};
use super::executor::takes_long;
use super::held_answers::{HeldAnswers, not_durable};
use super::long_calls::LongCalls;
use super::metrics::add;
use super::term::Guarded;
use super::transit::Transit;
use crate::frame::{
    FrameError, FrameHeader, HEADER_LEN, Kind, append_refusal, first_frame, send_time_of,
};
use crate::method::Method;
use crate::refusal::Refusal;
use crate::server::config::SMALL_BUFFERS;
use crate::server::shared::{Buffered, Shared};
use crate::service::{DurableWatch, JournalEnded, Service};
use crate::stream::Stream;

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// How long a peer that broke the protocol may take to read why, and how much
/// it may go on sending meanwhile.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: u64 = 64 << 20;

/// A connection that the server wants to end, and whose peer does not close it, is closed
/// after so much silence.
const QUIET: Duration = Duration::from_millis(200);

/// Buffers that the connections of one thread take turns with.
struct Scratch {
    arrived: Box<[u8]>,
    answers: BytesMut,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        arrived: vec![0; READ_BYTES].into(),
        answers: BytesMut::new(),
    });
}

/// The next step with the bytes behind the calls that were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// They are no complete call.
    Incomplete,
    /// They wait until answers have left or long calls have ended.
    Waiting,
    /// They break the protocol; the peer has been told in the answers.
    Broken(FrameError),
}

/// Whether the peer may send more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Open,
    /// The peer sends no more.
    Ended,
    /// The peer broke the protocol; its bytes are not looked at any more.
    Broken(FrameError),
}

pub(super) struct Connection {
    stream: Guarded,
    shared: Arc<Shared>,
    asker: CallSource,
    /// How long requests that say when they were sent have waited.
    transit: Transit,
    seat: Seat,
    /// Whether it has made a call.
    proved: bool,
    /// Whether the seat knows that calls are under way.
    busy: bool,
    input: Input,
    /// Bytes that have arrived and were not looked at: half a request, most often nothing.
    pending: BytesMut,
    /// Since when half a request has been there.
    half_since: Option<Instant>,
    /// Since when complete calls in `pending` wait.
    held_since: Option<Instant>,
    /// Whether the last read filled the thread's buffer.
    read_full: bool,
    /// Calls that take long; most connections never have any.
    long: Option<Box<LongCalls>>,
    /// Answers that the socket does not take yet.
    unsent: BytesMut,
    /// Since when.
    unsent_since: Option<Instant>,
    /// Whether the stream holds answers back.
    unflushed: bool,
    buffered: Buffered,
    /// Answers that wait until what they say is durable; most connections never have any.
    held: Option<Box<HeldAnswers>>,
    /// Since when nothing has happened on a connection that is to end.
    leaving_since: Option<Instant>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let max = self.shared.config.max_buffered;
        self.buffered.set(0, &self.shared.buffered, max);
    }
}

impl Connection {
    pub(super) fn new(
        stream: Stream,
        shared: Arc<Shared>,
        (asker, transit): (CallSource, Transit),
        seat: Seat,
    ) -> Self {
        Self {
            stream: Guarded::new(stream, shared.config.term.as_ref()),
            shared,
            asker,
            transit,
            seat,
            proved: false,
            busy: false,
            input: Input::Open,
            pending: BytesMut::new(),
            half_since: None,
            held_since: None,
            read_full: false,
            long: None,
            unsent: BytesMut::new(),
            unsent_since: None,
            unflushed: false,
            buffered: Buffered::default(),
            held: None,
            leaving_since: None,
        }
    }

    /// Serves the connection to its end.
    pub(super) async fn serve(
        mut self,
        draining: watch::Receiver<bool>,
    ) -> Result<(), CloseReason> {
        let mut changes = draining.clone();
        let mut changed = pin!(changes.changed());
        let mut durable = self.shared.service.durability();
        loop {
            self.release(durable.as_mut());
            if self.leaving_since.is_none() && draining.has_changed().unwrap_or(true) {
                self.go_away();
            }
            if mem::take(&mut self.read_full) {
                // There is more, and other connections wait as well.
                tokio::task::yield_now().await;
            }
            let (staying, deadline) = (self.leaving_since.is_none(), self.deadline());
            let waits = durable.as_mut().filter(|_| self.held_answers() > 0);
            let turn = poll_fn(|cx| self.poll_turn(cx));
            tokio::select! {
                biased;
                turn = until(deadline, turn) => match turn {
                    Some(turn) => turn?,
                    None if self.refuse_overdue() => {}
                    None => match self.timed_out() {
                        Some(end) => return Err(end),
                        None => break,
                    },
                },
                more = more_durable(waits) => if more.is_err() {
                    self.refuse_held(Instant::now(), &not_durable(None));
                },
                // Looked at above; that the server is gone is an end too.
                _ = &mut changed, if staying => {}
            }
            self.account()?;
            if self.input != Input::Open && self.is_idle() {
                break;
            }
        }
        match self.input {
            Input::Ended => Ok(()),
            Input::Open => {
                linger(&mut self.stream).await;
                Ok(())
            }
            Input::Broken(error) => {
                linger(&mut self.stream).await;
                Err(error.into())
            }
        }
    }

    /// Tells the peer that no new calls are taken here.
    fn go_away(&mut self) {
        self.leaving_since = Some(Instant::now());
        self.unsent.put_slice(&FrameHeader::new(0, 0, Kind::GoAway).encode());
    }

    /// Makes the answers ready to be sent that are durable. Without anything that tells, all are.
    fn release(&mut self, durable: Option<&mut DurableWatch>) {
        let Some(held) = self.held.as_deref_mut() else { return };
        let durable = durable.map_or(Sequence::new(u64::MAX), DurableWatch::look);
        held.release(durable, &mut self.unsent);
    }

    /// Refuses the calls whose answers have not become durable in time; returns whether there are
    /// any.
    fn refuse_overdue(&mut self) -> bool {
        let stall = self.shared.config.stall_timeout;
        let limit = Instant::now().checked_sub(stall);
        limit.is_some_and(|limit| self.refuse_held(limit, &not_durable(Some(stall))))
    }

    /// Refuses the calls whose answers have been held since `limit` or for longer; returns whether
    /// there are any.
    fn refuse_held(&mut self, limit: Instant, refusal: &Refusal) -> bool {
        let Some(held) = self.held.as_deref_mut() else { return false };
        let refused = held.refuse_older(limit, refusal, &mut self.unsent);
        add(&self.shared.counters.not_durable, refused as u64);
        refused > 0
    }

    fn held_answers(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.len())
    }

    /// Returns whether nothing is under way on this side.
    fn is_idle(&self) -> bool {
        self.unsent.is_empty()
            && !self.unflushed
            && self.held_since.is_none()
            && self.open_long_calls() == 0
            && self.held_answers() == 0
    }

    fn open_long_calls(&self) -> usize {
        self.long.as_ref().map_or(0, |long| long.open())
    }

    /// When the peer's time is up.
    fn deadline(&self) -> Option<Instant> {
        let stall = self.shared.config.stall_timeout;
        let quiet = self.leaving_since.filter(|_| self.is_idle()).map(|since| since + QUIET);
        let stalled = self.unsent_since.or(self.half_since).map(|since| since + stall);
        let held = self.held.as_ref().and_then(|held| held.oldest()).map(|since| since + stall);
        [quiet, stalled, held].into_iter().flatten().min()
    }

    /// Returns the reason of the deadline; `None` when the connection ends in good order.
    fn timed_out(&self) -> Option<CloseReason> {
        let stall = self.shared.config.stall_timeout;
        let over = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= stall);
        match () {
            () if over(self.unsent_since) => Some(CloseReason::SlowReader(stall)),
            () if over(self.half_since) => Some(CloseReason::SlowRequest(stall)),
            () => None,
        }
    }

    /// Does what can be done now; ready when anything has been.
    ///
    /// Cancelling loses nothing: bytes are taken from the socket and answered in one poll.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        let mut progress = false;
        if self.leaving_since.is_none() && Pin::new(&mut self.seat.go).poll(cx).is_ready() {
            self.go_away();
        }
        if let Some(long) = &mut self.long {
            let out = (&mut self.unsent, &mut self.held);
            progress |= long.poll_ended(cx, &self.shared, &self.asker, out)?;
        }
        if !self.unsent.is_empty() || self.unflushed {
            self.poll_send(cx)?;
            progress |= self.unsent.is_empty() && !self.unflushed;
        }
        if self.unsent.is_empty() && self.held_since.is_some() && self.has_room() {
            self.answer_pending();
            self.poll_send(cx)?;
            progress = true;
        }
        let reads = self.input == Input::Open && self.unsent.is_empty();
        if reads && self.held_since.is_none() {
            progress |= self.poll_read(cx)?.is_ready();
        }
        if progress {
            if self.leaving_since.is_some() {
                self.leaving_since = Some(Instant::now());
            }
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        SCRATCH.with_borrow_mut(|Scratch { arrived, answers }| {
            let mut arrived = ReadBuf::new(arrived);
            if Pin::new(&mut self.stream).poll_read(cx, &mut arrived)?.is_pending() {
                return Ok(Poll::Pending);
            }
            self.read_full = arrived.remaining() == 0;
            self.take_in(cx, arrived.filled(), answers)?;
            Ok(Poll::Ready(()))
        })
    }

    /// Answers the calls that `arrived` completes, and sends what the socket
    /// takes. `answers` lends its memory.
    fn take_in(
        &mut self,
        cx: &mut Context<'_>,
        arrived: &[u8],
        answers: &mut BytesMut,
    ) -> io::Result<()> {
        if arrived.is_empty() {
            self.input = Input::Ended;
            return Ok(());
        }
        add(&self.shared.counters.bytes_in, arrived.len() as u64);
        self.seat.seen();
        mem::swap(&mut self.unsent, answers);
        if self.pending.is_empty() {
            let (taken, rest) = self.answer(arrived);
            self.pending.extend_from_slice(&arrived[taken..]);
            self.note(rest);
        } else {
            self.pending.extend_from_slice(arrived);
            self.answer_pending();
        }
        self.poll_send(cx)?;
        if self.unsent.is_empty() && self.unsent.capacity() <= SMALL_BUFFERS {
            mem::swap(&mut self.unsent, answers);
        }
        Ok(())
    }

    /// Answers the complete calls in `pending`.
    fn answer_pending(&mut self) {
        let mut pending = mem::take(&mut self.pending);
        let (taken, rest) = self.answer(&pending);
        if taken < pending.len() {
            pending.advance(taken);
            self.pending = pending;
        }
        self.note(rest);
    }

    /// A request that is half there has until the stall time-out to arrive.
    fn note(&mut self, rest: Rest) {
        let since = |before: Option<Instant>| before.or_else(|| Some(Instant::now()));
        (self.half_since, self.held_since) = match rest {
            Rest::Incomplete if self.pending.is_empty() => (None, None),
            Rest::Incomplete => (since(self.half_since), None),
            Rest::Waiting => (None, since(self.held_since)),
            Rest::Broken(error) => {
                self.input = Input::Broken(error);
                self.pending = BytesMut::new();
                (None, None)
            }
        };
    }

    /// Returns whether another call may be looked at.
    fn has_room(&self) -> bool {
        let config = &self.shared.config;
        self.unsent.len() < config.max_unsent
            && self.open_long_calls() + self.held_answers() < config.max_in_flight as usize
    }

    /// Answers the complete short calls at the beginning of `bytes` and takes in the long
    /// ones; says how many bytes they are.
    fn answer(&mut self, bytes: &[u8]) -> (usize, Rest) {
        // Read once for the calls that came together.
        let (mut taken, mut now) = (0, None);
        loop {
            if !self.has_room() {
                return (taken, Rest::Waiting);
            }
            let frame = first_frame(&bytes[taken..], self.shared.config.max_payload);
            let (header, payload) = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => return (taken, Rest::Incomplete),
                Err(error) => {
                    refuse_frame(error, &mut self.unsent);
                    return (bytes.len(), Rest::Broken(error));
                }
            };
            let len = HEADER_LEN + payload.len();
            let mut now = || *now.get_or_insert_with(Instant::now);
            match header.kind {
                Kind::Request
                    if takes_long(
                        Method::from_number(header.method),
                        header.payload_len as usize,
                    ) =>
                {
                    let frame = Bytes::copy_from_slice(&bytes[taken..taken + len]);
                    let (now, waited) = (now(), self.waited(header, payload, &mut now));
                    let arrived = now.checked_sub(waited).unwrap_or(now);
                    let long = self.long.get_or_insert_with(|| Box::new(LongCalls::new()));
                    long.add(&self.shared, &self.asker, header, frame, arrived);
                }
                Kind::Request => {
                    let waited = self.waited(header, payload, &mut now);
                    let (shared, out) = (&self.shared, &mut self.unsent);
                    let start = out.len();
                    let completion = answer_call(shared, &self.asker, header, payload, waited, out);
                    HeldAnswers::hold_last(&mut self.held, completion, start, out);
                }
                Kind::Cancel => {
                    let long = self.long.as_mut();
                    if let Some(header) = long.and_then(|long| long.cancel(header.id)) {
                        refuse_cancelled(&self.shared.counters, header, &mut self.unsent);
                    }
                }
                Kind::Reply | Kind::Error | Kind::GoAway => {
                    let FrameHeader { id, method, kind, .. } = header;
                    let error = FrameError::WrongSide { id, method, kind };
                    refuse_frame(error, &mut self.unsent);
                    return (bytes.len(), Rest::Broken(error));
                }
            }
            taken += len;
            if !self.proved {
                self.proved = true;
                self.seat.place().reached(Stage::Proved);
            }
        }
    }

    /// How long a request has waited: since it was sent, or, when it does not say when that
    /// was, since it was read.
    fn waited(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        now: &mut impl FnMut() -> Instant,
    ) -> Duration {
        match (send_time_of(header, payload), self.held_since) {
            (Some(sent), _) => self.transit.waited(sent, now()),
            (None, Some(since)) => now().saturating_duration_since(since),
            (None, None) => Duration::ZERO,
        }
    }

    /// Writes as much of the answers as the socket takes now.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.unsent[sent..])? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(written) => sent += written,
                Poll::Pending => break,
            }
        }
        if sent > 0 {
            add(&self.shared.counters.bytes_out, sent as u64);
            self.unflushed = self.stream.holds_back();
        }
        if sent == self.unsent.len() {
            // Unlike advancing to the end, this keeps the buffer's whole capacity.
            self.unsent.clear();
            if self.unsent.capacity() > SMALL_BUFFERS {
                self.unsent = BytesMut::new();
            }
        } else {
            self.unsent.advance(sent);
        }
        if self.unflushed && Pin::new(&mut self.stream).poll_flush(cx)?.is_ready() {
            self.unflushed = false;
        }
        // All of it has to leave in time: one byte after the other buys none.
        self.unsent_since = match self.unsent.is_empty() && !self.unflushed {
            true => None,
            false => self.unsent_since.or_else(|| Some(Instant::now())),
        };
        Ok(())
    }

    /// Counts what this connection holds towards the server's limit.
    fn account(&mut self) -> Result<(), CloseReason> {
        let busy = !self.is_idle();
        if busy != self.busy {
            self.busy = busy;
            self.seat.place().set_busy(busy);
        }
        let long = self.long.as_ref().map_or(0, |long| long.bytes());
        let held = self.held.as_ref().map_or(0, |held| held.bytes());
        let holds = self.pending.capacity() + self.unsent.capacity() + long + held;
        let max = self.shared.config.max_buffered;
        if self.buffered.set(holds, &self.shared.buffered, max) {
            return Ok(());
        }
        self.refuse_pending();
        Err(CloseReason::OutOfBuffers { max })
    }

    /// Tells the peer why the connection is closed, if that can be sent between two answers.
    fn refuse_pending(&mut self) {
        let header = self.pending.first_chunk();
        let header = header.map(|header| FrameHeader::parse(header, u32::MAX));
        if let (true, Some(Ok(header))) = (self.unsent.is_empty(), header) {
            let refusal = Refusal::new(
                ErrorCode::Overloaded,
                "the master holds too many large requests at once; retry shortly",
            );
            append_refusal(&mut self.unsent, header.id, header.method, &refusal);
            // Best effort: the connection is closed in any case.
            let mut cx = Context::from_waker(core::task::Waker::noop());
            drop(self.poll_send(&mut cx));
        }
    }
}

/// Waits until more is durable, for answers that wait for it.
async fn more_durable(watch: Option<&mut DurableWatch>) -> Result<(), JournalEnded> {
    match watch {
        Some(watch) => watch.changed().await,
        None => core::future::pending().await,
    }
}

/// Waits for `future`, until the deadline if there is one.
async fn until<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match deadline {
        None => Some(future.await),
        Some(deadline) => timeout_at(deadline, future).await.ok(),
    }
}

/// Ends this side's half and reads away what the peer goes on sending: closing
/// with bytes unread would reset the connection and take the last answers with
/// it.
async fn linger(stream: &mut Guarded) {
    let drain = async {
        stream.shutdown().await?;
        let mut rest = stream.take(LINGER_BYTES);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    // The connection is closed in any case.
    drop(timeout(LINGER, pin!(drain)).await);
}
