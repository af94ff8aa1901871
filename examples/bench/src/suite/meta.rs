//! The master's state machine, in process: memory per object, commands per
//! second, and what eviction costs.

mod policies;

use std::collections::HashMap;
use std::io::Write;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use mc_meta::{Master, MasterConfig, PutEnd, PutStart, ReplicateConfig};
use mc_types::{ClientId, SegmentId, Time};
use serde::{Deserialize, Serialize};

use super::alloc::check_disjoint;
use super::keys::KeyWriter;
use super::segments;
use crate::cpu_clock::CpuClock;
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::latency::Latencies;
use crate::process::{self, Peer, Task};
use crate::scale::Scale;

/// Segments of the cluster.
const SEGMENTS: u32 = 16;

/// Bytes of an object. The master keeps books of them; they are not stored.
const OBJECT: u64 = 4096;

const WRITER: ClientId = ClientId::from_u128(1);

/// Objects that one measurement of eviction takes.
const EVICTED: u64 = 50_000;

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let keys = scale.pick(10_000_000, 1_000_000, 50_000);
    let (_, bytes) = Peer::start::<_, f64>(&MemoryTask { keys })?;
    report.add(Figure::new("bytes_per_key", bytes, "B").with("keys", keys))?;
    puts(scale, report)?;
    gets(scale, report)?;
    policies::run(scale, report)?;
    evictions(scale, report)
}

fn failed(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> BenchError {
    move |error| BenchError::wrong(what, error.to_string())
}

/// A master with room for `objects` objects, exactly.
fn master(config: MasterConfig, objects: u64) -> Result<Master, BenchError> {
    let master =
        Master::new(config, 42).map_err(|error| BenchError::start("master")(error.into()))?;
    let mounting = failed("mounting a segment");
    for number in 0..SEGMENTS {
        let spec = segments::spec(number, objects.div_ceil(SEGMENTS.into()) * OBJECT)?;
        let mounted = master.mount_segment(Time::ORIGIN, ClientId::from_u128(2), spec);
        mounted.map_err(|error| mounting(&error))?;
    }
    Ok(master)
}

fn put_pair(
    master: &Master,
    now: Time,
    keys: &mut KeyWriter,
    number: u64,
) -> Result<(SegmentId, u64), BenchError> {
    let key = keys.key(number);
    let put = PutStart { key, slice_lengths: &[OBJECT], config: &ReplicateConfig::default() };
    let grant = master.put_start(now, WRITER, &put);
    let grant = grant.map_err(|error| failed("put_start")(&error))?;
    let end = PutEnd::new(key, grant.handle);
    master.put_end(now, WRITER, &end).map_err(|error| failed("put_end")(&error))?;
    let placement = &grant.placements[0];
    if placement.extent.len() != OBJECT {
        return Err(BenchError::wrong("put_start", format!("granted {}", placement.extent)));
    }
    Ok((placement.segment.spec().id, placement.extent.offset()))
}

/// Puts the objects of these numbers and checks that no two share a byte.
fn fill(master: &Master, family: u32, numbers: std::ops::Range<u64>) -> Result<(), BenchError> {
    let mut keys = KeyWriter::new(family);
    let mut extents: HashMap<SegmentId, Vec<(u64, u64)>> = HashMap::new();
    for number in numbers {
        let (segment, offset) = put_pair(master, Time::ORIGIN, &mut keys, number)?;
        extents.entry(segment).or_default().push((offset, OBJECT));
    }
    for extents in extents.values_mut() {
        check_disjoint("put_start", extents, u64::MAX)?;
    }
    Ok(())
}

/// The parameters of [`measure_memory`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MemoryTask {
    /// Objects.
    pub(crate) keys: u64,
}

impl Task for MemoryTask {
    const ROLE: &'static str = "meta_memory";
    const NAME: &'static str = "metadata";
}

/// Measures the resident memory of a master's objects, segments included, in a
/// process where nothing else takes or returns memory.
pub(crate) fn measure_memory(task: &MemoryTask) -> Result<(), BenchError> {
    let before = process::own_resident_bytes()?;
    let master = master(MasterConfig::default(), task.keys + task.keys / 4)?;
    let mut keys = KeyWriter::new(0);
    for number in 0..task.keys {
        put_pair(&master, Time::ORIGIN, &mut keys, number)?;
    }
    let after = process::own_resident_bytes()?;
    let objects = master.report().totals.objects;
    if objects != task.keys {
        return Err(BenchError::wrong("counting objects", format!("{objects} of {}", task.keys)));
    }
    process::say(&(after.saturating_sub(before) as f64 / task.keys as f64))
}

fn puts<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let live = scale.pick(1_000_000, 1_000_000, 20_000);
    let each = scale.pick(1_000_000, 500_000, 20_000);
    let mut single = None;
    for threads in [1, 2] {
        let master = master(MasterConfig::default(), 4 * (live + threads * each))?;
        fill(&master, 0, 0..live)?;
        let spent = in_threads(threads, |thread| {
            let mut keys = KeyWriter::new(1 + thread as u32);
            for number in 0..each {
                put_pair(&master, Time::ORIGIN, &mut keys, number)?;
            }
            Ok(())
        })?;
        let totals = master.report().totals;
        let expected = live + threads * each;
        if totals.objects != expected || totals.used != expected * OBJECT {
            let found = format!("{} objects, {} bytes used", totals.objects, totals.used);
            return Err(BenchError::wrong("putting", found));
        }
        let names = ["put_pairs_per_s", "put_pairs_per_cpu_s"];
        let with = |figure: Figure| figure.with("threads", threads).with("live", live);
        single = Some(spent.report(report, names, threads * each, single, with)?);
    }
    Ok(())
}

fn gets<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let count = scale.pick(4_000_000, 2_000_000, 20_000);
    for live in scale.pick(vec![1_000_000, 10_000_000], vec![1_000_000], vec![20_000]) {
        let master = master(MasterConfig::default(), 2 * live)?;
        fill(&master, 0, 0..live)?;
        let mut single = None;
        for threads in [1, 2] {
            let spent = in_threads(threads, |thread| {
                let mut keys = KeyWriter::new(0);
                let mut random = fastrand::Rng::with_seed(thread);
                for _ in 0..count {
                    let key = keys.key(random.u64(..live));
                    let list = master.get_replica_list(Time::ORIGIN, key);
                    let list = list.map_err(|error| failed("get_replica_list")(&error))?;
                    if list.placements[0].extent.len() != OBJECT {
                        return Err(BenchError::wrong("get_replica_list", "another length"));
                    }
                }
                Ok(())
            })?;
            let names = ["gets_per_s", "gets_per_cpu_s"];
            let with = |figure: Figure| figure.with("threads", threads).with("live", live);
            single = Some(spent.report(report, names, threads * count, single, with)?);
        }
        for batch in [128, 1_024] {
            let spent = in_threads(1, |_| batch_gets(&master, live, count / batch, batch))?;
            let names = ["gets_per_s", "gets_per_cpu_s"];
            let with =
                |figure: Figure| figure.with("threads", 1).with("live", live).with("batch", batch);
            spent.report(report, names, count / batch * batch, None, with)?;
        }
    }
    Ok(())
}

/// Reads `batches` times `batch` keys drawn at random.
fn batch_gets(master: &Master, live: u64, batches: u64, batch: u64) -> Result<(), BenchError> {
    let mut random = fastrand::Rng::with_seed(batch);
    let mut writers: Vec<KeyWriter> = (0..batch).map(|_| KeyWriter::new(0)).collect();
    for _ in 0..batches {
        let keys: Vec<_> =
            writers.iter_mut().map(|writer| writer.key(random.u64(..live))).collect();
        for list in master.batch_get_replica_list(Time::ORIGIN, &keys) {
            let list = list.map_err(|error| failed("batch_get_replica_list")(&error))?;
            if list.placements[0].extent.len() != OBJECT {
                return Err(BenchError::wrong("batch_get_replica_list", "another length"));
            }
        }
    }
    Ok(())
}

/// The durations of commands of several threads.
struct Spent {
    /// Seconds until the last thread was done.
    wall: f64,
    /// Seconds on CPUs, all threads together: what the commands themselves cost,
    /// also on a machine that does other work meanwhile.
    cpu: f64,
}

impl Spent {
    /// Prints a rate by the clock and one by the CPU. The first is compared with
    /// `single`, that of one thread; gives it back.
    fn report<W: Write>(
        &self,
        report: &mut Report<W>,
        [by_clock, by_cpu]: [&'static str; 2],
        calls: u64,
        single: Option<f64>,
        with: impl Fn(Figure) -> Figure,
    ) -> Result<f64, BenchError> {
        let rate = calls as f64 / self.wall;
        let figure = Figure::new(by_clock, rate, "1/s");
        report.add(with(figure).maybe_versus("one thread", single))?;
        report.add(with(Figure::new(by_cpu, calls as f64 / self.cpu, "1/CPU s")))?;
        Ok(rate)
    }
}

/// Runs `work` in that many threads at once.
fn in_threads(
    threads: u64,
    work: impl Fn(u64) -> Result<(), BenchError> + Sync,
) -> Result<Spent, BenchError> {
    let barrier = Barrier::new(threads as usize + 1);
    std::thread::scope(|scope| {
        let run = |thread| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                let clock = CpuClock::start();
                work(thread)?;
                Ok::<_, BenchError>(clock.elapsed())
            })
        };
        let workers: Vec<_> = (0..threads).map(run).collect();
        barrier.wait();
        let (start, mut cpu) = (Instant::now(), 0.0);
        for worker in workers {
            let spent = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            cpu += spent.as_secs_f64();
        }
        Ok(Spent { wall: start.elapsed().as_secs_f64(), cpu })
    })
}

/// The durations of evicting.
struct Eviction {
    /// Seconds on a CPU.
    seconds: f64,
    /// Each call of `tick`, on a CPU.
    ticks: Latencies,
    /// Reads in another thread meanwhile.
    reads: Latencies,
    /// Such reads for as long while nothing is evicted and the first thread is as
    /// busy: what the machine alone does to them.
    calm: Latencies,
}

fn evictions<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let populations = scale.pick([1_000_000, 10_000_000], [100_000, 1_000_000], [60_000, 120_000]);
    let mut seconds = [0.0; 2];
    for (live, seconds) in populations.into_iter().zip(&mut seconds) {
        let mut eviction = evict(live)?;
        *seconds = eviction.seconds;
        let with = |figure: Figure| figure.with("live", live).with("evicted", EVICTED);
        let ms = eviction.seconds * 1e3;
        report.add(with(Figure::new("evict_ms", ms, "ms").with("clock", "cpu")))?;
        let pause = eviction.reads.max_us();
        let figure = Figure::new("max_pause_us", pause, "µs").with("command", "get");
        report.add(with(figure).versus("no eviction", eviction.calm.max_us()))?;
        let usual = Figure::new("get_p99_us", eviction.reads.quantile_us(0.99), "µs");
        report.add(with(usual).versus("no eviction", eviction.calm.quantile_us(0.99)))?;
        let tick = Figure::new("tick_max_us", eviction.ticks.max_us(), "µs");
        report.add(with(tick.with("clock", "cpu")))?;
    }
    let figure = Figure::new("evict_scale_ratio", seconds[1] / seconds[0], "ratio");
    report.add(figure.with("live", format!("{}/{}", populations[1], populations[0])))
}

/// Fills a master with `live` objects and lets it evict [`EVICTED`] of them, while
/// another thread reads.
fn evict(live: u64) -> Result<Eviction, BenchError> {
    let mut config = MasterConfig::default();
    // Full, the master is just that many objects above its watermark.
    config.eviction_high_watermark_ratio = 1.0 - EVICTED as f64 / live as f64;
    config.eviction_ratio = 0.0;
    let master = master(config, live)?;
    fill(&master, 0, 0..live)?;
    let ((seconds, wall, ticks), reads) = beside_reads(&master, live, || {
        let mut ticks = Latencies::default();
        let (clock, start) = (CpuClock::start(), Instant::now());
        loop {
            let tick = CpuClock::start();
            let more = master.tick(Time::from_millis(1));
            ticks.add(tick.elapsed());
            if !more {
                return (clock.elapsed().as_secs_f64(), start.elapsed(), ticks);
            }
        }
    });
    let totals = master.report().totals;
    let evicted = totals.evicted_objects;
    if evicted.abs_diff(EVICTED) > EVICTED / 50 {
        let found = format!("{evicted} objects evicted instead of about {EVICTED}");
        return Err(BenchError::wrong("evicting", found));
    }
    if totals.used != totals.objects * OBJECT || totals.objects + evicted != live {
        let found = format!("{} objects hold {} bytes", totals.objects, totals.used);
        return Err(BenchError::wrong("evicting", found));
    }
    let ((), calm) = beside_reads(&master, live, || {
        let start = Instant::now();
        while start.elapsed() < wall {}
    });
    let seconds = seconds * EVICTED as f64 / evicted as f64;
    Ok(Eviction { seconds, ticks, reads, calm })
}

/// Does `work` while another thread reads, and gives what `work` gave and how long
/// the reads took. What is read is the youngest eighth of the first `live` numbers:
/// it is far from eviction, and a lease on a victim would set it aside.
fn beside_reads<T>(master: &Master, live: u64, work: impl FnOnce() -> T) -> (T, Latencies) {
    let done = AtomicBool::new(false);
    let begun = Barrier::new(2);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut keys = KeyWriter::new(0);
            let mut random = fastrand::Rng::with_seed(7);
            let mut reads = Latencies::default();
            begun.wait();
            while !done.load(Ordering::Acquire) {
                let key = keys.key(random.u64(live / 8 * 7..live));
                let start = Instant::now();
                let found = master.get_replica_list(Time::ORIGIN, key);
                reads.add(start.elapsed());
                std::hint::black_box(&found);
            }
            reads
        });
        begun.wait();
        let outcome = work();
        done.store(true, Ordering::Release);
        let reads = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (outcome, reads)
    })
}
