//! Files that a master had removed and the next one lists before they are gone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::Cluster;
use mc_meta::SharedTierConfig;
use mc_store::{ByteSize, Master, MasterConfig};
use mc_testkit::eventually_async;
use mc_tier::{
    MemoryTier, ObjectBytes, ObjectId, ScanCursor, ScanPage, Tier, TierError, TierUsage,
};
use parking_lot::{Condvar, Mutex};

/// Long enough for a loaded machine; a test that needs it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// A removal that takes longer is told to the master.
const LONG: Duration = Duration::from_millis(200);

/// A mount of a medium that does not remove anything for a while.
#[derive(Debug)]
struct Hanging {
    medium: Arc<MemoryTier>,
    hangs: Mutex<bool>,
    goes_on: Condvar,
    /// When the first removal began.
    begun: Mutex<Option<Instant>>,
}

impl Hanging {
    fn end(&self) {
        *self.hangs.lock() = false;
        self.goes_on.notify_all();
    }
}

impl Tier for Hanging {
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        self.medium.put(id, object)
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        self.medium.get(id)
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.medium.get_range(id, range)
    }

    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        self.begun.lock().get_or_insert_with(Instant::now);
        self.goes_on.wait_while(&mut self.hangs.lock(), |hangs| *hangs);
        self.medium.remove(id)
    }

    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        self.medium.scan(after, limit)
    }

    fn usage(&self) -> Result<TierUsage, TierError> {
        self.medium.usage()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_removed_after_another_master_has_listed_it_is_not_listed_any_more() {
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::default());
    let first = Cluster::start_with(config.clone(), &[]).await;
    let address = first.master.local_addr();
    let medium = Arc::new(MemoryTier::new());
    let hanging = Arc::new(Hanging {
        medium: Arc::clone(&medium),
        hangs: Mutex::new(true),
        goes_on: Condvar::new(),
        begun: Mutex::default(),
    });
    let node = first.node().segment_size(ByteSize::mib(1));
    let node = node.shared_tier(Arc::clone(&hanging) as _).connect().await.unwrap();
    node.put("k", mc_testkit::content("k", 1000)).await.unwrap();
    assert!(node.flush_files(DEADLINE).await, "the file is written");
    node.remove("k", true).await.unwrap();
    let has_begun = async || hanging.begun.lock().is_some();
    eventually_async(DEADLINE, "the file to be removed", has_begun).await;

    // Without a journal it knows of no removal, and another node finds the file.
    first.master.shutdown().await;
    let mut second = None;
    eventually_async(DEADLINE, "the master's address to be free", async || {
        second = Master::builder().config(config.clone()).listen(address).start().await.ok();
        second.is_some()
    })
    .await;
    let second = second.unwrap();
    let other = mc_cluster_testkit::node(&address).segment_size(ByteSize::mib(1));
    let other = other.shared_tier(Arc::clone(&medium) as _).connect().await.unwrap();
    let is_listed = async || {
        let is_late = hanging.begun.lock().is_some_and(|begun| begun.elapsed() >= LONG);
        is_late && second.report().totals.objects == 1
    };
    eventually_async(DEADLINE, "the file to be listed", is_listed).await;
    assert!(other.exist("k").await.unwrap());

    hanging.end();
    let is_gone = async || second.report().totals.objects == 0;
    eventually_async(DEADLINE, "the master to hear of the removal", is_gone).await;
    assert_eq!(medium.usage().unwrap().objects, 0);
    node.shutdown().await;
    other.shutdown().await;
}
