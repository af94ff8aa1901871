//! How far a journal has made the effects of calls durable, and the answers that wait for it.

use core::fmt;
use core::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use mc_types::{ErrorCode, Sequence};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::refusal::Refusal;

/// The number of the last effect that is durable together with all before it: the part of a
/// journal, which advances it. Dropping it says that nothing more will be durable.
///
/// ```
/// use mc_rpc::DurableSequence;
/// use mc_types::Sequence;
///
/// let durable = DurableSequence::new();
/// let watch = durable.watch();
/// durable.advance(Sequence::new(7));
/// // Writers that end out of step do no harm.
/// durable.advance(Sequence::new(5));
/// assert!(watch.is_durable(Sequence::new(7)) && !watch.is_durable(Sequence::new(8)));
/// ```
#[derive(Debug)]
pub struct DurableSequence(Arc<DurabilityState>);

#[derive(Debug, Default)]
struct DurabilityState {
    durable: AtomicU64,
    has_ended: AtomicBool,
    /// Wakes the waiting calls when one of the above has changed.
    more: Notify,
    /// The number of waiting calls: most changes are durable before a call waits.
    waiting: AtomicUsize,
    /// Whether nothing becomes durable at present, and why.
    is_suspended: AtomicBool,
    cause: Mutex<String>,
}

/// Counts one waiting call for as long as this lives.
struct WaitingReader<'a>(&'a AtomicUsize);

impl<'a> WaitingReader<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for WaitingReader<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl DurableSequence {
    /// Nothing is durable yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// The effects up to this one are durable. One that was passed already changes nothing.
    pub fn advance(&self, to: Sequence) {
        let before = self.0.durable.fetch_max(to.as_u64(), Ordering::SeqCst);
        // A call that waits has counted itself before it looked.
        if before < to.as_u64() && self.0.waiting.load(Ordering::SeqCst) > 0 {
            self.0.more.notify_waiters();
        }
    }

    /// Nothing becomes durable until [`resume`](Self::resume): the journal cannot be written.
    /// Calls that begin a change are refused meanwhile and not executed; what was begun may end,
    /// and waits.
    pub fn suspend(&self, cause: &dyn fmt::Display) {
        *self.0.cause.lock() = cause.to_string();
        self.0.is_suspended.store(true, Ordering::Release);
    }

    /// The journal can be written again.
    pub fn resume(&self) {
        self.0.is_suspended.store(false, Ordering::Release);
    }

    /// Watches it from now on.
    #[must_use]
    pub fn watch(&self) -> DurableWatch {
        let shared = Arc::clone(&self.0);
        DurableWatch { seen: shared.durable(), shared }
    }
}

impl Default for DurableSequence {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for DurableSequence {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::SeqCst);
        self.0.more.notify_waiters();
    }
}

impl DurabilityState {
    fn durable(&self) -> Sequence {
        Sequence::new(self.durable.load(Ordering::SeqCst))
    }
}

/// Watches a [`DurableSequence`].
#[derive(Clone, Debug)]
pub struct DurableWatch {
    shared: Arc<DurabilityState>,
    /// The last sequence that was durable when it was looked at last.
    seen: Sequence,
}

/// The journal has ended: what is not durable will not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalEnded;

impl DurableWatch {
    /// Returns whether the effects up to this one are durable.
    #[must_use]
    pub fn is_durable(&self, sequence: Sequence) -> bool {
        sequence <= self.shared.durable()
    }

    /// Refuses a call that begins a change while nothing becomes durable.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if !self.shared.is_suspended.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = format!(
            "the master cannot write its journal, and takes no changes until it can; nothing was \
             changed; the cause: {}",
            self.shared.cause.lock()
        );
        Err(Refusal::new(ErrorCode::UnavailableInCurrentStatus, message))
    }

    /// Waits until the effects up to this one are durable. Cancelling loses nothing.
    pub(crate) async fn wait_for(&mut self, sequence: Sequence) -> Result<(), JournalEnded> {
        while self.look() < sequence {
            self.changed().await?;
        }
        Ok(())
    }

    /// Waits until more is durable than when it was looked at last. Cancelling loses nothing.
    pub(crate) async fn changed(&self) -> Result<(), JournalEnded> {
        let shared = &*self.shared;
        let _waiting = WaitingReader::new(&shared.waiting);
        loop {
            let mut more = pin!(shared.more.notified());
            // Whatever changes from now on wakes it.
            more.as_mut().enable();
            if shared.durable() > self.seen {
                return Ok(());
            }
            if shared.has_ended.load(Ordering::SeqCst) {
                return Err(JournalEnded);
            }
            more.await;
        }
    }

    /// Returns what is durable now, and takes it for looked at.
    pub(crate) fn look(&mut self) -> Sequence {
        self.seen = self.shared.durable();
        self.seen
    }
}
