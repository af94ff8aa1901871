//! Shared tiers on file systems that are not as they should be: full of others' files, or not mounted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_meta::SharedTierConfig;
use mc_store::{ByteSize, Client, Master, MasterConfig, StorageSettings};
use mc_testkit::{eventually_async, role};
use mc_tier::{
    MediumSpace, MemoryTier, ObjectBytes, ObjectId, ScanCursor, ScanPage, Tier, TierError,
    TierUsage,
};

use crate::apart::{in_a_runtime, mount, unmount, with_mounts};
use crate::common::content;

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(40);
const MIB: usize = 1 << 20;

async fn start(root: &Path) -> Cluster {
    let settings = StorageSettings::in_directory(root.to_str().unwrap()).cluster_id("cluster");
    Cluster::of(Master::builder().storage(settings), &[ByteSize::mib(64)]).await
}

/// How many objects have files.
fn files(root: &Path) -> usize {
    let folders = fs::read_dir(root.join("cluster")).unwrap().map(|folder| folder.unwrap().path());
    let folders = folders.filter(|folder| folder.is_dir() && folder.file_name().unwrap() != "tmp");
    folders.map(|folder| fs::read_dir(folder).unwrap().count()).sum()
}

async fn put_with_file(app: &Client, key: &str) {
    app.put(key, content(key, MIB / 2)).await.unwrap();
    assert!(app.flush_files(DEADLINE).await, "files are written in time");
}

#[test]
fn on_a_file_system_that_others_have_filled_files_share_what_is_left() {
    with_mounts("foreign_media::on_a_file_system_that_others_have_filled");
}

#[test]
fn on_a_file_system_that_others_have_filled() {
    let Some(root) = role::role() else { return };
    let root = Path::new(&root);
    mount(root, 64 * MIB);
    in_a_runtime(async || {
        let cluster = start(root).await;
        let app = &cluster.nodes[0];
        // Less than a tenth is left for all files together.
        fs::write(root.join("foreign"), vec![1; 58 * MIB]).unwrap();
        for n in 0..20 {
            put_with_file(app, &format!("k{n}")).await;
        }
        assert!(files(root) >= 8, "{} files", files(root));
        let evicted = || app.metrics().shared_tier.unwrap().evicted;
        eventually_async(DEADLINE, "room to be made", async || evicted() > 0).await;
        let has_room = async || {
            put_with_file(app, "next").await;
            let has_file = app.describe("next").await.unwrap().file.is_some();
            app.remove("next", true).await.unwrap();
            has_file
        };
        eventually_async(DEADLINE, "the next object to get a file", has_room).await;
        assert!(files(root) >= 6, "{} files are left", files(root));
        cluster.nodes[0].shutdown().await;
    });
}

/// A medium that gives the space of what is removed back later.
#[derive(Debug)]
struct Snapshots {
    inner: MemoryTier,
    total: u64,
    written: AtomicU64,
    looks: AtomicU64,
    are_gone: AtomicBool,
}

impl Tier for Snapshots {
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        let len = object.slices().iter().map(|slice| slice.info().len).sum();
        self.written.fetch_add(len, Ordering::Relaxed);
        self.inner.put(id, object)
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        self.inner.get(id)
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.inner.get_range(id, range)
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

    fn medium(&self) -> Result<Option<MediumSpace>, TierError> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let used = match self.are_gone.load(Ordering::Relaxed) {
            true => self.usage()?.bytes,
            false => self.written.load(Ordering::Relaxed),
        };
        let free = ByteSize::bytes(self.total.saturating_sub(used));
        Ok(Some(MediumSpace { total: ByteSize::bytes(self.total), free }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_evicting_makes_no_room_files_stay_and_no_more_are_written_until_there_is_room() {
    let tier = Arc::new(Snapshots {
        inner: MemoryTier::new(),
        total: 20 * MIB as u64,
        written: AtomicU64::new(0),
        looks: AtomicU64::new(0),
        are_gone: AtomicBool::new(false),
    });
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::default());
    let cluster = Cluster::start_with(config, &[]).await;
    let node = |name| cluster.node().segment_name(name).segment_size(ByteSize::mib(16));
    let node = async |name| node(name).shared_tier(tier.clone()).connect().await.unwrap();
    let (first, second) = (node("first").await, node("second").await);
    for n in 0..38 {
        put_with_file(&first, &format!("k{n}")).await;
    }
    let metrics = |client: &Client| client.metrics().shared_tier.unwrap();
    let evicted = || metrics(&first).evicted + metrics(&second).evicted;
    eventually_async(DEADLINE, "files to be evicted", async || evicted() > 0).await;
    let looks = || tier.looks.load(Ordering::Relaxed);
    // Two clients look, every ten seconds.
    let seen = looks();
    eventually_async(DEADLINE, "more looks", async || looks() >= seen + 4).await;
    assert!(evicted() < 38 / 4, "{} files are gone", evicted());
    assert_eq!(tier.usage().unwrap().objects, 38 - evicted());
    let (writer, other) = match metrics(&first).evicted {
        0 => (&second, &first),
        _ => (&first, &second),
    };
    put_with_file(writer, "no-room").await;
    assert_eq!(metrics(writer).no_room, 1);
    assert!(other.describe("no-room").await.unwrap().file.is_none());
    tier.are_gone.store(true, Ordering::Relaxed);
    let mut n = 0;
    let is_written = async || {
        n += 1;
        let key = format!("later-{n}");
        put_with_file(writer, &key).await;
        writer.describe(&key).await.unwrap().file.is_some()
    };
    eventually_async(DEADLINE, "files to be written again", is_written).await;
}

#[test]
fn a_directory_whose_file_system_is_not_mounted_is_not_used_until_it_is() {
    with_mounts("foreign_media::where_a_file_system_is_not_mounted");
}

#[test]
fn where_a_file_system_is_not_mounted() {
    let Some(root) = role::role() else { return };
    let root = Path::new(&root);
    mount(root, 8 * MIB);
    let (there, later) = (root.join("there"), root.join("later"));
    for directory in [&there, &later] {
        fs::create_dir(directory).unwrap();
    }
    mount(&there, 64 * MIB);
    in_a_runtime(async || {
        let mut cluster = start(&there).await;
        let app = cluster.app().await;
        put_with_file(&app, "k").await;
        let late = cluster.client().storage_root(&later).connect().await.unwrap();
        late.put("of-late", content("of-late", 1000)).await.unwrap();
        assert!(late.flush_files(DEADLINE).await);
        assert_eq!(
            fs::read_dir(&later).unwrap().count(),
            0,
            "nothing is written where none reads it"
        );
        assert!(app.describe("of-late").await.unwrap().file.is_none());
        cluster.nodes.remove(0).shutdown().await;
        assert!(late.get("k").await.is_err());
        let mut bind = Command::new("mount");
        assert!(bind.arg("--bind").args([&there, &later]).status().unwrap().success());
        let is_read =
            async || late.get("k").await.is_ok_and(|value| value == content("k", MIB / 2));
        eventually_async(DEADLINE, "the directory to be used", is_read).await;
        late.shutdown().await;
        app.shutdown().await;
        unmount(&later);
    });
}

/// After a restart of the master, the first client to come is one whose host has not mounted the file system.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_has_marked_a_directory_that_is_not_the_cluster_s_leaves_it() {
    let [there, elsewhere] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let before = start(there.path()).await;
    put_with_file(&before.nodes[0], "k").await;
    before.nodes[0].shutdown().await;
    before.master.shutdown().await;
    let settings = StorageSettings::in_directory(there.path().to_str().unwrap());
    let master = Master::builder().storage(settings.cluster_id("cluster"));
    let cluster = Cluster::of(master, &[]).await;
    let node = |name| cluster.node().segment_name(name).segment_size(ByteSize::mib(16));
    let astray = node("astray").storage_root(elsewhere.path()).connect().await.unwrap();
    put_with_file(&astray, "of-astray").await;
    let right = node("right").connect().await.unwrap();
    let mut n = 0;
    let is_left = async || {
        n += 1;
        let (lost, kept) = (format!("lost-{n}"), format!("kept-{n}"));
        put_with_file(&astray, &lost).await;
        put_with_file(&right, &kept).await;
        let has_file = async |key: &str| right.describe(key).await.unwrap().file.is_some();
        !has_file(&lost).await && has_file(&kept).await
    };
    eventually_async(DEADLINE, "the wrong directory to be left", is_left).await;
    assert!(files(there.path()) > 0);
}
