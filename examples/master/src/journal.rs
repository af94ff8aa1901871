//! Where the metadata is kept, from the command line.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mc_cli::{ParseDurationError, parse_duration};
use mc_ha::{DirectoryJournal, Durability, JournalError, MemoryJournal};
use mc_http::MetricsText;
use mc_server::{JournalConfig, JournalReport};
use mc_types::ByteSize;

/// The flags.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Metadata that outlives the master")]
pub(crate) struct JournalArgs {
    /// Directory for the metadata. A master that starts with it serves the objects of the one
    /// that ran before as soon as their nodes are back. Default: metadata is kept in memory only.
    #[arg(long = "metadata_dir", value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// When a change is acknowledged: sync, when it is on disk; async, at once, while everything
    /// older than --durability_bound is on disk; none, at once, and nothing is kept [default: async
    /// with --metadata_dir].
    #[arg(long = "durability", value_name = "none|async|sync")]
    durability: Option<Mode>,
    /// With async: the age from which on an acknowledged change survives a crash of the host, from
    /// 1ms to 1m [default: 100ms].
    #[arg(long = "durability_bound", value_name = "MS|DURATION", value_parser = parse_bound)]
    bound: Option<Duration>,
    /// Time between snapshots while metadata changes [default: 10m].
    #[arg(long = "snapshot_interval", value_name = "DURATION", value_parser = parse_interval)]
    snapshot_interval: Option<Duration>,
    /// A snapshot is also taken when the journal since the last one has this size, or a quarter of
    /// that snapshot's if that is more [default: 64MiB].
    #[arg(long = "snapshot_bytes", value_name = "SIZE")]
    snapshot_bytes: Option<ByteSize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    None,
    Async,
    Sync,
}

/// Why the metadata directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetadataError {
    #[error("--durability {0} needs a directory: give --metadata_dir")]
    NoDirectory(&'static str),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl JournalArgs {
    /// The journal of a master that is one of several: without a directory it is in memory, and what
    /// all masters lose at the same time is lost. Blocks.
    pub(crate) fn open_or_memory(&self) -> Result<JournalConfig, MetadataError> {
        let opened = self.open()?;
        Ok(opened.unwrap_or_else(|| JournalConfig::new(Arc::new(MemoryJournal::new()))))
    }

    /// Opens the journal; `None` when none is wanted. Blocks.
    pub(crate) fn open(&self) -> Result<Option<JournalConfig>, MetadataError> {
        let directory = match (&self.directory, self.durability) {
            (_, Some(Mode::None)) | (None, None) => return Ok(None),
            (None, Some(Mode::Async)) => return Err(MetadataError::NoDirectory("async")),
            (None, Some(Mode::Sync)) => return Err(MetadataError::NoDirectory("sync")),
            (Some(directory), _) => directory,
        };
        let mut config = JournalConfig::new(Arc::new(DirectoryJournal::open(directory)?));
        if self.durability == Some(Mode::Sync) {
            config.writer.durability = Durability::Sync;
        } else if let Some(bound) = self.bound {
            config.writer.durability = Durability::Async(bound);
        }
        if let Some(interval) = self.snapshot_interval {
            config.snapshots.interval = interval;
            config.snapshots.min_interval = config.snapshots.min_interval.min(interval);
        }
        if let Some(bytes) = self.snapshot_bytes {
            config.snapshots.bytes = bytes.as_u64();
        }
        Ok(Some(config))
    }
}

#[derive(Debug, thiserror::Error)]
enum BadTime {
    #[error(transparent)]
    Duration(#[from] ParseDurationError),
    #[error("choose a time between {0}")]
    OutOfRange(&'static str),
}

fn parse_bound(text: &str) -> Result<Duration, BadTime> {
    let range = Duration::from_millis(1)..=Duration::from_secs(60);
    let bound = parse_duration(text)?;
    range.contains(&bound).then_some(bound).ok_or(BadTime::OutOfRange("1ms and 1m"))
}

fn parse_interval(text: &str) -> Result<Duration, BadTime> {
    let range = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 60 * 60);
    let interval = parse_duration(text)?;
    range.contains(&interval).then_some(interval).ok_or(BadTime::OutOfRange("1s and 168h"))
}

/// Appends the state of the journal to the metrics.
pub(crate) fn metrics(text: &mut MetricsText, report: &JournalReport) {
    use mc_http::MetricKind::{Counter, Gauge};
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let age = report.last_snapshot.map(|last| last.finished.elapsed().unwrap_or_default());
    let lag = report.writer.last.sequence.as_u64() - report.writer.durable.sequence.as_u64();
    for (name, kind, help, value) in [
        ("master_journal_epoch", Gauge, "The master's term", report.writer.last.epoch.as_u64()),
        (
            "master_journal_changes_total",
            Counter,
            "Changes in this term",
            report.writer.last.sequence.as_u64(),
        ),
        ("master_journal_lag_changes", Gauge, "Changes that are not on disk yet", lag),
        (
            "master_journal_lag_milliseconds",
            Gauge,
            "Age of the oldest change that is not on disk yet",
            millis(report.writer.lag),
        ),
        (
            "master_journal_stuck_milliseconds",
            Gauge,
            "How long the write or sync has taken that is under way",
            millis(report.writer.stuck_for),
        ),
        (
            "master_journal_hangs_total",
            Counter,
            "Writes and syncs that took longer than 3 s",
            report.writer.hangs,
        ),
        (
            "master_journal_written_bytes_total",
            Counter,
            "Bytes written to the journal",
            report.writer.written,
        ),
        ("master_journal_bytes", Gauge, "Bytes of the journal on disk", report.usage.journal_bytes),
        (
            "master_snapshot_bytes",
            Gauge,
            "Bytes of the snapshots on disk",
            report.usage.snapshot_bytes,
        ),
        (
            "master_snapshot_age_seconds",
            Gauge,
            "Age of the last snapshot; 0 without one",
            age.map_or(0, |age| age.as_secs()),
        ),
        (
            "master_snapshots_failed_total",
            Counter,
            "Snapshots that could not be written",
            report.failed_snapshots,
        ),
        (
            "master_journal_failing",
            Gauge,
            "1 while the journal cannot be written",
            report.writer.failure.is_some().into(),
        ),
    ] {
        text.metric(name, kind, &format!("{help}."));
        text.sample(name, &[], value);
    }
}
