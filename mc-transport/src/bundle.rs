//! Several links to one peer as one.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::task::{Context, Poll};

use mc_memory::Access;
use mc_types::Extent;
use parking_lot::RwLock;

use crate::completion::{Completions, Drive, Outcome, Transferred};
use crate::error::TransferError;
use crate::link_id::LinkId;
use crate::operation::{Operation, RemoteSpan, Sums};
use crate::slice_sums::joined;
use crate::transport::{Capabilities, Link, MAX_BATCH, Ordering as OperationOrder, View};

/// Settings of a [`Bundle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BundleConfig {
    /// Operations larger than this are cut into pieces of so many bytes, which
    /// travel over all links at the same time. Default 2 MiB; less loses more to the
    /// system calls of each piece than the links gain.
    pub stripe: u64,
    /// The number of times that an operation, or a piece of it, is tried on another link after its
    /// own was lost. Default 3.
    pub reroutes: u32,
}

impl Default for BundleConfig {
    fn default() -> Self {
        Self { stripe: 2 << 20, reroutes: 3 }
    }
}

/// Several links to one peer, used together: over several connections, several
/// network cards, or several kinds of transport that open the same keys.
///
/// Operations go to the link with the fewest bytes under way; large ones are cut and use all. What
/// a lost link leaves undone is done again by the others, so that one broken card costs time and no
/// operation: one-sided reads and writes of the same bytes may be repeated. Before a write is, the
/// peer ends the lost link ([`Link::fence`]), so that nothing of the first attempt arrives later.
/// Links may be [added](Self::add) while it works, and lost ones are forgotten.
///
/// ```
/// use std::sync::Arc;
/// use mc_transport::{Bundle, BundleConfig, Link, MemFabric, Transport};
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// let fabric = MemFabric::new();
/// let (owner, peer) = (fabric.transport("owner").unwrap(), fabric.transport("peer").unwrap());
/// let bundle = Bundle::new(BundleConfig::default());
/// for _ in 0..2 {
///     bundle.add(peer.connect(owner.endpoint().unwrap()).await.unwrap());
/// }
/// assert!(bundle.is_healthy() && bundle.links() == 2);
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Bundle {
    config: BundleConfig,
    links: Arc<Links>,
}

/// The links of a bundle.
#[derive(Default)]
struct Links {
    all: RwLock<Vec<Arc<Member>>>,
    /// Turns between links that have as much to do.
    turn: AtomicU64,
}

/// One link, and what it has to do.
struct Member {
    link: Arc<dyn Link>,
    /// Bytes given to the link whose results are to come.
    under_way: AtomicU64,
    /// The peer has ended the link: nothing of it is on its way any more.
    is_fenced: AtomicBool,
}

impl Bundle {
    /// A bundle without links.
    ///
    /// # Panics
    /// When a stripe has no bytes.
    #[must_use]
    pub fn new(config: BundleConfig) -> Self {
        assert!(config.stripe > 0, "pieces of no bytes never end");
        Self { config, links: Arc::default() }
    }

    /// Adds a link, and forgets those that were lost.
    pub fn add(&self, link: Arc<dyn Link>) {
        let member = Arc::new(Member {
            link,
            under_way: AtomicU64::new(0),
            is_fenced: AtomicBool::new(false),
        });
        let mut members = self.links.all.write();
        members.retain(|member| member.link.is_healthy());
        members.push(member);
    }

    /// Healthy links.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.all.read().iter().filter(|member| member.link.is_healthy()).count()
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle")
            .field("config", &self.config)
            .field("links", &self.links())
            .finish_non_exhaustive()
    }
}

impl Link for Bundle {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let len = batch.len();
        if len > MAX_BATCH {
            let too_large = TransferError::BatchTooLarge { len, max: MAX_BATCH };
            return Completions::ready(vec![Err(too_large); len]);
        }
        if let Some(only) = self.links.only() {
            // No other link could take over.
            return only.link.submit(batch);
        }
        let max = self.capabilities().max_operation;
        let mut striped = StripedBatch::new(self, len);
        for (index, operation) in batch.into_iter().enumerate() {
            striped.accept(index, operation, max);
        }
        striped.send();
        Completions::driven(len, striped)
    }

    fn is_healthy(&self) -> bool {
        self.links.all.read().iter().any(|member| member.link.is_healthy())
    }

    fn ids(&self) -> Vec<LinkId> {
        self.links.all.read().iter().flat_map(|member| member.link.ids()).collect()
    }

    fn fence(&self, lost: LinkId) -> Completions {
        match self.links.least_loaded(None) {
            Some(member) => member.link.fence(lost),
            None => Completions::ready(vec![Err(TransferError::LinkLost {
                source: Arc::new(std::io::ErrorKind::NotConnected.into()),
            })]),
        }
    }

    /// The capabilities that every link of the bundle has.
    fn capabilities(&self) -> Capabilities {
        let members = self.links.all.read();
        let each = members.iter().map(|member| member.link.capabilities());
        let all = each.reduce(|a, b| Capabilities {
            max_operation: a.max_operation.min(b.max_operation),
            max_batch: MAX_BATCH,
            zero_copy: a.zero_copy && b.zero_copy,
            ordering: OperationOrder::None,
            views: a.views || b.views,
            encrypted: a.encrypted && b.encrypted,
            tickets: a.tickets && b.tickets,
            cancels: a.cancels && b.cancels,
        });
        all.unwrap_or(Capabilities::new(0))
    }

    fn view(&self, span: RemoteSpan) -> Result<View, TransferError> {
        let members = self.links.all.read().clone();
        let with_views = members.iter().find(|member| member.link.capabilities().views);
        let unsupported = TransferError::Unsupported { what: "a view of the peer's memory" };
        with_views.map_or(Err(unsupported), |member| member.link.view(span))
    }
}

impl Links {
    /// The link, when there is just one.
    fn only(&self) -> Option<Arc<Member>> {
        match &self.all.read()[..] {
            [only] => Some(Arc::clone(only)),
            _ => None,
        }
    }

    fn are_there(&self) -> bool {
        !self.all.read().is_empty()
    }

    /// The healthy link with the fewest bytes under way, other than `except` if there
    /// is another.
    fn least_loaded(&self, except: Option<&Arc<Member>>) -> Option<Arc<Member>> {
        let members = self.all.read();
        let healthy: Vec<&Arc<Member>> =
            members.iter().filter(|member| member.link.is_healthy()).collect();
        let first = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        let in_turn = (0..healthy.len()).map(|n| healthy[(first + n) % healthy.len()]);
        let others = in_turn.filter(|member| except.is_none_or(|not| !Arc::ptr_eq(member, not)));
        let least_loaded = others.min_by_key(|member| member.under_way.load(Ordering::Relaxed));
        least_loaded.or_else(|| healthy.first().copied()).cloned()
    }
}

/// A batch on its way over several links.
struct StripedBatch {
    links: Arc<Links>,
    config: BundleConfig,
    operations: Vec<StripedOperation>,
    /// Pieces that are given to a link with the next [`send`](Self::send).
    outgoing: Vec<(Arc<Member>, Vec<Part>)>,
    under_way: Vec<UnderWay>,
    /// Writes that wait for the end of the link that they were lost with.
    fences: Vec<Fence>,
    /// Operations whose last piece came, not yet reported.
    finished: VecDeque<usize>,
}

/// An operation of the caller.
struct StripedOperation {
    extent: Extent,
    missing: usize,
    /// Its parts, in order: their bytes, and their results once they came.
    parts: Vec<(u64, Transferred)>,
    sums: Sums,
    failed: Option<TransferError>,
}

/// A piece of an operation, or all of it.
struct Part {
    /// The index of the operation in its batch.
    of: usize,
    /// The index of the part in that operation.
    place: usize,
    operation: Operation,
    attempts: u32,
}

/// Pieces that a link was given together.
struct UnderWay {
    member: Arc<Member>,
    parts: Vec<Option<Part>>,
    completions: Completions,
}

struct Fence {
    lost: Arc<Member>,
    /// Over which the peer is asked.
    over: Arc<Member>,
    answer: Completions,
    attempts: u32,
    parts: Vec<Part>,
}

impl Part {
    fn bytes(&self) -> u64 {
        self.operation.remote().extent.len()
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        for part in self.parts.drain(..).flatten() {
            self.member.under_way.fetch_sub(part.bytes(), Ordering::Relaxed);
        }
    }
}

impl StripedBatch {
    fn new(bundle: &Bundle, count: usize) -> Self {
        Self {
            links: Arc::clone(&bundle.links),
            config: bundle.config,
            operations: Vec::with_capacity(count),
            outgoing: Vec::new(),
            under_way: Vec::new(),
            fences: Vec::new(),
            finished: VecDeque::new(),
        }
    }

    /// Cuts an operation if it is large, and finds a link for each piece.
    fn accept(&mut self, index: usize, operation: Operation, max: u64) {
        let extent = operation.remote().extent;
        let len = extent.len();
        if len > max && self.links.are_there() {
            let failed = Some(TransferError::TooLarge { len, max });
            let parts = Vec::new();
            self.operations.push(StripedOperation {
                extent,
                missing: 0,
                parts,
                sums: Sums::None,
                failed,
            });
            self.finished.push_back(index);
            return;
        }
        let sums = operation.sums();
        let parts = operation.split(self.config.stripe);
        let results = |part: &Operation| (part.remote().extent.len(), Transferred::default());
        let results = parts.iter().map(results).collect();
        let missing = parts.len();
        self.operations.push(StripedOperation {
            extent,
            missing,
            parts: results,
            sums,
            failed: None,
        });
        for (place, operation) in parts.into_iter().enumerate() {
            self.route(Part { of: index, place, operation, attempts: 0 }, None);
        }
    }

    fn route(&mut self, part: Part, not: Option<&Arc<Member>>) {
        let Some(member) = self.links.least_loaded(not) else {
            let source = Arc::new(std::io::ErrorKind::NotConnected.into());
            self.finish_part(&part, Err(TransferError::LinkLost { source }));
            return;
        };
        member.under_way.fetch_add(part.bytes(), Ordering::Relaxed);
        match self.outgoing.iter_mut().find(|(to, _)| Arc::ptr_eq(to, &member)) {
            Some((_, parts)) => parts.push(part),
            None => self.outgoing.push((member, vec![part])),
        }
    }

    /// Gives every piece that found a link to it.
    fn send(&mut self) {
        for (member, parts) in self.outgoing.drain(..) {
            // A large batch of large operations can have more pieces than one batch
            // of a link.
            let max = member.link.capabilities().max_batch.max(1);
            let mut parts = parts.into_iter().peekable();
            while parts.peek().is_some() {
                let together: Vec<Part> = parts.by_ref().take(max).collect();
                let operations = together.iter().map(|part| part.operation.clone()).collect();
                let completions = member.link.submit(operations);
                let parts = together.into_iter().map(Some).collect();
                self.under_way.push(UnderWay { member: Arc::clone(&member), parts, completions });
            }
        }
    }

    /// Takes the results that are there.
    fn collect(&mut self, cx: &mut Context<'_>) {
        let mut lost = Vec::new();
        let mut at = 0;
        while at < self.under_way.len() {
            let batch = &mut self.under_way[at];
            match batch.completions.poll_next(cx) {
                Poll::Pending => at += 1,
                Poll::Ready(None) => drop(self.under_way.swap_remove(at)),
                Poll::Ready(Some((index, outcome))) => {
                    let part = batch.parts[index].take().expect("each piece completes once");
                    batch.member.under_way.fetch_sub(part.bytes(), Ordering::Relaxed);
                    let member = Arc::clone(&batch.member);
                    let may_retry = part.attempts < self.config.reroutes;
                    match outcome {
                        Err(error)
                            if error.is_retryable() && may_retry && self.has_other(&member) =>
                        {
                            lost.push((part, member));
                        }
                        outcome => self.finish_part(&part, outcome),
                    }
                }
            }
        }
        for (mut part, member) in lost {
            part.attempts += 1;
            self.retry(part, member);
        }
    }

    /// Does a piece again that was lost with `member`.
    fn retry(&mut self, part: Part, member: Arc<Member>) {
        let is_read = part.operation.access() == Access::Read;
        let Some(id) = member.link.id().filter(|_| !is_read && !member.is_fenced.load(Acquire))
        else {
            self.route(part, Some(&member));
            return;
        };
        if let Some(fence) = self.fences.iter_mut().find(|fence| Arc::ptr_eq(&fence.lost, &member))
        {
            fence.parts.push(part);
            return;
        }
        let Some(over) = self.links.least_loaded(Some(&member)) else {
            self.route(part, Some(&member));
            return;
        };
        let answer = over.link.fence(id);
        self.fences.push(Fence { lost: member, over, answer, attempts: 0, parts: vec![part] });
    }

    /// Lets writes go whose old link has ended.
    fn pass_fences(&mut self, cx: &mut Context<'_>) {
        let mut at = 0;
        while at < self.fences.len() {
            let Poll::Ready(answer) = self.fences[at].answer.poll_next(cx) else {
                at += 1;
                continue;
            };
            let answer = answer.map_or(Err(TransferError::Closed), |(_, answer)| answer);
            let mut fence = self.fences.swap_remove(at);
            match answer {
                Ok(_) => {
                    fence.lost.is_fenced.store(true, Release);
                    for part in fence.parts {
                        self.route(part, Some(&fence.lost));
                    }
                }
                Err(error) => {
                    fence.attempts += 1;
                    let next = self.links.least_loaded(Some(&fence.over));
                    let next = next.filter(|next| next.link.is_healthy());
                    let id = fence.lost.link.id();
                    match next.zip(id) {
                        Some((over, id)) if fence.attempts <= self.config.reroutes => {
                            fence.answer = over.link.fence(id);
                            fence.over = over;
                            self.fences.push(fence);
                        }
                        _ => {
                            for part in &fence.parts {
                                self.finish_part(part, Err(error.clone()));
                            }
                        }
                    }
                }
            }
        }
    }

    fn has_other(&self, member: &Arc<Member>) -> bool {
        let members = self.links.all.read();
        members.iter().any(|other| other.link.is_healthy() && !Arc::ptr_eq(other, member))
    }

    fn finish_part(&mut self, part: &Part, outcome: Outcome) {
        let operation = &mut self.operations[part.of];
        match outcome {
            Ok(transferred) => operation.parts[part.place].1 = transferred,
            Err(error) => operation.failed = operation.failed.take().or(Some(error)),
        }
        operation.missing -= 1;
        if operation.missing == 0 {
            self.finished.push_back(part.of);
        }
    }
}

impl Drive for StripedBatch {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Outcome)> {
        loop {
            if let Some(index) = self.finished.pop_front() {
                return Poll::Ready((index, self.operations[index].outcome()));
            }
            self.collect(cx);
            self.pass_fences(cx);
            if self.outgoing.is_empty() {
                break;
            }
            // Results of what is sent now may be there at once.
            self.send();
        }
        match self.finished.pop_front() {
            Some(index) => Poll::Ready((index, self.operations[index].outcome())),
            None => Poll::Pending,
        }
    }
}

impl StripedOperation {
    fn outcome(&mut self) -> Outcome {
        if let Some(error) = self.failed.take() {
            // The range of the caller's operation, not of the piece that it was cut into.
            let (offset, len) = (self.extent.offset(), self.extent.len());
            return Err(match error {
                TransferError::OutOfBounds { .. } => TransferError::OutOfBounds { offset, len },
                other => other,
            });
        }
        Ok(joined(&self.parts, self.sums))
    }
}
