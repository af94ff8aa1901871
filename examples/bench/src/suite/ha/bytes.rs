//! Bytes on disk for each object.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mc_ha::{
    Batch, DirectoryJournal, JournalError, JournalProgress, JournalWriter, WriterSettings,
    take_snapshot,
};
use mc_meta::{Corrections, Master, MasterConfig, PutEnd, PutStart, ReplicateConfig};
use mc_types::{Checksum, ClientId, Epoch, Sequence, Time};

use super::super::keys::KeyWriter;
use super::super::segments;
use crate::error::BenchError;
use crate::figure::{Figure, Report};
use crate::scale::Scale;

const CLIENT: ClientId = ClientId::from_u128(1);
const NOW: Time = Time::from_millis(1);
const SEGMENTS: u32 = 16;
const VALUE: u64 = 64 << 10;

/// Time limit for the journal to catch up.
const DURABLE: Duration = Duration::from_secs(120);

/// No reply waits for the journal here.
struct Nobody;

impl JournalProgress for Nobody {
    fn acknowledge(&self, _: Sequence) {}
    fn suspended(&self, _: Option<&JournalError>) {}
    fn appended(&self, _: &[Batch]) {}
}

/// Prints the bytes for each object that was put, before and after a snapshot.
pub(super) fn run<W: Write>(scale: Scale, report: &mut Report<W>) -> Result<(), BenchError> {
    let keys: u64 = scale.pick(1_000_000, 200_000, 2_000);
    let wrong = |what, error: &dyn std::error::Error| BenchError::wrong(what, error.to_string());
    let directory = tempfile::tempdir()?;
    let journal = DirectoryJournal::open(directory.path())
        .map_err(|error| wrong("opening a journal", &error))?;
    let settings = WriterSettings::default();
    let (epoch, none) = (Epoch::new(1), Corrections::default());
    let writer = JournalWriter::start(Arc::new(journal), epoch, &none, settings, Arc::new(Nobody))
        .map_err(|error| wrong("writing a journal", &error))?;
    let master = Master::new(MasterConfig::default(), 1)
        .map_err(|error| wrong("making a master", &error))?
        .with_sink(writer.sink());
    for number in 0..SEGMENTS {
        let spec = segments::spec(number, (keys / 12 + 1) * VALUE)?;
        master
            .mount_segment(NOW, CLIENT, spec)
            .map_err(|error| wrong("mounting a segment", &error))?;
    }
    let mut names = KeyWriter::new(1);
    let config = ReplicateConfig::default();
    let mut key_bytes = 0;
    for number in 0..keys {
        let key = names.key(number);
        key_bytes = key.as_str().len();
        let start = PutStart { key, slice_lengths: &[VALUE], config: &config };
        let grant =
            master.put_start(NOW, CLIENT, &start).map_err(|error| wrong("put_start", &error))?;
        let checksums = [Checksum::from_crc32c(number as u32)];
        let end = PutEnd { checksums: &checksums, ..PutEnd::new(key, grant.handle) };
        master.put_end(NOW, CLIENT, &end).map_err(|error| wrong("put_end", &error))?;
    }
    if !writer.wait_durable(master.last_sequence(), DURABLE) {
        return Err(BenchError::wrong("the journal", format!("not on disk after {DURABLE:?}")));
    }
    let info = take_snapshot(&master, &writer, || NOW)
        .map_err(|error| wrong("taking a snapshot", &error))?;
    let with = |name, bytes: u64| {
        Figure::new(name, bytes as f64 / keys as f64, "B")
            .with("keys", keys)
            .with("key_bytes", key_bytes)
    };
    let all = on_disk(directory.path())?;
    report.add(with("journal_bytes_per_key", all - info.bytes.min(all)))?;
    report.add(with("snapshot_bytes_per_key", info.bytes))
}

/// The room that a directory takes.
fn on_disk(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => on_disk(&entry.path())?,
            // In units of 512 bytes, whatever the file system's blocks are.
            false => entry.metadata()?.blocks() * 512,
        };
    }
    Ok(bytes)
}
