//! Clients' local disks: objects go there when memory has no room, are read from there by everybody, come
//! back into memory, and outlast their node.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_meta::{LocalDiskConfig, PromotionConfig};
use mc_store::{
    ByteSize, Client, ClientBuilder, GetError, GetInto, LocalDiskOptions, Master, MasterConfig,
    Memory, OwnTier, PutOutcome,
};
use mc_testkit::eventually_async;
use mc_tier::{
    Faults, FaultyTier, FileBackend, LogSettings, LogTier, MemoryTier, ObjectBytes, SliceBytes,
    Tier,
};
use mc_types::LocalDiskId;

use crate::common::content;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;

/// A master that has objects written to disks: when their puts end, or when they would be evicted.
fn config(on_evict: bool) -> MasterConfig {
    let mut config = MasterConfig::default();
    let mut disks = LocalDiskConfig::default();
    disks.on_evict = on_evict;
    config.local_disk = Some(disks);
    config.lease_ttl = Duration::from_millis(200);
    config
}

/// A node with a disk in this directory.
fn node(cluster: &Cluster, directory: &Path, memory: ByteSize) -> ClientBuilder {
    let disk = LocalDiskOptions::new(directory).size(ByteSize::mib(256));
    cluster.node().segment_size(memory).segment_name("node").local_disk(disk)
}

async fn start(config: MasterConfig) -> Cluster {
    Cluster::start_with(config, &[]).await
}

/// Objects on disks, as the master knows.
fn on_disks(master: &Master) -> u64 {
    master.report().local_disks.iter().map(|disk| disk.objects).sum()
}

/// How often a client has made a call to its master.
fn calls(client: &Client, method: &str) -> u64 {
    let methods = client.metrics().rpc.methods;
    methods.iter().filter(|it| it.method.as_str() == method).map(|it| it.calls).sum()
}

async fn put_all(client: &Client, count: usize, len: usize) {
    for n in 0..count {
        client.put(&format!("k{n}"), content(&format!("k{n}"), len)).await.unwrap();
    }
}

async fn get_all(client: &Client, count: usize, len: usize) {
    for n in 0..count {
        let key = format!("k{n}");
        assert_eq!(client.get(&key).await.unwrap(), content(&key, len), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_are_read_from_the_disk_of_a_node_whose_memory_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = start(config(false)).await;
    let node = node(&cluster, directory.path(), ByteSize::mib(32)).connect().await.unwrap();
    let app = cluster.app().await;
    put_all(&app, 8, 100_000).await;
    app.put("long", content("long", 3_000_001)).await.unwrap();
    let parts = [10, 100_000, 7].map(|len| content("parts", len)).to_vec();
    app.put_parts("parts", parts.clone(), &mc_store::ReplicateConfig::default()).await.unwrap();
    eventually_async(DEADLINE, "all on disk", async || on_disks(&cluster.master) == 10).await;
    let segment = node.segments().pop().unwrap();
    node.unmount_segment(segment.id, Duration::ZERO).await.unwrap();
    // By the application, over the network, and by the node itself.
    for client in [&app, &node] {
        get_all(client, 8, 100_000).await;
        assert_eq!(client.get("long").await.unwrap(), content("long", 3_000_001));
        let whole: Bytes = parts.concat().into();
        assert_eq!(client.get("parts").await.unwrap(), whole);
        for range in [0..5, 5..15, 9..100_011, 50_000..50_001] {
            let wanted = whole.slice(range.start as usize..range.end as usize);
            assert_eq!(client.get_range("parts", range).await.unwrap(), wanted);
        }
        let memory = Memory::allocate(200_000).unwrap();
        let piece = |at, len| memory.slice(at, len).unwrap();
        let get = GetInto::scattered("parts", vec![piece(0, 3), piece(10, 100_014)]);
        assert_eq!(*client.batch_get_into(vec![get]).await[0].as_ref().unwrap(), 100_017);
        assert_eq!(piece(10, 100_014).to_vec(), whole[3..]);
    }
    let metrics = node.metrics().local_disk.unwrap();
    assert!(metrics.reads.count() >= 20 && metrics.failed_reads == 0, "{metrics:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_evicted_from_memory_is_on_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = start(config(true)).await;
    let _node = node(&cluster, directory.path(), ByteSize::mib(8)).connect().await.unwrap();
    let app = cluster.client().put_wait(DEADLINE).connect().await.unwrap();
    put_all(&app, 40, MIB).await;
    get_all(&app, 40, MIB).await;
    let report = cluster.master.report();
    assert!(report.totals.tier_only_objects >= 30, "{report:?}");
    // Gone from the disk, too.
    app.remove_all(true).await.unwrap();
    eventually_async(DEADLINE, "an empty disk", async || on_disks(&cluster.master) == 0).await;
    assert!(matches!(app.get("k0").await, Err(GetError::NotFound)));
    put_all(&app, 10, MIB).await;
    get_all(&app, 10, MIB).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_are_read_come_back_into_memory() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(true);
    config.promotion = Some(PromotionConfig::default());
    let cluster = start(config).await;
    let _node = node(&cluster, directory.path(), ByteSize::mib(16)).connect().await.unwrap();
    let app = cluster.client().put_wait(DEADLINE).connect().await.unwrap();
    put_all(&app, 30, MIB).await;
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let objects = app.batch_describe(&keys).await.unwrap();
    let mut objects = keys.iter().zip(objects);
    let is_evicted = |object: &mc_store::ObjectDescription| object.replicas.is_empty();
    let evicted = objects.find(|(_, object)| object.as_ref().is_ok_and(is_evicted));
    let evicted = *evicted.expect("more was put than memory has room for").0;
    // Room for what comes back.
    for n in 20..30 {
        let key = format!("k{n}");
        let removed = async || app.remove(&key, true).await.is_ok();
        eventually_async(DEADLINE, "a removal", removed).await;
    }
    let is_back = async || {
        assert_eq!(app.get(evicted).await.unwrap(), content(evicted, MIB));
        !app.describe(evicted).await.unwrap().replicas.is_empty()
    };
    eventually_async(DEADLINE, "the object in memory", is_back).await;
    assert!(cluster.master.report().totals.promotion_promoted >= 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_outlasts_its_node() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = start(config(false)).await;
    let first = node(&cluster, directory.path(), ByteSize::mib(32)).connect().await.unwrap();
    let app = cluster.app().await;
    put_all(&app, 20, 100_000).await;
    app.put("removed", "value").await.unwrap();
    app.put("replaced", "old").await.unwrap();
    eventually_async(DEADLINE, "all on disk", async || on_disks(&cluster.master) == 22).await;
    first.shutdown().await;
    assert!(matches!(app.get("k0").await, Err(GetError::NotReady)));
    app.remove("removed", true).await.unwrap();
    let helper = cluster.node().segment_size(ByteSize::mib(4)).connect().await.unwrap();
    app.upsert("replaced", "new").await.unwrap();

    let second = node(&cluster, directory.path(), ByteSize::mib(32)).connect().await.unwrap();
    let deleted = async || second.metrics().local_disk.unwrap().deleted == 2;
    eventually_async(DEADLINE, "the others to be deleted", deleted).await;
    assert_eq!(on_disks(&cluster.master), 20);
    get_all(&app, 20, 100_000).await;
    assert!(matches!(app.get("removed").await, Err(GetError::NotFound)));
    assert_eq!(app.get("replaced").await.unwrap(), "new");
    helper.shutdown().await;
}

/// A log in a file that the application opens, as it would a raw device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tier_of_the_applications_own_outlasts_its_node() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = start(config(false)).await;
    let node = || {
        let size = ByteSize::mib(320);
        let file = FileBackend::open(directory.path(), size).unwrap();
        let log = LogTier::open(file, LogSettings::default()).unwrap();
        let tier = OwnTier::new(Arc::new(log), size, LocalDiskId::from_u128(7));
        let node = cluster.node().segment_size(ByteSize::mib(32)).segment_name("node");
        node.own_tier(tier).connect()
    };
    let first = node().await.unwrap();
    let app = cluster.app().await;
    put_all(&app, 20, 100_000).await;
    eventually_async(DEADLINE, "all on disk", async || on_disks(&cluster.master) == 20).await;
    first.shutdown().await;
    assert!(matches!(app.get("k0").await, Err(GetError::NotReady)));
    let _second = node().await.unwrap();
    for n in 0..20 {
        let is_back = async || app.get(&format!("k{n}")).await.is_ok();
        eventually_async(DEADLINE, "an object to be back", is_back).await;
    }
    get_all(&app, 20, 100_000).await;
}

/// One reader finds out; the node looks for itself, and nothing stands in the way of the next put.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_missing_or_damaged_on_a_disk_is_not_listed_for_long() {
    let cluster = start(config(true)).await;
    let tier = Arc::new(MemoryTier::new());
    let own = OwnTier::new(Arc::clone(&tier) as _, ByteSize::mib(64), LocalDiskId::from_u128(7));
    let node = cluster.node().segment_size(ByteSize::mib(16)).own_tier(own);
    let _node = node.connect().await.unwrap();
    let app = cluster.client().put_wait(DEADLINE).connect().await.unwrap();
    put_all(&app, 32, MIB).await;
    let is_below = async || on_disks(&cluster.master) >= 4;
    eventually_async(DEADLINE, "objects on the disk", is_below).await;
    let page = tier.scan(None, NonZeroUsize::new(100).unwrap()).unwrap();
    let find = |key: &str| page.objects.iter().find(|it| it.id().key().as_str() == key).unwrap();
    let (missing, damaged) = (find("k0").id(), find("k1").id());
    tier.remove(missing).unwrap();
    tier.remove(damaged).unwrap();
    let other = SliceBytes::new(content("other", MIB));
    tier.put(damaged, &ObjectBytes::new(vec![other]).unwrap()).unwrap();
    for key in ["k0", "k1"] {
        app.get(key).await.unwrap_err();
        let is_forgotten = async || !app.exist(key).await.unwrap();
        eventually_async(DEADLINE, "the key to be free", is_forgotten).await;
        assert_eq!(app.put(key, content(key, MIB)).await.unwrap(), PutOutcome::Stored);
        assert_eq!(app.get(key).await.unwrap(), content(key, MIB));
    }
    assert!(tier.get(damaged).unwrap().is_none(), "it is not found after the next start");
    assert_eq!(app.get("k2").await.unwrap(), content("k2", MIB));
}

/// A heartbeat says when there is something to do for a disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_node_asks_for_no_work_and_does_what_comes_soon() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = start(config(false)).await;
    let node = node(&cluster, directory.path(), ByteSize::mib(32)).connect().await.unwrap();
    let calls = || calls(&node, "OffloadHeartbeat");
    let is_idle = async || {
        let before = calls();
        // Three questions would fit in.
        tokio::time::sleep(Duration::from_millis(1600)).await;
        calls() == before
    };
    eventually_async(DEADLINE, "no question for a while", is_idle).await;
    let app = cluster.app().await;
    put_all(&app, 1, 100_000).await;
    eventually_async(DEADLINE, "it to be written", async || on_disks(&cluster.master) == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_full_keeps_the_newest_objects() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = start(config(false)).await;
    let _node = node(&cluster, directory.path(), ByteSize::mib(32)).connect().await.unwrap();
    let app = cluster.client().put_wait(DEADLINE).connect().await.unwrap();
    for n in 0..150 {
        app.put(&format!("k{n}"), content("block", 4 * MIB)).await.unwrap();
        if n % 4 == 3 {
            let written = async || cluster.master.report().totals.offload_written == n + 1;
            eventually_async(DEADLINE, "the offload", written).await;
        }
    }
    let report = cluster.master.report();
    assert!(report.totals.tier_evictions > 0, "{report:?}");
    assert!(on_disks(&cluster.master) >= 20, "{report:?}");
    assert_eq!(app.get("k149").await.unwrap(), content("block", 4 * MIB));
    assert!(matches!(app.get("k0").await, Err(GetError::NotFound)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_one_path_have_a_directory_each_and_find_it_again() {
    const NODES: usize = 3;
    let directory = tempfile::tempdir().unwrap();
    let cluster = start(config(false)).await;
    let join = async || {
        let mut nodes = Vec::new();
        for n in 0..NODES {
            let node = node(&cluster, directory.path(), ByteSize::mib(8));
            nodes.push(node.segment_name(format!("node-{n}")).connect().await.unwrap());
        }
        nodes
    };
    let first = join().await;
    let app = cluster.app().await;
    for n in 0..NODES {
        let near = mc_store::ReplicateConfig::default().prefer(format!("node-{n}"));
        let key = format!("k{n}");
        app.put_with(&key, content(&key, 100_000), &near).await.unwrap();
    }
    eventually_async(DEADLINE, "all on disk", async || on_disks(&cluster.master) == 3).await;
    let disks = |report: mc_store::MasterReport| report.local_disks.len();
    assert_eq!(disks(cluster.master.report()), NODES);
    for node in first {
        node.shutdown().await;
    }
    let again = join().await;
    for n in 0..NODES {
        let is_back = async || app.get(&format!("k{n}")).await.is_ok();
        eventually_async(DEADLINE, "an object to be back", is_back).await;
    }
    get_all(&app, NODES, 100_000).await;
    let found = |name: &str| FileBackend::file_in(&cluster_directory(directory.path()).join(name));
    let made: Vec<bool> =
        ["", "rank-1", "rank-2", "rank-3"].map(|name| found(name).exists()).into();
    assert_eq!(made, [true, true, true, false]);
    for node in again {
        node.shutdown().await;
    }
}

/// The directory of the one cluster in a disk's path.
fn cluster_directory(path: &Path) -> std::path::PathBuf {
    std::fs::read_dir(path).unwrap().next().unwrap().unwrap().path()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_to_be_smaller_is() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = start(config(false)).await;
    let sized = |mib: u64| {
        let disk = LocalDiskOptions::new(directory.path()).size(ByteSize::mib(mib));
        cluster.node().segment_size(ByteSize::mib(64)).segment_name("node").local_disk(disk)
    };
    let len =
        || FileBackend::file_in(&cluster_directory(directory.path())).metadata().unwrap().len();
    let first = sized(256).connect().await.unwrap();
    let app = cluster.app().await;
    put_all(&app, 40, MIB).await;
    eventually_async(DEADLINE, "all on disk", async || on_disks(&cluster.master) == 40).await;
    first.shutdown().await;
    assert_eq!(len(), 256 << 20);
    // Its segments have 16 MiB.
    for (wanted, now) in [(100, 100 << 20), (20, (64 << 20) + 4096)] {
        let smaller = sized(wanted).connect().await.unwrap();
        assert_eq!(len(), now);
        let usage = async || {
            cluster
                .master
                .report()
                .local_disks
                .iter()
                .any(|disk| (1..=now).contains(&disk.usage.capacity) && disk.objects > 0)
        };
        eventually_async(DEADLINE, "the disk is known", usage).await;
        // What was in the part that is left.
        let is_any_read = async || {
            let mut read = 0;
            for n in 0..40 {
                let key = format!("k{n}");
                if let Ok(found) = app.get(&key).await {
                    assert!(found == content(&key, MIB), "{key}");
                    read += 1;
                }
            }
            read > 0
        };
        eventually_async(DEADLINE, "objects on the disk are read", is_any_read).await;
        smaller.shutdown().await;
    }
}

/// A disk that cannot be read, and one that hangs, cost their node nothing but the disk, and are used as soon
/// as they are well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_starts_without_a_disk_that_cannot_be_opened_and_uses_it_later() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = start(config(false)).await;
    let start = || node(&cluster, directory.path(), ByteSize::mib(8)).connect();
    start().await.unwrap().shutdown().await;
    let path = cluster_directory(directory.path());
    let (log, name) = (path.join("objects.log"), path.join("disk_id"));
    for hangs in [false, true] {
        let spoilt = if hangs { &name } else { &log };
        std::fs::remove_file(spoilt).unwrap();
        if hangs {
            // Reading it waits for a writer.
            let made = std::process::Command::new("mkfifo").arg(spoilt).status().unwrap();
            assert!(made.success());
        } else {
            // No file, but no matter of settings either.
            std::fs::create_dir(spoilt).unwrap();
        }
        let node = start().await.unwrap();
        assert!(node.metrics().is_local_disk_missing && node.metrics().local_disk.is_none());
        assert!(cluster.master.report().local_disks.is_empty());
        let (app, key) = (cluster.app().await, format!("hangs-{hangs}"));
        app.put(&key, content(&key, 100_000)).await.unwrap();
        assert_eq!(app.get(&key).await.unwrap(), content(&key, 100_000));
        if hangs {
            // Its reader finds no name, and no pipe when it comes again.
            let writer = std::fs::OpenOptions::new().write(true).open(spoilt).unwrap();
            std::fs::remove_file(spoilt).unwrap();
            drop(writer);
        } else {
            std::fs::remove_dir(spoilt).unwrap();
        }
        let is_open = async || cluster.master.report().local_disks.len() == 1;
        eventually_async(DEADLINE, "the disk to be used", is_open).await;
        assert!(!node.metrics().is_local_disk_missing);
        let key = format!("{key}-later");
        app.put(&key, content(&key, 100_000)).await.unwrap();
        eventually_async(DEADLINE, "it on disk", async || on_disks(&cluster.master) > 0).await;
        app.remove_all(true).await.unwrap();
        node.shutdown().await;
        let is_away = async || cluster.master.report().local_disks.is_empty();
        eventually_async(DEADLINE, "the disk to be away", is_away).await;
    }
}

/// An object that a former master knew, of 96 bytes.
fn put_found(tier: &dyn Tier, number: u64) {
    let bytes = SliceBytes::new(Bytes::from(number.to_be_bytes().repeat(12)));
    let key = mc_types::ObjectKey::new(format!("block-{number:016x}")).unwrap();
    // Those of a master begin below.
    let generation = mc_types::Generation::new((1 << 63) + number);
    let id = mc_tier::ObjectId::new("default", key, generation).unwrap();
    tier.put(&id, &ObjectBytes::new(vec![bytes]).unwrap()).unwrap();
}

/// As after the restart of a master without a journal. Prints how long it takes; the long form is
/// `MC_DISK_OBJECTS=10000000 cargo nextest run -p mc-store --test it a_disk_with_many_objects --no-capture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_with_many_objects_is_known_soon_and_puts_and_gets_go_on_meanwhile() {
    let count = std::env::var("MC_DISK_OBJECTS").map_or(50_000, |count| count.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let len = ByteSize::bytes(count * 4096 + (256 << 20));
    let backend = FileBackend::open(directory.path(), len).unwrap();
    let tier = LogTier::open(backend, LogSettings::default()).unwrap();
    (0..count).for_each(|number| put_found(&tier, number));
    let cluster = start(config(false)).await;
    let app = cluster.app().await;
    let begun = Instant::now();
    let disk = OwnTier::new(Arc::new(tier), len, LocalDiskId::from_u128(7));
    let node =
        cluster.node().segment_size(ByteSize::mib(64)).own_tier(disk).connect().await.unwrap();
    let (mut meanwhile, mut longest) = (0, Duration::ZERO);
    while on_disks(&cluster.master) < count {
        assert!(begun.elapsed() < 60 * DEADLINE, "{} of {count}", on_disks(&cluster.master));
        let put = Instant::now();
        let key = format!("meanwhile-{meanwhile}");
        app.upsert(&key, content(&key, 1000)).await.unwrap();
        assert_eq!(app.get(&key).await.unwrap(), content(&key, 1000));
        app.remove(&key, true).await.unwrap();
        longest = longest.max(put.elapsed());
        meanwhile += 1;
    }
    let (known, elapsed) = (on_disks(&cluster.master), begun.elapsed());
    eprintln!(
        "{known} objects known after {elapsed:.1?}; meanwhile {meanwhile} puts and gets, each at most {longest:.1?}"
    );
    for number in [0, 1, count / 2, count - 1] {
        let found = app.get(&format!("block-{number:016x}")).await.unwrap();
        assert_eq!(found, number.to_be_bytes().repeat(12));
    }
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_fails_goes_on_where_it_was() {
    const OBJECTS: u64 = 60_000;
    let tier = Arc::new(FaultyTier::new(MemoryTier::new(), 1));
    (0..OBJECTS).for_each(|number| put_found(&*tier, number));
    let mut slow = Faults::default();
    slow.delay = Duration::from_millis(300);
    tier.set(slow);
    let cluster = start(config(false)).await;
    let disk = OwnTier::new(Arc::clone(&tier) as _, ByteSize::mib(64), LocalDiskId::from_u128(7));
    let node = cluster.node().segment_size(ByteSize::mib(16)).own_tier(disk);
    let node = node.connect().await.unwrap();
    let known = || on_disks(&cluster.master);
    let calls = |method| calls(&node, method);
    eventually_async(DEADLINE, "the first objects to be known", async || known() > 0).await;
    let mut broken = slow;
    broken.read_fails = 1.0;
    tier.set(broken);
    // Each turn begins with it. The page before may end first.
    let turns = calls("FetchDiskDeletions");
    let has_failed = async || calls("FetchDiskDeletions") >= turns + 2;
    eventually_async(DEADLINE, "the report to fail", has_failed).await;
    assert!(known() < OBJECTS, "it was told of before");
    tier.set(slow);
    eventually_async(DEADLINE, "the others to be known", async || known() == OBJECTS).await;
    // The last is counted when its answer has come.
    let wanted = OBJECTS.div_ceil(1024);
    let have_ended = async || calls("ReportLocalDisk") >= wanted;
    eventually_async(DEADLINE, "the last answer", have_ended).await;
    assert_eq!(calls("ReportLocalDisk"), wanted, "of 1024 objects each");
    node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_objects_make_room_when_the_disk_has_as_many_as_it_may() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(false);
    config.local_disk.as_mut().unwrap().max_objects = 40;
    let cluster = start(config).await;
    let node = node(&cluster, directory.path(), ByteSize::mib(32)).connect().await.unwrap();
    let is_used = async || cluster.master.report().local_disks.len() == 1;
    eventually_async(DEADLINE, "the disk to be used", is_used).await;
    put_all(&node, 40, 1000).await;
    eventually_async(DEADLINE, "a full disk", async || on_disks(&cluster.master) == 40).await;
    let mut n = 40;
    let has_newest = async || {
        n += 1;
        let key = format!("k{n}");
        node.put(&key, content(&key, 1000)).await.unwrap();
        let is_there = async || !node.describe(&key).await.unwrap().local_disks.is_empty();
        let limit = Duration::from_millis(500);
        let waits = async { while !is_there().await {} };
        tokio::time::timeout(limit, waits).await.is_ok()
    };
    eventually_async(DEADLINE, "the newest on disk", has_newest).await;
    assert!(on_disks(&cluster.master) <= 40);
    let is_in_tier = async |key: &str| !node.describe(key).await.unwrap().local_disks.is_empty();
    // Several are written at a time, in any order.
    let mut gone = 0;
    for n in 0..10 {
        gone += usize::from(!is_in_tier(&format!("k{n}")).await);
    }
    assert!(gone > 0, "the oldest went");
    assert!(is_in_tier("k39").await);
    assert!(node.metrics().local_disk.unwrap().evicted > 0);
}
