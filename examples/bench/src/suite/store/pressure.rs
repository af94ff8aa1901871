//! Many writers against a pool that is too small.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use mc_store::{Client, GetError, PutOutcome};

use super::MIB;
use super::cluster::{Carrier, Plan};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::Placement;
use crate::scale::Scale;

/// Writers, each with one put in flight.
const WRITERS: u64 = 64;

/// Bytes of a value.
const VALUE: usize = MIB / 4;

/// After so many puts a writer reads something that it put.
const READ_EVERY: u64 = 16;

/// Prints what becomes of 64 writers when the pool holds a third of what they put,
/// and, for comparison, when it holds everything.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let pool = scale.pick(512 * MIB, 384 * MIB, 48 * MIB);
    let keys = (3 * pool / VALUE) as u64;
    let (idle_time, time) = scale.pick((10.0, 60.0), (3.0, 10.0), (0.3, 0.3));
    let work = |keys, seconds| Pressure {
        writers: WRITERS,
        warm_up: 2 * pool / VALUE / WRITERS as usize,
        keys,
        time: Duration::from_secs_f64(seconds),
    };
    // Half of what fits, so that nothing is ever evicted.
    let calm = work(keys / 6, idle_time);
    let hard = work(keys, time);
    let mut idle = calm.run(pool)?;
    let mut pressed = hard.run(pool)?;
    let with = |figure: Figure| {
        let figure = figure.with("writers", WRITERS).with("value", VALUE).with("pool", pool);
        figure.with("seconds", hard.time.as_secs_f64())
    };
    let p99 = pressed.latencies.quantile_us(0.99);
    let idle_p99 = idle.latencies.quantile_us(0.99);
    report.add(with(Figure::new("pressure_failed_puts", pressed.failed as f64, "puts")))?;
    let ratio = with(Figure::new("pressure_p99_ratio", p99 / idle_p99, "ratio"));
    report.add(ratio.with("idle", "same writers, room for all"))?;
    report.add(with(Figure::new("pressure_p99_us", p99, "µs").versus("room for all", idle_p99)))?;
    let puts = pressed.latencies.len() as f64;
    report.add(with(Figure::new("pressure_puts_per_s", puts / pressed.seconds, "1/s")))?;
    let checked = pressed.checked as f64;
    report.add(with(Figure::new("pressure_checked_reads", checked, "reads")))
}

/// The amount of pressure.
struct Pressure {
    writers: u64,
    /// Puts of each writer before its times count: together they touch every page of
    /// the pool for the first time, which costs more than the put.
    warm_up: usize,
    /// Different keys, all of which are put over and over.
    keys: u64,
    time: Duration,
}

#[derive(Default)]
struct PressureOutcome {
    /// Puts that stored something.
    latencies: Latencies,
    failed: u64,
    checked: u64,
    seconds: f64,
}

impl Pressure {
    fn run(&self, pool: usize) -> Result<PressureOutcome, BenchError> {
        let cluster = Plan::new(Placement::Free, Carrier::Tcp, pool).start()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = cluster.client().await?;
            // What a value says is its key modulo this, so that few are kept here.
            let values: Arc<[Bytes]> =
                (0..WRITERS).map(|n| Pattern::new(n).bytes(VALUE).into()).collect();
            let start = Instant::now();
            let writers = (0..self.writers).map(|number| {
                let writer = Writer {
                    client: client.clone(),
                    values: Arc::clone(&values),
                    random: fastrand::Rng::with_seed(number),
                    keys: self.keys,
                    warm_up: self.warm_up,
                    end: start + self.time,
                };
                async {
                    let joined = tokio::spawn(writer.run()).await;
                    joined.unwrap_or_else(|error| {
                        Err(BenchError::wrong("writing", error.to_string()))
                    })
                }
            });
            let mut total = PressureOutcome::default();
            for outcome in try_join_all(writers).await? {
                total.latencies.merge(outcome.latencies);
                total.failed += outcome.failed;
                total.checked += outcome.checked;
            }
            total.seconds = start.elapsed().as_secs_f64();
            client.shutdown().await;
            Ok(total)
        })
    }
}

struct Writer {
    client: Client,
    values: Arc<[Bytes]>,
    random: fastrand::Rng,
    keys: u64,
    warm_up: usize,
    end: Instant,
}

impl Writer {
    async fn run(mut self) -> Result<PressureOutcome, BenchError> {
        let mut outcome = PressureOutcome::default();
        for turn in 1_u64.. {
            let start = Instant::now();
            if start >= self.end {
                break;
            }
            let number = self.random.u64(..self.keys);
            let key = format!("pressure-{number}");
            let value = self.values[(number % WRITERS) as usize].clone();
            match self.client.put(&key, value).await {
                Ok(PutOutcome::Stored) if self.warm_up > 0 => self.warm_up -= 1,
                Ok(PutOutcome::Stored) => outcome.latencies.add(start.elapsed()),
                // Another writer was faster; no bytes were moved.
                Ok(_) => {
                    self.forget(&key).await?;
                }
                Err(error) => {
                    if outcome.failed == 0 {
                        eprintln!("store: a put failed under pressure: {error}");
                    }
                    outcome.failed += 1;
                }
            }
            if turn % READ_EVERY == 0 {
                outcome.checked += self.read_back().await?;
            }
        }
        Ok(outcome)
    }

    /// Removes a key that is there already, so that it can be put again. That it
    /// is being read, or is gone meanwhile, is as good.
    async fn forget(&self, key: &str) -> Result<(), BenchError> {
        match self.client.remove(key, false).await {
            Ok(()) => Ok(()),
            Err(mc_store::CallError::Rpc(mc_rpc::RpcError::Refused(_))) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a value that may have been evicted; whatever is read must be right.
    async fn read_back(&mut self) -> Result<u64, BenchError> {
        let number = self.random.u64(..self.keys);
        match self.client.get(&format!("pressure-{number}")).await {
            Ok(value) => {
                Pattern::new(number % WRITERS).check("get under pressure", 0, &value)?;
                Ok(1)
            }
            Err(GetError::NotFound | GetError::NotReady) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}
