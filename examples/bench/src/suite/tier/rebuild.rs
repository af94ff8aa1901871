//! How soon a log is open again after its process was killed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use mc_tier::{DirectIo, FileBackend, FileSettings, LogSettings, LogTier, Tier};
use mc_types::ByteSize;
use serde::{Deserialize, Serialize};

use super::TierOptions;
use super::objects::{check, id, object};
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::interrupt;
use crate::process::{self, Peer, Task};
use crate::scale::Scale;

/// Bytes of a key, which are among those of the index.
const KEY: usize = 40;

/// Bytes of an object.
const SIZE: usize = 100;

/// Bytes of the log that a record takes.
const RECORD: u64 = 4096;

/// Objects that are compared afterwards.
const CHECKED: u64 = 1000;

/// The parameters of [`fill`] and [`reopen`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LogTask {
    directory: PathBuf,
    records: u64,
}

/// Fills a log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fill(pub(crate) LogTask);

impl Task for Fill {
    const ROLE: &'static str = "tier_fill";
    const NAME: &'static str = "log";
}

/// Opens a log that was filled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Reopen(pub(crate) LogTask);

impl Task for Reopen {
    const ROLE: &'static str = "tier_reopen";
    const NAME: &'static str = "reopened log";
}

/// The message of [`fill`] to its parent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Filled {
    records: u64,
}

/// The message of [`reopen`] to its parent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Reopened {
    seconds: f64,
    /// The growth of the process's memory.
    bytes: u64,
}

/// Puts objects into a log, and waits for being killed.
pub(crate) fn fill(task: &LogTask) -> Result<(), BenchError> {
    let mut settings = FileSettings::default();
    // Written at once and not one by one: this is not what is measured.
    settings.direct = DirectIo::Never;
    let tier = open(&task.directory, task.records, settings)?;
    for number in 0..task.records {
        tier.put(&id(number)?, &object(number, SIZE)?)?;
    }
    tier.sync()?;
    process::say(&Filled { records: tier.usage()?.objects })?;
    process::wait_for_end();
    Ok(())
}

fn open(directory: &Path, records: u64, settings: FileSettings) -> Result<LogTier, BenchError> {
    // With the footers and free segments.
    let len = ByteSize::bytes(records * RECORD + records * RECORD / 32 + (256 << 20));
    Ok(LogTier::open(FileBackend::open_with(directory, len, settings)?, LogSettings::default())?)
}

/// Opens the log again, and checks some of its objects.
pub(crate) fn reopen(task: &LogTask) -> Result<(), BenchError> {
    let LogTask { ref directory, records } = *task;
    let before = process::own_resident_bytes()?;
    let started = Instant::now();
    let tier = open(directory, records, FileSettings::default())?;
    let seconds = started.elapsed().as_secs_f64();
    let bytes = process::own_resident_bytes()?.saturating_sub(before);
    let recovery = tier.recovery();
    if (recovery.objects, recovery.damaged) != (records, 0) {
        return Err(BenchError::wrong("opening a log", format!("{recovery:?} of {records}")));
    }
    for _ in 0..CHECKED {
        let number = fastrand::u64(..records);
        let found = tier.get(&id(number)?)?;
        let found = found.ok_or_else(|| BenchError::wrong("get", "nothing after the start"))?;
        check(number, SIZE, &found)?;
    }
    process::say(&Reopened { seconds, bytes })
}

/// Prints the time that it takes to open a log of small objects whose process was killed (SIGKILL), and
/// the memory that its index takes. The log is read past the page cache.
pub(super) fn run<W: Write>(
    scale: Scale,
    options: &TierOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let records = scale.pick(1_000_000, 100_000, 2_000);
    let directory = options.make_directory()?;
    let task = LogTask { directory: directory.path().to_owned(), records };
    let (mut peer, filled) = Peer::start::<_, Filled>(&Fill(task.clone()))?;
    peer.kill()?;
    if filled.records != records {
        return Err(BenchError::wrong("put", format!("{} of {records}", filled.records)));
    }
    interrupt::check()?;
    let (_, Reopened { seconds, bytes }) = Peer::start(&Reopen(task))?;
    report.add(Figure::new("rebuild_s", seconds, "s").with("records", records))?;
    let bytes = bytes as f64 / records as f64;
    let figure = Figure::new("index_bytes_per_object", bytes, "B").with("records", records);
    report.add(figure.with("key", KEY))
}
