//! How soon a standby of a large cache can be asked for something.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_ha::election::memory::MemoryCluster;
use mc_ha::{
    Batch, Identity, JournalError, JournalProgress, JournalWriter, MemoryJournal, MetadataJournal,
    WriterSettings,
};
use mc_meta::{PutEnd, PutStart, ReplicateConfig};
use mc_store::{ByteSize, MasterConfig};
use mc_types::{ClientId, Epoch, KeyRef, Sequence, Time};

use crate::common::segment;
use crate::terms::{LEASE, addresses, client, in_sync_within, join_as, leader_is_followed, value};

/// Nobody waits for what is written before the cluster is there.
struct Unwatched;

impl JournalProgress for Unwatched {
    fn acknowledge(&self, _: Sequence) {}

    fn suspended(&self, _: Option<&JournalError>) {}

    fn appended(&self, _: &[Batch]) {}
}

/// The journal of a master that holds so many objects, of a node that stays away.
fn large(objects: u64, config: &MasterConfig) -> MemoryJournal {
    let journal = MemoryJournal::new();
    let identity = Identity { seed: 7, secret: [7; 16] };
    journal.set_identity(&identity).unwrap();
    let shared = Arc::new(journal.clone());
    let writer = JournalWriter::start(
        shared,
        Epoch::new(1),
        &Default::default(),
        WriterSettings::default(),
        Arc::new(Unwatched),
    );
    let writer = writer.unwrap();
    let master = mc_meta::Master::new(config.clone(), identity.seed).unwrap();
    let master = master.with_sink(writer.sink());
    let away = ClientId::from_u128(1);
    let spec = segment(9, 1 << 40, "mem://away");
    master.mount_segment(Time::ORIGIN, away, spec).unwrap();
    for number in 0..objects {
        let key = format!("{number:0>40x}");
        let key = KeyRef::new(&key).unwrap();
        let put = PutStart { key, slice_lengths: &[4096], config: &ReplicateConfig::default() };
        let grant = master.put_start(Time::ORIGIN, away, &put).unwrap();
        master.put_end(Time::ORIGIN, away, &PutEnd::new(key, grant.handle)).unwrap();
        if number % 10_000 == 0 {
            assert!(writer.wait_durable(master.last_sequence(), Duration::from_secs(60)));
        }
    }
    assert!(writer.wait_durable(master.last_sequence(), Duration::from_secs(60)));
    journal
}

/// `MC_TAKEOVER_OBJECTS=10000000` prints the figures of the documentation.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_of_a_large_cache_can_be_asked_soon_after_its_election() {
    let objects = std::env::var("MC_TAKEOVER_OBJECTS").map_or(50_000, |all| all.parse().unwrap());
    let mut config = MasterConfig::default();
    config.client_return_timeout = Duration::from_secs(3600);
    let full = large(objects, &config);
    let cluster = MemoryCluster::start(LEASE).unwrap();
    let masters = addresses::<2>();
    let leader = join_as(&cluster, masters[0], Arc::new(full), config.clone()).await.await.unwrap();
    let second = join_as(&cluster, masters[1], Arc::new(MemoryJournal::new()), config).await;
    // With ten million objects a snapshot takes a while.
    in_sync_within(&leader, 2, Duration::from_secs(240)).await;
    let node = client(&masters, ByteSize::mib(16)).await;
    node.put("key", "value").await.unwrap();
    // And with that the standby is ready.
    leader_is_followed(&leader).await;

    let begun = Instant::now();
    leader.hand_over().await.unwrap();
    let next = second.await.unwrap();
    let led = begun.elapsed();
    assert_eq!(value(&node, "key").await, b"value"[..]);
    println!(
        "{objects} objects: the next master leads {led:.2?} after the hand-over began, and a client of a \
         node that is back has an object after {:.2?}",
        begun.elapsed(),
    );
    let report = next.state().report();
    assert_eq!(report.totals.objects, objects + 1, "it has all of them");
    node.shutdown().await;
    leader.shutdown().await;
    next.shutdown().await;
}
