//! Masters that lead in turn: what ends a term, and what is kept then.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_ha::election::Member;
use mc_ha::election::memory::MemoryCluster;
use mc_ha::{Faults, FaultyJournal, MemoryJournal, MetadataJournal};
use mc_rpc::HaRole;
use mc_store::{
    ByteSize, Client, ClusterConfig, GetError, HandOverError, JournalConfig, JournalTrouble,
    Master, MasterConfig, PutOutcome, Standby,
};
use mc_testkit::{eventually, free_port};
use tokio::task::JoinHandle;

/// Longer than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Where so many masters listen.
pub(crate) fn addresses<const N: usize>() -> [SocketAddr; N] {
    [(); N].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())))
}

/// Starts a member, which leads when it is elected.
async fn join(
    cluster: &MemoryCluster,
    address: SocketAddr,
    journal: Arc<dyn MetadataJournal>,
) -> JoinHandle<Master> {
    join_as(cluster, address, journal, MasterConfig::default()).await
}

/// Does so with these settings.
pub(crate) async fn join_as(
    cluster: &MemoryCluster,
    address: SocketAddr,
    journal: Arc<dyn MetadataJournal>,
    master: MasterConfig,
) -> JoinHandle<Master> {
    let address_text = address.to_string();
    let member = Member::new(&address_text, &address_text).unwrap();
    let mut config =
        ClusterConfig::new(member, Arc::new(cluster.join()), JournalConfig::new(journal));
    config.candidacy.first_start_wait = Duration::ZERO;
    let standby = Standby::start(config, master, address, Default::default()).await.unwrap();
    tokio::spawn(async move {
        let seat = standby.lead().await.unwrap();
        Master::builder().lead(seat).listen(address).start().await.unwrap()
    })
}

pub(crate) async fn in_sync(leader: &Master, members: usize) {
    in_sync_within(leader, members, DEADLINE).await;
}

pub(crate) async fn in_sync_within(leader: &Master, members: usize, deadline: Duration) {
    let report = leader.ha_report().unwrap();
    eventually(deadline, "the standbys are in sync", || {
        let status = report.ha_status();
        status.role == HaRole::Leader && status.in_sync.len() == members
    })
    .await;
}

pub(crate) async fn client(masters: &[SocketAddr], segment: ByteSize) -> Client {
    let list: Vec<String> = masters.iter().map(ToString::to_string).collect();
    let client = Client::builder().master(list.join(";")).segment_size(segment);
    // A node may need a while to come back to the next master.
    client.put_wait(DEADLINE).connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_hangs_hands_over() {
    let cluster = MemoryCluster::start(LEASE).unwrap();
    let disk = Arc::new(FaultyJournal::new(MemoryJournal::new()));
    let masters = addresses::<2>();
    let leader = join(&cluster, masters[0], Arc::clone(&disk) as _).await.await.unwrap();
    let second = join(&cluster, masters[1], Arc::new(MemoryJournal::new())).await;
    in_sync(&leader, 2).await;
    let (node, user) =
        (client(&masters, ByteSize::mib(16)).await, client(&masters, ByteSize::bytes(0)).await);
    user.put("before", "value").await.unwrap();
    // The standby has it, not only the leader.
    leader_is_followed(&leader).await;

    let hanging = Hanging::begin(disk);
    let begun = Instant::now();
    // The journal waits for nothing until there is something to write.
    let waiting = tokio::spawn(async move {
        while let Err(error) = user.put("after", "value").await {
            assert!(begun.elapsed() < DEADLINE, "{error}");
        }
        user
    });
    leader.deposed().await;
    let (watch, report) = (leader.journal_watch().unwrap(), leader.ha_report().unwrap());
    assert!(matches!(watch.trouble(), Some(JournalTrouble::Hangs { .. })), "{:?}", watch.trouble());
    // It says so, without a look at the disk.
    let notice = report.ha_status().notice.unwrap();
    assert!(notice.contains("the journal hangs"), "{notice}");
    assert_eq!(watch.read().writer.hangs, 1);
    // It closes its connections at once, and waits for its disk.
    let ending = tokio::spawn(leader.shutdown());
    let next = second.await.unwrap();
    let user = waiting.await.unwrap();
    println!("{:.1?} without a put", begun.elapsed());
    assert_eq!(value(&user, "before").await, b"value"[..]);
    drop(hanging);
    ending.await.unwrap();
    node.shutdown().await;
    user.shutdown().await;
    next.shutdown().await;
}

/// A disk that hangs until this is dropped, so that a test that fails ends.
struct Hanging(Arc<FaultyJournal<MemoryJournal>>);

impl Hanging {
    fn begin(disk: Arc<FaultyJournal<MemoryJournal>>) -> Self {
        let mut hangs = Faults::default();
        hangs.hangs = true;
        disk.set(hangs);
        Self(disk)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.set(Faults::default());
    }
}

/// An object's value, when the node that holds it is back.
pub(crate) async fn value(client: &Client, key: &str) -> Bytes {
    let begun = Instant::now();
    loop {
        match client.get(key).await {
            Err(GetError::NotReady) if begun.elapsed() < DEADLINE => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            got => return got.unwrap(),
        }
    }
}

/// Waits until every standby has what the leader has.
pub(crate) async fn leader_is_followed(leader: &Master) {
    let (report, journal) = (leader.ha_report().unwrap(), leader.journal_watch().unwrap());
    eventually(DEADLINE, "the standbys have everything", || {
        let (writer, status) = (journal.read().writer, report.ha_status());
        writer.durable == writer.last
            && !status.followers.is_empty()
            && status.followers.iter().all(|standby| standby.lag == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_term_that_nobody_can_take_over_goes_on() {
    let cluster = MemoryCluster::start(LEASE).unwrap();
    let [at] = addresses();
    let leader = join(&cluster, at, Arc::new(MemoryJournal::new())).await.await.unwrap();
    assert_eq!(leader.hand_over().await, Err(HandOverError::NobodyInSync));
    let notice = leader.ha_report().unwrap().ha_status().notice;
    assert!(notice.is_some_and(|notice| notice.contains("no standby is in sync")));
    // It acknowledges as before.
    let node = client(&[at], ByteSize::mib(16)).await;
    node.put("key", "value").await.unwrap();
    node.shutdown().await;
    leader.shutdown().await;
}

/// Terms may follow each other at once, or a standby be replaced by an operator who is quick.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hands_over_waits_for_a_standby_that_is_not_in_sync_yet() {
    let cluster = MemoryCluster::start(LEASE).unwrap();
    let disk = Arc::new(FaultyJournal::new(MemoryJournal::new()));
    let masters = addresses::<2>();
    let leader = join(&cluster, masters[0], Arc::new(MemoryJournal::new())).await.await.unwrap();
    let node = client(&masters, ByteSize::mib(16)).await;
    node.put("before", "value").await.unwrap();
    // It is there, and has nothing on its disk.
    let mut fails = Faults::default();
    fails.sync_fails = true;
    disk.set(fails);
    let second = join(&cluster, masters[1], Arc::clone(&disk) as _).await;
    let handing = tokio::spawn(async move {
        let outcome = leader.hand_over().await;
        (leader, outcome)
    });
    // The leader serves as before.
    assert_eq!(node.put("meanwhile", "value").await.unwrap(), PutOutcome::Stored);
    assert!(!handing.is_finished());
    disk.set(Faults::default());
    let (leader, outcome) = handing.await.unwrap();
    outcome.unwrap();
    leader.deposed().await;
    leader.shutdown().await;
    let next = second.await.unwrap();
    for key in ["before", "meanwhile"] {
        assert_eq!(value(&node, key).await, b"value"[..], "{key}");
    }
    node.shutdown().await;
    next.shutdown().await;
}

/// The leader's list of leases is void then, and reads in the meantime are answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_successor_hangs_goes_on_and_hands_over_later() {
    let cluster = MemoryCluster::start(LEASE).unwrap();
    let disk = Arc::new(FaultyJournal::new(MemoryJournal::new()));
    let masters = addresses::<2>();
    let leader = join(&cluster, masters[0], Arc::new(MemoryJournal::new())).await.await.unwrap();
    let second = join(&cluster, masters[1], Arc::clone(&disk) as _).await;
    in_sync(&leader, 2).await;
    let node = client(&masters, ByteSize::mib(16)).await;
    node.put("before", "value").await.unwrap();
    leader_is_followed(&leader).await;

    let hanging = Hanging::begin(disk);
    let refused = leader.hand_over().await;
    assert!(matches!(refused, Err(HandOverError::Behind { .. })), "{refused:?}");
    assert_eq!(value(&node, "before").await, b"value"[..]);
    assert_eq!(node.put("after", "value").await.unwrap(), PutOutcome::Stored);
    drop(hanging);
    in_sync(&leader, 2).await;
    leader.hand_over().await.unwrap();
    leader.deposed().await;
    leader.shutdown().await;
    let next = second.await.unwrap();
    for key in ["before", "after"] {
        assert_eq!(value(&node, key).await, b"value"[..]);
    }
    node.shutdown().await;
    next.shutdown().await;
}

/// Objects of which three fill the node's segment.
const THIRD: usize = 5 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_pool_takes_objects_at_once_after_a_hand_over() {
    let cluster = MemoryCluster::start(LEASE).unwrap();
    let masters = addresses::<2>();
    let mut config = MasterConfig::default();
    // Far longer than the puts may wait.
    config.lease_ttl = 4 * DEADLINE;
    let journal = || Arc::new(MemoryJournal::new());
    let leader = join_as(&cluster, masters[0], journal(), config.clone()).await.await.unwrap();
    let second = join_as(&cluster, masters[1], journal(), config).await;
    in_sync(&leader, 2).await;
    let user = client(&masters, ByteSize::mib(16)).await;
    let third = || Bytes::from(vec![7; THIRD]);
    for key in ["read", "idle", "idle too"] {
        assert_eq!(user.put(key, third()).await.unwrap(), PutOutcome::Stored);
    }
    user.get("read").await.unwrap();
    let begun = Instant::now();
    leader.hand_over().await.unwrap();
    leader.deposed().await;
    leader.shutdown().await;
    let next = second.await.unwrap();
    // Each in the place of one that nobody reads.
    for key in ["new", "newer"] {
        assert_eq!(user.put(key, third()).await.unwrap(), PutOutcome::Stored);
    }
    println!("{:.1?} for the hand-over and two puts", begun.elapsed());
    assert!(begun.elapsed() < 4 * DEADLINE, "the lease may be over");
    assert_eq!(value(&user, "read").await, third());
    for key in ["idle", "idle too"] {
        assert!(matches!(user.get(key).await, Err(GetError::NotFound)), "{key}");
    }
    user.shutdown().await;
    next.shutdown().await;
}

/// With the default settings a change is acknowledged before the standby has it.
#[tokio::test(flavor = "multi_thread")]
async fn everything_that_was_acknowledged_is_at_the_successor() {
    let cluster = MemoryCluster::start(LEASE).unwrap();
    let masters = addresses::<5>();
    let journal = || Arc::new(MemoryJournal::new());
    let mut leader = join(&cluster, masters[0], journal()).await.await.unwrap();
    let mut second = join(&cluster, masters[1], journal()).await;
    in_sync(&leader, 2).await;
    let node = Arc::new(client(&masters, ByteSize::mib(64)).await);
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let writers: Vec<_> = (0..8)
            .map(|writer| {
                let node = Arc::clone(&node);
                tokio::spawn(async move {
                    let mut keys = Vec::new();
                    for number in 0..40 {
                        let key = format!("{round}-{writer}-{number}");
                        // Also when the master changes after it has begun, before its client knows.
                        let outcome = node.put(&key, "value").await;
                        assert!(matches!(outcome, Ok(PutOutcome::Stored)), "{key}: {outcome:?}");
                        keys.push(key);
                    }
                    keys
                })
            })
            .collect();
        leader.hand_over().await.unwrap();
        leader.deposed().await;
        leader.shutdown().await;
        leader = second.await.unwrap();
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        for key in &acknowledged {
            assert_eq!(value(&node, key).await, b"value"[..], "{key}");
        }
        second = join(&cluster, masters[2 + round], journal()).await;
        in_sync(&leader, 2).await;
    }
    assert_eq!(acknowledged.len(), 3 * 8 * 40);
    Arc::into_inner(node).unwrap().shutdown().await;
    second.abort();
    leader.shutdown().await;
}
