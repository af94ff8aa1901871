//! Callers that give up, and change their memory then: what is stored are the bytes of the call or
//! nothing, and a get that has ended writes nowhere.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::{client, node};
use mc_store::{
    ByteSize, Client, ClientBuilder, GetError, Master, Memory, MemorySlice, NodeConfig, Put,
    PutError, PutMode, PutOutcome, ReplicateConfig, Source,
};
use mc_testkit::{Flow, Relay, eventually};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

/// The time after which callers give up; long enough for a call to begin.
const PATIENCE: Duration = Duration::from_millis(300);

/// More than the buffers of the sockets and of the relay hold.
const LARGE: usize = 24 << 20;
const SMALL: usize = 100_000;

/// A master, and a node with a segment, each behind a relay.
struct Cluster {
    master: Master,
    node: Client,
    to_master: Relay,
    to_node: Relay,
}

impl Cluster {
    async fn start() -> Self {
        let master = Master::builder().start().await.unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let to_master = Relay::between(any, master.local_addr(), 1).await.unwrap();
        let node = node(&master.local_addr())
            .node(NodeConfig::default())
            .advertise([127, 0, 0, 2].into())
            .segment_size(ByteSize::mib(128));
        let node = node.connect().await.unwrap();
        let address: SocketAddr = node.endpoint().unwrap().address().parse().unwrap();
        let to_node = Relay::to(address.port(), 1).await.unwrap();
        Self { master, node, to_master, to_node }
    }

    /// Describes a client that knows master and node through the relays only, over TCP.
    fn client(&self) -> ClientBuilder {
        client(&self.to_master.address()).node(NodeConfig::default())
    }

    /// A client with links to both.
    async fn app(&self) -> Client {
        let app = self.client().connect().await.unwrap();
        app.put("first", "value").await.unwrap();
        app
    }

    async fn shutdown(self) {
        self.to_master.resume();
        self.to_node.resume();
        self.node.shutdown().await;
        self.master.shutdown().await;
    }
}

/// Memory of an application, and who else may touch it.
struct Owned {
    memory: Memory,
    slice: MemorySlice,
    claim: Arc<()>,
}

impl Owned {
    fn new(len: usize, byte: u8) -> Self {
        let (memory, claim) = (Memory::allocate(len).unwrap(), Arc::new(()));
        let slice = memory.whole().into_memory(Arc::clone(&claim)).whole();
        let owned = Self { memory, slice, claim };
        owned.fill(byte);
        owned
    }

    fn fill(&self, byte: u8) {
        self.memory.whole().copy_from(0, &vec![byte; self.memory.len()]).unwrap();
    }

    fn is_full_of(&self, byte: u8) -> bool {
        self.memory.whole().to_vec().iter().all(|&found| found == byte)
    }

    /// Waits until no call of the application's and nothing that they began has the memory.
    async fn into_free(self) -> Memory {
        let Self { memory, slice, claim } = self;
        drop(slice);
        eventually(DEADLINE, "nothing uses the memory", || Arc::strong_count(&claim) == 1).await;
        memory
    }
}

/// Bytes that the client has written to peers.
fn bytes_written(client: &Client) -> u64 {
    client.metrics().paths.iter().map(|path| path.written).sum()
}

async fn is_not_there(app: &Client, key: &str) {
    let found = app.get(key).await;
    assert!(matches!(found, Err(GetError::NotFound)), "{key}: {:?}", found.map(|it| it.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_was_given_up_before_it_had_space_stores_nothing() {
    let cluster = Cluster::start().await;
    let app = cluster.app().await;
    for mode in [PutMode::Put, PutMode::Upsert] {
        let owned = Owned::new(SMALL, 1);
        cluster.to_master.pause();
        let config = ReplicateConfig::default();
        let given_up = match mode {
            PutMode::Put => {
                let put = app.put_from("key", &owned.slice, &config);
                timeout(PATIENCE, put).await.map(drop)
            }
            PutMode::Upsert => {
                let put = app.upsert_from("key", &owned.slice, &config);
                timeout(PATIENCE, put).await.map(drop)
            }
        };
        assert!(given_up.is_err(), "the master is away");
        owned.fill(2);
        cluster.to_master.resume();
        owned.into_free().await;
        is_not_there(&app, "key").await;
    }
    assert_eq!(app.put("key", "another").await.unwrap(), PutOutcome::Stored);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_was_given_up_while_it_was_written_stores_nothing() {
    let cluster = Cluster::start().await;
    let app = cluster.app().await;
    let owned = Owned::new(LARGE, 1);
    cluster.to_node.pause();
    let config = ReplicateConfig::default();
    let put = app.put_from("key", &owned.slice, &config);
    assert!(timeout(PATIENCE, put).await.is_err(), "the node is away");
    owned.fill(2);
    cluster.to_node.resume();
    owned.into_free().await;
    is_not_there(&app, "key").await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_whose_memory_changes_fails_and_stores_nothing() {
    let cluster = Cluster::start().await;
    let app = cluster.app().await;
    let relays = [(&cluster.to_master, SMALL), (&cluster.to_node, LARGE)];
    for (n, (relay, len)) in relays.into_iter().enumerate() {
        for slices in [1, 3] {
            let key = format!("key {n} {slices}");
            let owned = Owned::new(len, 1);
            relay.pause();
            let sources: Vec<Source> = match slices {
                1 => vec![owned.slice.clone().into()],
                _ => vec![
                    Bytes::from_static(b"header").into(),
                    owned.slice.part(0, len / 2).unwrap().into(),
                    owned.slice.part(len / 2, len - len / 2).unwrap().into(),
                ],
            };
            let put = Put::of_slices(&key, sources);
            let config = ReplicateConfig::default();
            let mut put = pin!(app.batch_put(vec![put], &config));
            assert!(timeout(PATIENCE, &mut put).await.is_err(), "the peer is away");
            owned.fill(2);
            relay.resume();
            let error = put.await.remove(0).unwrap_err();
            assert!(matches!(error, PutError::MemoryChanged), "{key}: {error:?}");
            is_not_there(&app, &key).await;
            // The key is free for the bytes that are there now.
            let stored = app.put_from(&key, &owned.slice, &config).await.unwrap();
            assert_eq!(stored, PutOutcome::Stored, "{key}");
            app.remove(&key, true).await.unwrap();
        }
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_replica_of_a_put_has_the_bytes_of_the_call() {
    let cluster = Cluster::start().await;
    // The node that stands still is the second one of the object.
    let other =
        node(&cluster.master.local_addr()).segment_name("first").segment_size(ByteSize::mib(128));
    let other = other.node(NodeConfig::default()).connect().await.unwrap();
    let app = cluster.app().await;
    let owned = Owned::new(LARGE, 1);
    let two = ReplicateConfig::default().replicas(2).prefer("first");
    cluster.to_node.pause();
    let mut put = pin!(app.put_from("key", &owned.slice, &two));
    let is_written = || bytes_written(&app) >= LARGE as u64;
    let written = eventually(DEADLINE, "the first replica is written", is_written);
    tokio::select! {
        biased;
        outcome = &mut put => panic!("a node is away: {outcome:?}"),
        () = written => {}
    }
    owned.fill(2);
    cluster.to_node.resume();
    let error = put.await.unwrap_err();
    assert!(matches!(error, PutError::MemoryChanged), "{error:?}");
    is_not_there(&app, "key").await;
    other.shutdown().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_reads_no_memory_after_its_time_limit() {
    let cluster = Cluster::start().await;
    drop(cluster.app().await);
    let app = cluster.client().put_wait(Duration::ZERO).put_timeout(PATIENCE);
    let app = app.connect().await.unwrap();
    app.put("second", "value").await.unwrap();
    for relay in [&cluster.to_node, &cluster.to_master] {
        let owned = Owned::new(LARGE, 1);
        relay.pause();
        let begun = Instant::now();
        let config = ReplicateConfig::default();
        let error = app.put_from("key", &owned.slice, &config).await.unwrap_err();
        assert!(matches!(error, PutError::TimedOut { after } if after == PATIENCE), "{error:?}");
        assert!(error.to_string().contains("put_timeout_ms"), "{error}");
        assert!(begun.elapsed() < DEADLINE);
        if std::ptr::eq(relay, &cluster.to_node) {
            // Nothing passes yet, and nothing would be read if it did.
            owned.into_free().await;
            relay.resume();
        } else {
            owned.fill(2);
            relay.resume();
            owned.into_free().await;
        }
        is_not_there(&app, "key").await;
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_that_was_given_up_writes_nowhere() {
    let cluster = Cluster::start().await;
    let app = cluster.app().await;
    for len in [SMALL, LARGE] {
        let key = len.to_string();
        app.put(&key, vec![1; len]).await.unwrap();
        let owned = Owned::new(len, 7);
        cluster.to_node.pause_flow(Flow::FromNode);
        let get = app.get_into(&key, &owned.slice);
        assert!(timeout(PATIENCE, get).await.is_err(), "the node is away");
        owned.fill(8);
        cluster.to_node.resume();
        // What comes late has been taken from the link then.
        let memory = owned.into_free().await;
        let late = memory.whole().to_vec().iter().filter(|&&byte| byte != 8).count();
        assert_eq!(late, 0, "bytes came late, of {len}");
        assert_eq!(app.get(&key).await.unwrap(), vec![1; len], "the link goes on");
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_does_not_change_is_stored_as_it_is() {
    let cluster = Cluster::start().await;
    let app = cluster.app().await;
    for len in [1, 65_536, 65_537, SMALL, LARGE] {
        let owned = Owned::new(len, 3);
        let parts: Vec<Source> = vec![
            Bytes::from_static(b"header").into(),
            owned.slice.clone().into(),
            owned.slice.part(0, len / 3).unwrap().into(),
        ];
        let puts = vec![Put::new("whole", owned.slice.clone()), Put::of_slices("parts", parts)];
        for outcome in app.batch_put(puts, &ReplicateConfig::default()).await {
            assert_eq!(outcome.unwrap(), PutOutcome::Stored);
        }
        assert!(owned.is_full_of(3));
        assert_eq!(app.get("whole").await.unwrap(), vec![3; len]);
        let parts = [&b"header"[..], &vec![3; len + len / 3]].concat();
        assert_eq!(app.get("parts").await.unwrap(), parts);
        app.remove_all(true).await.unwrap();
    }
    cluster.shutdown().await;
}
