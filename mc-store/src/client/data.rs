//! Moving bytes: operations sorted by peer, all peers at once.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use mc_rpc::SegmentLocation;
use mc_trace::{Kind, Span};
use mc_transport::{
    Cancel, Completions, ConnectError, Link as _, LinkId, Node, NodeLink, Operation, Outcome,
    TransferError, Transferred, Transport,
};
use mc_types::{Endpoint, RemoteKey};
use smallvec::SmallVec;
use tokio::time::{Sleep, sleep};
use tracing::debug;

use super::background::Background;
use super::load::Begun;
use super::metrics::{DataPath, Direction, Metrics};
use super::probe::PeerHealth;
use super::tiers::MAX_READ;
use crate::error::PeerError;

/// Longest transfer asked for at once. Longer ones are divided: peers limit what
/// one operation may move.
const MAX_TRANSFER: u64 = 256 << 20;

/// How many times as long a peer may make no progress when the others are suspects.
const LONG_PATIENCE: u32 = 4;

/// One operation and the peer it is for.
pub(super) struct Job {
    pub(super) holder: Holder,
    pub(super) operation: Operation,
    pub(super) patience: Patience,
}

/// The memory or disk of a peer that holds the bytes of a job. Two are equal if their endpoints are.
#[derive(Clone, Debug)]
pub(super) enum Holder {
    /// A segment, which the answers of the master share.
    Segment(Arc<SegmentLocation>),
    /// A disk of the peer at this endpoint.
    Disk(Endpoint),
}

impl Deref for Holder {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        match self {
            Self::Segment(segment) => &segment.endpoint,
            Self::Disk(endpoint) => endpoint,
        }
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Holder {}

impl PartialOrd for Holder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Holder {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Segment(one), Self::Segment(other)) if Arc::ptr_eq(one, other) => {
                Ordering::Equal
            }
            _ => Endpoint::cmp(self, other),
        }
    }
}

/// When a transfer fails although its peer may only be slow: there is another replica to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Patience {
    /// Soon after its peer has stalled.
    Short,
    /// After several times that: the others are suspects, which may answer again.
    Long,
    /// Not before the whole time limit has passed: there is no other replica.
    Whole,
    /// After this time, for each [`MAX_READ`] bytes of an operation: it reads a disk, which may hang while
    /// its node is well.
    Disk(Duration),
}

impl Patience {
    /// How long a peer may make no progress with operations of at most `longest` bytes, when it usually
    /// counts as stalled after `stalls_after`.
    fn limit(self, longest: u64, stalls_after: impl FnOnce() -> Duration) -> Option<Duration> {
        match self {
            Self::Short => Some(stalls_after()),
            Self::Long => Some(stalls_after() * LONG_PATIENCE),
            Self::Whole => None,
            Self::Disk(limit) => {
                let parts = u32::try_from(longest.div_ceil(MAX_READ)).unwrap_or(u32::MAX);
                Some(limit.saturating_mul(parts.max(1)))
            }
        }
    }

    const fn is_of_disk(self) -> bool {
        matches!(self, Self::Disk(_))
    }
}

/// The outcome of a job. The checksums that the operation asked for are there, unless the bytes
/// were moved in a way that knows none.
pub(super) type Moved = Result<Transferred, Failed>;

/// Why a job failed.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) error: PeerError,
    /// Bytes of the write may still arrive, over these links.
    pub(super) late: Option<Arc<LostLinks>>,
    /// The peer stalled, and may answer later.
    pub(super) moved_on: bool,
}

/// Links to a peer that were lost with writes under way.
#[derive(Debug)]
pub(super) struct LostLinks {
    pub(super) endpoint: Endpoint,
    /// Empty when it is not known which they were.
    pub(super) ids: Vec<LinkId>,
}

/// The operations for each peer, and the places of their jobs. Ordered, so that a simulation repeats.
type Batches = BTreeMap<(Holder, Patience), (Vec<usize>, Vec<Operation>)>;

/// Moves bytes to and from peers.
#[derive(Debug)]
pub(super) struct Transfers {
    pub(super) transport: Arc<Node>,
    pub(super) health: PeerHealth,
    metrics: Metrics,
    /// Whether replicas in this client's own segment are copied directly.
    local_copy: bool,
}

impl Transfers {
    /// Transfers over `transport`, whose peers are probed by tasks in the background.
    pub(super) fn new(
        transport: Arc<Node>,
        background: Arc<Background>,
        metrics: Metrics,
        local_copy: bool,
    ) -> Self {
        let health = PeerHealth::new(Arc::clone(&transport), background);
        Self { transport, health, metrics, local_copy }
    }

    /// Carries the jobs out and gives one result for each. Jobs for one peer
    /// travel as one batch; peers are served at the same time. Bytes in this
    /// client's own segments are copied without a socket.
    pub(super) async fn transfer(&self, jobs: Vec<Job>) -> Vec<Moved> {
        let mut results: Vec<Moved> = vec![Ok(Transferred::default()); jobs.len()];
        let mut batches: Batches = BTreeMap::new();
        for (at, Job { holder, operation, patience }) in jobs.into_iter().enumerate() {
            if let Some(moved) = self.copy_locally(&holder, &operation) {
                results[at] = moved;
                continue;
            }
            let (places, operations) = batches.entry((holder, patience)).or_default();
            if operation.remote().extent.len() <= MAX_TRANSFER {
                places.push(at);
                operations.push(operation);
                continue;
            }
            for part in operation.split(MAX_TRANSFER) {
                places.push(at);
                operations.push(part);
            }
        }
        let batches = batches.into_iter().map(|(to, (places, operations))| async move {
            let (holder, patience) = to;
            let span = Span::child("transfer", Kind::Client);
            if span.is_recording() {
                describe(&span, &holder, &operations);
            }
            let moved = span.within(self.submit(&holder, operations, patience, &span)).await;
            if let Some(Err(failed)) = moved.iter().find(|moved| moved.is_err()) {
                span.failed(&failed.error);
            }
            (places, moved)
        });
        for (places, outcomes) in all(batches).await {
            for (n, (&at, outcome)) in places.iter().zip(outcomes).enumerate() {
                let parts = [n.checked_sub(1), n.checked_add(1)];
                let divided = parts.iter().flatten().any(|&near| places.get(near) == Some(&at));
                match outcome {
                    // The checksums of parts are not that of the whole.
                    Ok(_) if divided => {}
                    Ok(done) if results[at].is_ok() => results[at] = Ok(done),
                    Err(error) if results[at].is_ok() => results[at] = Err(error),
                    _ => {}
                }
            }
        }
        results
    }

    async fn submit(
        &self,
        endpoint: &Endpoint,
        operations: Vec<Operation>,
        patience: Patience,
        span: &Span,
    ) -> Vec<Moved> {
        let (count, keys) = (operations.len(), keys(&operations));
        if self.health.peers.is_back(endpoint, keys.iter().copied()) {
            self.transport.forgive(endpoint);
        }
        if let Err(error) = self.health.admit(endpoint).await {
            return unsent(error, false, count);
        }
        let sizes: Vec<_> = operations.iter().map(size).collect();
        // What a disk takes says nothing of the node's memory, nor of the way there.
        let bytes = sizes.iter().map(|&(_, bytes)| bytes);
        let load = (!patience.is_of_disk())
            .then(|| self.health.loads.begin(endpoint, bytes.clone().sum()));
        let usual = || load.as_ref().map_or(Duration::ZERO, Begun::stalls_after);
        let stalled_after = patience.limit(bytes.max().unwrap_or(0), usual);
        let timer = pin!(stalled_after.map(sleep));
        let stalls = timer.as_pin_mut().zip(stalled_after);
        let mut stalls = stalls.map(|(timer, after)| Stalls { after, timer });
        let connecting = async {
            match patience.is_of_disk() {
                true => self.transport.connect_apart(endpoint).await,
                false => self.transport.connect(endpoint).await,
            }
        };
        let (connected, moved_on) = match &mut stalls {
            None => (connecting.await, false),
            Some(stalls) => stalls.watch_connecting(endpoint, connecting).await,
        };
        let link = match connected {
            Ok(link) => link,
            Err(error) => {
                let error = PeerError::Connect(error);
                let is_silent = !moved_on && error.is_whole_time_limit();
                self.health.peers.failed(endpoint, keys, is_silent);
                if let Some(load) = load.filter(|_| moved_on) {
                    load.stalled();
                }
                return unsent(error, moved_on, count);
            }
        };
        // Only writes may arrive late.
        let writes = sizes.iter().any(|&(direction, _)| direction == Direction::Write);
        let before = if writes { link.ids() } else { Vec::new() };
        let path = DataPath::of(link.scheme());
        span.set("network.transport", link.scheme());
        // Reads end with this call, also when it is dropped: their memory has another use then.
        let cancel = CancelOnDrop::default();
        let operations =
            operations.into_iter().map(|it| it.cancelled_by(cancel.handle())).collect();
        let outcomes = match &mut stalls {
            None => link.submit(operations).await,
            Some(stalls) => {
                stalls.watch(link.submit(operations), count, &link, cancel.handle()).await
            }
        };
        drop(cancel);
        let has_stalled = stalled_after.is_some() && outcomes.iter().any(is_cancelled);
        if has_stalled {
            debug!(%endpoint, after = ?stalled_after, "a peer stalls; reads go on elsewhere");
        }
        match load {
            Some(load) if has_stalled => load.stalled(),
            Some(load) => load.ended(path == DataPath::SharedMemory),
            None => {}
        }
        self.count(path, &sizes, &outcomes);
        // A disk that hangs is no reason to keep away from its node.
        let has_failed = (has_stalled && !patience.is_of_disk()) || !link.is_healthy();
        self.health.note(endpoint, keys, &outcomes, has_failed);
        results(endpoint, outcomes, &sizes, stalled_after, || {
            let now = link.ids();
            before.into_iter().filter(|id| !now.contains(id)).collect()
        })
    }

    /// Counts the bytes that have moved.
    fn count(&self, path: DataPath, sizes: &[(Direction, u64)], outcomes: &[Outcome]) {
        for (&(direction, bytes), outcome) in sizes.iter().zip(outcomes) {
            if outcome.is_ok() {
                self.metrics.moved(path, direction, bytes);
            }
        }
    }

    /// Does the operation by copying, if its bytes are in our own segment.
    fn copy_locally(&self, endpoint: &Endpoint, operation: &Operation) -> Option<Moved> {
        let may = self.local_copy && self.transport.endpoint() == Some(endpoint);
        let outcome = may.then(|| self.transport.copy_own(operation)).flatten()?;
        if outcome.is_ok() {
            let (direction, bytes) = size(operation);
            self.metrics.moved(DataPath::OwnMemory, direction, bytes);
        }
        Some(moved(endpoint, outcome, None))
    }
}

/// Cancels reads at its end.
#[derive(Default)]
pub(super) struct CancelOnDrop(Cancel);

impl CancelOnDrop {
    pub(super) fn handle(&self) -> &Cancel {
        &self.0
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Watches over a peer that reads may leave for another.
struct Stalls<'a> {
    after: Duration,
    /// Not registered with the timers before something has to wait.
    timer: Pin<&'a mut Sleep>,
}

impl Stalls<'_> {
    /// A link to the peer, and whether it stalled while it was made.
    async fn watch_connecting(
        &mut self,
        endpoint: &Endpoint,
        connecting: impl Future<Output = Result<Arc<NodeLink>, ConnectError>>,
    ) -> (Result<Arc<NodeLink>, ConnectError>, bool) {
        tokio::select! {
            biased;
            connected = connecting => (connected, false),
            () = self.timer.as_mut() => {
                let (endpoint, after) = (endpoint.clone(), self.after);
                (Err(ConnectError::TimedOut { endpoint, after }), true)
            }
        }
    }

    /// Waits for `count` reads. When none of them makes progress for too long, those that are left
    /// are cancelled: their memory has another use at once.
    async fn watch(
        &mut self,
        mut reads: Completions,
        count: usize,
        link: &NodeLink,
        cancel: &Cancel,
    ) -> Vec<Outcome> {
        let mut seen = 0;
        loop {
            tokio::select! {
                biased;
                outcomes = &mut reads => return outcomes,
                () = self.timer.as_mut() => {}
            }
            // It may be this runtime that was late.
            tokio::task::yield_now().await;
            let finished = reads.finished();
            if finished == seen && link.capabilities().cancels {
                break;
            }
            seen = finished;
            self.timer.as_mut().reset(tokio::time::Instant::now() + self.after);
        }
        cancel.cancel();
        let mut outcomes = vec![Err(TransferError::Cancelled); count];
        while let Some(Some((at, outcome))) = reads.next().now_or_never() {
            outcomes[at] = outcome;
        }
        outcomes
    }
}

/// The results of operations, from their outcomes. `lost` returns the links that the writes were lost with.
fn results(
    endpoint: &Endpoint,
    outcomes: Vec<Outcome>,
    sizes: &[(Direction, u64)],
    stalled_after: Option<Duration>,
    lost: impl FnOnce() -> Vec<LinkId>,
) -> Vec<Moved> {
    let is_late = |(outcome, &(direction, _)): (&Outcome, &(Direction, u64))| {
        let failed = outcome.as_ref().err();
        direction == Direction::Write && failed.is_some_and(TransferError::leaves_late_writes)
    };
    let lost = (outcomes.iter().zip(sizes).any(is_late))
        .then(|| Arc::new(LostLinks { endpoint: endpoint.clone(), ids: lost() }));
    let moved_to = |(outcome, size): (Outcome, &(Direction, u64))| {
        let late = is_late((&outcome, size));
        let moved_on = is_cancelled(&outcome);
        let outcome = match (outcome, stalled_after) {
            (Err(TransferError::Cancelled), Some(after)) => Err(TransferError::TimedOut { after }),
            (outcome, _) => outcome,
        };
        let moved = moved(endpoint, outcome, lost.clone().filter(|_| late));
        moved.map_err(|failed| Failed { moved_on, ..failed })
    };
    outcomes.into_iter().zip(sizes).map(moved_to).collect()
}

/// The results of so many operations of which nothing was sent.
fn unsent(error: PeerError, moved_on: bool, count: usize) -> Vec<Moved> {
    vec![Err(Failed { error, late: None, moved_on }); count]
}

fn is_cancelled(outcome: &Outcome) -> bool {
    matches!(outcome, Err(TransferError::Cancelled))
}

fn moved(endpoint: &Endpoint, outcome: Outcome, late: Option<Arc<LostLinks>>) -> Moved {
    outcome.map_err(|source| {
        let error = PeerError::Transfer { endpoint: endpoint.clone(), source };
        Failed { error, late, moved_on: false }
    })
}

/// The outcomes of all futures, which run at the same time. There is hardly ever more than one.
async fn all<F: Future>(mut futures: impl ExactSizeIterator<Item = F>) -> Vec<F::Output> {
    match (futures.len(), futures.next()) {
        (1, Some(only)) => vec![only.await],
        (_, first) => join_all(first.into_iter().chain(futures)).await,
    }
}

/// The keys that operations are to open memory with, hardly ever more than one.
fn keys(operations: &[Operation]) -> SmallVec<[RemoteKey; 1]> {
    let mut keys = SmallVec::new();
    for operation in operations {
        let key = operation.remote().key;
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Notes the size of a transfer, and its peer.
fn describe(span: &Span, endpoint: &Endpoint, operations: &[Operation]) {
    span.set("server.address", endpoint.to_string());
    span.set("mc.operations", operations.len());
    let of = |wanted: Direction| {
        let sizes = operations.iter().map(size).filter(move |(direction, _)| *direction == wanted);
        sizes.map(|(_, bytes)| bytes).sum::<u64>()
    };
    span.set("mc.read.bytes", of(Direction::Read));
    span.set("mc.written.bytes", of(Direction::Write));
}

/// Which way an operation moves bytes, and how many.
fn size(operation: &Operation) -> (Direction, u64) {
    let direction = match operation {
        Operation::Read { .. } => Direction::Read,
        _ => Direction::Write,
    };
    (direction, operation.remote().extent.len())
}
