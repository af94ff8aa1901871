//! How far a journal has made the effects of calls durable, and the answers that wait for it.

use mc_types::Sequence;
use tokio::sync::watch;

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
pub struct DurableSequence(watch::Sender<Sequence>);

impl DurableSequence {
    /// Nothing is durable yet.
    #[must_use]
    pub fn new() -> Self {
        Self(watch::Sender::new(Sequence::new(0)))
    }

    /// The effects up to this one are durable. One that was passed already changes nothing.
    pub fn advance(&self, to: Sequence) {
        self.0.send_if_modified(|durable| {
            let advances = to > *durable;
            if advances {
                *durable = to;
            }
            advances
        });
    }

    /// Watches it from now on.
    #[must_use]
    pub fn watch(&self) -> DurableWatch {
        DurableWatch(self.0.subscribe())
    }
}

impl Default for DurableSequence {
    fn default() -> Self {
        Self::new()
    }
}

/// Watches a [`DurableSequence`].
#[derive(Clone, Debug)]
pub struct DurableWatch(watch::Receiver<Sequence>);

/// The journal has ended: what is not durable will not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalEnded;

impl DurableWatch {
    /// Returns whether the effects up to this one are durable.
    #[must_use]
    pub fn is_durable(&self, sequence: Sequence) -> bool {
        sequence <= *self.0.borrow()
    }

    /// Waits until the effects up to this one are durable. Cancelling loses nothing.
    #[cfg(feature = "grpc")]
    pub(crate) async fn wait_for(&mut self, sequence: Sequence) -> Result<(), JournalEnded> {
        let durable = self.0.wait_for(|durable| sequence <= *durable).await;
        durable.map(drop).map_err(|_| JournalEnded)
    }

    /// Waits until more is durable than when it was looked at last. Cancelling loses nothing.
    pub(crate) async fn changed(&mut self) -> Result<(), JournalEnded> {
        self.0.changed().await.map_err(|_| JournalEnded)
    }

    /// Returns what is durable now, and takes it for looked at.
    pub(crate) fn look(&mut self) -> Sequence {
        *self.0.borrow_and_update()
    }
}
