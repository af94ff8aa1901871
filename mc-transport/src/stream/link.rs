//! The side that reaches out: puts operations on the wire, in order.
//!
//! A task that submits while nothing is under way writes to the socket itself, which
//! saves a task switch when it matters, at one operation at a time. Otherwise
//! operations queue, and the task that is writing takes them along, many per system
//! call. Answers are taken by the [receiver](super::receiver), which is the only
//! one to complete operations, so that none is reported done or failed while its
//! memory is still being filled.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mc_environment::BootTime;
use mc_memory::{Access, MemorySlice};
use mc_types::RemoteKey;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use super::frames::{Frame, SendQueue};
use super::greeting::Greeted;
use super::receiver::Receiver;
use super::socket::Stream;
use super::wire::{Opcode, RequestHeader};
use crate::backend::tasks::{Counted, Tasks};
use crate::cancel::Cancel;
use crate::completion::{Completion, Completions, Transferred};
use crate::error::TransferError;
use crate::link_id::LinkId;
use crate::operation::{Operation, Pieces};
use crate::slice_sums::Summing;
use crate::transport::{Capabilities, Link, MAX_BATCH, Ordering as OperationOrder};

/// A link of a [`TcpTransport`](crate::TcpTransport): a connection, and the tasks that
/// serve it.
pub struct StreamLink {
    channel: Arc<Channel>,
    /// The server's id of the connection.
    id: Option<LinkId>,
}

impl StreamLink {
    /// Takes over a connection whose prefaces are exchanged. `at_end` runs once the link was lost and everything
    /// that was under way has its result; not when the transport is dropped.
    pub(crate) fn open(
        greeted: Greeted,
        stall_timeout: Duration,
        tasks: &Tasks,
        open_links: &Arc<AtomicUsize>,
        at_end: impl FnOnce() + Send + 'static,
    ) -> Self {
        let Greeted { stream, max_operation, description } = greeted;
        let channel = Arc::new(Channel {
            stream,
            max_operation,
            traces: description.traces,
            opened: Instant::now(),
            outbox: Mutex::new(Outbox::default()),
            sending: Mutex::new(SendQueue::default()),
            wake_sender: Notify::new(),
            unanswered: AtomicUsize::new(0),
            bytes_sent: AtomicU64::new(0),
            busy_since: AtomicU64::new(0),
            sent_before: AtomicU64::new(0),
            healthy: AtomicBool::new(true),
        });
        let open = Counted::new(open_links);
        let receiver = Receiver::new(Arc::clone(&channel), stall_timeout, open);
        tasks.spawn(async move {
            receiver.run().await;
            at_end();
        });
        tasks.spawn(send(Arc::clone(&channel)));
        Self { channel, id: description.connection }
    }

    /// Fails what is under way and everything to come with `reason`.
    pub(crate) fn close(&self, reason: TransferError) {
        self.channel.fail(reason);
    }

    /// Operations that were not answered.
    pub(crate) fn unanswered(&self) -> usize {
        self.channel.unanswered.load(Ordering::Relaxed)
    }
}

impl Link for StreamLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let len = batch.len();
        if len > MAX_BATCH {
            let too_large = TransferError::BatchTooLarge { len, max: MAX_BATCH };
            return Completions::ready(vec![Err(too_large); len]);
        }
        let max = self.channel.max_operation;
        let (to_complete, completions) = Completions::pending(len);
        let mut accepted = Vec::with_capacity(len);
        for (operation, completion) in batch.into_iter().zip(to_complete) {
            match check(&operation, max) {
                Ok(()) => accepted.push((Request::Operation(operation), completion)),
                Err(refused) => completion.complete(Err(refused)),
            }
        }
        if !accepted.is_empty() {
            self.channel.submit(accepted);
        }
        completions
    }

    fn is_healthy(&self) -> bool {
        self.channel.healthy.load(Ordering::Acquire)
    }

    fn id(&self) -> Option<LinkId> {
        self.id
    }

    fn fence(&self, lost: LinkId) -> Completions {
        let (mut to_complete, completions) = Completions::pending(1);
        let completion = to_complete.next().expect("there is one to complete");
        self.channel.submit(vec![(Request::Fence(lost), completion)]);
        completions
    }

    fn capabilities(&self) -> Capabilities {
        let ordering = OperationOrder::Submission;
        let zero_copy = self.channel.stream.is_zero_copy();
        let plain = Capabilities::new(self.channel.max_operation);
        Capabilities { zero_copy, ordering, tickets: true, cancels: true, ..plain }
    }
}

impl fmt::Debug for StreamLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLink")
            .field("is_healthy", &self.is_healthy())
            .field("unanswered", &self.unanswered())
            .finish_non_exhaustive()
    }
}

impl Drop for StreamLink {
    fn drop(&mut self) {
        self.channel.fail(TransferError::Closed);
    }
}

/// The failure that is known before anything is sent.
fn check(operation: &Operation, max: u64) -> Result<(), TransferError> {
    operation.validate()?;
    operation.remote().check_time()?;
    let len = operation.remote().extent.len();
    if len > max { Err(TransferError::TooLarge { len, max }) } else { Ok(()) }
}

/// State shared by the link's handle and its two tasks.
pub(super) struct Channel {
    pub(super) stream: Stream,
    max_operation: u64,
    /// Whether the server may be told which trace requests belong to.
    traces: bool,
    /// Origin of `busy_since`.
    opened: Instant,
    outbox: Mutex<Outbox>,
    /// Frames that the current writer took out of the outbox. Locked by the task that
    /// holds [`Outbox::writing`], and for a moment by
    /// [`is_summed`](Self::is_summed).
    sending: Mutex<SendQueue>,
    wake_sender: Notify,
    /// Operations submitted and not completed.
    unanswered: AtomicUsize,
    bytes_sent: AtomicU64,
    /// When `unanswered` last rose from zero, in microseconds since `opened`.
    busy_since: AtomicU64,
    /// `bytes_sent` at that moment: what was sent earlier is no progress since.
    sent_before: AtomicU64,
    healthy: AtomicBool,
}

#[derive(Default)]
struct Outbox {
    frames: SendQueue,
    /// Operations in the order of their frames, for the receiver to collect.
    awaited: VecDeque<Awaited>,
    next_id: u32,
    /// A task writes to the socket, or the sender task was told to.
    writing: bool,
    /// Why the link takes no operations any more.
    broken: Option<TransferError>,
}

/// A request to a server.
enum Request {
    Operation(Operation),
    /// To end another connection.
    Fence(LinkId),
}

/// An operation whose answer is to come.
pub(super) struct Awaited {
    pub(super) id: u32,
    /// Bytes that the answer brings.
    pub(super) len: u64,
    /// Where a read puts them; without pieces for a write.
    pub(super) into: Pieces<MemorySlice>,
    /// Bytes of the request, for errors that name them.
    pub(super) offset: u64,
    pub(super) requested: u64,
    pub(super) access: Access,
    pub(super) checksum: Summed,
    /// Ends a read, so that its bytes go nowhere.
    pub(super) cancel: Option<Cancel>,
    completion: Completion,
}

/// Where the checksum of an operation comes from.
pub(super) enum Summed {
    /// No checksum was requested.
    No,
    /// The bytes of a read, as they arrive.
    Received(Box<Summing>),
    /// The bytes of a write, as they leave: the sending task puts it here.
    Sent(Arc<OnceLock<Transferred>>),
}

impl Summed {
    fn finish(self) -> Transferred {
        match self {
            Self::No => Transferred::default(),
            Self::Received(digest) => digest.finish(),
            Self::Sent(sums) => sums.get().cloned().unwrap_or_default(),
        }
    }
}

impl Awaited {
    pub(super) fn complete(self, outcome: Result<(), TransferError>) {
        let outcome = outcome.map(|()| self.checksum.finish());
        // The caller may free or reuse its memory as soon as it has the outcome.
        drop(self.into);
        self.completion.complete(outcome);
    }
}

/// The progress of writing.
enum Written {
    /// Everything; another task may write now.
    All,
    /// The socket takes no more.
    Blocked,
    /// Enough for one turn.
    Enough,
    /// The link is gone.
    Broken,
}

impl Channel {
    /// Queues the operations, and writes them if nothing else is under way.
    fn submit(&self, operations: Vec<(Request, Completion)>) {
        let count = operations.len();
        let mut outbox = self.outbox.lock();
        if let Some(reason) = outbox.broken.clone() {
            drop(outbox);
            for (_, completion) in operations {
                completion.complete(Err(reason.clone()));
            }
            return;
        }
        if let Some(trace) = self.traces.then(mc_trace::current).flatten() {
            // Bounded by `MAX_BATCH`.
            let header = RequestHeader::trace(&trace, count as u32);
            outbox.frames.push(Frame::bare(&header.encode()));
        }
        for (request, completion) in operations {
            match request {
                Request::Operation(operation) => outbox.push(operation, completion),
                Request::Fence(lost) => outbox.push_fence(lost, completion),
            }
        }
        // The receiver measures from this moment, so it is set before the receiver
        // can see that something is due. Should it complete the last operation in
        // between, it has just started its clock afresh itself.
        let idle = self.unanswered.load(Ordering::Acquire) == 0;
        if idle {
            let now = self.opened.elapsed().as_micros();
            self.sent_before.store(self.bytes_sent(), Ordering::Relaxed);
            self.busy_since.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Release);
        }
        self.unanswered.fetch_add(count, Ordering::AcqRel);
        if std::mem::replace(&mut outbox.writing, true) {
            return;
        }
        drop(outbox);
        // With answers under way more operations are likely to follow before the
        // sender task has its turn, and leave together.
        let written = if idle { self.write() } else { Written::Enough };
        match written {
            Written::All | Written::Broken => {}
            Written::Blocked | Written::Enough => self.wake_sender.notify_one(),
        }
    }

    /// Writes frames. For the task that set [`Outbox::writing`]; clears it when all
    /// are written.
    fn write(&self) -> Written {
        let mut sending = self.sending.lock();
        let mut sent = 0;
        while sent < self.stream.turn() {
            if sending.is_empty() {
                let mut outbox = self.outbox.lock();
                if outbox.frames.is_empty() {
                    outbox.writing = false;
                    return Written::All;
                }
                sending.append(&mut outbox.frames);
            }
            if sending.until().is_some_and(BootTime::has_passed) {
                // The rest would reach what the place was given to since. Nothing but the end
                // of the link takes back what waits in the system's buffers.
                *sending = SendQueue::default();
                drop(sending);
                let ended = io::Error::new(io::ErrorKind::TimedOut, "the grant of a write ended");
                self.fail(TransferError::LinkLost { source: Arc::new(ended) });
                return Written::Broken;
            }
            match sending.try_send(&self.stream) {
                Ok(moved) => {
                    sent += moved;
                    self.bytes_sent.fetch_add(moved as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Written::Blocked,
                Err(error) => {
                    *sending = SendQueue::default();
                    drop(sending);
                    self.fail(TransferError::LinkLost { source: Arc::new(error) });
                    return Written::Broken;
                }
            }
        }
        Written::Enough
    }

    /// Fails the link with `reason`, unless it has failed before. The
    /// receiver, woken by the closed socket, completes what was under way.
    pub(super) fn fail(&self, reason: TransferError) {
        let mut outbox = self.outbox.lock();
        if outbox.broken.is_some() {
            return;
        }
        outbox.broken = Some(reason);
        self.healthy.store(false, Ordering::Release);
        let unsent = std::mem::take(&mut outbox.frames);
        drop(outbox);
        // Foreign memory may run code of its owner when it is released.
        drop(unsent);
        if self.has_unanswered() {
            self.stream.abort();
        } else {
            self.stream.close_both();
        }
        self.wake_sender.notify_one();
    }

    /// Moves the operations submitted since the last call to `known`.
    pub(super) fn collect_awaited(&self, known: &mut VecDeque<Awaited>) {
        let mut outbox = self.outbox.lock();
        if known.is_empty() {
            std::mem::swap(known, &mut outbox.awaited);
        } else {
            known.append(&mut outbox.awaited);
        }
    }

    /// Returns whether the checksum of an operation that was answered is there. A write may be
    /// answered while the last of its bytes are being summed; this waits for that.
    pub(super) fn is_summed(&self, checksum: &Summed) -> bool {
        let Summed::Sent(sums) = checksum else { return true };
        sums.get().is_some() || {
            drop(self.sending.lock());
            sums.get().is_some()
        }
    }

    /// Takes note that an operation was completed.
    pub(super) fn answered(&self) {
        self.unanswered.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn has_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Acquire) > 0
    }

    pub(super) fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Ordering::Relaxed)
    }

    /// The bytes sent before the operations under way began.
    pub(super) fn sent_before(&self) -> u64 {
        self.sent_before.load(Ordering::Relaxed)
    }

    /// When the operations under way began, if any were before the first of them.
    pub(super) fn busy_since(&self) -> Instant {
        self.opened + Duration::from_micros(self.busy_since.load(Ordering::Acquire))
    }

    /// The error that the link failed with.
    pub(super) fn reason(&self) -> TransferError {
        self.outbox.lock().broken.clone().unwrap_or(TransferError::Closed)
    }
}

impl Outbox {
    fn push(&mut self, operation: Operation, completion: Completion) {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let (remote, access) = (operation.remote(), operation.access());
        let (offset, requested) = (remote.extent.offset(), remote.extent.len());
        let summing = Summing::of(&operation).map(Box::new);
        let cancel = operation.cancel().cloned();
        let (opcode, payload, into, len) = match operation {
            Operation::Read { into, .. } => (Opcode::Read, Vec::new().into(), into, requested),
            Operation::Write { from, .. } => (Opcode::Write, from, Vec::new().into(), 0),
        };
        let (key, has_ticket) = (remote.key, remote.ticket.is_some());
        let header = RequestHeader { opcode, has_ticket, id, key, offset, len: requested };
        let frame = Frame::request(&header, &remote, payload);
        let (frame, checksum) = match summing {
            None => (frame, Summed::No),
            Some(summing) if access == Access::Read => (frame, Summed::Received(summing)),
            Some(summing) => {
                let sums = Arc::default();
                (frame.summed(summing, Arc::clone(&sums)), Summed::Sent(sums))
            }
        };
        self.frames.push(frame);
        self.awaited.push_back(Awaited {
            id,
            len,
            into,
            offset,
            requested,
            access,
            checksum,
            cancel,
            completion,
        });
    }
}

impl Outbox {
    fn push_fence(&mut self, lost: LinkId, completion: Completion) {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let key = RemoteKey::from_bytes(lost.to_bytes());
        let (opcode, has_ticket) = (Opcode::Fence, false);
        let header = RequestHeader { opcode, has_ticket, id, key, offset: 0, len: 0 };
        self.frames.push(Frame::bare(&header.encode()));
        self.awaited.push_back(Awaited {
            id,
            len: 0,
            into: Vec::new().into(),
            offset: 0,
            requested: 0,
            access: Access::Write,
            checksum: Summed::No,
            cancel: None,
            completion,
        });
    }
}

/// Writes what submitting tasks leave behind.
async fn send(channel: Arc<Channel>) {
    let guard = SenderGuard(channel);
    let channel = &*guard.0;
    loop {
        channel.wake_sender.notified().await;
        loop {
            if !channel.healthy.load(Ordering::Acquire) {
                return;
            }
            match channel.write() {
                Written::All => break,
                Written::Broken => return,
                Written::Enough => yield_now().await,
                Written::Blocked => {
                    let until = channel.sending.lock().until();
                    let writable = channel.stream.writable();
                    let outcome = match until {
                        None => Ok(writable.await),
                        Some(until) => timeout(until.remaining(), writable).await,
                    };
                    // The next attempt to write finds out that the time is over.
                    if let Ok(Err(error)) = outcome {
                        channel.fail(TransferError::LinkLost { source: Arc::new(error) });
                        return;
                    }
                }
            }
        }
    }
}

/// Without its sender a link is of no use, and without a link nothing is kept to
/// be sent. Holds also when the task is dropped with its runtime.
struct SenderGuard(Arc<Channel>);

impl Drop for SenderGuard {
    fn drop(&mut self) {
        self.0.fail(TransferError::Closed);
        let unsent = std::mem::take(&mut *self.0.sending.lock());
        drop(unsent);
    }
}
