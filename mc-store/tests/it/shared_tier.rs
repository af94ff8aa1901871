//! Files of objects on a tier that all clients reach: written after puts, read when memory does not
//! have an object, deleted with it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_meta::SharedTierConfig;
use mc_store::{
    ByteSize, Client, ErrorCode, GetError, GetInto, Master, MasterBuilder, MasterConfig, Memory,
    Put, PutOutcome, ReplicateConfig, StorageSettings,
};
use mc_testkit::{Input, Program, eventually_async, preload, role};
use mc_tier::{DirectoryTier, Faults, FaultyTier, MemoryTier, SyncPolicy, Tier as _};
use tempfile::TempDir;

use crate::common::content;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

fn root() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A master whose clients keep files in this directory.
fn master(root: &Path) -> MasterBuilder {
    let settings = StorageSettings::in_directory(root.to_str().unwrap()).cluster_id("cluster");
    Master::builder().storage(settings)
}

async fn cluster(root: &Path, segment: ByteSize) -> Cluster {
    Cluster::of(master(root), &[segment]).await
}

/// The files of objects.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in fs::read_dir(root.join("cluster")).unwrap() {
        let folder = folder.unwrap().path();
        if folder.file_name().unwrap() != "tmp" {
            files.extend(fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
        }
    }
    files
}

/// The objects in files.
fn stored(root: &Path) -> u64 {
    let tier = DirectoryTier::open(root, "cluster", SyncPolicy::None).unwrap();
    let page = tier.scan(None, NonZeroUsize::new(100_000).unwrap()).unwrap();
    (page.objects.len() + page.unreadable.len()) as u64
}

/// Takes the memory of all objects away: those without a file are lost.
async fn lose_memory(cluster: &mut Cluster) {
    cluster.nodes.remove(0).shutdown().await;
}

async fn flush(client: &Client) {
    assert!(client.flush_files(DEADLINE).await, "files are written in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_read_from_files_when_their_memory_is_gone() {
    let root = root();
    let mut cluster = cluster(root.path(), ByteSize::mib(32)).await;
    let (writer, reader) = (cluster.app().await, cluster.app().await);
    for len in [1, 4096, 65_537, 3_000_001] {
        writer.put(&format!("value-{len}"), content("value", len)).await.unwrap();
    }
    let parts = [10, 100_000, 7].map(|len| content("parts", len)).to_vec();
    writer.put_parts("parts", parts.clone(), &ReplicateConfig::default()).await.unwrap();
    flush(&writer).await;
    assert_eq!(stored(root.path()), 5);
    assert_eq!(cluster.master.report().totals.files_written, 5);
    lose_memory(&mut cluster).await;
    for len in [1, 4096, 65_537, 3_000_001] {
        let found = reader.get(&format!("value-{len}")).await.unwrap();
        assert_eq!(found, content("value", len));
    }
    assert_eq!(reader.get("parts").await.unwrap(), parts.concat());
    let whole: Bytes = parts.concat().into();
    for range in [0..5, 5..15, 9..100_011, 100_009..100_017, 50_000..50_001, 0..100_017] {
        let wanted = whole.slice(range.start as usize..range.end as usize);
        assert_eq!(reader.get_range("parts", range).await.unwrap(), wanted);
    }
    let memory = Memory::allocate(200_000).unwrap();
    let piece = |at, len| memory.slice(at, len).unwrap();
    let gets = vec![
        GetInto::scattered("parts", vec![piece(0, 3), piece(100, 60_000), piece(70_000, 40_014)]),
        GetInto::new("parts", piece(120_000, 1000)).range(99_999..100_010),
    ];
    for (outcome, len) in reader.batch_get_into(gets).await.into_iter().zip([100_017, 11]) {
        assert_eq!(outcome.unwrap(), len);
    }
    assert_eq!(piece(0, 3).to_vec(), whole[..3]);
    assert_eq!(piece(100, 60_000).to_vec(), whole[3..60_003]);
    assert_eq!(piece(70_000, 40_014).to_vec(), whole[60_003..]);
    assert_eq!(piece(120_000, 11).to_vec(), whole[99_999..100_010]);
    let metrics = reader.metrics().shared_tier.unwrap();
    assert_eq!((metrics.reads.count(), metrics.missing, metrics.failed_reads), (12, 0, 0));
}

/// Each was a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_are_put_together_share_a_file() {
    const COUNT: usize = 600;
    let root = root();
    let mut cluster = cluster(root.path(), ByteSize::mib(64)).await;
    let (writer, reader) = (cluster.app().await, cluster.app().await);
    let name = |n: usize| format!("k{n}");
    let len = |n: usize| [1000, 65_536, 4097][n % 3];
    for first in (0..COUNT).step_by(200) {
        let keys: Vec<String> = (first..first + 200).map(name).collect();
        let puts = keys.iter().zip(first..);
        let puts = puts.map(|(key, n)| Put::new(key, content(key, len(n)))).collect();
        for put in writer.batch_put(puts, &ReplicateConfig::default()).await {
            assert_eq!(put.unwrap(), PutOutcome::Stored);
        }
    }
    // This shares its file with nothing.
    writer.put("long", content("long", 9 * MIB)).await.unwrap();
    flush(&writer).await;
    assert_eq!(stored(root.path()), COUNT as u64 + 1);
    // As many as a busy machine takes seconds for its puts, and not more than one for each batch.
    assert!(files(root.path()).len() <= 4, "{:?}", files(root.path()));
    assert_eq!(cluster.master.report().totals.files_written, COUNT as u64 + 1);
    // Of removed objects nothing is left when half of a file's are.
    for n in 0..COUNT / 3 {
        writer.remove(&name(n), true).await.unwrap();
    }
    let left = (COUNT - COUNT / 3) as u64 + 1;
    eventually_async(DEADLINE, "removals", async || stored(root.path()) == left).await;
    lose_memory(&mut cluster).await;
    for n in 0..COUNT {
        let found = reader.get(&name(n)).await;
        if n < COUNT / 3 {
            assert!(matches!(found, Err(GetError::NotFound)), "{n}: {found:?}");
        } else {
            assert_eq!(found.unwrap(), content(&name(n), len(n)), "{n}");
        }
    }
    let value = content("k500", len(500));
    assert_eq!(reader.get_range("k500", 500..1000).await.unwrap(), value.slice(500..1000));
    let metrics = reader.metrics().shared_tier.unwrap();
    assert_eq!((metrics.missing, metrics.failed_reads), (0, 0));
    // The memory of another node, which deletes files.
    let node = mc_cluster_testkit::node(&cluster.master.local_addr());
    let node = node.segment_size(ByteSize::mib(1)).connect().await.unwrap();
    reader.remove_all(true).await.unwrap();
    eventually_async(DEADLINE, "no file", async || files(root.path()).is_empty()).await;
    node.shutdown().await;
}

/// With `packs` off, no file is written that older clients cannot read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_may_want_a_file_for_each_object() {
    let root = root();
    let mut config = MasterConfig::default();
    let mut disk = SharedTierConfig::default();
    disk.packs = false;
    config.shared_tier = Some(disk);
    let cluster = Cluster::of(master(root.path()).config(config), &[ByteSize::mib(8)]).await;
    let app = cluster.app().await;
    for n in 0..20 {
        app.put(&format!("k{n}"), content("value", 1000)).await.unwrap();
    }
    flush(&app).await;
    assert_eq!(files(root.path()).len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_memory_holds_stays_readable() {
    let root = root();
    let cluster = cluster(root.path(), ByteSize::mib(8)).await;
    let app = cluster.app().await;
    for n in 0..40 {
        app.put(&format!("k{n}"), content(&format!("k{n}"), MIB)).await.unwrap();
        if n % 4 == 3 {
            flush(&app).await;
        }
    }
    for n in 0..40 {
        let key = format!("k{n}");
        assert_eq!(app.get(&key).await.unwrap(), content(&key, MIB), "{key}");
    }
    assert!(cluster.master.report().totals.tier_only_objects >= 30);
}

/// The caller's memory changes after each put, and that of the cluster is given up before the file is
/// written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_that_outrun_their_files_lose_none() {
    let root = root();
    let cluster = cluster(root.path(), ByteSize::mib(8)).await;
    let app = cluster.app().await;
    let memory = Memory::allocate(MIB).unwrap().whole();
    let config = ReplicateConfig::default();
    for n in 0..200 {
        let key = format!("k{n}");
        memory.copy_from(0, &content(&key, MIB)).unwrap();
        app.put_from(&key, &memory, &config).await.unwrap();
    }
    flush(&app).await;
    for n in 0..200 {
        let key = format!("k{n}");
        assert_eq!(app.get(&key).await.unwrap(), content(&key, MIB), "{key}");
    }
    assert_eq!(stored(root.path()), 200);
}

/// Such a client has no threads otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocking_client_writes_files_between_its_calls() {
    let root = root();
    let mut cluster = cluster(root.path(), ByteSize::mib(64)).await;
    let builder = cluster.client();
    let app = tokio::task::spawn_blocking(move || {
        let app = builder.connect_blocking().unwrap();
        for n in 0..20 {
            app.put(&format!("k{n}"), content(&format!("k{n}"), MIB)).unwrap();
        }
        app
    });
    let app = app.await.unwrap();
    eventually_async(DEADLINE, "20 files", async || stored(root.path()) == 20).await;
    lose_memory(&mut cluster).await;
    let reader = cluster.app().await;
    let is_there = async || reader.get("k19").await.is_ok();
    eventually_async(DEADLINE, "the master knows of the last one", is_there).await;
    for n in 0..20 {
        let key = format!("k{n}");
        assert_eq!(reader.get(&key).await.unwrap(), content(&key, MIB), "{key}");
    }
    tokio::task::spawn_blocking(move || drop(app)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_go_with_their_objects() {
    let root = root();
    let cluster = cluster(root.path(), ByteSize::mib(32)).await;
    let app = cluster.app().await;
    for key in ["removed", "replaced", "a", "b"] {
        app.put(key, content(key, 1000)).await.unwrap();
    }
    flush(&app).await;
    assert_eq!(stored(root.path()), 4);
    app.remove("removed", true).await.unwrap();
    app.upsert("replaced", "another").await.unwrap();
    flush(&app).await;
    eventually_async(DEADLINE, "three files", async || stored(root.path()) == 3).await;
    assert_eq!(app.get("replaced").await.unwrap(), "another");
    app.remove_all(true).await.unwrap();
    eventually_async(DEADLINE, "no file", async || stored(root.path()) == 0).await;
    assert_eq!(cluster.master.report().totals.files_used, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_files_make_room_for_new_ones() {
    let root = root();
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::with_capacity(10 * MIB as u64));
    let cluster = Cluster::of(master(root.path()).config(config), &[ByteSize::mib(64)]).await;
    let app = cluster.app().await;
    for n in 0..20 {
        app.put(&format!("k{n}"), content(&format!("k{n}"), MIB)).await.unwrap();
        flush(&app).await;
        let has_room = async || cluster.master.report().totals.files_used <= 9 * MIB as u64;
        eventually_async(DEADLINE, "room for the next file", has_room).await;
    }
    // The master hears of evicted files while others are evicted.
    let knows_all =
        async || stored(root.path()) * MIB as u64 == cluster.master.report().totals.files_used;
    eventually_async(DEADLINE, "the master to know which files are left", knows_all).await;
    let report = cluster.master.report();
    assert!(report.totals.tier_evictions >= 10, "{report:?}");
    assert_eq!(report.totals.files_no_room, 0);
    let described = app.describe("k0").await.unwrap();
    assert!(described.file.is_none() && app.describe("k19").await.unwrap().file.is_some());
}

/// Six seconds of work for a master that waits for three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_written_in_time_is_not_written_and_the_rest_is_told_of_at_once() {
    /// Of which 32 are written at a time.
    const OBJECTS: u64 = 960;
    let mut faults = Faults::default();
    faults.delay = Duration::from_millis(200);
    let tier = Arc::new(FaultyTier::new(MemoryTier::default(), 7));
    tier.set(faults);
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::default());
    config.put_start_discard_timeout = Duration::from_secs(3);
    config.put_start_release_timeout = Duration::from_secs(3);
    let cluster = Cluster::start_with(config, &[ByteSize::mib(32)]).await;
    let app = cluster.client().shared_tier(tier.clone()).connect().await.unwrap();
    for n in 0..OBJECTS {
        app.put(&format!("k{n}"), content(&format!("k{n}"), 1000)).await.unwrap();
    }
    let told = async || cluster.master.report().totals.files_written > 0;
    eventually_async(DEADLINE, "the master to hear of the first files", told).await;
    let waiting = app.metrics().shared_tier.unwrap().waiting;
    assert!(waiting > 0, "the master hears of files while others wait");
    flush(&app).await;
    let metrics = app.metrics().shared_tier.unwrap();
    assert_eq!(metrics.writes.count() + metrics.late, OBJECTS, "{metrics:?}");
    assert!(metrics.late > 160 && metrics.writes.count() > 32, "{metrics:?}");
    // What was written counts, but for what a busy machine has delayed.
    let (stored, written) = (cluster.master.report().totals.files_written, metrics.writes.count());
    assert!(stored * 4 >= written * 3, "{stored} of {written} are stored");
    assert_eq!(cluster.master.report().totals.files_unfinished, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_without_a_journal_finds_the_files_again() {
    let root = root();
    let mut first = cluster(root.path(), ByteSize::mib(32)).await;
    let app = first.app().await;
    for n in 0..50 {
        app.put(&format!("k{n}"), content(&format!("k{n}"), 5000)).await.unwrap();
    }
    flush(&app).await;
    app.shutdown().await;
    lose_memory(&mut first).await;
    first.master.shutdown().await;
    let second = Box::pin(master(root.path()).seed(8).start()).await.unwrap();
    let address = second.local_addr();
    // A client that contributes nothing would look after the files in a minute.
    let app = mc_cluster_testkit::node(&address).segment_size(ByteSize::mib(1));
    let app = app.connect().await.unwrap();
    let is_found = async || second.report().totals.objects == 50;
    eventually_async(DEADLINE, "the files to be found", is_found).await;
    for n in 0..50 {
        let key = format!("k{n}");
        assert_eq!(app.get(&key).await.unwrap(), content(&key, 5000));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_or_missing_file_is_an_error_and_disturbs_no_other() {
    let root = root();
    let mut cluster = cluster(root.path(), ByteSize::mib(32)).await;
    let app = cluster.app().await;
    for key in ["damaged", "missing", "intact"] {
        app.put(key, content(key, 100_000)).await.unwrap();
    }
    flush(&app).await;
    let path = |name: &str| {
        let is_it = |path: &PathBuf| path.to_str().unwrap().contains(name);
        files(root.path()).into_iter().find(is_it).unwrap()
    };
    let mut bytes = fs::read(path("damaged")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path("damaged"), bytes).unwrap();
    fs::remove_file(path("missing")).unwrap();
    // Memory is not affected.
    assert_eq!(app.get("damaged").await.unwrap(), content("damaged", 100_000));
    lose_memory(&mut cluster).await;
    let error = app.get("damaged").await.unwrap_err();
    assert!(matches!(&error, GetError::Tier(_)), "{error}");
    assert_eq!(error.code(), ErrorCode::FileReadFail);
    let error = app.get("missing").await.unwrap_err();
    assert!(matches!(error, GetError::NotFound), "{error}");
    assert_eq!(app.get("intact").await.unwrap(), content("intact", 100_000));
    let metrics = app.metrics().shared_tier.unwrap();
    assert!(metrics.missing >= 1 && metrics.failed_reads >= 1, "{metrics:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_the_directory_works_without_files() {
    let root = root();
    let absent = root.path().join("absent");
    let cluster = Cluster::of(master(&absent), &[ByteSize::mib(4)]).await;
    let app = cluster.app().await;
    app.put("k", "value").await.unwrap();
    assert_eq!(app.get("k").await.unwrap(), "value");
    let is_given_up = async || cluster.master.report().totals.files_unfinished == 0;
    eventually_async(DEADLINE, "the master to hear that there is no file", is_given_up).await;
    assert!(!absent.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_is_there_later_is_used_from_then_on() {
    let root = root();
    let later = root.path().join("later");
    let mut cluster = cluster(&later, ByteSize::mib(4)).await;
    let app = cluster.app().await;
    assert!(app.metrics().is_shared_tier_missing);
    app.put("before", "value").await.unwrap();
    flush(&app).await;
    fs::create_dir(&later).unwrap();
    let is_used = async || !app.metrics().is_shared_tier_missing;
    eventually_async(DEADLINE, "the client to open the directory", is_used).await;
    app.put("after", "value").await.unwrap();
    flush(&app).await;
    assert_eq!(files(&later).len(), 1);
    lose_memory(&mut cluster).await;
    assert_eq!(app.get("after").await.unwrap(), "value");
    assert!(matches!(app.get("before").await, Err(GetError::NotFound)));
}

/// As a client without the feature `s3` does, and one whose bucket cannot be reached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_cannot_open_the_bucket_works_without_files() {
    // Nobody listens there; a plain endpoint is refused before that.
    for url in ["s3://kv-cache/prod?endpoint=http://127.0.0.1:1", "gs://of-a-newer-master"] {
        let master = Master::builder().storage(StorageSettings::in_object_store(url));
        let cluster = Cluster::of(master, &[ByteSize::mib(4)]).await;
        let app = cluster.app().await;
        assert!(app.metrics().is_shared_tier_missing && app.metrics().shared_tier.is_some());
        app.put("k", "value").await.unwrap();
        assert_eq!(app.get("k").await.unwrap(), "value");
        let is_given_up = async || cluster.master.report().totals.files_unfinished == 0;
        eventually_async(DEADLINE, "the master to hear that there is no file", is_given_up).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_tier_costs_files_and_nothing_else() {
    let mut faults = Faults::default();
    faults.write_fails = 0.5;
    faults.read_fails = 0.3;
    let tier = Arc::new(FaultyTier::new(MemoryTier::default(), 7));
    tier.set(faults);
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::default());
    let mut cluster = Cluster::start_with(config, &[ByteSize::mib(32)]).await;
    let app = cluster.client().shared_tier(tier.clone()).connect().await.unwrap();
    for n in 0..200 {
        app.put(&format!("k{n}"), content(&format!("k{n}"), 1000)).await.unwrap();
    }
    flush(&app).await;
    let report = cluster.master.report();
    assert_eq!(report.totals.files_unfinished, 0);
    assert!((20..180).contains(&report.totals.files_written), "{report:?}");
    lose_memory(&mut cluster).await;
    let (mut read, mut failed) = (0, 0);
    for n in 0..200 {
        let key = format!("k{n}");
        match app.get(&key).await {
            Ok(value) => {
                assert_eq!(value, content(&key, 1000));
                read += 1;
            }
            Err(GetError::Tier(_)) => failed += 1,
            Err(GetError::NotFound) => {}
            Err(error) => panic!("{key}: {error}"),
        }
    }
    assert!(read > 0 && failed > 0, "{read} read, {failed} failed");
    faults.read_fails = 0.0;
    tier.set(faults);
    // Some of the writes that failed have left a file all the same. The comparison, whenever it runs, adds
    // it to those that were written.
    let (written, there) =
        (cluster.master.report().totals.files_written, tier.usage().unwrap().objects);
    assert!(
        (written..=there).contains(&(read + failed)),
        "{read} read, {failed} failed, of {written} written and {there} there"
    );
    // One file that cannot be deleted keeps no other, and is not counted as deleted.
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    app.batch_remove(&keys, true).await.unwrap();
    let keeper = cluster.node().segment_name("keeper").segment_size(ByteSize::mib(1));
    let keeper = keeper.shared_tier(tier.clone()).connect().await.unwrap();
    let deleted = || keeper.metrics().shared_tier.unwrap().deleted;
    let are_deleted = async || deleted() > read / 4;
    eventually_async(DEADLINE, "about half of the files to be deleted", are_deleted).await;
    let counted = deleted();
    let left = tier.usage().unwrap().objects;
    // Some of the removals that failed have removed the object all the same.
    assert!(left > 0 && counted <= there - left, "{counted} of {there}, {left} left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_and_flipped_bits_cost_files_and_no_wrong_byte() {
    let mut faults = Faults::default();
    faults.full = 0.3;
    faults.flipped_bit = 0.3;
    let tier = Arc::new(FaultyTier::new(MemoryTier::default(), 11));
    tier.set(faults);
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::default());
    let mut cluster = Cluster::start_with(config, &[ByteSize::mib(32)]).await;
    let app = cluster.client().shared_tier(tier).connect().await.unwrap();
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    for key in &keys {
        app.put(key, content(key, 1000)).await.unwrap();
    }
    flush(&app).await;
    let written = cluster.master.report().totals.files_written;
    assert!((20..100).contains(&written), "{written}");
    for key in &keys {
        assert_eq!(app.get(key).await.unwrap(), content(key, 1000), "in memory");
    }
    lose_memory(&mut cluster).await;
    let (mut read, mut damaged) = (0, 0);
    for key in &keys {
        match app.get(key).await {
            Ok(value) => {
                assert_eq!(value, content(key, 1000));
                read += 1;
            }
            Err(GetError::Tier(_)) => damaged += 1,
            Err(GetError::NotFound) => {}
            Err(error) => panic!("{key}: {error}"),
        }
    }
    assert!(read > 0 && damaged > 0, "{read} read, {damaged} damaged");
    assert_eq!(read + damaged, written);
    // The master hears of them all. It forgets what another client says the same of.
    let is_told = async || app.metrics().reports.sent == damaged;
    eventually_async(DEADLINE, "the master to hear of what is damaged", is_told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_vanishes_for_a_while_costs_files_and_nothing_else() {
    let root = root();
    let (here, away) = (root.path().join("cluster"), root.path().join("away"));
    let mut cluster = cluster(root.path(), ByteSize::mib(32)).await;
    let app = cluster.app().await;
    app.put("before", "value").await.unwrap();
    flush(&app).await;
    fs::rename(&here, &away).unwrap();
    app.put("meanwhile", "value").await.unwrap();
    assert_eq!(app.get("before").await.unwrap(), "value");
    assert_eq!(app.get("meanwhile").await.unwrap(), "value");
    flush(&app).await;
    assert!(!here.exists(), "nothing is written below the mount point");
    fs::rename(&away, &here).unwrap();
    app.put("after", "value").await.unwrap();
    flush(&app).await;
    assert_eq!(cluster.master.report().totals.files_written, 2);
    lose_memory(&mut cluster).await;
    for (key, there) in [("before", true), ("meanwhile", false), ("after", true)] {
        match app.get(key).await {
            Ok(value) => assert!(there && value == "value", "{key}"),
            Err(GetError::NotFound) => assert!(!there, "{key}"),
            Err(error) => panic!("{key}: {error}"),
        }
    }
}

/// Every operation on a file below `MC_SLOW_UNDER` that goes to the server of a network file system takes half a
/// millisecond longer. One that reads or writes goes by its descriptor.
const SLOW: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static void by_path(const char *path) {
    const char *under = getenv("MC_SLOW_UNDER");
    if (under && path && strncmp(path, under, strlen(under)) == 0) usleep(500);
}

static void by_number(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    path[len > 0 ? len : 0] = 0;
    by_path(path);
}

#define SLOW(result, name, how, what, params, ...)                                   \
    result name params {                                                            \
        static result (*next) params;                                               \
        if (!next) next = (result (*) params)dlsym(RTLD_NEXT, #name);               \
        how(what);                                                                  \
        return next(__VA_ARGS__);                                                   \
    }

SLOW(int, close, by_number, fd, (int fd), fd)
SLOW(int, fdatasync, by_number, fd, (int fd), fd)
SLOW(int, fsync, by_number, fd, (int fd), fd)
SLOW(ssize_t, write, by_number, fd, (int fd, const void *from, size_t len), fd, from, len)
SLOW(ssize_t, writev, by_number, fd, (int fd, const struct iovec *from, int count), fd, from, count)
SLOW(ssize_t, read, by_number, fd, (int fd, void *to, size_t len), fd, to, len)
SLOW(ssize_t, pread64, by_number, fd, (int fd, void *to, size_t len, off64_t at), fd, to, len, at)
SLOW(int, rename, by_path, to, (const char *from, const char *to), from, to)
SLOW(int, unlink, by_path, path, (const char *path), path)

int open64(const char *path, int flags, ...) {
    static int (*next)(const char *, int, ...);
    if (!next) next = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    by_path(path);
    return next(path, flags, mode);
}
"#;

/// Puts small objects, and has them read from their files. Says how fast each was, in MB/s.
async fn use_files(root: &Path) {
    const COUNT: usize = 2000;
    const LEN: usize = 64 << 10;
    let mut cluster = cluster(root, ByteSize::mib(192)).await;
    let app = cluster.app().await;
    let keys: Vec<String> = (0..COUNT).map(|n| format!("block-{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let value = content("value", LEN);
    let begun = Instant::now();
    for part in keys.chunks(50) {
        let puts = part.iter().map(|key| Put::new(key, value.clone())).collect();
        let puts = app.batch_put(puts, &ReplicateConfig::default()).await;
        puts.into_iter().for_each(|put| assert_eq!(put.unwrap(), PutOutcome::Stored));
    }
    flush(&app).await;
    let rate = |since: Instant| (COUNT * LEN) as f64 / 1e6 / since.elapsed().as_secs_f64();
    let written = rate(begun);
    assert_eq!(cluster.master.report().totals.files_written, COUNT as u64);
    lose_memory(&mut cluster).await;
    let begun = Instant::now();
    for part in keys.chunks(500) {
        for found in app.batch_get(part).await {
            assert_eq!(found.unwrap(), value);
        }
    }
    let read = rate(begun);
    role::say(format!("{written:.0} {read:.0}"));
}

/// A network file system has long answers and takes many questions at once. Prints what it came to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_small_objects_are_many_at_a_time() {
    if let Some(root) = role::role() {
        return use_files(Path::new(&root)).await;
    }
    // A file system whose own time is little beside the half millisecond.
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { root() };
    let library = root.path().join("slow.so");
    preload(&library, SLOW);
    let under = root.path().join("cluster");
    let name = "shared_tier::files_of_small_objects_are_many_at_a_time";
    let mut command = role::command(name, root.path().to_str().unwrap());
    command.env("LD_PRELOAD", &library).env("MC_SLOW_UNDER", &under);
    let said = Program::start(4 * DEADLINE, &mut command, Input::None).hear();
    eprintln!("written and read: {said} MB/s");
    let mut rates = said.split(' ').map(|rate| rate.parse::<f64>().unwrap());
    // Four at a time were 87 MB/s. The tests beside this one take most of the processors.
    assert!(rates.next().unwrap() > 100.0, "{said}");
}
