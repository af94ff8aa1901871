//! `bench`: how fast this cluster is for this host.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use mc_cli::{Latencies, Shutdown, duration, table};
use mc_store::{Client, ErrorCode, ReplicateConfig};
use mc_types::ByteSize;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::args;
use crate::error::CtlError;
use crate::text::print;

/// The steps of a round, in their order.
const STEPS: [&str; 4] = ["put", "exist", "get", "remove"];

/// A worker with so many failed rounds ends the measurement.
const MOST_FAILURES: usize = 10;

/// Time to remove what failed rounds have left.
const CLEARING: Duration = Duration::from_secs(10);

/// Measures rounds: each puts a value under a key of its own, asks whether it is there, gets it and removes it. So
/// the cluster never has more of these values than there are workers.
pub(crate) async fn bench(client: &Client, bench: &args::Bench) -> Result<ExitCode, CtlError> {
    let mut shutdown = Shutdown::listen().map_err(CtlError::Runtime)?;
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let load = Arc::new(Load {
        client: client.clone(),
        prefix: format!("mc-ctl-bench/{:x}-{nanos:x}/", std::process::id()),
        // Not all the same: some links compress.
        value: (0..bench.size.as_u64())
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect(),
        rounds: bench.count.unwrap_or(u64::MAX),
        begun: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    // What never works is told at once. The first round also opens the connections, and is not counted.
    let trial = format!("{}trial", load.prefix);
    if let Err(error) = load.round(&trial, &mut Seen::default()).await {
        // The error is of more use than whether the removal is refused, too.
        let _ = clear(client, &load.prefix, &[trial]).await;
        return Err(error);
    }
    let begun = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..bench.concurrency {
        workers.spawn(Arc::clone(&load).work());
    }
    let mut seen = Seen::default();
    let time_is_up = tokio::time::sleep(bench.time);
    tokio::pin!(time_is_up);
    loop {
        tokio::select! {
            done = workers.join_next() => match done {
                None => break,
                Some(of_worker) => seen.merge(of_worker.map_err(CtlError::Worker)?),
            },
            _ = shutdown.requested() => load.is_over.store(true, Relaxed),
            () = &mut time_is_up, if bench.count.is_none() && !load.is_over.load(Relaxed) => {
                load.is_over.store(true, Relaxed);
            }
        }
    }
    let text = if bench.json { seen.lines(bench) } else { seen.text(bench, begun.elapsed()) };
    let printed = print(text.as_bytes());
    clear(client, &load.prefix, &seen.left).await?;
    printed?;
    match seen.first_error {
        None => Ok(ExitCode::SUCCESS),
        Some(source) => Err(CtlError::Bench { failed: seen.left.len(), source: Box::new(source) }),
    }
}

/// Removes what failed rounds may have left.
async fn clear(client: &Client, prefix: &str, left: &[String]) -> Result<(), CtlError> {
    if left.is_empty() {
        return Ok(());
    }
    let keys: Vec<&str> = left.iter().map(String::as_str).collect();
    let removed = tokio::time::timeout(CLEARING, client.batch_remove(&keys, true)).await;
    let is_gone = |outcome: &Result<(), mc_rpc::Refusal>| match outcome {
        Ok(()) => true,
        Err(refusal) => refusal.code == ErrorCode::ObjectNotFound,
    };
    match removed {
        Ok(Ok(outcomes)) if outcomes.iter().all(is_gone) => Ok(()),
        _ => Err(CtlError::BenchLeft { prefix: prefix.into() }),
    }
}

/// The work of all workers.
struct Load {
    client: Client,
    prefix: String,
    value: Bytes,
    rounds: u64,
    begun: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    /// Does rounds until there are enough.
    async fn work(self: Arc<Self>) -> Seen {
        let mut seen = Seen::default();
        while !self.is_over.load(Relaxed) {
            let number = self.begun.fetch_add(1, Relaxed);
            if number >= self.rounds {
                break;
            }
            let key = format!("{}{number}", self.prefix);
            if let Err(error) = self.round(&key, &mut seen).await {
                seen.first_error.get_or_insert(error);
                seen.left.push(key);
                if seen.left.len() == MOST_FAILURES {
                    self.is_over.store(true, Relaxed);
                }
            }
        }
        seen
    }

    async fn round(&self, key: &str, seen: &mut Seen) -> Result<(), CtlError> {
        let Self { client, value, .. } = self;
        let [put, exist, get, remove] = &mut seen.steps;
        let config = ReplicateConfig::default();
        let stored = put.timed(client.put_with(key, value.clone(), &config)).await;
        stored.map_err(|source| CtlError::Put { key: key.into(), source })?;
        exist.timed(client.exist(key)).await?;
        let got = get.timed(client.get(key)).await;
        got.map_err(|source| CtlError::Get { key: key.into(), source })?;
        // The get has granted a lease.
        match remove.timed(client.remove(key, true)).await {
            Err(error) if error.code() != ErrorCode::ObjectNotFound => Err(error.into()),
            // Evicted meanwhile.
            _ => Ok(()),
        }
    }
}

/// The calls of one step.
#[derive(Default)]
struct Step {
    latencies: Latencies,
    /// Time in calls that succeeded, of all workers together.
    busy: Duration,
    errors: u64,
}

impl Step {
    async fn timed<T, E>(&mut self, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let begun = Instant::now();
        let outcome = call.await;
        if outcome.is_ok() {
            let took = begun.elapsed();
            self.latencies.record(took);
            self.busy += took;
        } else {
            self.errors += 1;
        }
        outcome
    }

    /// Calls a second while all workers are at this step.
    fn rate(&self, concurrency: u16) -> f64 {
        let seconds = self.busy.as_secs_f64();
        if seconds == 0.0 {
            return 0.0;
        }
        self.latencies.count() as f64 * f64::from(concurrency) / seconds
    }
}

/// The outcome of some rounds.
#[derive(Default)]
struct Seen {
    steps: [Step; 4],
    first_error: Option<CtlError>,
    /// Keys of failed rounds.
    left: Vec<String>,
}

impl Seen {
    fn merge(&mut self, other: Self) {
        for (all, one) in self.steps.iter_mut().zip(other.steps) {
            all.latencies.merge(&one.latencies);
            all.busy += one.busy;
            all.errors += one.errors;
        }
        self.first_error = self.first_error.take().or(other.first_error);
        self.left.extend(other.left);
    }

    fn text(&self, bench: &args::Bench, took: Duration) -> String {
        let millis = |micros: u64| format!("{:.3} ms", micros as f64 / 1e3);
        let rows: Vec<[String; 7]> = STEPS
            .iter()
            .zip(&self.steps)
            .map(|(name, step)| {
                let rate = step.rate(bench.concurrency);
                let bytes = ByteSize::bytes((rate * bench.size.as_u64() as f64) as u64);
                [
                    (*name).into(),
                    step.latencies.count().to_string(),
                    step.errors.to_string(),
                    millis(step.latencies.quantile_us(0.5)),
                    millis(step.latencies.quantile_us(0.99)),
                    format!("{rate:.0}"),
                    if moves_value(name) { bytes.to_string() } else { String::new() },
                ]
            })
            .collect();
        let head = ["CALL", ">COUNT", ">ERRORS", ">P50", ">P99", ">A SECOND", ">BYTES A SECOND"];
        let workers = bench.concurrency;
        table(head, &rows)
            + &format!("{workers} at a time, values of {}, for {}\n", bench.size, duration(took))
    }

    fn lines(&self, bench: &args::Bench) -> String {
        let line = |(name, step): (&&str, &Step)| {
            let rate = step.rate(bench.concurrency);
            let bytes = moves_value(name).then_some(rate * bench.size.as_u64() as f64);
            let line = json!({
                "call": name,
                "count": step.latencies.count(),
                "errors": step.errors,
                "p50_us": step.latencies.quantile_us(0.5),
                "p99_us": step.latencies.quantile_us(0.99),
                "per_s": rate,
                "bytes_per_s": bytes,
            });
            line.to_string() + "\n"
        };
        STEPS.iter().zip(&self.steps).map(line).collect()
    }
}

/// Whether a step takes the value's bytes from here or brings them here.
fn moves_value(step: &str) -> bool {
    matches!(step, "put" | "get")
}
