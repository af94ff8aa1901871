//! Media below memory that are slow or hang: what they alone have is missing, and nothing waits for them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_meta::{LocalDiskConfig, ReplicaPlace, SharedTierConfig};
use mc_rpc::Failure;
use mc_store::{
    ByteSize, Client, ErrorCode, GetError, GetInto, Master, MasterConfig, Memory, NodeConfig,
    OwnTier, SegmentOptions,
};
use mc_testkit::eventually_async;
use mc_tier::{
    FileBackend, LogSettings, LogTier, MemoryBackend, MemoryTier, ObjectBytes, ObjectId,
    ScanCursor, ScanPage, SliceBytes, StorageBackend, Tier, TierError, TierUsage,
};
use mc_transport::tcp::TcpConfig;
use mc_types::{ClientId, KeyRef, LocalDiskId};
use parking_lot::{Condvar, Mutex};

use crate::common::content;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// A brake that makes the readers of a medium wait.
#[derive(Debug, Default)]
struct Brake {
    state: Mutex<(Option<Box<str>>, Duration)>,
    released: Condvar,
}

impl Brake {
    /// Reads of keys that begin so hang until this is dropped.
    fn hang(self: &Arc<Self>, keys: &str) -> Hang {
        self.state.lock().0 = Some(keys.into());
        Hang(Arc::clone(self))
    }

    fn delay(&self, delay: Duration) {
        self.state.lock().1 = delay;
    }

    fn pass(&self, key: &str) {
        let mut state = self.state.lock();
        let delay = state.1;
        while state.0.as_ref().is_some_and(|keys| key.starts_with(&**keys)) {
            self.released.wait(&mut state);
        }
        drop(state);
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
    }
}

/// A medium hangs as long as this lives.
struct Hang(Arc<Brake>);

impl Drop for Hang {
    fn drop(&mut self) {
        self.0.state.lock().0 = None;
        self.0.released.notify_all();
    }
}

/// A tier whose reads wait for a brake.
#[derive(Debug)]
struct Braked<T> {
    inner: T,
    brake: Arc<Brake>,
}

impl<T: Tier> Tier for Braked<T> {
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        self.inner.put(id, object)
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        self.brake.pass(id.key().as_str());
        self.inner.get(id)
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.brake.pass(id.key().as_str());
        self.inner.get_range(id, range)
    }

    fn get_unverified(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.brake.pass(id.key().as_str());
        self.inner.get_unverified(id, range)
    }

    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        self.inner.remove(id)
    }

    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        self.inner.scan(after, limit)
    }

    fn usage(&self) -> Result<TierUsage, TierError> {
        self.inner.usage()
    }
}

/// A cluster whose clients keep files, and disks where they have any.
async fn start() -> Cluster {
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::default());
    config.local_disk = Some(LocalDiskConfig::default());
    Cluster::start_with(config, &[]).await
}

fn shared() -> (Arc<Braked<MemoryTier>>, Arc<Brake>) {
    let brake = Arc::<Brake>::default();
    (Arc::new(Braked { inner: MemoryTier::new(), brake: Arc::clone(&brake) }), brake)
}

/// A disk in memory, whose reads wait for a brake.
fn disk(id: u128) -> (OwnTier, Arc<Brake>) {
    let (size, brake) = (ByteSize::mib(64), Arc::<Brake>::default());
    let mut settings = LogSettings::default();
    settings.segment_len = ByteSize::mib(4);
    let inner = LogTier::open(MemoryBackend::new(size), settings).unwrap();
    let tier = Braked { inner, brake: Arc::clone(&brake) };
    (OwnTier::new(Arc::new(tier), size, LocalDiskId::from_u128(id)), brake)
}

/// Puts objects, and takes the node that has them in memory away.
async fn put_in_files_alone(cluster: &Cluster, tier: &Arc<Braked<MemoryTier>>, keys: &[String]) {
    let node = cluster.node().segment_size(ByteSize::mib(16)).shared_tier(tier.clone());
    let node = node.connect().await.unwrap();
    put_all(&node, keys).await;
    assert!(node.flush_files(DEADLINE).await, "files are written in time");
    node.shutdown().await;
}

async fn put_all(client: &Client, keys: &[String]) {
    for key in keys {
        client.put(key, content(key, 1000)).await.unwrap();
    }
}

fn keys(begin: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{begin}{n}")).collect()
}

fn on_disks(master: &Master) -> u64 {
    master.report().local_disks.iter().map(|disk| disk.objects).sum()
}

fn timed_out(outcome: &Result<Bytes, GetError>) -> bool {
    matches!(outcome, Err(error @ GetError::TierTimedOut { .. })
        if error.code() == ErrorCode::ReplicaIsNotReady && error.is_retryable())
}

/// Gets all, the last of which is on a medium that hangs; how long that took.
async fn get_all_but_the_last(app: &Client, keys: &[String]) -> Duration {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let begun = Instant::now();
    let mut outcomes = app.batch_get(&keys).await;
    let took = begun.elapsed();
    assert!(timed_out(&outcomes.pop().unwrap()));
    for (key, outcome) in keys.iter().zip(outcomes) {
        assert_eq!(outcome.unwrap(), content(key, 1000), "{key}");
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_returned_when_one_of_its_objects_is_on_a_medium_that_hangs() {
    let cluster = start().await;
    let (tier, brake) = shared();
    let far = keys("far", 1);
    put_in_files_alone(&cluster, &tier, &far).await;
    // These are in files of a medium that is slow.
    let slow = keys("slow", 300);
    put_in_files_alone(&cluster, &tier, &slow).await;
    let node = cluster.node().segment_size(ByteSize::mib(16)).connect().await.unwrap();
    let near = keys("near", 699);
    put_all(&node, &near).await;
    let limit = Duration::from_secs(1);
    let app =
        cluster.client().shared_tier(tier).shared_tier_timeout(limit).connect().await.unwrap();
    brake.delay(Duration::from_millis(20));
    let hang = brake.hang("far");
    let took = get_all_but_the_last(&app, &[near, slow, far.clone()].concat()).await;
    println!("1,000 objects, one of which hangs: {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    let metrics = app.metrics().shared_tier.unwrap();
    assert_eq!((metrics.timed_out_reads, metrics.skipped_reads), (1, 0));
    drop(hang);
    assert_eq!(app.get(&far[0]).await.unwrap(), content(&far[0], 1000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_tier_waits_for_another_that_hangs_and_one_that_answers_again_is_read_again() {
    let cluster = start().await;
    let (tier, brake) = shared();
    let far = keys("far", 80);
    put_in_files_alone(&cluster, &tier, &far).await;
    let (own, _) = disk(7);
    let limit = Duration::from_millis(300);
    let node =
        cluster.node().segment_size(ByteSize::mib(16)).own_tier(own).shared_tier(tier.clone());
    let node = node.shared_tier_timeout(limit).connect().await.unwrap();
    let near = keys("near", 10);
    put_all(&node, &near).await;
    eventually_async(DEADLINE, "all on disk", async || on_disks(&cluster.master) == 10).await;
    let segment = node.segments().pop().unwrap();
    node.unmount_segment(segment.id, Duration::ZERO).await.unwrap();
    let hang = brake.hang("far");
    let hanging = far.iter().map(|key| {
        let (node, key) = (node.clone(), key.clone());
        tokio::spawn(async move { node.get(&key).await })
    });
    let hanging: Vec<_> = hanging.collect();
    let outcomes = async {
        for key in &near {
            assert_eq!(node.get(key).await.unwrap(), content(key, 1000), "from the local disk");
        }
    };
    tokio::time::timeout(DEADLINE, outcomes).await.unwrap();
    for get in hanging {
        assert!(timed_out(&get.await.unwrap()));
    }
    let metrics = || node.metrics().shared_tier.unwrap();
    let found = metrics();
    // As many threads as there are places, for all callers together.
    assert!((3..=32).contains(&found.timed_out_reads), "{found:?}");
    let begun = Instant::now();
    for key in &far {
        assert!(timed_out(&node.get(key).await));
    }
    assert!(metrics().timed_out_reads <= 32 && metrics().skipped_reads >= 80, "{:?}", metrics());
    assert!(begun.elapsed() < DEADLINE, "they are missing at once");
    drop(hang);
    let is_back = async || node.get(&far[0]).await.is_ok();
    eventually_async(DEADLINE, "the tier to be read again", is_back).await;
    for key in &far {
        assert_eq!(node.get(key).await.unwrap(), content(key, 1000));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peers_disk_that_hangs_costs_what_it_alone_has_and_its_memory_is_read_as_ever() {
    let cluster = start().await;
    let (own, brake) = disk(8);
    let node =
        cluster.node().segment_size(ByteSize::mib(16)).own_tier(own).connect().await.unwrap();
    let far = keys("far", 3);
    put_all(&node, &far).await;
    eventually_async(DEADLINE, "all on disk", async || on_disks(&cluster.master) == 3).await;
    let segment = node.segments().pop().unwrap();
    node.unmount_segment(segment.id, Duration::ZERO).await.unwrap();
    node.mount_segment(SegmentOptions::new(ByteSize::mib(16))).await.unwrap();
    let near = keys("near", 100);
    put_all(&node, &near).await;
    // Over the network, so that memory and disk have the same way.
    let mut network = NodeConfig::new(TcpConfig::default());
    network.shm = None;
    let limit = Duration::from_millis(500);
    let app = cluster.client().node(network).peer_disk_timeout(limit).connect().await.unwrap();
    assert_eq!(app.get("far1").await.unwrap(), content("far1", 1000));
    let hang = brake.hang("far0");
    let took = get_all_but_the_last(&app, &[near.clone(), far[..1].to_vec()].concat()).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    let begun = Instant::now();
    let mut slowest = Duration::ZERO;
    let hanging = tokio::spawn({
        let app = app.clone();
        async move { app.get("far0").await }
    });
    while !hanging.is_finished() {
        let get = Instant::now();
        assert_eq!(app.get(&near[0]).await.unwrap(), content(&near[0], 1000));
        slowest = slowest.max(get.elapsed());
    }
    assert!(timed_out(&hanging.await.unwrap()));
    assert!(slowest < limit && begun.elapsed() >= limit, "{slowest:?}, {:?}", begun.elapsed());
    assert!(timed_out(&app.get("far0").await));
    assert!(timed_out(&app.get("far0").await), "left alone");
    let metrics = app.metrics();
    assert_eq!((metrics.peer_disk_timed_out_reads, metrics.peer_disk_skipped_reads), (3, 1));
    drop(hang);
    let is_back = async || app.get("far0").await.is_ok();
    eventually_async(DEADLINE, "the disk to be read again", is_back).await;
    assert_eq!(app.get("far1").await.unwrap(), content("far1", 1000));
}

/// Counts what is read.
#[derive(Debug)]
struct Counting {
    inner: FileBackend,
    read: AtomicU64,
}

impl StorageBackend for Counting {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.inner.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }
}

/// A node looks at what others say is damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_hangs_holds_up_no_look_at_memory() {
    let cluster = start().await;
    let (disk, brake) = disk(7);
    let node = cluster.node().segment_size(ByteSize::mib(16)).own_tier(disk);
    let _node = node.connect().await.unwrap();
    let app = cluster.app().await;
    put_all(&app, &["far".into(), "near".into()]).await;
    let written = async || on_disks(&cluster.master) == 2;
    eventually_async(DEADLINE, "all on the disk", written).await;
    let hang = brake.hang("far");
    for (key, is_in_tier) in [("far", true), ("near", false)] {
        let key = KeyRef::new(key).unwrap();
        let list = app.master().get_replica_list(key).await.unwrap();
        let replica = &list.replicas[0];
        let place = match is_in_tier {
            true => ReplicaPlace::LocalDisk(list.local_disks[0].client),
            false => ReplicaPlace::Memory { segment: replica.segment.id, extent: replica.extent },
        };
        let lie = Failure::Damaged { object: key.into(), generation: list.generation, place };
        let told = app.master().report_failures(ClientId::from_u128(77), &[lie]).await.unwrap();
        assert_eq!(told.noted, 1);
    }
    let denied = |count| {
        let master = &cluster.master;
        async move || master.report().totals.damage_denied == count
    };
    eventually_async(DEADLINE, "the look at memory", denied(1)).await;
    drop(hang);
    eventually_async(DEADLINE, "the look at the disk", denied(2)).await;
    assert_eq!(app.get("far").await.unwrap(), content("far", 1000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_of_a_long_object_on_the_own_disk_reads_that_layer() {
    const LEN: usize = 64_000_000;
    let directory = tempfile::tempdir().unwrap();
    let cluster = start().await;
    let size = ByteSize::mib(520);
    let inner = FileBackend::open(directory.path(), size).unwrap();
    let backend = Arc::new(Counting { inner, read: AtomicU64::new(0) });
    let mut settings = LogSettings::default();
    settings.segment_len = ByteSize::mib(128);
    let log = LogTier::open(Arc::clone(&backend), settings).unwrap();
    let own = OwnTier::new(Arc::new(log), size, LocalDiskId::from_u128(9));
    let node =
        cluster.node().segment_size(ByteSize::mib(96)).own_tier(own).connect().await.unwrap();
    let value = content("long", LEN);
    node.put("long", value.clone()).await.unwrap();
    eventually_async(DEADLINE, "it is on disk", async || on_disks(&cluster.master) == 1).await;
    let segment = node.segments().pop().unwrap();
    node.unmount_segment(segment.id, Duration::ZERO).await.unwrap();
    let read = async |range: Range<u64>| {
        let before = backend.read.load(Ordering::Relaxed);
        let found = node.get_range("long", range.clone()).await.unwrap();
        assert_eq!(found, value.slice(range.start as usize..range.end as usize), "{range:?}");
        backend.read.load(Ordering::Relaxed) - before
    };
    let mib = 1 << 20;
    let counted = read(20 * mib..21 * mib).await;
    println!("a range of 1 MiB reads {counted} bytes");
    assert!(counted <= 1_100_000, "{counted}");
    // Where it is not cut as checksums are, one part of 64 KiB more at each end.
    let counted = read(33_000_001..34_000_001).await;
    assert!(counted <= 1_000_000 + (128 << 10) + 8192, "{counted}");
    let counted = read(0..LEN as u64).await;
    assert!(counted <= LEN as u64 + 100_000, "{counted}");
}

/// Somebody who can write to the shared tier changes an object, and its checksums there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_put_in_the_place_of_an_object_is_not_read() {
    let cluster = start().await;
    let (tier, _) = shared();
    let all = keys("far", 1);
    put_in_files_alone(&cluster, &tier, &all).await;
    let app = cluster.client().shared_tier(tier.clone()).connect().await.unwrap();
    let mut value = content("far0", 1000).to_vec();
    assert_eq!(app.get_range("far0", 100..200).await.unwrap(), value[100..200]);
    let page = tier.scan(None, NonZeroUsize::new(10).unwrap()).unwrap();
    value[150] ^= 1;
    let slice = SliceBytes::new(value.into());
    tier.put(page.objects[0].id(), &ObjectBytes::new(vec![slice]).unwrap()).unwrap();
    let memory = Memory::allocate(100).unwrap();
    let range = GetInto::new("far0", memory.whole()).range(100..200);
    let outcomes = [
        app.get_range("far0", 100..200).await.map(drop),
        app.get("far0").await.map(drop),
        app.batch_get_into(vec![range]).await.remove(0).map(drop),
    ];
    for outcome in outcomes {
        assert!(matches!(outcome, Err(GetError::Tier(_))), "{outcome:?}");
    }
}
