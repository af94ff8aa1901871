//! A node whose process is frozen: a reader that needs its only copy waits once, is told which node it
//! is, and the others are not held up.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use std::error::Error;
use std::io::Read as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_cluster_testkit::{client, node};
use mc_store::{ByteSize, Client, Master, MasterConfig, NodeConfig, PutOutcome, ReplicateConfig};
use mc_testkit::role::{self, say};
use mc_testkit::{Input, Program, eventually_async};

const DEADLINE: Duration = Duration::from_secs(60);

/// The node's process; a test that returns at once in a run of all of them.
#[test]
fn process() {
    let Some(master) = role::role() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let frozen = client(&master)
            .node(NodeConfig::default())
            .listen("127.0.0.1:0".parse().unwrap())
            .segment_name("frozen")
            .segment_size(ByteSize::mib(16));
        let frozen = frozen.connect().await.unwrap();
        say(format_args!("listening {}", frozen.endpoint().unwrap().address()));
        let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        let _ = ended.await;
        drop(frozen);
    });
}

/// A master, a node of this process and one of another, which has the only copy of `key`.
struct Cluster {
    master: Master,
    healthy: Client,
    frozen: Program,
    /// Where it listens.
    address: String,
}

impl Cluster {
    async fn start(config: MasterConfig) -> Self {
        let master = Master::builder().config(config).start().await.unwrap();
        let at = master.local_addr();
        let healthy = node(&at).segment_name("healthy").segment_size(ByteSize::mib(16));
        let healthy = healthy.connect().await.unwrap();
        let mut process = role::command("frozen::process", &at.to_string());
        let mut frozen = Program::start(DEADLINE, &mut process, Input::Open);
        let address = frozen.hear().strip_prefix("listening ").unwrap().to_owned();
        Self { master, healthy, frozen, address }
    }

    /// A client that reaches nodes over TCP: one that maps their memory needs nothing of them.
    async fn client(&self, config: NodeConfig) -> Client {
        client(&self.master.local_addr()).node(config).connect().await.unwrap()
    }

    async fn put_there(&self, client: &Client) {
        let there = ReplicateConfig::default().prefer("frozen");
        let put = client.put_with("key", Bytes::from_static(b"value"), &there).await;
        assert_eq!(put.unwrap(), PutOutcome::Stored);
        let replicas = client.replicas("key").await.unwrap();
        assert_eq!(&*replicas[0].segment_name, "frozen");
    }

    fn is_suspect(&self) -> bool {
        let report = self.master.report();
        let frozen = report.segments.iter().find(|it| &*it.spec.name == "frozen").unwrap();
        frozen.is_suspect
    }

    async fn shutdown(self) {
        self.healthy.shutdown().await;
        self.master.shutdown().await;
    }
}

/// How long a get took that failed, and its error with the causes.
async fn failed_get(client: &Client) -> (Duration, String) {
    let begun = Instant::now();
    let error = client.get("key").await.expect_err("its only node is frozen");
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words += &format!(": {error}");
        cause = error.source();
    }
    eprintln!("after {:.1?}: {words}", begun.elapsed());
    (begun.elapsed(), words)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_costs_a_client_one_wait_and_names_itself() {
    let cluster = Cluster::start(MasterConfig::default()).await;
    let client = cluster.client(NodeConfig::default()).await;
    cluster.put_there(&client).await;
    cluster.frozen.freeze();
    // Over a link that is open, with the settings' defaults.
    let (took, words) = failed_get(&client).await;
    assert!(took < Duration::from_millis(5500), "{took:?}");
    assert!(words.contains(&cluster.address), "{words}");
    // Nobody waits again.
    let begun = Instant::now();
    for _ in 0..3 {
        let gets = (0..4).map(|_| failed_get(&client));
        for (took, words) in futures_util::future::join_all(gets).await {
            assert!(took < Duration::from_millis(500), "{took:?}");
            assert!(words.contains(&cluster.address), "{words}");
        }
    }
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    // The master knows, and a put goes elsewhere at once.
    let suspected = async || cluster.is_suspect();
    eventually_async(DEADLINE, "the master to suspect the node", suspected).await;
    let begun = Instant::now();
    for n in 0..20 {
        let other = client.put(&format!("other/{n}"), Bytes::from_static(b"value")).await;
        assert_eq!(other.unwrap(), PutOutcome::Stored);
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    cluster.frozen.resume();
    let begun = Instant::now();
    let read = async || client.get("key").await.ok();
    let value = eventually_async(DEADLINE, "the node to be asked again", read).await;
    assert_eq!(value, "value");
    eprintln!("read again {:.1?} after it went on", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    client.shutdown().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_that_outlasts_the_time_of_its_node_names_the_node() {
    let mut config = MasterConfig::default();
    config.client_ttl = Duration::from_secs(2);
    let cluster = Cluster::start(config).await;
    let mut impatient = NodeConfig::default();
    impatient.tcp.stall_timeout = Duration::from_secs(3);
    let client = cluster.client(impatient).await;
    cluster.put_there(&client).await;
    cluster.frozen.freeze();
    // The master has suspended the segment when the read fails, and calls the object not ready.
    let (took, words) = failed_get(&client).await;
    assert!(took > Duration::from_secs(2), "{took:?}");
    assert!(words.contains(&cluster.address), "{words}");
    client.shutdown().await;
    cluster.frozen.resume();
    cluster.shutdown().await;
}
