//! Nodes whose heartbeat is fine and whose data path is dead: readers go to another replica
//! after a moment, and leave such a node alone until it answers again.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_store::{
    ByteSize, Client, ClientBuilder, Master, MasterConfig, Memory, NodeConfig, ReplicateConfig,
};
use mc_testkit::{Random, Relay, eventually_async};

const DEADLINE: Duration = Duration::from_secs(20);

/// Clients that read at the same time.
const READERS: usize = 4;
const KEYS: usize = 64;
const VALUE: usize = 16 << 10;

/// A get that takes longer was blocked. One from a healthy node takes about a millisecond.
const BLOCKED: Duration = Duration::from_millis(90);

/// How long a client may be blocked in all. It is for 0.1 s; that is left to busy machines.
const BLOCKED_AT_MOST: Duration = Duration::from_millis(1500);

fn content(key: usize) -> Bytes {
    mc_testkit::content(&name(key), VALUE).into()
}

fn name(key: usize) -> String {
    format!("key/{key}")
}

/// Without shared memory, which passes by the proxy.
fn over_tcp() -> NodeConfig {
    NodeConfig::default()
}

/// Two nodes, each behind a proxy, and each object at both.
struct Cluster {
    master: Master,
    nodes: Vec<Client>,
    proxies: Vec<Relay>,
}

impl Cluster {
    async fn start() -> Self {
        let master = Master::builder().config(MasterConfig::default()).start().await.unwrap();
        let (mut nodes, mut proxies) = (Vec::new(), Vec::new());
        for name in ["one", "two"] {
            let node = client_of(&master)
                .listen("127.0.0.1:0".parse().unwrap())
                .advertise("127.0.0.2".parse().unwrap())
                .segment_name(name)
                .segment_size(ByteSize::mib(16))
                .heartbeat_interval(Duration::from_millis(100));
            let node = node.connect().await.unwrap();
            let address: SocketAddr = node.endpoint().unwrap().address().parse().unwrap();
            proxies.push(Relay::to(address.port(), 1).await.unwrap());
            nodes.push(node);
        }
        let cluster = Self { master, nodes, proxies };
        let writer = cluster.client().await;
        let two = ReplicateConfig::default().replicas(2);
        for key in 0..KEYS {
            writer.put_with(&name(key), content(key), &two).await.unwrap();
        }
        cluster
    }

    async fn client(&self) -> Client {
        client_of(&self.master).connect().await.unwrap()
    }

    /// The way to the node that `read` reads more from than from the other.
    async fn way_used_by(&self, read: impl AsyncFnOnce()) -> &Relay {
        let before: Vec<u64> = self.proxies.iter().map(Relay::passed).collect();
        read().await;
        let passed = |nth: &usize| self.proxies[*nth].passed() - before[*nth];
        &self.proxies[(0..self.proxies.len()).max_by_key(passed).unwrap()]
    }

    async fn shutdown(self) {
        for node in self.nodes {
            node.shutdown().await;
        }
        self.master.shutdown().await;
    }
}

fn client_of(master: &Master) -> ClientBuilder {
    Client::builder().master(master.local_addr().to_string()).node(over_tcp())
}

/// Reads for a while; how often, and how long gets were blocked in all.
async fn read_for(client: &Client, time: Duration, mut random: Random) -> (u32, Duration) {
    let (begun, mut reads, mut blocked) = (Instant::now(), 0, Duration::ZERO);
    while begun.elapsed() < time {
        let key = random.below(KEYS);
        let asked = Instant::now();
        assert!(client.get(&name(key)).await.unwrap() == content(key), "foreign bytes");
        let took = asked.elapsed();
        reads += 1;
        if took > BLOCKED {
            blocked += took;
        }
    }
    (reads, blocked)
}

async fn all_read_for(clients: &[Client], time: Duration) -> Vec<(u32, Duration)> {
    let mut random = Random::seeded("GREY_SEED");
    let readers = clients.iter().map(|client| {
        let (client, random) = (client.clone(), Random::new(random.next_u64()));
        tokio::spawn(async move { read_for(&client, time, random).await })
    });
    let mut all = Vec::new();
    for reader in readers.collect::<Vec<_>>() {
        all.push(reader.await.unwrap());
    }
    for (nth, (reads, blocked)) in all.iter().enumerate() {
        eprintln!("client {nth}: {reads} gets, blocked for {blocked:.1?} of {time:.1?}");
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_leave_a_node_whose_links_went_dead() {
    let cluster = Cluster::start().await;
    let mut clients = Vec::new();
    for _ in 0..READERS {
        clients.push(cluster.client().await);
    }
    // They have links to both nodes.
    let reads = async || drop(all_read_for(&clients, Duration::from_millis(300)).await);
    let proxy = cluster.way_used_by(reads).await;
    proxy.pause();
    let all = all_read_for(&clients, Duration::from_secs(6)).await;
    let most = all.iter().map(|(_, blocked)| *blocked).max().unwrap();
    assert!(most < BLOCKED_AT_MOST, "a client was blocked for {most:.1?}");
    let all = clients.iter().map(|client| client.metrics().reports);
    let moved_on = all.map(|metrics| (metrics.moved_on, metrics.sent));
    assert!(moved_on.clone().any(|(moved_on, sent)| moved_on > 0 && sent > 0), "none moved on");
    // It is used again when it answers again.
    proxy.resume();
    let before = proxy.passed();
    eventually_async(DEADLINE, "the node to be read from again", async || {
        all_read_for(&clients, Duration::from_millis(100)).await;
        proxy.passed() - before > (READERS * VALUE * 10) as u64
    })
    .await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_leave_a_node_that_accepts_and_never_answers() {
    let cluster = Cluster::start().await;
    cluster.proxies[0].pause();
    let mut clients = Vec::new();
    for _ in 0..READERS {
        clients.push(cluster.client().await);
    }
    let all = all_read_for(&clients, Duration::from_secs(6)).await;
    let most = all.iter().map(|(_, blocked)| *blocked).max().unwrap();
    assert!(most < BLOCKED_AT_MOST, "a client was blocked for {most:.1?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_leave_a_node_for_one_that_failed_a_moment_ago() {
    let cluster = Cluster::start().await;
    let client = cluster.client().await;
    let reads = async || {
        for key in 0..KEYS {
            client.get(&name(key)).await.unwrap();
        }
    };
    let first = cluster.way_used_by(reads).await;
    first.pause();
    eventually_async(DEADLINE, "its node to be a suspect", async || {
        reads().await;
        client.metrics().reports.moved_on > 0
    })
    .await;
    // The suspect is well again, which nobody knows yet, and the other node stands still.
    first.resume();
    let others = cluster.proxies.iter().filter(|proxy| !std::ptr::eq(*proxy, first));
    others.for_each(Relay::pause);
    let begun = Instant::now();
    reads().await;
    let took = begun.elapsed();
    assert!(took < BLOCKED_AT_MOST, "{KEYS} gets took {took:.1?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_moved_on_leaves_its_buffer_alone() {
    let cluster = Cluster::start().await;
    let buffers: Vec<Memory> = (0..KEYS).map(|_| Memory::allocate(VALUE).unwrap()).collect();
    let client = cluster.client().await;
    let reads = async || {
        for (key, buffer) in buffers.iter().enumerate() {
            client.get_into(&name(key), &buffer.whole()).await.unwrap();
        }
    };
    let proxy = cluster.way_used_by(reads).await;
    proxy.pause();
    // Reads may prefer the other way for a while, if they have just found this one slow.
    eventually_async(DEADLINE, "reads that move on", async || {
        let mut gets = Vec::new();
        for (key, buffer) in buffers.iter().enumerate() {
            let (client, into) = (client.clone(), buffer.whole());
            gets.push(tokio::spawn(async move { client.get_into(&name(key), &into).await }));
        }
        for (key, get) in gets.into_iter().enumerate() {
            get.await.unwrap().unwrap();
            let buffer = buffers[key].whole();
            assert!(buffer.to_vec() == content(key));
            buffer.copy_from(0, &[7; VALUE]).unwrap();
        }
        client.metrics().reports.moved_on > 0
    })
    .await;
    // The answers of the reads that were given up arrive.
    let before = proxy.passed();
    proxy.resume();
    eventually_async(DEADLINE, "late bytes to pass", async || {
        proxy.passed() - before >= VALUE as u64
    })
    .await;
    eventually_async(DEADLINE, "reads to pass behind them", async || {
        let before = proxy.passed();
        for key in 0..KEYS {
            client.get(&name(key)).await.unwrap();
        }
        proxy.passed() - before >= VALUE as u64
    })
    .await;
    for buffer in &buffers {
        assert!(buffer.whole().to_vec().iter().all(|&byte| byte == 7), "late bytes arrived");
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_leave_a_node_that_finds_itself_cut_off() {
    let cluster = Cluster::start().await;
    let (grey, healthy) = (&cluster.nodes[0], &cluster.nodes[1]);
    let totals = || cluster.master.report().totals;
    // It has to know that it can be reached at all.
    let before = cluster.proxies[0].passed();
    eventually_async(DEADLINE, "the first checks", async || {
        cluster.proxies[0].passed() - before > 500
    })
    .await;
    assert!(!grey.metrics().is_cut_off);
    assert_eq!(totals().suspicion_declared, 0);
    cluster.proxies[0].pause();
    let begun = Instant::now();
    // Nobody reads or writes meanwhile: only the node itself can tell.
    eventually_async(DEADLINE, "the node to say that it is cut off", async || {
        totals().suspicion_suspects == 1
    })
    .await;
    eprintln!("told after {:.1?}", begun.elapsed());
    assert!(grey.metrics().is_cut_off && !healthy.metrics().is_cut_off);
    assert_eq!((totals().suspicion_declared, totals().suspicion_reports), (1, 0));
    // By a client that knows nothing of it, as long as it says so.
    let client = cluster.client().await;
    let puts = Instant::now();
    for key in 0..100 {
        client.put(&format!("put/{key}"), content(key)).await.unwrap();
        let replicas = client.replicas(&format!("put/{key}")).await.unwrap();
        assert_eq!(&*replicas[0].segment_name, "two");
    }
    eprintln!("100 puts took {:.1?}", puts.elapsed());
    assert!(puts.elapsed() < Duration::from_secs(5));
    // Five heartbeats.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(totals().suspicion_suspects, 1, "its heartbeat does not end that");
    cluster.proxies[0].resume();
    eventually_async(DEADLINE, "the node to say that it is well", async || {
        totals().suspicion_suspects == 0
    })
    .await;
    assert!(!grey.metrics().is_cut_off);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_never_reached_itself_is_trusted() {
    let master = Master::builder().config(MasterConfig::default()).start().await.unwrap();
    let node = |name: &str| {
        client_of(&master)
            .listen("127.0.0.1:0".parse().unwrap())
            .segment_name(name)
            .segment_size(ByteSize::mib(16))
            .heartbeat_interval(Duration::from_millis(20))
    };
    // Nobody listens where peers are told to find it.
    let hidden = node("hidden").advertise("127.0.0.3".parse().unwrap()).connect().await.unwrap();
    let other = node("other").connect().await.unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        assert_eq!(master.report().totals.suspicion_declared, 0);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!hidden.metrics().is_cut_off);
    other.shutdown().await;
    hidden.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_node_is_waited_for_when_there_is_no_other() {
    let cluster = Cluster::start().await;
    let client = cluster.client().await;
    for key in 0..KEYS {
        client.get(&name(key)).await.unwrap();
    }
    cluster.nodes[1].shutdown().await;
    cluster.proxies[0].pause();
    let reader = client.clone();
    let get = tokio::spawn(async move { reader.get(&name(1)).await });
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(!get.is_finished());
    cluster.proxies[0].resume();
    assert!(get.await.unwrap().unwrap() == content(1));
    cluster.shutdown().await;
}
