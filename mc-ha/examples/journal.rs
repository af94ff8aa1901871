//! Measures the cost of a journal, and how fast a master comes back from it: `cargo run --release
//! -p mc-ha --features sled --example journal [OBJECTS] [DIRECTORY [no-snapshot]]`. A directory
//! stays; one that is there is only read.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_ha::{
    Batch, DirectoryJournal, Identity, JournalError, JournalProgress, JournalWriter,
    MetadataJournal, Replica, WriterSettings, take_snapshot,
};
use mc_meta::{Corrections, Master, MasterConfig, PutEnd, PutStart, ReplicateConfig, SegmentSpec};
use mc_types::{ClientId, Epoch, KeyRef, MediaType, RemoteKey, SegmentId, Sequence, Time};

const OBJECT: u64 = 64 * 1024;
const CLIENT: ClientId = ClientId::from_u128(1);

struct Ignored;

impl JournalProgress for Ignored {
    fn acknowledge(&self, _: Sequence) {}
    fn suspended(&self, _: Option<&JournalError>) {}
    fn appended(&self, _: &[Batch]) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let objects: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let temporary = tempfile::tempdir()?;
    let given = std::env::args_os().nth(2);
    let path = given.map_or_else(|| temporary.path().join("metadata"), Into::into);
    if !path.exists() {
        write(objects, &path)?;
    }
    read(&path)
}

/// Puts objects, and takes a snapshot.
fn write(objects: u64, path: &Path) -> Result<(), Box<dyn Error>> {
    let config = MasterConfig::default();
    let alone = put(&Master::new(config.clone(), 1)?, objects)?;
    let journal: Arc<dyn MetadataJournal> = Arc::new(DirectoryJournal::open(path)?);
    let settings = WriterSettings::default();
    let writer = JournalWriter::start(
        Arc::clone(&journal),
        Epoch::new(1),
        &Corrections::default(),
        settings,
        Arc::new(Ignored),
    )?;
    let master = Master::new(config, 1)?.with_sink(writer.sink());
    let kept = put(&master, objects)?;
    let begun = Instant::now();
    let is_durable = writer.wait_durable(master.last_sequence(), Duration::from_secs(600));
    println!(
        "{objects} puts: {:.2?} alone, {:.2?} with a journal; all durable ({is_durable}) {:.2?} later; {:.0} \
         bytes a key in the journal",
        alone,
        kept,
        begun.elapsed(),
        journal.usage().journal_bytes as f64 / objects as f64,
    );
    // With one word more there is the journal alone.
    if std::env::args_os().nth(3).is_some() {
        return Ok(());
    }
    let begun = Instant::now();
    let info = take_snapshot(&master, &writer, || Time::from_millis(1))?;
    println!(
        "snapshot in {:.2?}, {:.0} bytes a key; journal {:.0} bytes a key",
        begun.elapsed(),
        info.bytes as f64 / objects as f64,
        journal.usage().journal_bytes as f64 / objects as f64,
    );
    Ok(())
}

fn read(path: &Path) -> Result<(), Box<dyn Error>> {
    let identity = Identity { seed: 1, secret: [1; 16] };
    let config = MasterConfig::default();
    let begun = Instant::now();
    let journal = DirectoryJournal::open(path)?;
    let opened = begun.elapsed();
    let replica =
        Replica::load(&journal, &config, &identity, std::thread::available_parallelism()?)?;
    let loaded = begun.elapsed();
    let (rebuilt, replayed) = replica.finish(Time::from_millis(1))?;
    println!(
        "{} objects back in {:.2?}: open {opened:.2?}, read {:.2?}, divide {:.2?}; {replayed:?}",
        rebuilt.report.objects,
        begun.elapsed(),
        loaded - opened,
        begun.elapsed() - loaded,
    );
    Ok(())
}

fn put(master: &Master, objects: u64) -> Result<Duration, Box<dyn Error>> {
    let now = Time::from_millis(1);
    for number in 0..16 {
        let spec = SegmentSpec {
            id: SegmentId::from_u128(number),
            name: format!("segment-{number}").into(),
            base: 0,
            size: (objects / 12 + 1) * OBJECT,
            endpoint: format!("mem://node-{number}").parse()?,
            remote_key: RemoteKey::from_bytes([1; 16]),
            ticket_key: None,
            medium: MediaType::Dram,
        };
        master.mount_segment(now, CLIENT, spec)?;
    }
    let config = ReplicateConfig::default();
    let begun = Instant::now();
    for number in 0..objects {
        let name = format!("{number:040x}");
        let key = KeyRef::new(&name)?;
        let start = PutStart { key, slice_lengths: &[OBJECT], config: &config };
        let grant = master.put_start(now, CLIENT, &start)?;
        let mut end = PutEnd::new(key, grant.handle);
        let checksums = [mc_types::Checksum::from_crc32c(number as u32)];
        end.checksums = &checksums;
        master.put_end(now, CLIENT, &end)?;
    }
    Ok(begun.elapsed())
}
