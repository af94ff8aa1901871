//! Carries transfers out.

use std::sync::Arc;
use std::time::Duration;

use mc_transport::{
    Access, Cancel, ConnectError, Link, LinkId, MemorySlice, Node, Operation, Outcome, Pieces,
    RemoteSpan, Source, TransferError, Transport as _,
};
use mc_types::Endpoint;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::EngineError;
use super::peer::{Described, Peer};
use super::regions::LocalMemory;
use crate::memory::{self, DeviceMemory};

/// The time that operations get to end after the time limit of their transfer. Links give up a peer
/// that makes no progress by then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Time limit of a fence against late bytes.
const FENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// `len` bytes at two addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) local: usize,
    pub(super) remote: u64,
    pub(super) len: usize,
}

/// The ranges of a transfer: memory of this side, and addresses at the peer.
pub(super) struct Work {
    access: Access,
    pairs: Vec<(Vec<MemorySlice>, Pair)>,
    /// Memory of GPUs, with the pair that it belongs to: its bytes are in that pair's pinned memory.
    on_device: Vec<(usize, DeviceMemory)>,
}

impl Work {
    /// Finds the local memory of a transfer: [`Access::Read`] from the peer, or [`Access::Write`] to
    /// it. Pairs of no bytes are left out.
    pub(super) fn new(
        access: Access,
        pairs: &[Pair],
        local: &LocalMemory<'_>,
    ) -> Result<Self, EngineError> {
        let mut on_device = Vec::new();
        let with_memory = |(nth, pair): (usize, &Pair)| {
            let Pair { local: address, len, .. } = *pair;
            if let Some(memory) = local.device(address, len) {
                on_device.push((nth, memory));
                return Ok((Vec::new(), *pair));
            }
            let pieces = local.pieces(address, len)?;
            if access == Access::Read && !pieces.iter().all(MemorySlice::is_writable) {
                return Err(EngineError::LocalReadOnly { address, len });
            }
            Ok((pieces, *pair))
        };
        let pairs = pairs.iter().filter(|pair| pair.len > 0).enumerate().map(with_memory);
        let pairs = pairs.collect::<Result<_, _>>()?;
        Ok(Self { access, pairs, on_device })
    }

    /// Gives the ranges of GPUs' memory their pinned memory, with the bytes that are to be written. Blocks until they
    /// are there.
    pub(super) fn stage(mut self) -> Result<Self, EngineError> {
        for (nth, device) in &self.on_device {
            let failed = |_| EngineError::Device { address: self.pairs[*nth].1.local };
            device.verify().map_err(failed)?;
            let staged = match self.access {
                Access::Write => memory::gather(std::slice::from_ref(device), None),
                _ => memory::stage(device, device.len()).map(|staged| vec![staged.whole()]),
            };
            self.pairs[*nth].0 = staged.map_err(failed)?;
        }
        Ok(self)
    }

    /// Copies what was read for GPUs' memory there.
    async fn land(&self) -> Result<(), EngineError> {
        let of_read = self.on_device.iter().filter(|_| self.access == Access::Read);
        for (nth, device) in of_read {
            let (staged, pair) = &self.pairs[*nth];
            let landed = memory::land(&staged[0], std::slice::from_ref(device), None).await;
            landed.map_err(|_| EngineError::Device { address: pair.local })?;
        }
        Ok(())
    }

    /// Returns whether there are no bytes to transfer.
    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the operations: one for each pair, or one for each of the peer's ranges that it
    /// touches.
    fn operations(
        &self,
        peer: &Peer,
        known: &Described,
        cancel: &Cancel,
    ) -> Result<Vec<Operation>, EngineError> {
        let mut operations = Vec::with_capacity(self.pairs.len());
        for (pieces, pair) in &self.pairs {
            let Pair { remote, len, .. } = *pair;
            let parts = known.ranges.parts(remote, len as u64).ok_or_else(|| {
                EngineError::RemoteNotRegistered {
                    session: peer.session().into(),
                    address: remote,
                    len,
                }
            })?;
            let mut start = 0;
            for (key, extent) in parts {
                // Lengths of parts add up to `len`, which counts local bytes.
                let part_len = extent.len() as usize;
                let local = cut(pieces, start, part_len);
                start += part_len;
                let span = RemoteSpan::new(key, extent);
                operations.push(match self.access {
                    Access::Write => Operation::write(sources(local), span),
                    _ => Operation::read(span, local).cancelled_by(cancel),
                });
            }
        }
        Ok(operations)
    }
}

fn sources(pieces: Vec<MemorySlice>) -> Pieces<Source> {
    pieces.into_iter().map(Source::Memory).collect()
}

/// Returns the `len` bytes of `pieces` from `start` on.
fn cut(pieces: &[MemorySlice], start: usize, len: usize) -> Vec<MemorySlice> {
    let (mut skip, mut left) = (start, len);
    let mut parts = Vec::new();
    for piece in pieces {
        let from = skip.min(piece.len());
        let take = left.min(piece.len() - from);
        if take > 0 {
            parts.extend(piece.part(from, take));
        }
        skip -= from;
        left -= take;
    }
    parts
}

/// Why an attempt failed, and what may be done about it.
struct TransferFailure {
    error: EngineError,
    /// Whether it may succeed with a newer description of the peer.
    is_repeatable: bool,
    /// Links that may still bring bytes of this attempt to the peer; `None` if they are unknown.
    late: Option<Vec<LinkId>>,
}

impl From<EngineError> for TransferFailure {
    fn from(error: EngineError) -> Self {
        let is_repeatable = matches!(error, EngineError::RemoteNotRegistered { .. });
        Self { error, is_repeatable, late: Some(Vec::new()) }
    }
}

/// Carries transfers with one peer out.
pub(super) struct Transfer<'a> {
    pub(super) node: &'a Node,
    pub(super) peer: &'a Peer,
    pub(super) timeout: Duration,
}

impl Transfer<'_> {
    /// Transfers the bytes. A failure because the peer has registered other memory since it was
    /// asked, or has started again, is followed by one more attempt, if nothing of the first can
    /// arrive after it.
    ///
    /// # Cancellation
    /// Reads leave their memory alone from then on; writes that have begun go on, and keep it.
    pub(super) async fn run(&self, work: &Work) -> Result<(), EngineError> {
        if work.is_empty() {
            return Ok(());
        }
        self.move_all(work).await?;
        work.land().await
    }

    async fn move_all(&self, work: &Work) -> Result<(), EngineError> {
        let deadline = Instant::now() + self.timeout;
        let Some(known) = self.peer.known() else {
            let known = self.describe(deadline).await?;
            return self.attempt(&known, work, deadline).await.map_err(|failure| failure.error);
        };
        let Err(failure) = self.attempt(&known, work, deadline).await else { return Ok(()) };
        if !failure.is_repeatable {
            return Err(failure.error);
        }
        tracing::debug!("asking {} for its memory again: {}", self.peer.session(), failure.error);
        let renewed = self.describe(deadline).await?;
        // The bytes of an attempt end with the run of the peer that they were for.
        let is_clean =
            renewed.instance != known.instance || self.fence(&renewed.endpoint, failure.late).await;
        if !is_clean {
            return Err(failure.error);
        }
        self.node.forgive(&renewed.endpoint);
        self.attempt(&renewed, work, deadline).await.map_err(|failure| failure.error)
    }

    async fn describe(&self, deadline: Instant) -> Result<Arc<Described>, EngineError> {
        let described = timeout_at(deadline, self.peer.describe()).await;
        described.unwrap_or_else(|_| Err(self.timed_out()))
    }

    fn timed_out(&self) -> EngineError {
        EngineError::TimedOut { session: self.peer.session().into(), after: self.timeout }
    }

    async fn attempt(
        &self,
        known: &Described,
        work: &Work,
        deadline: Instant,
    ) -> Result<(), TransferFailure> {
        let cancel = CancelOnDrop(Cancel::new());
        // Before there is a link: the peer is asked again for memory that is not known.
        let operations = work.operations(self.peer, known, &cancel.0)?;
        let link = self.node.connect(&known.endpoint).await.map_err(|e| self.unconnected(e))?;
        let limits = link.capabilities();
        let mut operations =
            operations.into_iter().flat_map(|one| one.split(limits.max_operation)).peekable();
        while operations.peek().is_some() {
            let batch = operations.by_ref().take(limits.max_batch).collect();
            let ids = link.ids();
            let mut results = link.submit(batch);
            let Ok(outcomes) = timeout_at(deadline, &mut results).await else {
                cancel.0.cancel();
                if timeout(DRAIN_TIMEOUT, results).await.is_err() {
                    tracing::error!(
                        "a transfer with {} does not end: its memory stays in use until \
                         unregister_memory has returned 0",
                        self.peer.session()
                    );
                }
                return Err(self.timed_out().into());
            };
            let is_late = work.access == Access::Write && outcomes.iter().any(leaves_late_writes);
            if let Some(failure) = self.first_failure(outcomes) {
                return Err(match is_late {
                    true => TransferFailure { late: lost(ids, &link.ids()), ..failure },
                    false => failure,
                });
            }
        }
        Ok(())
    }

    fn unconnected(&self, source: ConnectError) -> TransferFailure {
        let session = self.peer.session().into();
        let error = EngineError::Connect { session, source };
        TransferFailure { error, is_repeatable: true, late: Some(Vec::new()) }
    }

    /// Returns the first failure, if any, and whether all failures may be repeated.
    fn first_failure(&self, outcomes: Vec<Outcome>) -> Option<TransferFailure> {
        let failures: Vec<TransferError> = outcomes.into_iter().filter_map(Result::err).collect();
        let is_repeatable = failures.iter().all(|error| {
            error.is_retryable()
                || matches!(error, TransferError::KeyRefused | TransferError::OutOfBounds { .. })
        });
        let source = failures.into_iter().next()?;
        let error = EngineError::Transfer { session: self.peer.session().into(), source };
        Some(TransferFailure { error, is_repeatable, late: Some(Vec::new()) })
    }

    /// Has the peer end lost links, so that nothing that they carried arrives any more. Returns
    /// whether that is so.
    async fn fence(&self, endpoint: &Endpoint, late: Option<Vec<LinkId>>) -> bool {
        let Some(lost) = late else { return false };
        if lost.is_empty() {
            return true;
        }
        let fencing = async {
            let link = self.node.connect(endpoint).await.ok()?;
            for id in lost {
                if link.fence(id).await.iter().any(Result::is_err) {
                    return None;
                }
            }
            Some(())
        };
        matches!(timeout(FENCE_TIMEOUT, fencing).await, Ok(Some(())))
    }
}

fn leaves_late_writes(outcome: &Outcome) -> bool {
    outcome.as_ref().err().is_some_and(TransferError::leaves_late_writes)
}

/// Returns the links of `before` that are gone; `None` if none is: the one that was lost joined
/// later, or has not failed yet.
fn lost(mut before: Vec<LinkId>, now: &[LinkId]) -> Option<Vec<LinkId>> {
    before.retain(|id| !now.contains(id));
    (!before.is_empty()).then_some(before)
}

/// Cancels the reads of a transfer that is dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}
