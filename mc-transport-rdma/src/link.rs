//! A link to one peer.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use mc_transport::backend::{Close, Counted, Tasks};
use mc_transport::{
    Capabilities, Completion, Completions, Link, LinkId, MAX_BATCH, Operation, Outcome,
    ProtocolViolation, Source, Sums, TransferError, Transferred,
};
use mc_types::{Endpoint, RemoteKey};
use parking_lot::RwLock;
use tokio::task::AbortHandle;

use super::control::{Control, RegionPath};
use super::cut::{Limits, cut};
use super::flow::Flow;
use super::local::{Found, LocalMemory, Piece, SLOT};
use super::summed::Summed;
use super::transfer::{LocalSide, RemoteRegion, Slice, Transfer, Unregistered};
use super::wire::{Answer, Request};

/// Up to this size, bytes of memory that is not registered are copied: that is cheaper than
/// registering their block.
const COPIED: usize = 16 << 10;

/// A link of an [`RdmaTransport`](super::RdmaTransport).
///
/// Operations are carried out by the network cards. The first one on a region asks the peer for
/// its keys, and the first one that touches a block of local memory registers it; tasks of the
/// transport do both. Checksums are taken by the task that waits for the results.
pub struct RdmaLink {
    pub(super) state: Arc<LinkState>,
    tasks: LinkTasks,
    _open: Counted,
}

/// The tasks of one link, which end when this is dropped.
#[derive(Default)]
pub(super) struct LinkTasks(Vec<AbortHandle>);

impl LinkTasks {
    /// Adds a task; there is none if the transport has ended.
    pub(super) fn add(&mut self, task: Option<AbortHandle>) {
        self.0.extend(task);
    }

    fn abort(&self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Drop for LinkTasks {
    fn drop(&mut self) {
        self.abort();
    }
}

/// The limits of operations and requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkLimits {
    pub(super) max_operation: u64,
    /// Bytes of a request.
    pub(super) request: u64,
    /// Pieces of local memory of a request.
    pub(super) pieces: usize,
}

/// State shared by a link and its operations.
pub(super) struct LinkState {
    pub(super) endpoint: Endpoint,
    pub(super) id: LinkId,
    pub(super) limits: LinkLimits,
    pub(super) flow: Arc<Flow>,
    pub(super) control: Arc<Control>,
    pub(super) local: Arc<LocalMemory>,
    pub(super) tasks: Weak<Tasks>,
    /// For regions that are not reached by RDMA.
    pub(super) fallback: RwLock<Option<Arc<dyn Link>>>,
}

type Waiting = (Operation, Completion);

impl RdmaLink {
    pub(super) fn new(state: Arc<LinkState>, tasks: LinkTasks, open: Counted) -> Self {
        Self { state, tasks, _open: open }
    }

    /// Has `link` carry what cannot be reached by RDMA from now on.
    pub(super) fn set_fallback(&self, link: &Arc<dyn Link>) {
        let is_known = |known: &Arc<dyn Link>| Arc::ptr_eq(known, link);
        if !self.state.fallback.read().as_ref().is_some_and(is_known) {
            *self.state.fallback.write() = Some(Arc::clone(link));
        }
    }

    /// Queue pairs that carry requests now.
    #[must_use]
    pub fn queue_pairs(&self) -> usize {
        self.state.flow.lanes_up()
    }
}

impl Close for RdmaLink {
    fn close(&self, reason: &TransferError) {
        self.state.flow.fail(reason);
        self.tasks.abort();
    }
}

impl Link for RdmaLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let len = batch.len();
        if len > MAX_BATCH {
            let too_large = TransferError::BatchTooLarge { len, max: MAX_BATCH };
            return Completions::ready(vec![Err(too_large); len]);
        }
        if let Some(reason) = self.state.flow.failure() {
            return Completions::ready(vec![Err(reason.clone()); len]);
        }
        let summed = batch.iter().any(|operation| operation.sums() != Sums::None);
        let to_sum = summed.then(|| {
            let one = |it: &Operation| (it.sums() != Sums::None).then(|| it.clone());
            batch.iter().map(one).collect::<Vec<_>>()
        });
        let (to_complete, completions) = Completions::pending(len);
        self.state.submit(batch.into_iter().zip(to_complete));
        match to_sum {
            None => completions,
            Some(to_sum) => Completions::driven(len, Summed::new(completions, to_sum)),
        }
    }

    fn is_healthy(&self) -> bool {
        self.state.flow.failure().is_none()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(self.state.limits.max_operation);
        capabilities.zero_copy = true;
        capabilities
    }

    fn id(&self) -> Option<LinkId> {
        Some(self.state.id)
    }

    fn ids(&self) -> Vec<LinkId> {
        let own = self.is_healthy().then_some(self.state.id);
        let fallback = self.state.fallback.read().as_ref().map(|link| link.ids());
        own.into_iter().chain(fallback.into_iter().flatten()).collect()
    }

    fn fence(&self, lost: LinkId) -> Completions {
        let (mut to_complete, completions) = Completions::pending(1);
        let Some(tasks) = self.state.tasks.upgrade() else { return completions };
        let completion = to_complete.next().expect("there is one to complete");
        let state = Arc::clone(&self.state);
        tasks.spawn(async move {
            completion.complete(match state.control.ask(&Request::Fence(lost)).await {
                Ok(Answer::Fenced) => Ok(Transferred::default()),
                Ok(_) => Err(TransferError::Protocol(ProtocolViolation::WrongGrant)),
                Err(error) => Err(error),
            });
        });
        completions
    }
}

impl fmt::Debug for RdmaLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaLink")
            .field("endpoint", &self.state.endpoint)
            .field("queue_pairs", &self.queue_pairs())
            .finish_non_exhaustive()
    }
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        self.close(&TransferError::Closed);
    }
}

impl LinkState {
    /// Posts what can be posted, and has a task find out about the others.
    fn submit(self: &Arc<Self>, batch: impl Iterator<Item = Waiting>) {
        let (mut slices, mut unknown) = (Vec::new(), Vec::new());
        let mut last: Option<(RemoteKey, Arc<RemoteRegion>)> = None;
        for (operation, completion) in batch {
            if let Err(refused) = self.check(&operation) {
                complete(operation, completion, Err(refused));
                continue;
            }
            let key = operation.remote().key;
            if last.as_ref().is_none_or(|(known, _)| *known != key) {
                let regions = self.control.regions.read();
                last = match regions.get(&key) {
                    Some(RegionPath::Rdma(region)) => Some((key, Arc::clone(region))),
                    _ => None,
                };
            }
            let Some((_, region)) = &last else {
                unknown.push((operation, completion));
                continue;
            };
            match self.cut(operation, completion, region, false) {
                Divided::Requests(requests) => slices.extend(requests),
                Divided::Unregistered(waiting) => unknown.push(waiting),
            }
        }
        self.flow.submit(slices);
        if !unknown.is_empty()
            && let Some(tasks) = self.tasks.upgrade()
        {
            let state = Arc::clone(self);
            tasks.spawn(async move { state.explore(unknown).await });
        }
    }

    /// The failure that is known before anything is sent.
    fn check(&self, operation: &Operation) -> Result<(), TransferError> {
        operation.validate()?;
        let (len, max) = (operation.remote().extent.len(), self.limits.max_operation);
        if len > max { Err(TransferError::TooLarge { len, max }) } else { Ok(()) }
    }

    /// Asks for regions and registers memory, and has the operations carried out then.
    async fn explore(self: Arc<Self>, operations: Vec<Waiting>) {
        let mut by_key: HashMap<RemoteKey, Vec<Waiting>> = HashMap::new();
        for (operation, completion) in operations {
            by_key.entry(operation.remote().key).or_default().push((operation, completion));
        }
        for (key, waiting) in by_key {
            let may_go_elsewhere = self.fallback.read().is_some();
            let path = self.control.region(key, may_go_elsewhere).await;
            match path {
                Ok(RegionPath::Rdma(region)) => {
                    let state = Arc::clone(&self);
                    let register = move || {
                        let mut slices = Vec::new();
                        for (operation, completion) in waiting {
                            let divided = state.cut(operation, completion, &region, true);
                            if let Divided::Requests(requests) = divided {
                                slices.extend(requests);
                            }
                        }
                        state.flow.submit(slices);
                    };
                    // Registering takes as long as pinning the memory's pages does.
                    let _ = tokio::task::spawn_blocking(register).await;
                }
                Ok(RegionPath::Elsewhere) => self.go_elsewhere(waiting).await,
                Err(error) => {
                    for (operation, completion) in waiting {
                        complete(operation, completion, Err(error.clone()));
                    }
                }
            }
        }
    }

    /// Carries operations out over the other transport.
    async fn go_elsewhere(&self, waiting: Vec<Waiting>) {
        let (operations, completions): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
        let fallback = self.fallback.read().clone();
        let Some(fallback) = fallback else {
            let what = "RDMA to memory that the peer's device cannot register";
            for (operation, completion) in operations.into_iter().zip(completions) {
                complete(operation, completion, Err(TransferError::Unsupported { what }));
            }
            return;
        };
        let mut completions: Vec<_> = completions.into_iter().map(Some).collect();
        let mut results = fallback.submit(operations);
        while let Some((index, outcome)) = results.next().await {
            if let Some(completion) = completions[index].take() {
                completion.complete(outcome);
            }
        }
    }

    /// Divides an operation into requests. It completes here when nothing has to be sent.
    fn cut(
        &self,
        operation: Operation,
        completion: Completion,
        region: &Arc<RemoteRegion>,
        may_register: bool,
    ) -> Divided {
        let span = operation.remote();
        let checked = span.check_time().and_then(|()| region.check(&span, operation.access()));
        if checked.is_err() || span.extent.is_empty() {
            complete(operation, completion, checked.map(|()| Transferred::default()));
            return Divided::Requests(Vec::new());
        }
        let sources: Vec<Source> = match &operation {
            Operation::Read { into, .. } => into.iter().cloned().map(Source::Memory).collect(),
            Operation::Write { from, .. } => from.to_vec(),
        };
        let Some(pieces) = self.locate(&sources, may_register) else {
            return Divided::Unregistered((operation, completion));
        };
        let len = |piece: &Located| match piece {
            Located::Registered(piece) => (piece.slice.len(), false),
            Located::Unregistered(_, len) => (*len, true),
        };
        let lens: Vec<(usize, bool)> = pieces.iter().map(len).collect();
        let limits = Limits {
            len: self.limits.request,
            staged: self.limits.request.min(SLOT as u64),
            pieces: self.limits.pieces,
            chunk: region.keys.chunk,
        };
        let cuts = cut(span.extent.offset(), &lens, limits);
        let transfer = Transfer::new(operation, completion, Arc::clone(region), cuts.len());
        let slice = |cut: super::cut::Cut| {
            let local = if cut.is_staged {
                let part = |&(index, start, len): &(usize, usize, usize)| match &pieces[index] {
                    Located::Unregistered(source, _) => Unregistered::of(source, start, len),
                    Located::Registered(_) => unreachable!("cuts keep the two kinds apart"),
                };
                LocalSide::Staged { parts: cut.parts.iter().map(part).collect(), slot: None }
            } else {
                let part = |&(index, start, len): &(usize, usize, usize)| match &pieces[index] {
                    Located::Registered(piece) => Piece {
                        chunk: Arc::clone(&piece.chunk),
                        slice: piece.slice.part(start, len).expect("cuts lie inside"),
                    },
                    Located::Unregistered(..) => unreachable!("cuts keep the two kinds apart"),
                };
                LocalSide::Direct(cut.parts.iter().map(part).collect())
            };
            let transfer = Arc::clone(&transfer);
            Slice { transfer, local, offset: cut.remote, len: cut.len, lost: 0 }
        };
        Divided::Requests(cuts.into_iter().map(slice).collect())
    }

    /// Finds the registrations of local memory; `None` when some has to be registered first and
    /// `may_register` is not set.
    fn locate(&self, sources: &[Source], may_register: bool) -> Option<Vec<Located>> {
        let mut located = Vec::with_capacity(sources.len());
        for source in sources {
            let slice = match source {
                Source::Memory(slice) if !slice.is_empty() => slice,
                other => {
                    located.push(Located::Unregistered(other.clone(), other.len()));
                    continue;
                }
            };
            let mut found = self.local.find(slice);
            if matches!(found, Found::Unregistered) && slice.len() > COPIED {
                if !may_register {
                    return None;
                }
                self.local.register(slice);
                found = self.local.find(slice);
            }
            match found {
                Found::Registered(pieces) => {
                    located.extend(pieces.into_iter().map(Located::Registered));
                }
                Found::Unregistered | Found::Refused => {
                    located.push(Located::Unregistered(source.clone(), slice.len()));
                }
            }
        }
        Some(located)
    }
}

/// An operation that was to be divided.
enum Divided {
    Requests(Vec<Slice>),
    /// Local memory has to be registered first, and the caller did not allow it.
    Unregistered(Waiting),
}

/// A piece of the local side.
enum Located {
    Registered(Piece),
    /// With its bytes.
    Unregistered(Source, usize),
}

/// Hands over a result once the memory of the operation is let go.
fn complete(operation: Operation, completion: Completion, outcome: Outcome) {
    drop(operation);
    completion.complete(outcome);
}
