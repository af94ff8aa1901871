//! How far a journal has made the effects of calls durable, and the answers that wait for it.

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_types::{ErrorCode, Sequence};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::refusal::Refusal;

/// The time at which a server may send the answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// At once.
    Now,
    /// When the effects up to this one are durable, as [`Service::durability`] tells.
    ///
    /// [`Service::durability`]: crate::Service::durability
    After(Sequence),
}

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
pub struct DurableSequence {
    durable: watch::Sender<Sequence>,
    suspension: Arc<Suspension>,
}

/// Whether nothing becomes durable at present, and why.
#[derive(Debug, Default)]
struct Suspension {
    is_suspended: AtomicBool,
    cause: Mutex<String>,
}

impl DurableSequence {
    /// Nothing is durable yet.
    #[must_use]
    pub fn new() -> Self {
        Self { durable: watch::Sender::new(Sequence::new(0)), suspension: Arc::default() }
    }

    /// The effects up to this one are durable. One that was passed already changes nothing.
    pub fn advance(&self, to: Sequence) {
        self.durable.send_if_modified(|durable| {
            let advances = to > *durable;
            if advances {
                *durable = to;
            }
            advances
        });
    }

    /// Nothing becomes durable until [`resume`](Self::resume): the journal cannot be written.
    /// Calls that begin a change are refused meanwhile and not executed; what was begun may end,
    /// and waits.
    pub fn suspend(&self, cause: &dyn fmt::Display) {
        *self.suspension.cause.lock() = cause.to_string();
        self.suspension.is_suspended.store(true, Ordering::Release);
    }

    /// The journal can be written again.
    pub fn resume(&self) {
        self.suspension.is_suspended.store(false, Ordering::Release);
    }

    /// Watches it from now on.
    #[must_use]
    pub fn watch(&self) -> DurableWatch {
        let suspension = Arc::clone(&self.suspension);
        DurableWatch { durable: self.durable.subscribe(), suspension }
    }
}

impl Default for DurableSequence {
    fn default() -> Self {
        Self::new()
    }
}

/// Watches a [`DurableSequence`].
#[derive(Clone, Debug)]
pub struct DurableWatch {
    durable: watch::Receiver<Sequence>,
    suspension: Arc<Suspension>,
}

/// The journal has ended: what is not durable will not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalEnded;

impl DurableWatch {
    /// Returns whether the effects up to this one are durable.
    #[must_use]
    pub fn is_durable(&self, sequence: Sequence) -> bool {
        sequence <= *self.durable.borrow()
    }

    /// Refuses a call that begins a change while nothing becomes durable.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if !self.suspension.is_suspended.load(Ordering::Acquire) {
            return Ok(());
        }
        let message = format!(
            "the master cannot write its journal, and takes no changes until it can; nothing was \
             changed; the cause: {}",
            self.suspension.cause.lock()
        );
        Err(Refusal::new(ErrorCode::UnavailableInCurrentStatus, message))
    }

    /// Waits until the effects up to this one are durable. Cancelling loses nothing.
    #[cfg(feature = "grpc")]
    pub(crate) async fn wait_for(&mut self, sequence: Sequence) -> Result<(), JournalEnded> {
        let durable = self.durable.wait_for(|durable| sequence <= *durable).await;
        durable.map(drop).map_err(|_| JournalEnded)
    }

    /// Waits until more is durable than when it was looked at last. Cancelling loses nothing.
    pub(crate) async fn changed(&mut self) -> Result<(), JournalEnded> {
        self.durable.changed().await.map_err(|_| JournalEnded)
    }

    /// Returns what is durable now, and takes it for looked at.
    pub(crate) fn look(&mut self) -> Sequence {
        *self.durable.borrow_and_update()
    }
}
