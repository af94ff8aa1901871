//! Decode: waits for every value, gets it and checks its bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mc_cli::Latencies;
use mc_store::{CallError, Client, ErrorCode, GetError, MemorySlice};
use tokio::task::JoinSet;

use crate::args::Workload;
use crate::content::{Content, key};
use crate::error::StressError;
use crate::prefill::value_memory;
use crate::progress::{Progress, tell};
use crate::summary::Found;

/// The first pause before a value is asked for again; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Gets and checks every value of the workload.
pub(crate) async fn check_all(client: &Client, workload: Workload) -> Result<Found, StressError> {
    let shared = Arc::new(Shared {
        next: AtomicU64::new(0),
        arrivals: Arrivals::new(),
        progress: Progress::start("checked", workload.requests),
    });
    tell(&format!("waiting for {} values", workload.requests));
    let mut tasks = JoinSet::new();
    for _ in 0..workload.threads {
        tasks.spawn(check_some(client.clone(), workload, Arc::clone(&shared)));
    }
    let mut found = Found::nothing(workload);
    while let Some(done) = tasks.join_next().await {
        let part = done.map_err(StressError::Panicked)??;
        found.moved.latencies.merge(&part.latencies);
        found.moved.values += part.right + part.wrong;
        found.wrong += part.wrong;
        found.missing += part.missing;
    }
    found.moved.elapsed = shared.arrivals.first_to_last();
    Ok(found)
}

/// State that the tasks share.
#[derive(Debug)]
struct Shared {
    next: AtomicU64,
    arrivals: Arrivals,
    progress: Progress,
}

/// When values came, in microseconds since the start.
#[derive(Debug)]
struct Arrivals {
    started: Instant,
    /// When the first was asked for with success; `u64::MAX` before that.
    first: AtomicU64,
    /// When the last was done with.
    last: AtomicU64,
}

impl Arrivals {
    fn new() -> Self {
        Self { started: Instant::now(), first: AtomicU64::new(u64::MAX), last: AtomicU64::new(0) }
    }

    fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.started).as_micros();
        u64::try_from(since).unwrap_or(u64::MAX)
    }

    /// A value that was asked for at `asked` is done with.
    fn add(&self, asked: Instant) {
        self.first.fetch_min(self.micros(asked), Ordering::Relaxed);
        self.last.fetch_max(self.micros(Instant::now()), Ordering::Relaxed);
    }

    /// The time since the last value came.
    fn silence(&self) -> Duration {
        let now = self.micros(Instant::now());
        Duration::from_micros(now.saturating_sub(self.last.load(Ordering::Relaxed)))
    }

    fn first_to_last(&self) -> Duration {
        let (first, last) = (&self.first, &self.last);
        let micros = last.load(Ordering::Relaxed).checked_sub(first.load(Ordering::Relaxed));
        Duration::from_micros(micros.unwrap_or(0))
    }
}

struct DecodePart {
    latencies: Latencies,
    right: u64,
    wrong: u64,
    missing: u64,
}

/// Checks values, each the next that no task has begun.
async fn check_some(
    client: Client,
    workload: Workload,
    shared: Arc<Shared>,
) -> Result<DecodePart, StressError> {
    let memory = value_memory(workload)?;
    let mut part = DecodePart { latencies: Latencies::default(), right: 0, wrong: 0, missing: 0 };
    loop {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if number >= workload.requests {
            return Ok(part);
        }
        let key = key(workload, number);
        let arrived = wait_for(&client, &key, &memory.whole(), workload, &shared.arrivals).await?;
        let Some(Arrived { asked, took, len }) = arrived else {
            part.missing += 1;
            shared.progress.advance();
            continue;
        };
        part.latencies.record(took);
        let content = Content::of(workload, number);
        if len == workload.value_len as u64 && content.is_in(&memory.whole()) {
            part.right += 1;
            if !workload.keep {
                remove(&client, key).await?;
            }
        } else {
            tell(&format!("'{key}' is wrong"));
            part.wrong += 1;
        }
        shared.arrivals.add(asked);
        shared.progress.advance();
    }
}

/// A value that was read.
struct Arrived {
    asked: Instant,
    took: Duration,
    len: u64,
}

/// Reads a value as soon as it can be read; `None` when no value at all has come for as
/// long as the workload waits.
async fn wait_for(
    client: &Client,
    key: &str,
    target: &MemorySlice,
    workload: Workload,
    arrivals: &Arrivals,
) -> Result<Option<Arrived>, StressError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let asked = Instant::now();
        match client.get_into(key, target).await {
            Ok(len) => return Ok(Some(Arrived { asked, took: asked.elapsed(), len })),
            Err(GetError::NotFound) => {}
            Err(error) if error.is_retryable() => {}
            Err(source) => return Err(StressError::Get { key: key.to_owned(), source }),
        }
        if arrivals.silence() >= workload.wait {
            return Ok(None);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Removes a value that has been checked. That another decode node did, or that it was
/// evicted meanwhile, is as good.
async fn remove(client: &Client, key: String) -> Result<(), StressError> {
    match client.remove(&key, true).await {
        Ok(()) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(source) => Err(StressError::Remove { key, source }),
    }
}

fn is_gone(error: &CallError) -> bool {
    error.code() == ErrorCode::ObjectNotFound
}
