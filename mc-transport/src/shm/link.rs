//! A link to one peer of this host: operations are copies in the task that waits
//! for them.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mc_memory::Access;
use mc_types::{Endpoint, RemoteKey};
use tokio::net::UnixStream;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::control::Control;
use super::path_cache::{Mapped, RegionPath};
use crate::backend::counters::Counters;
use crate::backend::proven_links::Close;
use crate::backend::tasks::Tasks;
use crate::completion::{Completion, Completions, Outcome};
use crate::copiers::Copiers;
use crate::copy::Permit;
use crate::error::{ConnectError, TransferError};
use crate::link_id::LinkId;
use crate::operation::{Operation, RemoteSpan};
use crate::stream::greeting::greet;
use crate::stream::link::StreamLink;
use crate::stream::socket::Stream;
use crate::transport::{Capabilities, Link, MAX_BATCH, View};

/// Regions asked for at once.
const ASK_TOGETHER: usize = 64;

/// Bytes copied before other tasks of the thread get a turn.
const YIELD_AFTER: u64 = 8 << 20;

/// A link of a [`ShmTransport`](super::ShmTransport).
///
/// The first operation on a region asks its owner for the memory and maps it; a task
/// of the transport does that and carries out the batch. From there on operations are
/// copies, made by the task that waits for them, and the owner takes no part. Regions whose
/// memory cannot be shared are reached by a stream.
///
/// [`view`](Link::view) never asks: it works for regions that are mapped, which a read
/// of no bytes is enough for.
pub struct ShmLink {
    state: Arc<LinkState>,
}

impl ShmLink {
    pub(super) fn new(state: LinkState) -> Self {
        Self { state: Arc::new(state) }
    }
}

impl Close for ShmLink {
    fn close(&self, reason: &TransferError) {
        self.state.control.fail(reason.clone());
    }
}

impl Link for ShmLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let len = batch.len();
        if len > MAX_BATCH {
            let too_large = TransferError::BatchTooLarge { len, max: MAX_BATCH };
            return Completions::ready(vec![Err(too_large); len]);
        }
        if !self.is_healthy() {
            return Completions::ready(vec![Err(self.state.control.reason()); len]);
        }
        match self.state.plan(&batch) {
            Plan::Mapped(runs) => {
                let state = Arc::clone(&self.state);
                let mut mapped = runs.into_iter().flat_map(Run::repeat);
                Completions::inline(batch, move |operation| {
                    let mapped = mapped.next().expect("the runs cover the batch");
                    state.carry_out(operation, mapped)
                })
            }
            Plan::Streamed(stream) => stream.submit(batch),
            Plan::Mixed => self.state.dispatch(batch),
        }
    }

    fn is_healthy(&self) -> bool {
        self.state.control.look_for_hang_up();
        self.state.control.is_healthy()
    }

    /// Returns the id of the link's stream: bytes that are copied are not on their way any more when
    /// the result is reported.
    fn id(&self) -> Option<LinkId> {
        self.state.control.stream_id()
    }

    fn fence(&self, lost: LinkId) -> Completions {
        let (mut to_complete, completions) = Completions::pending(1);
        let Some(tasks) = self.state.tasks.upgrade() else { return completions };
        let completion = to_complete.next().expect("there is one to complete");
        let state = Arc::clone(&self.state);
        tasks.spawn(async move {
            let outcome = match state.stream().await {
                Ok(stream) => stream.fence(lost).await.remove(0),
                Err(error) => Err(error),
            };
            completion.complete(outcome);
        });
        completions
    }

    fn capabilities(&self) -> Capabilities {
        let plain = Capabilities::new(self.state.max_operation);
        Capabilities { zero_copy: true, views: true, cancels: true, ..plain }
    }

    fn view(&self, span: RemoteSpan) -> Result<View, TransferError> {
        if !self.is_healthy() {
            return Err(self.state.control.reason());
        }
        let path = self.state.control.path_cache.read().get(&span.key).cloned();
        match path {
            Some(RegionPath::Mapped(mapped)) => {
                let bytes = mapped.resolve(span, Access::Read)?;
                let state = Arc::clone(&self.state);
                let is_open = move || state.control.is_healthy() && mapped.confirm().is_ok();
                Ok(View::new(bytes, Arc::new(is_open)))
            }
            Some(RegionPath::Streamed) => {
                Err(TransferError::Unsupported { what: "a view of memory that cannot be shared" })
            }
            None => Err(TransferError::Unsupported {
                what: "a view of a region that it was not used for before",
            }),
        }
    }
}

impl fmt::Debug for ShmLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmLink")
            .field("endpoint", &self.state.endpoint)
            .field("is_healthy", &self.is_healthy())
            .finish_non_exhaustive()
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.close(&TransferError::Closed);
    }
}

/// State shared by a link and its operations.
pub(super) struct LinkState {
    pub(super) endpoint: Endpoint,
    pub(super) control: Arc<Control>,
    pub(super) max_operation: u64,
    pub(super) connect_timeout: Duration,
    pub(super) stall_timeout: Duration,
    /// Held while opening a stream, so that a crowd of batches opens one.
    pub(super) opening: tokio::sync::Mutex<()>,
    pub(super) tasks: Weak<Tasks>,
    pub(super) counters: Arc<Counters>,
    pub(super) copiers: Copiers,
}

/// The way in which a batch is executed.
enum Plan {
    /// All of it here and now.
    Mapped(Vec<Run>),
    /// All of it by the stream.
    Streamed(Arc<StreamLink>),
    /// Some regions are not known, or some here and some by the stream.
    Mixed,
}

/// Operations in a row on one region.
struct Run {
    mapped: Arc<Mapped>,
    count: usize,
}

impl Run {
    fn repeat(self) -> impl Iterator<Item = Arc<Mapped>> {
        std::iter::repeat_n(self.mapped, self.count)
    }
}

type PendingOperation = (Operation, Completion);

impl LinkState {
    fn plan(&self, batch: &[Operation]) -> Plan {
        let path_cache = self.control.path_cache.read();
        let mut runs: Vec<Run> = Vec::with_capacity(1);
        let mut streamed = false;
        let mut last = None;
        for operation in batch {
            let key = operation.remote().key;
            if last == Some(key) {
                if let Some(run) = runs.last_mut() {
                    run.count += 1;
                }
                continue;
            }
            last = Some(key);
            match path_cache.get(&key) {
                Some(RegionPath::Mapped(mapped)) if !streamed => {
                    runs.push(Run { mapped: Arc::clone(mapped), count: 1 });
                }
                Some(RegionPath::Streamed) if runs.is_empty() => streamed = true,
                _ => return Plan::Mixed,
            }
        }
        if !streamed {
            return Plan::Mapped(runs);
        }
        self.control.working_stream().map_or(Plan::Mixed, Plan::Streamed)
    }

    /// Has tasks carry out the batch: one for what is known, one for what must be
    /// asked for, so that an owner which does not answer holds up nothing else.
    fn dispatch(self: &Arc<Self>, batch: Vec<Operation>) -> Completions {
        let (to_complete, completions) = Completions::pending(batch.len());
        let Some(tasks) = self.tasks.upgrade() else { return completions };
        let (mut path_cache, mut unknown) = (Vec::new(), Vec::new());
        let paths = self.control.path_cache.read();
        for (operation, completion) in batch.into_iter().zip(to_complete) {
            match paths.get(&operation.remote().key) {
                Some(path) => path_cache.push((path.clone(), operation, completion)),
                None => unknown.push((operation, completion)),
            }
        }
        drop(paths);
        if !path_cache.is_empty() {
            let state = Arc::clone(self);
            tasks.spawn(async move { state.settle(path_cache).await });
        }
        if !unknown.is_empty() {
            let state = Arc::clone(self);
            tasks.spawn(async move { state.explore(unknown).await });
        }
        completions
    }

    /// Opens the regions of operations, and carries those out.
    async fn explore(&self, operations: Vec<PendingOperation>) {
        let mut order: Vec<RemoteKey> = Vec::new();
        let mut by_key: HashMap<RemoteKey, Vec<PendingOperation>> = HashMap::new();
        for (operation, completion) in operations {
            if let Err(refused) = self.check(&operation) {
                complete(operation, completion, Err(refused));
                continue;
            }
            let key = operation.remote().key;
            let same = by_key.entry(key).or_insert_with(|| {
                order.push(key);
                Vec::new()
            });
            same.push((operation, completion));
        }
        let mut late = None;
        for keys in order.chunks(ASK_TOGETHER) {
            let found = match &late {
                None => self.control.open(keys).await,
                Some(late) => vec![Err(TransferError::clone(late)); keys.len()],
            };
            let mut ready = Vec::new();
            for (key, found) in keys.iter().zip(found) {
                for (operation, completion) in by_key.remove(key).into_iter().flatten() {
                    match &found {
                        Ok(path) => ready.push((path.clone(), operation, completion)),
                        Err(error) => complete(operation, completion, Err(error.clone())),
                    }
                }
                // An owner that is late for some is not asked for the others.
                late = late.or(found.err().filter(|e| matches!(e, TransferError::TimedOut { .. })));
            }
            self.settle(ready).await;
        }
    }

    /// Carries out operations whose regions are known.
    async fn settle(&self, operations: Vec<(RegionPath, Operation, Completion)>) {
        let mut streamed = (Vec::new(), Vec::new());
        let mut moved = 0_u64;
        for (path, operation, completion) in operations {
            match path {
                RegionPath::Mapped(mapped) => {
                    moved = moved.saturating_add(operation.remote().extent.len());
                    let outcome = self.carry_out(&operation, mapped);
                    complete(operation, completion, outcome);
                    if moved >= YIELD_AFTER {
                        moved = 0;
                        yield_now().await;
                    }
                }
                RegionPath::Streamed => {
                    streamed.0.push(operation);
                    streamed.1.push(Some(completion));
                }
            }
        }
        let (operations, mut waiting) = streamed;
        if operations.is_empty() {
            return;
        }
        let mut results = match self.stream().await {
            Ok(stream) => stream.submit(operations),
            Err(error) => Completions::ready(vec![Err(error); operations.len()]),
        };
        while let Some((index, outcome)) = results.next().await {
            if let Some(completion) = waiting[index].take() {
                completion.complete(outcome);
            }
        }
    }

    fn carry_out(&self, operation: &Operation, mapped: Arc<Mapped>) -> Outcome {
        if !self.control.is_healthy() {
            return Err(self.control.reason());
        }
        self.check(operation)?;
        let copied = || {
            let permit = MappedSpan { span: operation.remote(), mapped };
            let remote = permit.mapped.resolve(permit.span, operation.access())?;
            let transferred = self.copiers.copy(operation, &remote, &permit)?;
            // Otherwise the owner may have put other bytes there while we copied.
            permit.mapped.confirm()?;
            Ok(transferred)
        };
        copied().inspect_err(|error| {
            if matches!(error, TransferError::LinkLost { .. }) {
                self.control.fail(error.clone());
            }
        })
    }

    /// The failure that is known before anything is sent.
    fn check(&self, operation: &Operation) -> Result<(), TransferError> {
        operation.validate()?;
        let (len, max) = (operation.remote().extent.len(), self.max_operation);
        if len > max { Err(TransferError::TooLarge { len, max }) } else { Ok(()) }
    }

    /// The stream; opens one when there is none that works.
    async fn stream(&self) -> Result<Arc<StreamLink>, TransferError> {
        let opened = timeout(self.connect_timeout, async {
            let _opening = self.opening.lock().await;
            match self.control.working_stream() {
                Some(stream) => Ok(stream),
                None => self.new_stream().await,
            }
        });
        let after = self.connect_timeout;
        opened.await.unwrap_or(Err(TransferError::TimedOut { after }))
    }

    async fn new_stream(&self) -> Result<Arc<StreamLink>, TransferError> {
        let lost = |error: io::Error| TransferError::LinkLost { source: Arc::new(error) };
        let socket = StdStream::from(self.control.open_stream().await?);
        socket.set_nonblocking(true).map_err(lost)?;
        let socket = Stream::from(UnixStream::from_std(socket).map_err(lost)?);
        let greeted = greet(socket, &self.endpoint, self.max_operation).await;
        let greeted = greeted.map_err(|error: ConnectError| lost(io::Error::other(error)))?;
        let Some(tasks) = self.tasks.upgrade() else { return Err(TransferError::Closed) };
        let stream = Arc::new(StreamLink::open(
            greeted,
            self.stall_timeout,
            &tasks,
            &self.counters.streams,
            || {},
        ));
        if let Some(lost) = self.control.stream_id() {
            // What is written again must not be overtaken by what was written before.
            stream.fence(lost).await.remove(0)?;
        }
        self.control.keep_stream(&stream);
        Ok(stream)
    }
}

/// The right to a span of a region that is mapped.
#[derive(Clone)]
struct MappedSpan {
    span: RemoteSpan,
    mapped: Arc<Mapped>,
}

/// A withdrawn region and a grant that has ended end a copy in its middle.
impl Permit for MappedSpan {
    fn check(&self) -> Result<(), TransferError> {
        self.span.check_time()?;
        self.mapped.confirm()
    }
}

/// Hands over a result once the memory of the operation is let go.
fn complete(operation: Operation, completion: Completion, outcome: Outcome) {
    drop(operation);
    completion.complete(outcome);
}
