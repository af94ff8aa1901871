//! Prefill: puts every value, and stays while its memory is needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mc_cli::Latencies;
use mc_store::{Client, Memory, PutOutcome, ReplicateConfig};
use mc_types::ByteSize;
use tokio::task::JoinSet;

use crate::args::Workload;
use crate::content::{Content, key};
use crate::error::StressError;
use crate::progress::{Progress, tell};
use crate::summary::{Filled, Moved};

/// The interval of looking whether the next value is gone.
const LOOK: Duration = Duration::from_millis(50);

/// Puts every value of the workload.
pub(crate) async fn put_all(client: &Client, workload: Workload) -> Result<Filled, StressError> {
    let next = Arc::new(AtomicU64::new(0));
    let progress = Arc::new(Progress::start("put", workload.requests));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..workload.threads {
        tasks.spawn(put_some(client.clone(), workload, Arc::clone(&next), Arc::clone(&progress)));
    }
    let (mut latencies, mut stored, mut existing) = (Latencies::default(), 0, 0);
    while let Some(done) = tasks.join_next().await {
        let part = done.map_err(StressError::Panicked)??;
        latencies.merge(&part.latencies);
        stored += part.stored;
        existing += part.existing;
    }
    let elapsed = started.elapsed();
    let moved = Moved { values: stored, value_len: workload.value_len, elapsed, latencies };
    Ok(Filled { moved, existing })
}

struct PrefillPart {
    latencies: Latencies,
    stored: u64,
    existing: u64,
}

/// Puts values, each the next that no task has begun.
async fn put_some(
    client: Client,
    workload: Workload,
    next: Arc<AtomicU64>,
    progress: Arc<Progress>,
) -> Result<PrefillPart, StressError> {
    let memory = value_memory(workload)?;
    let config = ReplicateConfig::default();
    let mut part = PrefillPart { latencies: Latencies::default(), stored: 0, existing: 0 };
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= workload.requests {
            return Ok(part);
        }
        Content::of(workload, number).write_to(&memory.whole());
        let key = key(workload, number);
        let start = Instant::now();
        match client.put_from(&key, &memory.whole(), &config).await {
            Ok(PutOutcome::Stored) => {
                part.latencies.record(start.elapsed());
                part.stored += 1;
            }
            Ok(PutOutcome::Existing | PutOutcome::Pending) => part.existing += 1,
            Err(source) => return Err(StressError::Put { key, source }),
        }
        progress.advance();
    }
}

/// Memory for one value.
pub(crate) fn value_memory(workload: Workload) -> Result<Memory, StressError> {
    let size = ByteSize::bytes(workload.value_len as u64);
    Memory::allocate(workload.value_len).map_err(|source| StressError::Memory { size, source })
}

/// Returns when decode has taken every value, or none for as long as the workload waits.
/// Without memory of its own, prefill has nothing to stay for.
pub(crate) async fn stay_until_taken(
    client: &Client,
    workload: Workload,
) -> Result<(), StressError> {
    if client.segment_name().is_none() {
        return Ok(());
    }
    tell("keeping the values until decode has taken them");
    let mut taken = 0;
    let mut since = Instant::now();
    while taken < workload.requests {
        if is_there(client, key(workload, taken)).await? {
            if since.elapsed() >= workload.wait {
                let left = workload.requests - taken;
                tell(&format!("nobody has taken any of the last {left} values for a while"));
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        } else {
            taken += 1;
            since = Instant::now();
        }
    }
    tell("all values are taken");
    Ok(())
}

/// Asked in a way that protects nothing from being taken away.
async fn is_there(client: &Client, key: String) -> Result<bool, StressError> {
    match client.longest_prefix(&[&key]).await {
        Ok(readable) => Ok(readable == 1),
        Err(source) => Err(StressError::Look { key, source }),
    }
}
