//! The cost of the shared tier for puts.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_store::{Client, Memory, PutOutcome, ReplicateConfig};
use tokio::time::MissedTickBehavior;

use super::{TierOptions, as_text};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::interrupt;
use crate::latency::Latencies;
use crate::pattern::Pattern;
use crate::placement::Placement;
use crate::process::ClientRuntime;
use crate::scale::Scale;
use crate::suite::store::{Carrier, Cluster, Plan};

/// Bytes of an object.
const SIZE: usize = 1 << 20;

/// Different values; each object has one of them.
const VALUES: u64 = 4;

/// Rest before a window, so that both clusters begin with an idle machine.
const REST: Duration = Duration::from_millis(50);

/// The time for which a read protects an object: those that the run reads are a small part of the segment.
const LEASE: Duration = Duration::from_millis(500);

/// Time limit for the files of a window.
const PATIENCE: Duration = Duration::from_secs(60);

/// How objects are put.
#[derive(Clone, Copy, Debug)]
struct Load {
    name: &'static str,
    call: Call,
    /// Puts that follow each other at once.
    burst: usize,
    /// Time from the begin of a burst to that of the next one; zero for none.
    interval: Duration,
    /// Puts of a window, when one cluster or the other is measured.
    window: usize,
}

/// Where the bytes of an object are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// In [`Bytes`], which the client keeps until the file is written.
    Put,
    /// In memory that the caller may change after the put: the client copies it.
    PutFrom,
}

impl Call {
    const fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::PutFrom => "put_from",
        }
    }
}

/// 200 objects in a second are the keys and values of some thousand tokens, and fewer bytes than an SSD
/// takes for long: files do not wait for each other, and what is measured is a put beside the
/// writing of files. `paced` is the target's load: a put finds the file of the one before it
/// written or under way. In a `burst`, as at the end of a request's prefill, all puts but the
/// first do so. `saturated` puts without a pause, as no application does for long: the client, the
/// node and the files want more processors than there may be.
const LOADS: [Load; 4] = [
    Load {
        name: "paced",
        call: Call::Put,
        burst: 1,
        interval: Duration::from_millis(5),
        window: 40,
    },
    Load {
        name: "paced",
        call: Call::PutFrom,
        burst: 1,
        interval: Duration::from_millis(5),
        window: 40,
    },
    Load {
        name: "burst",
        call: Call::Put,
        burst: 8,
        interval: Duration::from_millis(40),
        window: 40,
    },
    Load { name: "saturated", call: Call::Put, burst: 1, interval: Duration::ZERO, window: 40 },
];

/// Prints the latency of puts into a cluster whose clients keep a file of each object over that into one
/// without files.
///
/// The clusters live at once and take turns of a window. The ratio is the median over pairs of windows
/// that follow each other, each of the median put. Between windows the client waits until all files are written;
/// when the kernel writes them to the disk, both clusters are disturbed alike.
pub(super) fn run<W: Write>(
    scale: Scale,
    options: &TierOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let rounds = scale.pick(18, 3, 1);
    let segment: usize = scale.pick(256 << 20, 256 << 20, 128 << 20);
    // Removed when all is measured: ext4 takes long to make files right after others were deleted.
    let directory = options.make_directory()?;
    for (number, load) in LOADS.into_iter().enumerate() {
        let root = directory.path().join(number.to_string());
        std::fs::create_dir(&root)?;
        let plan = Plan::new(Placement::Free, Carrier::Tcp, segment).with_lease(LEASE);
        let with_files = plan.clone().with_shared_tier(&as_text(&root)?);
        let clusters = [plan.start()?, with_files.start()?];
        let measuring = interrupt::or_asked(measure(&clusters, load, segment / SIZE, rounds));
        let Measured { mut puts, mut ratios } =
            ClientRuntime::Multi.start()?.block_on(measuring)?;
        let with = |figure: Figure| {
            let interval = load.interval.as_secs_f64() * 1e3;
            let figure = figure.with("load", load.name).with("call", load.call.name());
            figure.with("size", SIZE).with("burst", load.burst).with("interval_ms", interval)
        };
        for (shared_tier, puts) in ["off", "on"].into_iter().zip(&mut puts) {
            for (name, quantile) in [("put_p50_us", 0.5), ("put_p99_us", 0.99)] {
                let figure = Figure::new(name, puts.quantile_us(quantile), "µs");
                report.add(with(figure).with("shared_tier", shared_tier))?;
            }
        }
        ratios.sort_by(f64::total_cmp);
        let ratio = ratios[ratios.len() / 2];
        let figure = Figure::new("put_latency_ratio", ratio, "ratio");
        report.add(with(figure).with("rounds", rounds))?;
    }
    Ok(())
}

/// Without files, and with.
struct Measured {
    puts: [Latencies; 2],
    /// One for each pair of windows.
    ratios: Vec<f64>,
}

async fn measure(
    [off, on]: &[Cluster; 2],
    load: Load,
    warm_up: usize,
    rounds: usize,
) -> Result<Measured, BenchError> {
    let mut sides = [TierSide::connect(off, load).await?, TierSide::connect(on, load).await?];
    for side in &mut sides {
        side.warm_up(warm_up).await?;
    }
    let mut puts = [Latencies::default(), Latencies::default()];
    let mut ratios = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let mut medians = [0.0; 2];
        // The one that goes first changes, too.
        for at in [round % 2, 1 - round % 2] {
            let mut window = sides[at].window().await?;
            medians[at] = window.p50_us();
            puts[at].merge(window);
        }
        ratios.push(medians[1] / medians[0]);
    }
    sides[1].check_files()?;
    for side in sides {
        side.client.shutdown().await;
    }
    Ok(Measured { puts, ratios })
}

/// A client of one cluster.
struct TierSide {
    client: Client,
    load: Load,
    values: Vec<(Pattern, Bytes, Memory)>,
    /// Objects that were put.
    count: usize,
}

impl TierSide {
    async fn connect(cluster: &Cluster, load: Load) -> Result<Self, BenchError> {
        let client = cluster.client().await?;
        let value = |seed| {
            let pattern = Pattern::new(seed);
            let bytes = pattern.bytes(SIZE);
            let memory = Memory::allocate(SIZE)?;
            memory.whole().copy_from(0, &bytes).expect("the same length");
            Ok::<_, BenchError>((pattern, bytes.into(), memory))
        };
        let values = (0..VALUES).map(value).collect::<Result<_, _>>()?;
        Ok(Self { client, load, values, count: 0 })
    }

    /// Puts once into the whole segment, so that no measured put is the first to touch a page, and
    /// eviction is under way.
    async fn warm_up(&mut self, puts: usize) -> Result<(), BenchError> {
        for _ in 0..puts {
            self.put(Call::Put).await?;
        }
        self.flush().await
    }

    /// Puts as the load has it. Then reads the last object, and waits until all files are written.
    async fn window(&mut self) -> Result<Latencies, BenchError> {
        tokio::time::sleep(REST).await;
        let mut latencies = Latencies::default();
        let interval = self.load.interval;
        let mut ticks = tokio::time::interval(interval.max(Duration::from_nanos(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 0..self.load.window {
            if !interval.is_zero() && number % self.load.burst == 0 {
                ticks.tick().await;
            }
            latencies.add(self.put(self.load.call).await?);
        }
        let last = self.count - 1;
        let found = self.client.get(&key(last)).await?;
        self.values[last % self.values.len()].0.check("get", 0, &found)?;
        self.flush().await?;
        Ok(latencies)
    }

    async fn put(&mut self, call: Call) -> Result<Duration, BenchError> {
        let number = self.count;
        self.count += 1;
        let (key, (_, bytes, memory)) = (key(number), &self.values[number % self.values.len()]);
        let (bytes, memory, config) = (bytes.clone(), memory.whole(), ReplicateConfig::default());
        let start = Instant::now();
        let outcome = match call {
            Call::Put => self.client.put(&key, bytes).await?,
            Call::PutFrom => self.client.put_from(&key, &memory, &config).await?,
        };
        let took = start.elapsed();
        if outcome != PutOutcome::Stored {
            return Err(BenchError::wrong("put", format!("{outcome:?} for a new key")));
        }
        Ok(took)
    }

    async fn flush(&self) -> Result<(), BenchError> {
        if self.client.flush_files(PATIENCE).await {
            return Ok(());
        }
        Err(BenchError::wrong("writing files", format!("not done after {PATIENCE:?}")))
    }

    /// Checks that each object has got a file.
    fn check_files(&self) -> Result<(), BenchError> {
        let files = self.client.metrics().shared_tier.unwrap_or_default();
        let written = files.writes.count() - files.failed_writes;
        if written != self.count as u64 {
            let found = format!("{written} of {} objects have a file", self.count);
            return Err(BenchError::wrong("writing files", found));
        }
        Ok(())
    }
}

fn key(number: usize) -> String {
    format!("put-{number}")
}
