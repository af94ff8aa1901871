//! How much of a disk's rate arrives at those who read objects.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mc_tier::{FileBackend, FileSettings, LogSettings, LogTier, Tier};
use mc_types::ByteSize;

use super::TierOptions;
use super::fio::{self, Reading};
use super::objects::{check, id, object};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::interrupt;
use crate::process::own_cpu_seconds;
use crate::scale::Scale;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes of an object, and of a read of fio.
const SIZES: [usize; 2] = [64 * KIB, MIB];

/// Reads in flight.
const DEPTH: u32 = 32;

/// Threads that read. One takes what was read while the reads of the other are in flight.
const CALLERS: u64 = 2;

/// Threads that put.
const WRITERS: u64 = 4;

/// Every so many objects are compared byte by byte. All of them are compared with their checksums.
const CHECKED: usize = 16;

/// Prints the rates of batched reads, and the part that they are of fio's.
pub(super) fn run<W: Write>(
    scale: Scale,
    options: &TierOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    for size in SIZES {
        let directory = options.make_directory()?;
        let bytes = scale.pick(2048, 640, 40) * MIB;
        let settings = FileSettings::default();
        // What the records, tables and footers take more, and a free segment.
        let len = ByteSize::bytes((bytes + bytes / 8 + 256 * MIB) as u64);
        let backend = FileBackend::open_with(directory.path(), len, settings)?;
        let (is_direct, is_ring) = (backend.is_direct(), backend.uses_io_uring());
        let disk = Disk {
            tier: LogTier::open(backend, LogSettings::default())?,
            size,
            objects: (bytes / size) as u64,
        };
        disk.fill()?;
        let file = directory.path().join("objects.log");
        let reading = Reading {
            file: &file,
            // All of it was written: a hole takes no time to read.
            len: bytes as u64,
            block: size,
            depth: DEPTH,
            engine: if is_ring { "io_uring" } else { "libaio" },
            is_direct,
        };
        let figure = |name, value, unit| {
            let figure = Figure::new(name, value, unit).with("size", size).with("depth", DEPTH);
            let queue = if is_ring { "io_uring" } else { "threads" };
            figure.with("direct", is_direct).with("queue", queue)
        };
        disk.measure(scale, &reading, &figure, report)?;
    }
    Ok(())
}

/// A log with objects of one size.
struct Disk {
    tier: LogTier,
    size: usize,
    objects: u64,
}

impl Disk {
    fn fill(&self) -> Result<(), BenchError> {
        let put = |first: u64| {
            for number in (first..self.objects).step_by(WRITERS as usize) {
                interrupt::check()?;
                self.tier.put(&id(number)?, &object(number, self.size)?)?;
            }
            Ok::<_, BenchError>(())
        };
        in_threads(WRITERS, put)?;
        Ok(self.tier.sync()?)
    }

    fn measure<W: Write>(
        &self,
        scale: Scale,
        reading: &Reading<'_>,
        figure: &dyn Fn(&'static str, f64, &'static str) -> Figure,
        report: &mut Report<W>,
    ) -> Result<(), BenchError> {
        let turns = scale.pick(15, 9, 1);
        let duration = Duration::from_millis(scale.pick(2000, 700, 100));
        let (mut ours, mut fios, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let (mut cpu, mut bytes) = (0.0, 0.0);
        for turn in 0..turns {
            interrupt::check()?;
            // Each is the first in every other turn: some disks slow down for who comes second.
            let is_first = turn % 2 == 1;
            let before_us = if is_first { None } else { fio::measure(reading, duration)? };
            let before = own_cpu_seconds()?;
            let rate = self.read(duration)?;
            cpu += own_cpu_seconds()? - before;
            let fio = if is_first { fio::measure(reading, duration)? } else { before_us };
            bytes += rate * duration.as_secs_f64();
            ours.push(rate);
            if let Some(fio) = fio {
                fios.push(fio);
                ratios.push(rate / fio);
            }
        }
        let fio = median(&mut fios);
        let rate = figure("ssd_read_gbps", median(&mut ours).unwrap_or(0.0) / 1e9, "GB/s");
        report.add(rate.maybe_versus("fio", fio.map(|fio| fio / 1e9)))?;
        report.add(figure("ssd_read_cpu_s_per_gb", cpu / bytes * 1e9, "s"))?;
        let (Some(fio), Some(ratio)) = (fio, median(&mut ratios)) else {
            eprintln!("tier: no ssd_read_ratio, for there is no fio: apt-get install fio");
            return Ok(());
        };
        report.add(figure("fio_read_gbps", fio / 1e9, "GB/s"))?;
        report.add(figure("ssd_read_ratio", ratio, "ratio").with("turns", turns))
    }

    /// Bytes per second of batches of random objects.
    fn read(&self, duration: Duration) -> Result<f64, BenchError> {
        let batch = (DEPTH as usize * MIB / self.size).clamp(DEPTH as usize, 256);
        let (bytes, start) = (AtomicU64::new(0), Instant::now());
        let read = |_| {
            while start.elapsed() < duration {
                let numbers: Vec<_> = (0..batch).map(|_| fastrand::u64(..self.objects)).collect();
                let ids =
                    numbers.iter().map(|number| id(*number)).collect::<Result<Vec<_>, _>>()?;
                let found = self.tier.get_many(&ids);
                for (place, (number, found)) in numbers.into_iter().zip(found).enumerate() {
                    let found = found?.ok_or_else(|| BenchError::wrong("get", "nothing"))?;
                    if place % CHECKED == 0 {
                        check(number, self.size, &found)?;
                    }
                    bytes.fetch_add(found.slices()[0].info().len, Relaxed);
                }
            }
            Ok::<_, BenchError>(())
        };
        in_threads(CALLERS, read)?;
        Ok(bytes.into_inner() as f64 / start.elapsed().as_secs_f64())
    }
}

/// Runs a function with each number below `count`, all at once.
fn in_threads(
    count: u64,
    run: impl Fn(u64) -> Result<(), BenchError> + Sync,
) -> Result<(), BenchError> {
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || run(number))).collect();
        let ended = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// `None` of none.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
