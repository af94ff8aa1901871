//! Counters of a client's calls, and of the bytes that it moves.

#[cfg(feature = "c2c")]
mod c2c;
mod text;
mod tier;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_rpc::{LatencyHistogram, LatencyRecorder};
use mc_trace::{Kind, Span};
use mc_transport::{PeerConnections, ServedTotals};
use mc_types::ErrorCode;
use tokio::time::Instant;

use crate::error::CallError;

#[cfg(feature = "c2c")]
pub(super) use c2c::Counts as C2cCounts;
#[cfg(feature = "c2c")]
pub use c2c::{C2cMetrics, C2cSkip};
pub(super) use tier::TierCounters;
pub use tier::TierMetrics;

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name in metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

numbered! {
    /// A kind of call that a [`Client`](crate::Client) times.
    ClientOperation {
        /// Puts of one object, however its bytes are given.
        Put = "put",
        /// Puts of many objects.
        BatchPut = "batch_put",
        /// Upserts of one object.
        Upsert = "upsert",
        /// Upserts of many objects.
        BatchUpsert = "batch_upsert",
        /// Gets of one object into memory of the client.
        Get = "get",
        /// Gets of one object into memory of the caller.
        GetInto = "get_into",
        /// Gets of a part of one object.
        GetRange = "get_range",
        /// Gets of many objects into memory of the client.
        BatchGet = "batch_get",
        /// Gets of many objects into memory of the caller.
        BatchGetInto = "batch_get_into",
        /// Questions whether one object is there.
        Exist = "exist",
        /// Questions whether many objects are there.
        BatchExist = "batch_exist",
        /// Questions how many of the leading objects are there.
        LongestPrefix = "longest_prefix",
        /// Removals of one object.
        Remove = "remove",
        /// Removals of many objects.
        BatchRemove = "batch_remove",
        /// Removals of all objects, or of those that a pattern names.
        RemoveAll = "remove_all",
    }
}

impl ClientOperation {
    /// Whether it reads objects.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(
            self,
            Self::Get | Self::GetInto | Self::GetRange | Self::BatchGet | Self::BatchGetInto
        )
    }

    /// Whether it writes objects.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Put | Self::BatchPut | Self::Upsert | Self::BatchUpsert)
    }
}

numbered! {
    /// A way that bytes take between a client and where they are stored.
    DataPath {
        /// Copied within the client's own segments.
        OwnMemory = "own_memory",
        /// Copied to or from a segment of another process of the same host.
        SharedMemory = "shared_memory",
        /// Over TCP.
        Tcp = "tcp",
        /// Over QUIC.
        Quic = "quic",
        /// By RDMA.
        Rdma = "rdma",
        /// Over a transport of the application's own.
        Other = "other",
    }
}

impl DataPath {
    /// Returns the path of a transport's scheme.
    pub(super) fn of(scheme: &str) -> Self {
        match scheme {
            "shm" => Self::SharedMemory,
            "tcp" => Self::Tcp,
            "quic" => Self::Quic,
            "rdma" => Self::Rdma,
            _ => Self::Other,
        }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// The counters of a client, which clones share; none when it was told not to count.
#[derive(Clone)]
pub(super) struct Metrics {
    counters: Option<Arc<Counters>>,
}

struct Counters {
    operations: [OperationCounters; ClientOperation::ALL.len()],
    /// Bytes read and written.
    paths: [[AtomicU64; 2]; DataPath::ALL.len()],
    tasks_done: AtomicU64,
    tasks_failed: AtomicU64,
}

struct OperationCounters {
    latency: LatencyRecorder,
    objects: AtomicU64,
    bytes: AtomicU64,
    abandoned: AtomicU64,
    absent: AtomicU64,
    failures: [AtomicU64; ErrorCode::ALL.len()],
}

impl OperationCounters {
    const fn new() -> Self {
        Self {
            latency: LatencyRecorder::new(),
            objects: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            absent: AtomicU64::new(0),
            failures: [const { AtomicU64::new(0) }; ErrorCode::ALL.len()],
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("is_on", &self.counters.is_some()).finish_non_exhaustive()
    }
}

impl Metrics {
    pub(super) fn new(on: bool) -> Self {
        let counters = || {
            Arc::new(Counters {
                operations: [const { OperationCounters::new() }; ClientOperation::ALL.len()],
                paths: [const { [const { AtomicU64::new(0) }; 2] }; DataPath::ALL.len()],
                tasks_done: AtomicU64::new(0),
                tasks_failed: AtomicU64::new(0),
            })
        };
        Self { counters: on.then(counters) }
    }

    /// Begins to time a call. Dropped before it is told the outcome, it counts the call as
    /// abandoned.
    pub(super) fn start(&self, operation: ClientOperation) -> Timed<'_> {
        let counters = self.counters.as_ref().map(|all| &all.operations[operation as usize]);
        let span = Span::root(operation.as_str(), Kind::Internal);
        Timed { running: counters.map(|counters| (counters, Instant::now())), span }
    }

    /// Counts bytes that have moved.
    pub(super) fn moved(&self, path: DataPath, direction: Direction, bytes: u64) {
        if let Some(counters) = &self.counters {
            let counter = &counters.paths[path as usize][direction as usize];
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts a copy or move that was done for the master, or was not.
    pub(super) fn task_ended(&self, done: bool) {
        if let Some(counters) = &self.counters {
            let counter = if done { &counters.tasks_done } else { &counters.tasks_failed };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> ClientMetrics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Some(counters) = &self.counters else { return ClientMetrics::default() };
        let operations = ClientOperation::ALL.iter().zip(&counters.operations);
        let paths = DataPath::ALL.iter().zip(&counters.paths);
        ClientMetrics {
            operations: operations
                .map(|(&operation, counters)| OperationMetrics {
                    operation,
                    latency: counters.latency.read(),
                    objects: load(&counters.objects),
                    bytes: load(&counters.bytes),
                    abandoned: load(&counters.abandoned),
                    absent: load(&counters.absent),
                    failures: ErrorCode::ALL
                        .iter()
                        .zip(&counters.failures)
                        .map(|(&code, count)| (code, load(count)))
                        .filter(|&(_, count)| count != 0)
                        .collect(),
                })
                .filter(|counted| counted.latency.count() != 0 || counted.abandoned != 0)
                .collect(),
            paths: paths
                .map(|(&path, [read, written])| PathMetrics {
                    path,
                    read: load(read),
                    written: load(written),
                })
                .collect(),
            tasks_done: load(&counters.tasks_done),
            tasks_failed: load(&counters.tasks_failed),
            ..ClientMetrics::default()
        }
    }
}

/// A call that is being timed.
#[must_use = "a call whose outcome is not told is counted as abandoned"]
pub(super) struct Timed<'a> {
    running: Option<(&'a OperationCounters, Instant)>,
    span: Span,
}

impl Timed<'_> {
    /// Work of this call, as which it is traced.
    pub(super) fn within<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.span.within(work)
    }

    /// The call is over: for each object the bytes that it came to, or why it failed.
    pub(super) fn ended(mut self, outcomes: impl IntoIterator<Item = Result<u64, ErrorCode>>) {
        let counted = self.running.take();
        if counted.is_none() && !self.span.is_recording() {
            return;
        }
        let (mut objects, mut bytes, mut failed) = (0, 0, None);
        for outcome in outcomes {
            objects += 1;
            match outcome {
                Ok(more) => bytes += more,
                Err(code) => {
                    failed = failed.or(Some(code));
                    if let Some((counters, _)) = counted {
                        // Every code is in the list; the fields' order is the list's.
                        counters.failures[code as usize].fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
        self.span.set("mc.objects", objects);
        self.span.set("mc.bytes", bytes);
        if let Some(code) = failed {
            self.span.set("error.type", code.as_str());
            self.span.failed(code);
        }
        let Some((counters, begun)) = counted else { return };
        counters.latency.record(begun.elapsed());
        counters.objects.fetch_add(objects, Ordering::Relaxed);
        if bytes != 0 {
            counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// The call, one that moves no bytes, is over; hands its outcome on.
    pub(super) fn answered<T>(self, outcome: Result<T, CallError>) -> Result<T, CallError> {
        self.answered_all(1, outcome)
    }

    /// The same, of a call about that many objects.
    pub(super) fn answered_all<T>(
        self,
        objects: usize,
        outcome: Result<T, CallError>,
    ) -> Result<T, CallError> {
        let each = outcome.as_ref().map(|_| 0).map_err(CallError::code);
        self.ended(std::iter::repeat_n(each, objects));
        outcome
    }

    /// The same, of a question that `absent` of the answer says no to.
    pub(super) fn found<T>(
        self,
        objects: usize,
        outcome: Result<T, CallError>,
        absent: impl FnOnce(&T) -> usize,
    ) -> Result<T, CallError> {
        if let (Some((counters, _)), Ok(answer)) = (&self.running, &outcome) {
            counters.absent.fetch_add(absent(answer) as u64, Ordering::Relaxed);
        }
        self.answered_all(objects, outcome)
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        if let Some((counters, _)) = self.running.take() {
            counters.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The counters of a client since it was started. Sums are over all its clones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientMetrics {
    /// Each operation that was called.
    pub operations: Vec<OperationMetrics>,
    /// Bytes by the way that they took.
    pub paths: Vec<PathMetrics>,
    /// Copies and moves that were done for the master.
    pub tasks_done: u64,
    /// Those that failed.
    pub tasks_failed: u64,
    /// Objects that the hot cache had, and objects that it had not.
    pub hot_cache: (u64, u64),
    /// Files on the shared tier; `None` without one.
    pub shared_tier: Option<TierMetrics>,
    /// Whether there is to be a shared tier that is not open: it cannot be opened, or takes long.
    pub is_shared_tier_missing: bool,
    /// The client's local disk; `None` without one.
    pub local_disk: Option<TierMetrics>,
    /// Whether the client is to have a disk of its own that is not open: it cannot be opened, or takes long.
    pub is_local_disk_missing: bool,
    /// Reads of peers' disks that got no answer in time.
    pub peer_disk_timed_out_reads: u64,
    /// Reads of peers' disks that were not tried because the disk gave others no answer.
    pub peer_disk_skipped_reads: u64,
    /// Replicas that could not be read or reached, and the reports about them.
    pub reports: ReportMetrics,
    /// The outcome of conversions; `None` when there are no rules.
    #[cfg(feature = "c2c")]
    pub c2c: Option<C2cMetrics>,
    /// Whether peers reach none of the client's segments, by its own check.
    pub is_cut_off: bool,
    /// Calls of the master.
    pub rpc: mc_rpc::ClientMetrics,
    /// Operations of peers on this client's segments.
    pub served: ServedTotals,
    /// Connections that peers made to this client, by the path that bytes take over them.
    pub connections: Vec<(DataPath, PeerConnections)>,
    /// Labels that every figure carries in [`prometheus`](Self::prometheus).
    pub labels: Vec<(Box<str>, Box<str>)>,
}

/// The counters of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OperationMetrics {
    /// The operation.
    pub operation: ClientOperation,
    /// How long the calls took that have ended, whatever their outcome.
    pub latency: LatencyHistogram,
    /// Objects that they were about.
    pub objects: u64,
    /// Bytes of the objects that were read or stored.
    pub bytes: u64,
    /// Calls that were cancelled before they ended.
    pub abandoned: u64,
    /// Objects asked about that were not there, by calls that ask and do not read.
    pub absent: u64,
    /// Objects that failed, by cause; each cause that there was.
    pub failures: Vec<(ErrorCode, u64)>,
}

impl OperationMetrics {
    /// Calls that have ended.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.latency.count()
    }

    /// Objects looked for and found, and those that were not: of gets those that could not be
    /// read because there was no such object or it was not complete, of questions those that
    /// were answered with no. Objects that failed otherwise are neither; `None` of calls that
    /// look for nothing.
    #[must_use]
    pub fn lookups(&self) -> Option<(u64, u64)> {
        use ClientOperation::{BatchExist, Exist, LongestPrefix};
        let not_there =
            |code| matches!(code, ErrorCode::ObjectNotFound | ErrorCode::ReplicaIsNotReady);
        let missed = self.failures.iter().filter(|(code, _)| not_there(*code));
        let absent = match self.operation {
            of if of.is_read() => missed.map(|(_, count)| count).sum(),
            Exist | BatchExist | LongestPrefix => self.absent,
            _ => return None,
        };
        let missed = if self.operation.is_read() { 0 } else { absent };
        Some((self.objects.saturating_sub(self.failed() + missed), absent))
    }

    /// Objects that failed for whatever cause.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failures.iter().map(|(_, count)| count).sum()
    }
}

/// Bytes that took one way. Replicas count each on its own, and so do bytes that were
/// read but turned out to be damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathMetrics {
    /// The way.
    pub path: DataPath,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

/// Replicas that a client could not read or reach, and the outcome of its reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportMetrics {
    /// Reads of replicas whose bytes were not those that were put.
    pub damaged: u64,
    /// Reads and writes of objects to which a segment's node gave no answer.
    pub unreachable: u64,
    /// Reads of objects that went on at another replica because a segment's node took much
    /// longer than usual.
    pub moved_on: u64,
    /// Puts that got fewer replicas than they asked for.
    pub few_replicas: u64,
    /// Puts of which no replica is in a segment that they prefer: none has that name, or it is full.
    pub not_preferred: u64,
    /// Reports that the master has.
    pub sent: u64,
    /// Reports that it has not: there were too many, or it could not be told.
    pub lost: u64,
}

impl ClientMetrics {
    /// Returns the counters of one operation; `None` when it was not called.
    #[must_use]
    pub fn operation(&self, operation: ClientOperation) -> Option<&OperationMetrics> {
        self.operations.iter().find(|counted| counted.operation == operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_numbered_in_the_order_of_their_list() {
        for (at, &code) in ErrorCode::ALL.iter().enumerate() {
            assert_eq!(code as usize, at, "{code}");
        }
    }

    #[test]
    fn outcomes_are_counted_by_object_and_cause() {
        let metrics = Metrics::new(true);
        let outcomes = [Ok(7), Err(ErrorCode::Full), Ok(3), Err(ErrorCode::Full)];
        metrics.start(ClientOperation::BatchPut).ended(outcomes);
        drop(metrics.start(ClientOperation::BatchPut));
        metrics.moved(DataPath::Tcp, Direction::Write, 10);
        metrics.moved(DataPath::Tcp, Direction::Read, 2);
        let read = metrics.read();
        assert_eq!(read.operations.len(), 1);
        let put = read.operation(ClientOperation::BatchPut).unwrap();
        assert_eq!((put.calls(), put.objects, put.bytes, put.abandoned), (1, 4, 10, 1));
        assert_eq!(put.failures, [(ErrorCode::Full, 2)]);
        let tcp = read.paths.iter().find(|counted| counted.path == DataPath::Tcp).unwrap();
        assert_eq!((tcp.read, tcp.written), (2, 10));
    }

    #[test]
    fn a_client_may_be_told_not_to_count() {
        let metrics = Metrics::new(false);
        metrics.start(ClientOperation::Get).ended([Ok(1)]);
        metrics.moved(DataPath::Tcp, Direction::Write, 10);
        assert_eq!(metrics.read(), ClientMetrics::default());
    }
}
