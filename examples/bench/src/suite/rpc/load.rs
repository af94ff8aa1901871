//! Callers that keep a master busy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use mc_meta::{PutEnd, PutStart, ReplicateConfig};
use mc_rpc::{ClientConfig, MasterClient, PutGrant, PutStartItem, Refusal, ReplicaList, RpcError};
use mc_types::{ByteSize, ClientId, ErrorCode, KeyRef, SegmentId};

use super::super::alloc::check_disjoint;
use super::super::keys::KeyWriter;
use super::super::segments;
use super::stub::{Stub, StubKind};
use crate::error::BenchError;
use crate::interrupt;
use crate::latency::Latencies;
use crate::placement::{self, Placement};

/// Objects that reads find.
const STORED: u64 = 50_000;

/// The part of a running cluster's free room that is used, as a divisor: its own clients go on.
const ROOM_SHARE: u64 = 10;

/// The bits of a key's family that tell runs apart. The others tell callers apart, of
/// which there may be a thousand with four thousand calls in flight each.
const RUN_BITS: u32 = 0xff00_0000;

/// The operation of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Operation {
    /// PutStart and PutEnd.
    #[value(name = "Put")]
    Put,
    /// GetReplicaList.
    #[value(name = "Get")]
    Get,
    /// BatchPutStart and BatchPutEnd.
    #[value(name = "BatchPut")]
    BatchPut,
    /// BatchGetReplicaList.
    #[value(name = "BatchGet")]
    BatchGet,
    /// ExistKey.
    #[value(name = "Exist")]
    Exist,
    /// BatchExistKey.
    #[value(name = "BatchExist")]
    BatchExist,
}

impl Operation {
    pub(in crate::suite) const fn is_batch(self) -> bool {
        matches!(self, Self::BatchPut | Self::BatchGet | Self::BatchExist)
    }

    /// Names of the rate and of the median latency of a call.
    pub(in crate::suite) const fn figures(self) -> (&'static str, &'static str) {
        match self {
            Self::Put => ("put_per_s", "put_loaded_p50_us"),
            Self::Get => ("get_per_s", "get_loaded_p50_us"),
            Self::BatchPut => ("batch_put_keys_per_s", "batch_put_p50_us"),
            Self::BatchGet => ("batch_get_keys_per_s", "batch_get_p50_us"),
            Self::Exist => ("exist_per_s", "exist_loaded_p50_us"),
            Self::BatchExist => ("batch_exist_keys_per_s", "batch_exist_p50_us"),
        }
    }
}

/// The load as the command line describes it.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Load of the rpc suite")]
pub(crate) struct LoadOptions {
    /// Measure this operation alone
    #[arg(long, ignore_case = true)]
    pub(crate) operation: Option<Operation>,
    /// Callers, each with its own calls in flight
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,
    /// Connections, each on a thread of its own, that the callers share [default: one for each
    /// caller]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) clients: Option<u32>,
    /// Calls in flight of each caller
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) pipeline: u32,
    /// Client to call with [default: blocking where each caller has a connection for one call in
    /// flight]
    #[arg(long)]
    pub(crate) stub: Option<StubKind>,
    /// Keys of a batch
    #[arg(long = "batch_size", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=8192))]
    pub(crate) batch_size: u32,
    /// Size of an object; only booked, never stored
    #[arg(long = "value_size", default_value = "4KB", value_parser = mc_cli::parse_positive_size)]
    pub(crate) value_size: ByteSize,
    /// Segments to mount; no node serves them
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) segments: u32,
    /// Size of a segment
    #[arg(long = "segment_size", default_value = "256GB", value_parser = mc_cli::parse_positive_size)]
    pub(crate) segment_size: ByteSize,
    /// Time to measure each operation
    #[arg(long, value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// Measure the master at this host:port instead of one of the run's own
    #[arg(long)]
    pub(crate) master: Option<String>,
    /// Credentials for that master
    #[command(flatten)]
    pub(crate) credentials: mc_cli::CredentialArgs,
    /// The connection settings, from the credentials
    #[arg(skip)]
    pub(crate) rpc: ClientConfig,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds between 0.001 and 3600".into()),
    }
}

/// The operation and number of callers.
#[derive(Clone, Debug)]
pub(in crate::suite) struct Load {
    pub(super) operation: Operation,
    pub(super) threads: u32,
    pub(super) clients: u32,
    pub(super) pipeline: u32,
    pub(super) batch: u32,
    stub: Option<StubKind>,
    value_size: u64,
    segments: u32,
    segment_size: u64,
    seconds: Duration,
    /// The connection settings.
    rpc: ClientConfig,
}

/// The result.
#[derive(Debug, Default)]
pub(in crate::suite) struct Outcome {
    pub(in crate::suite) calls: u64,
    pub(in crate::suite) seconds: f64,
    pub(super) latencies: Latencies,
    /// Where puts were placed: segment, first byte, length.
    granted: Vec<(SegmentId, u64, u64)>,
}

impl Load {
    pub(in crate::suite) fn of(
        operation: Operation,
        options: &LoadOptions,
        seconds: Duration,
    ) -> Self {
        Self {
            operation,
            threads: options.threads,
            clients: options.clients.unwrap_or(options.threads),
            pipeline: options.pipeline,
            batch: options.batch_size,
            stub: options.stub,
            value_size: options.value_size.as_u64(),
            segments: options.segments,
            segment_size: options.segment_size.as_u64(),
            seconds,
            rpc: over_tcp(&options.rpc),
        }
    }

    /// The same from one caller on one connection.
    pub(super) fn by_one(self) -> Self {
        Self { threads: 1, clients: 1, ..self }
    }

    /// The same with that many calls of each caller in flight.
    pub(in crate::suite) fn in_flight(self, pipeline: u32) -> Self {
        Self { pipeline, ..self }
    }

    /// The same with that many keys in each batch.
    pub(super) fn batches_of(self, batch: u32) -> Self {
        Self { batch, ..self }
    }

    /// The client that calls are made with. Where several calls are in flight on one
    /// connection it can only be the one for tasks.
    pub(super) fn stub(&self) -> StubKind {
        let waits = self.pipeline == 1 && self.clients >= self.threads;
        match self.stub {
            _ if !waits => StubKind::Async,
            Some(stub) => stub,
            None => StubKind::Blocking,
        }
    }

    const fn puts(&self) -> bool {
        matches!(self.operation, Operation::Put | Operation::BatchPut)
    }

    pub(in crate::suite) fn keys_per_call(&self) -> u64 {
        if self.operation.is_batch() { self.batch.into() } else { 1 }
    }

    /// Runs the load on the master at that address: one thread for each
    /// connection, at the measuring side's place.
    pub(in crate::suite) fn run(
        &self,
        master: &str,
        place: Placement,
    ) -> Result<Outcome, BenchError> {
        let node = FakeNode::join(master, self)?;
        let measured = node
            .mount(self)
            .and_then(|()| node.prepare(self))
            .and_then(|()| self.measure(&node, place))
            .and_then(|outcome| node.check(self, &outcome).map(|()| outcome));
        // Whatever came of it, nothing of ours stays there.
        let left = node.leave(self);
        let outcome = measured?;
        left?;
        interrupt::check()?;
        Ok(outcome)
    }

    fn measure(&self, node: &FakeNode, place: Placement) -> Result<Outcome, BenchError> {
        let barrier = Barrier::new(self.clients as usize);
        let outcome = Mutex::new(Outcome::default());
        placement::on_client_cpu(place, || {
            std::thread::scope(|scope| {
                let mut workers = Vec::new();
                for client in 0..self.clients {
                    let (barrier, outcome) = (&barrier, &outcome);
                    workers.push(scope.spawn(move || {
                        let found = self.one_client(client, node, barrier)?;
                        outcome.lock().expect("no holder panics").merge(found);
                        Ok::<_, BenchError>(())
                    }));
                }
                for worker in workers {
                    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                }
                Ok(())
            })
        })?;
        Ok(outcome.into_inner().expect("no holder panics"))
    }

    fn one_client(
        &self,
        client: u32,
        node: &FakeNode,
        barrier: &Barrier,
    ) -> Result<Outcome, BenchError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let master = self.stub().connect_to(&node.master, self.rpc.clone()).await;
            // Also when there is no connection: the others wait for this one.
            barrier.wait();
            let master = master?;
            let start = Instant::now();
            let mut callers = Vec::new();
            for thread in (client..self.threads).step_by(self.clients as usize) {
                for slot in 0..self.pipeline {
                    let caller = Caller {
                        load: self.clone(),
                        master: master.clone(),
                        writer: node.writer,
                        family: node.family,
                        number: thread * self.pipeline + slot,
                        stored: node.stored,
                        most: node.most_put,
                        begun: Arc::clone(&node.begun),
                        end: start + self.seconds,
                    };
                    callers.push(async {
                        let joined = tokio::spawn(caller.run()).await;
                        joined.unwrap_or_else(|error| {
                            Err(BenchError::wrong("calling", error.to_string()))
                        })
                    });
                }
            }
            let mut outcome = Outcome::default();
            for found in try_join_all(callers).await? {
                outcome.merge(found);
            }
            outcome.seconds = start.elapsed().as_secs_f64();
            Ok(outcome)
        })
    }
}

impl Outcome {
    fn merge(&mut self, other: Self) {
        self.calls += other.calls;
        self.seconds = self.seconds.max(other.seconds);
        self.latencies.merge(other.latencies);
        self.granted.extend(other.granted);
    }

    fn granted(&mut self, grant: &PutGrant) -> Result<(), BenchError> {
        let [replica] = grant.replicas.as_slice() else {
            return Err(BenchError::wrong("put_start", "not one replica"));
        };
        let extent = replica.extent;
        self.granted.push((replica.segment.id, extent.offset(), extent.len()));
        Ok(())
    }
}

/// One call after the other.
struct Caller {
    load: Load,
    master: Stub,
    writer: ClientId,
    number: u32,
    family: u32,
    /// Objects that reads find.
    stored: u64,
    /// Objects that this caller may put.
    most: u64,
    /// The number of puts that each caller has begun.
    begun: Arc<[AtomicU64]>,
    end: Instant,
}

impl Caller {
    async fn run(self) -> Result<Outcome, BenchError> {
        let mut outcome = Outcome::default();
        let mut random = fastrand::Rng::with_seed(self.number.into());
        let puts = matches!(self.load.operation, Operation::Put | Operation::BatchPut);
        let family = if puts { self.family + 1 + self.number } else { self.family };
        let mut next = 0;
        let batch = self.load.keys_per_call();
        let mut writers = vec![KeyWriter::new(family); batch as usize];
        loop {
            let start = Instant::now();
            let is_full = puts && next + batch > self.most;
            if start >= self.end || is_full || interrupt::is_asked() {
                return Ok(outcome);
            }
            if puts {
                self.begun[self.number as usize].store(next + batch, Ordering::Relaxed);
            }
            let first = if puts { next } else { random.u64(..self.stored) };
            // Only puts may go beyond what is stored for the others.
            let number = |n| if puts { first + n } else { (first + n) % self.stored };
            let keys: Vec<KeyRef<'_>> =
                writers.iter_mut().zip(0..).map(|(writer, n)| writer.key(number(n))).collect();
            match self.load.operation {
                Operation::Exist => {
                    if !self.master.exist(keys[0]).await? {
                        return Err(BenchError::wrong("exist", "a stored key is missing"));
                    }
                }
                Operation::Get => {
                    self.right(&self.master.get_replica_list(keys[0]).await?)?;
                }
                Operation::Put => self.put(keys[0], &mut outcome).await?,
                Operation::BatchExist | Operation::BatchGet => self.batch_read(&keys).await?,
                Operation::BatchPut => self.batch_put(&keys, &mut outcome).await?,
            }
            next += batch;
            outcome.calls += 1;
            outcome.latencies.add(start.elapsed());
        }
    }

    fn right(&self, list: &ReplicaList) -> Result<(), BenchError> {
        let len = list.replicas.first().map(|replica| replica.extent.len());
        if len == Some(self.load.value_size) && list.slices.total_len() == self.load.value_size {
            return Ok(());
        }
        Err(BenchError::wrong("get_replica_list", format!("a replica of {len:?} bytes")))
    }

    async fn put(&self, key: KeyRef<'_>, outcome: &mut Outcome) -> Result<(), BenchError> {
        let config = ReplicateConfig::default();
        let put = PutStart { key, slice_lengths: &[self.load.value_size], config: &config };
        let grant = self.master.put_start(self.writer, &put).await?;
        outcome.granted(&grant)?;
        let end = PutEnd::new(key, grant.handle);
        Ok(self.master.put_end(self.writer, &end).await?)
    }

    async fn batch_read(&self, keys: &[KeyRef<'_>]) -> Result<(), BenchError> {
        if self.load.operation == Operation::BatchExist {
            let found = self.master.batch_exist(keys).await?;
            if found.iter().any(|found| *found != Ok(true)) || found.len() != keys.len() {
                return Err(BenchError::wrong("batch_exist", "a stored key is missing"));
            }
            return Ok(());
        }
        let lists = self.master.batch_get_replica_list(keys).await?;
        for list in lists {
            self.right(&list.map_err(refused)?)?;
        }
        Ok(())
    }

    async fn batch_put(
        &self,
        keys: &[KeyRef<'_>],
        outcome: &mut Outcome,
    ) -> Result<(), BenchError> {
        let slice_lengths = &[self.load.value_size];
        let puts: Vec<PutStartItem<'_>> =
            keys.iter().map(|key| PutStartItem::new(*key, slice_lengths)).collect();
        let config = ReplicateConfig::default();
        let grants = self.master.batch_put_start(self.writer, &config, &puts).await?;
        let mut ends = Vec::with_capacity(grants.len());
        for (key, grant) in keys.iter().zip(grants) {
            let grant = grant.map_err(refused)?;
            outcome.granted(&grant)?;
            ends.push(PutEnd::new(*key, grant.handle));
        }
        for ended in self.master.batch_put_end(self.writer, &ends).await? {
            ended.map_err(refused)?;
        }
        Ok(())
    }
}

/// As between hosts, whatever socket there is.
fn over_tcp(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    config.local_socket = false;
    config
}

fn refused(refusal: Refusal) -> BenchError {
    BenchError::Rpc(RpcError::Refused(refusal))
}

/// Where objects are booked: a storage node that has segments and a heartbeat but no bytes,
/// or the nodes that a running master has.
struct FakeNode {
    master: String,
    writer: ClientId,
    /// The family of the keys that are stored for reads; those of callers follow.
    family: u32,
    id: ClientId,
    segments: Mutex<Vec<SegmentId>>,
    client: MasterClient,
    /// Objects that were there before.
    objects: u64,
    /// Whether the objects lie in segments of others, whose clients go on.
    is_guest: bool,
    /// Objects that reads find.
    stored: u64,
    /// The number of them that have been begun.
    prepared: AtomicU64,
    /// Objects that each caller may put, and those that each has begun to put.
    most_put: u64,
    begun: Arc<[AtomicU64]>,
    /// Runs the heartbeat. The load's threads have runtimes of their own.
    runtime: tokio::runtime::Runtime,
}

/// Keys of one call that is not measured.
const BUNCH: usize = 1000;

/// Well below the shortest time after which masters give clients up.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Time limit for a master to forget a segment's objects.
const FORGETTING: Duration = Duration::from_secs(30);

impl FakeNode {
    /// Connects to the master, and looks how much room there is.
    fn join(master: &str, load: &Load) -> Result<Self, BenchError> {
        interrupt::check()?;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(MasterClient::connect(master, load.rpc.clone()))?;
        let report = runtime.block_on(client.cluster_report())?;
        let callers = u64::from(load.threads) * u64::from(load.pipeline);
        let is_guest = !report.segments.is_empty();
        let (mut stored, mut most_put) = (STORED, u64::MAX);
        if is_guest {
            let usable = report.segments.iter().filter(|segment| segment.is_usable());
            let free: u64 = usable.map(|segment| segment.size.saturating_sub(segment.used)).sum();
            let most = free / ROOM_SHARE / load.value_size;
            (stored, most_put) = (STORED.min(most), most / callers);
            if stored == 0 || (load.puts() && most_put < load.keys_per_call()) {
                let found = format!(
                    "a part in {ROOM_SHARE} of the {} that are free is too little for {callers} \
                     callers; choose smaller --value_size, --batch_size, --threads or --pipeline",
                    ByteSize::bytes(free)
                );
                return Err(BenchError::wrong("room at the master", found));
            }
        }
        Ok(Self {
            master: master.to_owned(),
            writer: ClientId::from_u128(fastrand::u128(..)),
            family: fastrand::u32(..) & RUN_BITS,
            id: ClientId::from_u128(fastrand::u128(..)),
            segments: Mutex::default(),
            client,
            objects: report.totals.objects,
            is_guest,
            stored,
            prepared: AtomicU64::new(0),
            most_put,
            begun: (0..callers).map(|_| AtomicU64::new(0)).collect(),
            runtime,
        })
    }

    /// Mounts the load's segments, unless there are some already: puts of others would go
    /// to ones that no node serves.
    fn mount(&self, load: &Load) -> Result<(), BenchError> {
        if self.is_guest {
            return Ok(());
        }
        for number in 0..load.segments {
            let mut spec = segments::spec(number, load.segment_size)?;
            // Another run may have the same names at the same master.
            spec.id = SegmentId::from_u128(fastrand::u128(..));
            spec.name = format!("{}-{:08x}", spec.name, fastrand::u32(..)).into();
            // Taken back even if the answer is lost.
            self.segments.lock().expect("no holder panics").push(spec.id);
            self.runtime.block_on(self.client.mount_segment(self.id, &spec))?;
        }
        let (pinging, id) = (self.client.clone(), self.id);
        self.runtime.spawn(async move {
            let mut timer = tokio::time::interval(HEARTBEAT);
            loop {
                timer.tick().await;
                // A master that is gone shows in the calls that are measured.
                let _ = pinging.ping(id).await;
            }
        });
        Ok(())
    }

    /// Stores what the load reads.
    fn prepare(&self, load: &Load) -> Result<(), BenchError> {
        if load.puts() {
            return Ok(());
        }
        let caller = Caller {
            load: load.clone(),
            master: Stub::Async(self.client.clone()),
            writer: self.writer,
            family: self.family,
            number: 0,
            stored: self.stored,
            most: self.most_put,
            begun: Arc::clone(&self.begun),
            end: Instant::now(),
        };
        let mut writers = vec![KeyWriter::new(self.family); BUNCH];
        self.runtime.block_on(async {
            for first in (0..self.stored).step_by(BUNCH) {
                interrupt::check()?;
                let last = self.stored.min(first + BUNCH as u64);
                self.prepared.store(last, Ordering::Relaxed);
                let keys: Vec<KeyRef<'_>> =
                    writers.iter_mut().zip(first..last).map(|(writer, n)| writer.key(n)).collect();
                caller.batch_put(&keys, &mut Outcome::default()).await?;
            }
            Ok(())
        })
    }

    /// Checks that no two puts were placed in the same bytes.
    fn check(&self, load: &Load, outcome: &Outcome) -> Result<(), BenchError> {
        let room = load.segment_size.saturating_mul(load.segments.into());
        let put: u64 = outcome.granted.iter().map(|(_, _, len)| len).sum();
        if put > room / 10 * 9 {
            return Ok(()); // what was evicted made room in the same place
        }
        let segments = self.segments.lock().expect("no holder panics");
        let mut extents = vec![Vec::new(); segments.len()];
        for (segment, offset, len) in &outcome.granted {
            // Another node's segments at a master that was named are its own affair.
            if let Some(at) = segments.iter().position(|id| id == segment) {
                extents[at].push((*offset, *len));
            }
            if *len != load.value_size {
                return Err(BenchError::wrong("put_start", format!("granted {len} bytes")));
            }
        }
        extents
            .iter_mut()
            .try_for_each(|extents| check_disjoint("put_start", extents, load.segment_size))
    }

    /// Takes everything back, so that the next load begins like this one: the objects, or
    /// the segments and with them the objects.
    fn leave(self, load: &Load) -> Result<(), BenchError> {
        if self.is_guest {
            return self.remove_all(load);
        }
        let segments = self.segments.into_inner().expect("no holder panics");
        self.runtime.block_on(async {
            let mut outcome = Ok(());
            for id in segments {
                let unmounted = self.client.unmount_segment(self.id, id).await;
                outcome = outcome.and(unmounted.map_err(BenchError::from));
            }
            outcome?;
            let deadline = Instant::now() + FORGETTING;
            while self.client.cluster_report().await?.totals.objects > self.objects {
                if Instant::now() > deadline {
                    let found = "objects outlive their segments";
                    return Err(BenchError::wrong("unmounting", found));
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        })
    }

    /// Removes every object that was begun.
    fn remove_all(&self, load: &Load) -> Result<(), BenchError> {
        let stored = (self.family, self.prepared.load(Ordering::Relaxed));
        let put = self.begun.iter().zip(1..);
        let put = put.map(|(begun, number)| (self.family + number, begun.load(Ordering::Relaxed)));
        let families: Vec<(u32, u64)> = if load.puts() { put.collect() } else { vec![stored] };
        self.runtime.block_on(async {
            for (family, count) in families {
                let mut writers = vec![KeyWriter::new(family); BUNCH];
                for first in (0..count).step_by(BUNCH) {
                    let numbers = first..count.min(first + BUNCH as u64);
                    let keys: Vec<KeyRef<'_>> =
                        writers.iter_mut().zip(numbers).map(|(writer, n)| writer.key(n)).collect();
                    for removed in self.client.batch_remove(&keys, true).await? {
                        match removed {
                            Err(refusal) if refusal.code != ErrorCode::ObjectNotFound => {
                                return Err(refused(refusal));
                            }
                            // What is not there was never put, or evicted.
                            _ => {}
                        }
                    }
                }
            }
            Ok(())
        })
    }
}
