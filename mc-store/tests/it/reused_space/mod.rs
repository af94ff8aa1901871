//! Space that gets a second owner is touched by nobody who knew it under the first: with
//! links that deliver late, masters that forget, grants that end and strangers who try.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

mod proxy;

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mc_ha::{MemoryJournal, MetadataJournal as _, Position};
use mc_meta::{LateWrites, PutEnd, PutHandle, PutStart, ReplicateConfig, SegmentStatus};
use mc_store::{
    ByteSize, Client, ClientBuilder, GetError, JournalConfig, Master, MasterConfig, NodeConfig,
    PutError, PutOutcome,
};
use mc_testkit::eventually_async;
use mc_ticket::PutToken;
use mc_transport::tcp::TcpConfig;
use mc_transport::{
    Link, Memory, Operation, RemoteSpan, TcpTransport, TransferError, Transport as _,
};
use mc_types::{ClientId, ErrorCode, KeyRef};
use proxy::{Hold, Proxy};
use tokio::task::JoinHandle;

use crate::common::content;

const DEADLINE: Duration = Duration::from_secs(30);
const SEGMENT: u64 = 32 << 20;
/// Bytes of the late write or read.
const OLD: usize = 8 << 20;
/// Bytes that a read leaves out on both sides.
const EDGE: usize = 4096;
/// Bytes of the object that lies there afterwards.
const NEW: usize = 2 << 20;

/// A master, and a node behind a slow link.
struct Cluster {
    config: MasterConfig,
    /// Where the master keeps its metadata.
    journal: Option<MemoryJournal>,
    master: Option<Master>,
    address: SocketAddr,
    _node: Client,
    proxy: Proxy,
}

impl Cluster {
    async fn start(change: impl FnOnce(&mut MasterConfig)) -> Self {
        let mut config = MasterConfig::default();
        config.eviction_high_watermark_ratio = 1.0;
        change(&mut config);
        let master = Master::builder().config(config.clone()).start().await.unwrap();
        let address = master.local_addr();
        let node = Client::builder()
            .master(address.to_string())
            .node(without_sharing())
            .listen("127.0.0.1:0".parse().unwrap())
            .advertise("127.0.0.2".parse().unwrap())
            .segment_size(ByteSize::bytes(SEGMENT))
            .heartbeat_interval(Duration::from_millis(20))
            .connect()
            .await
            .unwrap();
        let endpoint = node.endpoint().unwrap();
        let port = endpoint.address().parse::<SocketAddr>().unwrap().port();
        let proxy = Proxy::of(port).await;
        Self { config, journal: None, master: Some(master), address, _node: node, proxy }
    }

    fn client(&self) -> ClientBuilder {
        Client::builder()
            .master(self.address.to_string())
            .node(without_sharing())
            .put_wait(DEADLINE)
    }

    async fn app(&self) -> Client {
        self.client().connect().await.unwrap()
    }

    /// Ends the master and starts another one in its place, which knows what its journal has.
    async fn restart_master(&mut self) {
        self.restart_master_after(|| {}).await;
    }

    async fn restart_master_after(&mut self, meanwhile: impl FnOnce()) {
        self.master.take().unwrap().shutdown().await;
        meanwhile();
        let mut master = None;
        eventually_async(DEADLINE, "the master's address to be free", async || {
            let mut builder = Master::builder().config(self.config.clone()).listen(self.address);
            if let Some(journal) = &self.journal {
                builder = builder.journal(JournalConfig::new(Arc::new(journal.clone())));
            }
            master = builder.start().await.ok();
            master.is_some()
        })
        .await;
        self.master = master;
    }

    /// Waits until the master counts on the node, or counts on it again.
    async fn node_is_back(&self, app: &Client) {
        eventually_async(DEADLINE, "the node to come back", async || {
            let report = app.cluster_report().await;
            report.is_ok_and(|it| it.segments.iter().any(|one| one.status == SegmentStatus::Ok))
        })
        .await;
    }

    /// Puts objects until the segment is full; their keys.
    async fn fill(&self, app: &Client) -> Vec<String> {
        let keys: Vec<String> =
            (0..SEGMENT as usize / NEW - 1).map(|n| format!("new/{n}")).collect();
        for key in &keys {
            let put = app.put(key, content(key, NEW)).await.unwrap();
            assert_eq!(put, PutOutcome::Stored, "{key}");
        }
        keys
    }

    /// A put of `old` whose bytes have arrived to the first MiB.
    async fn held_up_put(&self) -> JoinHandle<Result<PutOutcome, PutError>> {
        let writer = self.app().await;
        let before = self.proxy.held();
        self.proxy.hold(Hold::Sent(1 << 20));
        let put = tokio::spawn(async move { writer.put("old", content("old", OLD)).await });
        let is_held = async || self.proxy.held() > before;
        eventually_async(DEADLINE, "a write to be held up", is_held).await;
        self.proxy.hold(Hold::Nothing);
        put
    }

    /// A read of the [middle](middle_of_old) of `old` whose bytes have arrived to the first
    /// 64 KiB.
    async fn held_up_read(&self) -> JoinHandle<Result<Bytes, GetError>> {
        let reader = self.app().await;
        let before = self.proxy.held();
        self.proxy.hold(Hold::Answered(64 << 10));
        let read =
            tokio::spawn(
                async move { reader.get_range("old", EDGE as u64..(OLD - EDGE) as u64).await },
            );
        let is_held = async || self.proxy.held() > before;
        eventually_async(DEADLINE, "a read to be held up", is_held).await;
        self.proxy.hold(Hold::Nothing);
        read
    }

    async fn late_bytes_arrive(&self) {
        self.proxy.release();
        eventually_async(DEADLINE, "late bytes to be delivered", async || {
            self.proxy.has_delivered()
        })
        .await;
    }
}

/// Another journal that holds what this one holds now.
fn copy(journal: &MemoryJournal) -> MemoryJournal {
    let (copy, epoch) = (MemoryJournal::new(), journal.epoch());
    copy.begin_epoch(epoch).unwrap();
    let take = &mut |batch| {
        copy.append(epoch, &Result::unwrap(batch)).unwrap();
        ControlFlow::Continue(())
    };
    journal.read(Position::EMPTY, take).unwrap();
    assert_eq!(copy.last(), journal.last());
    copy
}

fn middle_of_old() -> Bytes {
    content("old", OLD).slice(EDGE..OLD - EDGE)
}

fn without_sharing() -> NodeConfig {
    let mut config = NodeConfig::new(TcpConfig::default());
    config.shm = None;
    config
}

/// Fails when an object that was stored is not as it was put. Some may have made room for
/// others.
async fn all_intact(app: &Client, keys: &[String]) {
    let (mut destroyed, mut intact) = (Vec::new(), 0);
    for key in keys {
        match app.get(key).await {
            Ok(value) => {
                assert!(value == content(key, NEW), "wrong bytes as good: {key}");
                intact += 1;
            }
            Err(GetError::NotFound) => {}
            Err(error) => destroyed.push(format!("{key}: {error}")),
        }
    }
    assert!(
        destroyed.is_empty(),
        "{} of {} acknowledged objects destroyed: {destroyed:?}",
        destroyed.len(),
        keys.len()
    );
    assert!(intact > 0, "none of {} is left", keys.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_of_a_forgotten_past_touches_nothing_that_is_new() {
    let mut cluster = Cluster::start(|_| {}).await;
    let put = cluster.held_up_put().await;
    cluster.restart_master().await;
    let app = cluster.app().await;
    cluster.node_is_back(&app).await;
    let keys = cluster.fill(&app).await;
    cluster.late_bytes_arrive().await;
    // The writer may have put its value anew.
    let _ = put.await.unwrap();
    all_intact(&app, &keys).await;
}

/// A master that fails over, or whose disk lost its last moments, knows the segment and not the put.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_a_former_master_granted_touches_nothing_that_the_next_one_grants() {
    let mut cluster = Cluster::start(|_| {}).await;
    let journal = MemoryJournal::new();
    cluster.journal = Some(journal.clone());
    cluster.restart_master().await;
    let app = cluster.app().await;
    cluster.node_is_back(&app).await;
    app.put("kept", content("kept", NEW)).await.unwrap();
    let mut early = None;
    cluster.restart_master_after(|| early = Some(copy(&journal))).await;
    cluster.node_is_back(&app).await;
    let put = cluster.held_up_put().await;
    cluster.journal = early;
    cluster.restart_master().await;
    cluster.node_is_back(&app).await;
    assert!(app.get("kept").await.unwrap() == content("kept", NEW), "the node has kept its memory");
    let keys = cluster.fill(&app).await;
    cluster.late_bytes_arrive().await;
    // The writer may have put its value anew.
    let _ = put.await.unwrap();
    all_intact(&app, &keys).await;
}

/// Puts that the next master knows go on by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_under_way_when_the_master_changed_is_begun_again() {
    let mut cluster = Cluster::start(|_| {}).await;
    cluster.journal = Some(MemoryJournal::new());
    cluster.restart_master().await;
    let app = cluster.app().await;
    cluster.node_is_back(&app).await;
    let put = cluster.held_up_put().await;
    cluster.restart_master().await;
    assert_eq!(put.await.unwrap().unwrap(), PutOutcome::Stored);
    assert!(app.get("old").await.unwrap() == content("old", OLD));
    // One read after the other, also while the master changes.
    let (reader, is_over) = (cluster.app().await, Arc::new(AtomicBool::new(false)));
    let over = Arc::clone(&is_over);
    let reads = tokio::spawn(async move {
        let mut count = 0;
        while !over.load(Ordering::Relaxed) {
            match reader.get_range("old", EDGE as u64..(OLD - EDGE) as u64).await {
                Ok(bytes) => assert!(bytes == middle_of_old()),
                // The node is not back yet.
                Err(GetError::NotReady) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => panic!("{error:?}"),
            }
            count += 1;
        }
        count
    });
    cluster.restart_master().await;
    cluster.node_is_back(&app).await;
    assert!(app.get("old").await.unwrap() == content("old", OLD));
    is_over.store(true, Ordering::Relaxed);
    assert!(reads.await.unwrap() > 0);
    cluster.late_bytes_arrive().await;
    assert!(app.get("old").await.unwrap() == content("old", OLD));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_a_forgotten_past_brings_nothing_that_is_new() {
    let mut cluster = Cluster::start(|_| {}).await;
    let app = cluster.app().await;
    app.put("old", content("old", OLD)).await.unwrap();
    let read = cluster.held_up_read().await;
    cluster.restart_master().await;
    let app = cluster.app().await;
    cluster.node_is_back(&app).await;
    let keys = cluster.fill(&app).await;
    cluster.late_bytes_arrive().await;
    if let Ok(bytes) = read.await.unwrap() {
        assert!(bytes == middle_of_old(), "foreign bytes as good");
    }
    all_intact(&app, &keys).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn space_of_a_lost_write_comes_back_when_the_peer_has_ended_it() {
    let cluster = Cluster::start(|_| {}).await;
    let mut impatient = without_sharing();
    impatient.tcp.stall_timeout = Duration::from_millis(300);
    let writer = cluster.client().node(impatient).connect().await.unwrap();
    // A fence passes, a value does not.
    cluster.proxy.hold(Hold::Sent(1 << 20));
    let put = writer.put("old", content("old", OLD)).await;
    assert!(put.is_err(), "{put:?}");
    assert!(!writer.exist("old").await.unwrap());
    cluster.proxy.hold(Hold::Nothing);
    let app = cluster.app().await;
    // Needs all of the space, which stays ten minutes unless somebody knows better.
    let keys = cluster.fill(&app).await;
    cluster.late_bytes_arrive().await;
    all_intact(&app, &keys).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_removed_by_force_stays_until_its_readers_are_done() {
    what_is_removed_stays_for_its_readers(async |app| app.remove("old", true).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_removed_with_all_others_stays_until_its_readers_are_done() {
    what_is_removed_stays_for_its_readers(async |app| {
        assert_eq!(app.remove_all(true).await.unwrap(), 1);
    })
    .await;
}

async fn what_is_removed_stays_for_its_readers(remove: impl AsyncFnOnce(&Client)) {
    let cluster = Cluster::start(|config| config.lease_ttl = Duration::from_secs(1)).await;
    let app = cluster.app().await;
    app.put("old", content("old", OLD)).await.unwrap();
    let read = cluster.held_up_read().await;
    remove(&app).await;
    assert!(!app.exist("old").await.unwrap(), "it is hidden at once");
    let used = app.cluster_report().await.unwrap().totals.used;
    assert_eq!(used, OLD as u64, "its space is not free yet");
    let keys = cluster.fill(&app).await;
    cluster.late_bytes_arrive().await;
    match read.await.unwrap() {
        Ok(bytes) => assert!(bytes == middle_of_old(), "foreign bytes as good"),
        Err(GetError::NotFound | GetError::LeaseExpired) => {}
        Err(error) => panic!("{error}"),
    }
    all_intact(&app, &keys).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_after_the_grant_has_ended() {
    let cluster = Cluster::start(|config| {
        config.put_start_discard_timeout = Duration::from_millis(500);
        config.put_start_release_timeout = Duration::from_millis(1000);
    })
    .await;
    let put = cluster.held_up_put().await;
    let app = cluster.app().await;
    eventually_async(DEADLINE, "the grant to end", async || {
        app.cluster_report().await.unwrap().totals.used == 0
    })
    .await;
    let keys = cluster.fill(&app).await;
    cluster.late_bytes_arrive().await;
    // What it may not write there it writes elsewhere, or not at all.
    let _ = put.await.unwrap();
    all_intact(&app, &keys).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_ends_no_put() {
    let cluster = Cluster::start(|_| {}).await;
    let app = cluster.app().await;
    let (master, me) = (app.master(), ClientId::from_u128(7));
    let key = KeyRef::new("victim").unwrap();
    let config = ReplicateConfig::default();
    let put = PutStart { key, slice_lengths: &[4096], config: &config };
    let grant = master.put_start(me, &put).await.unwrap();
    // Everything that others are told of the put: its client and its generation.
    let shown = master.describe(key).await.unwrap();
    assert_eq!((shown.owner, shown.generation), (me, grant.handle.generation));
    for token in [0, 1, u64::MAX, !grant.handle.token.as_u64()] {
        let handle = PutHandle { token: PutToken::from_u64(token), ..grant.handle };
        let end = PutEnd::new(key, handle);
        let ended = master.put_end(me, &end).await.unwrap_err();
        assert_eq!(ended.code(), ErrorCode::IllegalClient);
        for late in [LateWrites::Impossible, LateWrites::Possible] {
            let revoked = master.put_revoke(me, key, handle, late).await.unwrap_err();
            assert_eq!(revoked.code(), ErrorCode::IllegalClient);
        }
    }
    assert!(!app.exist("victim").await.unwrap(), "it is still unwritten");
    let end = PutEnd::new(key, grant.handle);
    master.put_end(me, &end).await.unwrap();
    assert!(app.exist("victim").await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_read_one_object_reaches_no_other() {
    let cluster = Cluster::start(|_| {}).await;
    let app = cluster.app().await;
    app.put("mine", content("mine", NEW)).await.unwrap();
    app.put("theirs", content("theirs", NEW)).await.unwrap();
    let place = |key| {
        let master = app.master();
        async move {
            let list = master.get_replica_list(KeyRef::new(key).unwrap()).await.unwrap();
            list.replicas[0].clone()
        }
    };
    let (mine, theirs) = (place("mine").await, place("theirs").await);
    let key = mine.segment.remote_key;
    assert!(mine.ticket.is_some() && key == theirs.segment.remote_key);
    let tcp = TcpTransport::start(TcpConfig::default()).await.unwrap();
    let link = tcp.connect(&mine.segment.endpoint).await.unwrap();
    let memory = Memory::allocate(NEW).unwrap();
    let span = |extent| RemoteSpan::new(key, extent).with_ticket(mine.ticket);
    let read = |span| Operation::read(span, memory.whole());
    let write = |span| Operation::write(memory.whole(), span);
    let tried = [
        read(span(theirs.extent)),
        write(span(theirs.extent)),
        write(span(mine.extent)),
        read(RemoteSpan::new(key, theirs.extent)),
        write(RemoteSpan::new(key, theirs.extent)),
    ];
    for (nth, outcome) in link.submit(tried.into()).await.into_iter().enumerate() {
        let refused =
            matches!(outcome, Err(TransferError::KeyRefused | TransferError::OutOfBounds { .. }));
        assert!(refused, "{nth}: {outcome:?}");
    }
    let allowed = link.submit(vec![read(span(mine.extent))]).await.remove(0);
    allowed.expect("what the ticket is for");
    assert!(memory.whole().to_vec() == content("mine", NEW));
    for key in ["mine", "theirs"] {
        assert!(app.get(key).await.unwrap() == content(key, NEW));
    }
}

/// A third of a segment.
const VALUE: usize = 10 << 20;

/// A cluster with the lease that some frameworks set, so that nothing of theirs is evicted.
async fn with_endless_leases() -> Cluster {
    Cluster::start(|config| config.lease_ttl = Duration::from_secs(999_999)).await
}

impl Cluster {
    /// A client whose puts wait for room, but not for as long as a read may last.
    async fn hurried(&self) -> Client {
        self.client().put_wait(mc_lease::LONGEST_READ / 2).connect().await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_come_and_go_in_a_pool_that_holds_three_of_them() {
    let cluster = with_endless_leases().await;
    let (app, other) = (cluster.hurried().await, cluster.hurried().await);
    for turn in 0..12 {
        let key = format!("rollout/{turn}");
        let put = app.put(&key, content(&key, VALUE)).await.unwrap();
        assert_eq!(put, PutOutcome::Stored);
        assert!(other.exist(&key).await.unwrap());
        let reader = if turn % 3 == 0 { &other } else { &app };
        assert!(reader.get(&key).await.unwrap() == content(&key, VALUE));
        app.remove(&key, true).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_is_replaced_and_read_for_ever_in_a_pool_that_holds_three() {
    let cluster = with_endless_leases().await;
    let (app, other) = (cluster.hurried().await, cluster.hurried().await);
    for turn in 0..12 {
        let weights = content(&format!("weights of step {turn}"), VALUE);
        app.upsert("weights", weights.clone()).await.unwrap();
        assert!(app.get("weights").await.unwrap() == weights);
        assert!(other.get("weights").await.unwrap() == weights);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_gives_back_what_it_has_read() {
    let cluster = with_endless_leases().await;
    let app = cluster.hurried().await;
    for turn in 0..3 {
        let key = format!("{turn}");
        app.put(&key, content(&key, VALUE)).await.unwrap();
        let reader = cluster.app().await;
        assert!(reader.get(&key).await.unwrap() == content(&key, VALUE));
        reader.shutdown().await;
    }
    assert_eq!(app.remove_all(true).await.unwrap(), 3);
    for turn in 3..6 {
        let key = format!("{turn}");
        assert_eq!(app.put(&key, content(&key, VALUE)).await.unwrap(), PutOutcome::Stored);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_says_nothing_is_waited_for() {
    let cluster = Cluster::start(|config| config.lease_ttl = Duration::from_secs(2)).await;
    let silent = cluster.client().tells_reads(false).connect().await.unwrap();
    silent.put("old", content("old", OLD)).await.unwrap();
    let read = silent.get("old").await.unwrap();
    assert!(read == content("old", OLD));
    silent.remove("old", true).await.unwrap();
    assert!(!silent.exist("old").await.unwrap());
    let used = async || silent.cluster_report().await.unwrap().totals.used;
    assert_eq!(used().await, OLD as u64, "it may still be reading, for all the master knows");
    eventually_async(DEADLINE, "its space to come back", async || used().await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_fails_half_way_leaves_what_it_takes_to_another() {
    let cluster = Cluster::start(|config| config.lease_ttl = Duration::from_secs(3600)).await;
    let app = cluster.app().await;
    app.put("old", content("old", OLD)).await.unwrap();
    let reader = cluster.app().await;
    let before = cluster.proxy.held();
    cluster.proxy.hold(Hold::Answered(64 << 10));
    let taking = tokio::spawn(async move { reader.get_and_remove("old").await });
    let is_held = async || cluster.proxy.held() > before;
    eventually_async(DEADLINE, "a read to be held up", is_held).await;
    cluster.proxy.hold(Hold::Nothing);
    taking.abort();
    assert!(taking.await.unwrap_err().is_cancelled());
    assert!(app.get_and_remove("old").await.unwrap() == content("old", OLD));
    assert!(matches!(app.get_and_remove("old").await, Err(GetError::NotFound)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_frees_its_space_when_it_has_been_read() {
    // The lease of a read outlasts the test, and the segment holds one value at a time.
    let cluster = Cluster::start(|config| config.lease_ttl = Duration::from_secs(3600)).await;
    let (writer, reader) = (cluster.hurried().await, cluster.app().await);
    const LEN: usize = SEGMENT as usize / 2 + 4096;
    for turn in 0..5 {
        let key = format!("{turn}");
        assert_eq!(writer.put(&key, content(&key, LEN)).await.unwrap(), PutOutcome::Stored);
        assert!(reader.get_and_remove(&key).await.unwrap() == content(&key, LEN));
    }
    let removed = writer.cluster_report().await.unwrap().totals;
    assert_eq!((removed.objects, removed.removed_objects, removed.evicted_objects), (0, 5, 0));
}
