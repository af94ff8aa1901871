//! Prefill workers: each takes the next request, loads what is cached of its
//! prompt, and stores the rest.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use mc_store::{
    Client, ClientBuilder, ErrorCode, GetError, GetInto, Memory, MemorySlice, Put, PutError,
    PutOutcome, ReplicateConfig, Source,
};
use mc_types::ByteSize;
use tokio::sync::watch;

use crate::cluster::runtime;
use crate::content::{BlockContent, block_key};
use crate::error::ReplayError;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::tally::Tally;
use crate::tier::TierUse;
use crate::trace::{BlockId, Request};

/// Bytes that a worker moves in one call, unless a single block is larger. Enough
/// to spread over all nodes and hide round trips, little enough to stay in a cache.
const BATCH_BYTES: usize = 4 << 20;

/// Time for the files of a batch to be written.
const FILES_WAIT: Duration = Duration::from_secs(120);

/// Most blocks in one call, so that tiny blocks make no huge lists.
const BATCH_BLOCKS: usize = 1024;

/// The trace and the cluster of a replay.
#[derive(Debug)]
pub(crate) struct Workload<'a> {
    pub(crate) requests: &'a [Request],
    /// Settings for joining the cluster.
    pub(crate) client: &'a ClientBuilder,
    pub(crate) block_len: usize,
    pub(crate) replicas: u32,
    /// Arrival times are divided by this; zero disregards them.
    pub(crate) speedup: f64,
    /// Whether clients write a file for each block that they put. Then a put takes until they are
    /// written: a block cannot be read while it is evicted and its file is not written, which happens
    /// where memory is small and workers put as fast as they can.
    pub(crate) has_files: bool,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) progress: &'a Progress,
}

/// State that the workers of a run share.
#[derive(Debug)]
struct Queue {
    next: AtomicUsize,
    started: Instant,
    /// Becomes true when a worker fails, so that the others end too.
    failed: watch::Sender<bool>,
}

/// Replays the workload with so many workers, each a thread with connections of
/// its own, and returns what they counted together.
///
/// # Errors
/// The first failure of a worker, after all have ended.
pub(crate) fn run(workload: &Workload<'_>, workers: u32) -> Result<Tally, ReplayError> {
    let queue = Queue {
        next: AtomicUsize::new(0),
        started: Instant::now(),
        failed: watch::Sender::new(false),
    };
    let queue = &queue;
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 1..=workers {
            let name = format!("worker {number}");
            let spawned = thread::Builder::new().name(name.clone()).spawn_scoped(scope, {
                let name = name.clone();
                move || {
                    let outcome = work(workload, queue, &name);
                    if outcome.is_err() {
                        queue.failed.send_replace(true);
                    }
                    outcome
                }
            });
            match spawned {
                Ok(thread) => threads.push((name, thread)),
                Err(source) => {
                    queue.failed.send_replace(true);
                    return Err(ReplayError::Thread { name, source });
                }
            }
        }
        let mut total = Ok(Tally::new());
        for (name, thread) in threads {
            let outcome = thread.join().unwrap_or(Err(ReplayError::Panicked { name }));
            total = total.and_then(|mut total| {
                total.merge(&outcome?);
                Ok(total)
            });
        }
        total
    })
}

/// One worker's life.
fn work(workload: &Workload<'_>, queue: &Queue, name: &str) -> Result<Tally, ReplayError> {
    runtime(name)?.block_on(async {
        let client = workload.client.clone().connect().await;
        let mut worker = Worker::new(client.map_err(ReplayError::Join)?, workload)?;
        let mut failed = queue.failed.subscribe();
        let mut interrupt = workload.interrupt.clone();
        while let Some(request) = queue.take(workload.requests) {
            let arrival = queue.arrival(request, workload.speedup);
            tokio::select! {
                biased;
                // The sender outlives the workers, so this ends only by a failure.
                _ = failed.wait_for(|failed| *failed) => break,
                () = interrupt.asked() => break,
                // At once, without giving up the thread, when it is past.
                () = tokio::time::sleep_until(arrival.into()) => {}
            }
            worker.serve(request).await?;
            workload.progress.request_done();
        }
        let Worker { client, mut tally, .. } = worker;
        tally.tier = TierUse::of(client.metrics().shared_tier.as_ref());
        client.shutdown().await;
        Ok(tally)
    })
}

impl Queue {
    /// The next request, in the order of the trace.
    fn take<'a>(&self, requests: &'a [Request]) -> Option<&'a Request> {
        requests.get(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// When to serve the request; a time in the past means at once.
    fn arrival(&self, request: &Request, speedup: f64) -> Instant {
        if speedup == 0.0 {
            return self.started;
        }
        let after = Duration::try_from_secs_f64(request.arrival.as_secs_f64() / speedup);
        // So far away that it is no time at all: no trace ends then.
        let after = after.unwrap_or(Duration::MAX).min(Duration::from_secs(u32::MAX.into()));
        self.started + after
    }
}

struct Worker {
    client: Client,
    block_len: usize,
    replicate: ReplicateConfig,
    has_files: bool,
    /// Room for a batch, block after block.
    blocks: Vec<MemorySlice>,
    tally: Tally,
}

impl Worker {
    fn new(client: Client, workload: &Workload<'_>) -> Result<Self, ReplayError> {
        let block_len = workload.block_len;
        let count = (BATCH_BYTES / block_len).clamp(1, BATCH_BLOCKS);
        let memory = Memory::allocate(count * block_len).map_err(|source| {
            let size = ByteSize::bytes((count * block_len) as u64);
            ReplayError::Buffer { size, source }
        })?;
        let block = |at| memory.slice(at * block_len, block_len);
        Ok(Self {
            client,
            block_len,
            replicate: ReplicateConfig::default().replicas(workload.replicas),
            has_files: workload.has_files,
            blocks: (0..count).map(|at| block(at).expect("the memory has this room")).collect(),
            tally: Tally::new(),
        })
    }

    /// Does for one prompt what a prefill node does.
    async fn serve(&mut self, request: &Request) -> Result<(), ReplayError> {
        let ids = &request.blocks[..];
        let keys: Vec<String> = ids.iter().map(|&id| block_key(id, self.block_len)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.tally.requests += 1;
        self.tally.blocks += ids.len() as u64;
        let Some(&first) = keys.first() else { return Ok(()) };
        let asked = Instant::now();
        let prefix = self.client.longest_prefix(&keys).await;
        self.tally.lookup.record(asked.elapsed());
        let prefix =
            prefix.map_err(|source| ReplayError::Lookup { key: first.to_owned(), source })?;
        let prefix = prefix.min(keys.len());
        let loaded = self.load(&ids[..prefix], &keys[..prefix]).await?;
        self.tally.hit_blocks += loaded as u64;
        self.store(&ids[loaded..], &keys[loaded..]).await
    }

    /// Gets and checks blocks up to the first that is gone, and says how many come
    /// before it: what follows a gap is of no use to a model. The time of a get is
    /// the time that the request waits for all of them, checking not included.
    async fn load(&mut self, ids: &[BlockId], keys: &[&str]) -> Result<usize, ReplayError> {
        let mut time = Duration::ZERO;
        let mut loaded = 0;
        let batch = self.blocks.len();
        for (ids, keys) in ids.chunks(batch).zip(keys.chunks(batch)) {
            let gets = keys.iter().zip(&self.blocks);
            let gets = gets.map(|(key, block)| GetInto::new(key, block.clone())).collect();
            let asked = Instant::now();
            let outcomes = self.client.batch_get_into(gets).await;
            time += asked.elapsed();
            let mut whole = true;
            for (at, outcome) in outcomes.into_iter().enumerate() {
                match outcome {
                    Ok(len) => {
                        self.check(ids[at], &self.blocks[at].clone(), len);
                        loaded += usize::from(whole);
                    }
                    Err(GetError::NotFound | GetError::NotReady | GetError::LeaseExpired) => {
                        self.tally.vanished_blocks += 1;
                        whole = false;
                    }
                    Err(source) => {
                        return Err(ReplayError::Get { key: keys[at].to_owned(), source });
                    }
                }
            }
            if !whole {
                break;
            }
        }
        if !keys.is_empty() {
            self.tally.get.record(time);
        }
        Ok(loaded)
    }

    /// Compares all bytes of a block with what was put.
    fn check(&mut self, id: BlockId, block: &MemorySlice, len: u64) {
        self.tally.bytes_got += len;
        self.tally.wrong_bytes += if len == self.block_len as u64 {
            BlockContent::new(id, self.block_len).count_wrong(block)
        } else {
            // Of another length, so another object.
            self.block_len as u64
        };
    }

    /// The content of a block to be put, which is made in `block` unless a file follows the put. Then the
    /// client may take the bytes that cannot change for it, and need not read them back: that counts as
    /// a use, and memory would keep the blocks that have files and evict those that have none yet.
    fn source(&self, id: BlockId, block: &MemorySlice) -> Source {
        let content = BlockContent::new(id, self.block_len);
        if self.has_files {
            return Source::Bytes(content.to_vec(self.block_len).into());
        }
        content.write_to(block);
        block.clone().into()
    }

    /// Puts blocks. The time of a put is the time that the request needs for all
    /// of them, making their content not included.
    async fn store(&mut self, ids: &[BlockId], keys: &[&str]) -> Result<(), ReplayError> {
        let mut time = Duration::ZERO;
        let batch = self.blocks.len();
        for (ids, keys) in ids.chunks(batch).zip(keys.chunks(batch)) {
            let blocks = ids.iter().zip(&self.blocks);
            let puts = keys.iter().zip(blocks);
            let puts = puts.map(|(key, (&id, block))| Put::new(key, self.source(id, block)));
            let puts = puts.collect();
            let asked = Instant::now();
            let outcomes = self.client.batch_put(puts, &self.replicate).await;
            if self.has_files && !self.client.flush_files(FILES_WAIT).await {
                return Err(ReplayError::Files { wait: FILES_WAIT });
            }
            time += asked.elapsed();
            for (key, outcome) in keys.iter().zip(outcomes) {
                match outcome {
                    Ok(PutOutcome::Stored) => {
                        self.tally.stored_blocks += 1;
                        self.tally.bytes_put += self.block_len as u64;
                    }
                    Ok(PutOutcome::Existing | PutOutcome::Pending) => {
                        self.tally.existing_blocks += 1;
                    }
                    Err(error) if is_want_of_room(&error) => self.tally.refused_blocks += 1,
                    Err(source) => {
                        return Err(ReplayError::Put { key: (*key).to_owned(), source });
                    }
                }
            }
        }
        if !keys.is_empty() {
            self.tally.put.record(time);
        }
        Ok(())
    }
}

/// Returns whether a busy pool is what one must expect this from.
fn is_want_of_room(error: &PutError) -> bool {
    matches!(
        error.code(),
        ErrorCode::Full | ErrorCode::Fragmented | ErrorCode::AllLeased | ErrorCode::Overloaded
    )
}
