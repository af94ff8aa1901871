//! A put whose answers are lost goes on over another connection, and does not block its key when
//! the client does not learn whether it ended.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::{Cluster, StoredInfos};
use mc_rpc::Method;
use mc_store::{
    ByteSize, Client, ClientBuilder, Master, Put, PutOutcome, ReplicateConfig, StoreEventInfo,
};
use mc_testkit::{eventually, eventually_async};
use mc_types::{ClientId, KeyRef};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// How soon a key is free after its put has failed. The master's own time-out is ten times
/// as long.
const FREE_WITHIN: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a frame's header has the number of its method.
const METHOD: std::ops::Range<usize> = 12..14;
const BATCH_PUT_START: u16 = 13;
const BATCH_PUT_END: u16 = 14;
const BATCH_UPSERT_END: u16 = 26;
const BATCH_REMOVE_GENERATION: u16 = 97;

/// More than a call has attempts.
const ALL: usize = 100;

/// The fate of the next calls that begin or end puts, and of their connections.
#[derive(Debug, Default)]
struct Losses {
    /// Whether calls are lost that begin puts, in place of those that end them.
    starts: AtomicBool,
    /// Calls that are lost on their way, with all that follows on their connections.
    requests: AtomicUsize,
    /// Calls that reach the master and whose answers are lost, with all that follow.
    answers: AtomicUsize,
}

fn takes_one(left: &AtomicUsize) -> bool {
    let take = |left: usize| left.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
}

/// A way to the master that turns into a black hole, with its connections open.
async fn proxy(master: SocketAddr, losses: Arc<Losses>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(master) = TcpStream::connect(master).await else { continue };
            let ((from_client, to_client), (from_master, to_master)) =
                (client.into_split(), master.into_split());
            let is_deaf = Arc::new(AtomicBool::new(false));
            let losses = Arc::clone(&losses);
            tokio::spawn(pass_requests(from_client, to_master, losses, Arc::clone(&is_deaf)));
            tokio::spawn(pass_answers(from_master, to_client, is_deaf));
        }
    });
    address
}

async fn pass_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    losses: Arc<Losses>,
    is_deaf: Arc<AtomicBool>,
) {
    let (mut buffer, mut lost) = (vec![0; 64 << 10], false);
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        let method = buffer[METHOD].try_into().map(u16::from_le_bytes).unwrap();
        let is_meant = match losses.starts.load(Ordering::SeqCst) {
            true => method == BATCH_PUT_START,
            false => [BATCH_PUT_END, BATCH_UPSERT_END, BATCH_REMOVE_GENERATION].contains(&method),
        };
        if len > METHOD.end && is_meant {
            lost |= takes_one(&losses.requests);
            if takes_one(&losses.answers) {
                is_deaf.store(true, Ordering::SeqCst);
            }
        }
        if !lost && to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}

async fn pass_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_deaf: Arc<AtomicBool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if !is_deaf.load(Ordering::SeqCst) && to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}

fn client(master: SocketAddr) -> ClientBuilder {
    let mut rpc = mc_rpc::ClientConfig::default();
    rpc.call_timeout = CALL_TIMEOUT;
    mc_cluster_testkit::client(&master).rpc(rpc)
}

struct LossyCluster {
    _cluster: Cluster,
    other: Client,
    writer: Client,
    /// The writer's way to the master.
    through: SocketAddr,
    losses: Arc<Losses>,
    stored: StoredInfos,
}

impl LossyCluster {
    async fn start() -> Self {
        let stored = StoredInfos::default();
        let master = Master::builder().sink(stored.clone());
        let cluster = Cluster::of(master, &[ByteSize::mib(32)]).await;
        let (address, other) = (cluster.master.local_addr(), cluster.app().await);
        let losses = Arc::new(Losses::default());
        let through = proxy(address, Arc::clone(&losses)).await;
        let writer = client(through).connect().await.unwrap();
        Self { _cluster: cluster, other, writer, through, losses, stored }
    }

    /// Ends the losses.
    fn heal(&self) {
        self.losses.requests.store(0, Ordering::SeqCst);
        self.losses.answers.store(0, Ordering::SeqCst);
    }

    /// Puts through another client until the key is taken.
    async fn free(&self, key: &str, begun: Instant) {
        let left = FREE_WITHIN.saturating_sub(begun.elapsed());
        eventually_async(left, format_args!("{key} is free"), async || {
            self.other.put(key, "second").await.unwrap() != PutOutcome::Pending
        })
        .await;
        assert_eq!(self.other.get(key).await.unwrap(), "second");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_is_taken_once_though_an_answer_to_its_removal_is_lost() {
    let cluster = LossyCluster::start().await;
    for (part, losses) in
        [("request", &cluster.losses.requests), ("answer", &cluster.losses.answers)]
    {
        cluster.other.put(part, "value").await.unwrap();
        losses.store(1, Ordering::SeqCst);
        assert_eq!(cluster.writer.get_and_remove(part).await.unwrap(), "value");
        assert_eq!(losses.load(Ordering::SeqCst), 0, "it was lost");
        assert!(!cluster.other.exist(part).await.unwrap());
    }
    // Without any answer the call fails: it hands nothing out that another reader may have got.
    cluster.other.put("all", "value").await.unwrap();
    cluster.losses.requests.store(ALL, Ordering::SeqCst);
    cluster.writer.get_and_remove("all").await.unwrap_err();
    cluster.heal();
    assert_eq!(cluster.other.get_and_remove("all").await.unwrap(), "value");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_of_which_one_answer_is_lost_is_stored() {
    let cluster = LossyCluster::start().await;
    for (name, starts) in [("start", true), ("end", false)] {
        cluster.losses.starts.store(starts, Ordering::SeqCst);
        for (part, losses) in
            [("request", &cluster.losses.requests), ("answer", &cluster.losses.answers)]
        {
            losses.store(1, Ordering::SeqCst);
            let key = format!("{name}-{part}");
            let info = StoreEventInfo { model_name: key.clone(), ..StoreEventInfo::default() };
            let put = Put::new(&key, Bytes::from("first")).with_event_info(info.clone());
            let outcome = cluster.writer.batch_put(vec![put], &ReplicateConfig::default()).await;
            assert_eq!(*outcome[0].as_ref().expect(&key), PutOutcome::Stored);
            assert_eq!(cluster.stored.take(), [(key.clone(), Some(info))]);
            assert_eq!(losses.load(Ordering::SeqCst), 0, "it was lost");
            assert_eq!(cluster.other.get(&key).await.unwrap(), "first");
        }
    }
}

/// The same for a thread that makes its calls itself.
#[test]
fn a_blocking_put_of_which_one_answer_is_lost_is_stored() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(LossyCluster::start());
    let writer = client(cluster.through).connect_blocking().unwrap();
    for starts in [true, false] {
        cluster.losses.starts.store(starts, Ordering::SeqCst);
        cluster.losses.answers.store(1, Ordering::SeqCst);
        let key = format!("in-place-{starts}");
        assert_eq!(writer.put(&key, "first").unwrap(), PutOutcome::Stored);
        assert_eq!(cluster.losses.answers.load(Ordering::SeqCst), 0, "it was lost");
        assert_eq!(writer.get(&key).unwrap(), "first");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_end_got_no_answer_frees_its_key() {
    let cluster = LossyCluster::start().await;
    cluster.losses.requests.store(ALL, Ordering::SeqCst);
    cluster.writer.put("one", "first").await.unwrap_err();
    cluster.heal();
    cluster.free("one", Instant::now()).await;

    cluster.losses.requests.store(ALL, Ordering::SeqCst);
    let puts = ["a", "b"].map(|key| Put::new(key, Bytes::from("first"))).to_vec();
    for outcome in cluster.writer.batch_put(puts, &ReplicateConfig::default()).await {
        outcome.unwrap_err();
    }
    cluster.heal();
    let begun = Instant::now();
    cluster.free("a", begun).await;
    cluster.free("b", begun).await;
}

/// Nobody knows the handle of such a put: it came with the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_start_got_no_answer_frees_its_key() {
    let cluster = LossyCluster::start().await;
    cluster.losses.starts.store(true, Ordering::SeqCst);
    for (name, losses) in
        [("answer", &cluster.losses.answers), ("request", &cluster.losses.requests)]
    {
        losses.store(ALL, Ordering::SeqCst);
        cluster.writer.put(name, "first").await.unwrap_err();
        cluster.heal();
        cluster.free(name, Instant::now()).await;
    }

    let keys = ["a", "b"];
    cluster.losses.answers.store(ALL, Ordering::SeqCst);
    let puts = keys.map(|key| Put::new(key, Bytes::from("first"))).to_vec();
    for outcome in cluster.writer.batch_put(puts, &ReplicateConfig::default()).await {
        outcome.unwrap_err();
    }
    cluster.heal();
    let begun = Instant::now();
    for key in keys {
        cluster.free(key, begun).await;
    }
}

/// The same for a caller that stops waiting before the call has failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_start_nobody_waits_for_frees_its_key() {
    let cluster = LossyCluster::start().await;
    let through = cluster.through.to_string();
    let master = mc_rpc::MasterClient::connect(&through, mc_rpc::ClientConfig::default());
    let master = master.await.unwrap();
    cluster.losses.starts.store(true, Ordering::SeqCst);
    cluster.losses.answers.store(1, Ordering::SeqCst);
    let key = KeyRef::new("one").unwrap();
    let puts = [mc_rpc::PutStartItem::new(key, &[5])];
    let (me, config) = (ClientId::from_u128(1), ReplicateConfig::default());
    let start = master.batch_put_start(me, &config, &puts);
    let none_left = || cluster.losses.answers.load(Ordering::SeqCst) == 0;
    let is_lost = eventually(10 * FREE_WITHIN, "the answer is lost", none_left);
    tokio::select! {
        answer = start => panic!("no answer was to come: {answer:?}"),
        () = is_lost => {}
    }
    cluster.free("one", Instant::now()).await;
}

/// The same for a thread that makes its calls itself.
#[test]
fn a_blocking_put_whose_start_got_no_answer_frees_its_key() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let cluster = runtime.block_on(LossyCluster::start());
    let writer = client(cluster.through).connect_blocking().unwrap();
    cluster.losses.starts.store(true, Ordering::SeqCst);
    cluster.losses.answers.store(ALL, Ordering::SeqCst);
    writer.put("one", "first").unwrap_err();
    cluster.heal();
    runtime.block_on(cluster.free("one", Instant::now()));
}

/// The master that leads now cannot know whether a former one began the put.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_a_former_master_may_have_begun_is_stored() {
    let cluster = Cluster::start(&[]).await;
    let address = cluster.master.local_addr();
    let node = cluster.node().heartbeat_interval(Duration::from_millis(300));
    let node = node.segment_size(ByteSize::mib(1)).connect().await.unwrap();
    let losses = Arc::new(Losses::default());
    let through = proxy(address, Arc::clone(&losses)).await;
    let writer = mc_cluster_testkit::client(&through).put_wait(10 * FREE_WITHIN);
    let writer = writer.connect().await.unwrap();
    losses.starts.store(true, Ordering::SeqCst);
    losses.answers.store(1, Ordering::SeqCst);
    let restart = async {
        let is_lost = || losses.answers.load(Ordering::SeqCst) == 0;
        eventually(10 * FREE_WITHIN, "the answer is lost", is_lost).await;
        cluster.master.shutdown().await;
        Master::builder().listen(address).start().await.unwrap()
    };
    let (outcome, master) = tokio::join!(writer.put("one", "first"), restart);
    assert_eq!(outcome.unwrap(), PutOutcome::Stored);
    assert_eq!(writer.get("one").await.unwrap(), "first");
    let methods = writer.metrics().rpc.methods;
    let starts = methods.iter().find(|of| of.method == Method::BatchPutStart).unwrap();
    assert!(starts.failures >= 1, "the repeated call is refused, a new one executed");
    node.shutdown().await;
    master.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upsert_whose_end_got_no_answer_frees_its_key() {
    let cluster = LossyCluster::start().await;
    cluster.losses.requests.store(ALL, Ordering::SeqCst);
    cluster.writer.upsert("one", "first").await.unwrap_err();
    cluster.heal();
    cluster.free("one", Instant::now()).await;
}

/// A put that the master has executed stays: revoking it after its end changes nothing, neither the
/// object nor its successor.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_ended_unheard_stays_and_so_does_what_replaces_it() {
    let cluster = LossyCluster::start().await;
    cluster.losses.answers.store(ALL, Ordering::SeqCst);
    cluster.writer.put("one", "first").await.unwrap_err();
    cluster.heal();
    assert_eq!(cluster.other.get("one").await.unwrap(), "first");
    cluster.other.upsert("one", "second").await.unwrap();
    let given_up = || {
        let methods = cluster.writer.metrics().rpc.methods;
        methods.iter().any(|of| of.method == Method::BatchPutRevoke && of.calls > 0)
    };
    eventually(10 * FREE_WITHIN, "the put is given up", given_up).await;
    assert_eq!(cluster.other.get("one").await.unwrap(), "second");
}
