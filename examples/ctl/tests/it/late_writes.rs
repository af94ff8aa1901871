//! A write that continues under the grant of a master that is gone, when the next master, which does
//! not know of it, has given the space to another object.
//!
//! `MC_LATE_WRITES=200` has the masters change 200 times.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;

use mc_meta::PutStart;
use mc_store::{Client, NodeConfig, PutOutcome, ReplicateConfig};
use mc_testkit::{
    EtcdCluster, Flow, Program, Relay, content, eventually_async, eventually_blocking,
};
use mc_transport::tcp::TcpConfig;
use mc_transport::{Link as _, Operation, Outcome, RemoteSpan, TcpTransport, Transport as _};
use mc_types::{Endpoint, KeyRef};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::support::{Cluster, DEADLINE, Node};

/// More than half of the segment: any two of this size share bytes.
const OBJECT: usize = 40 << 20;
const SEGMENT: &str = "64MB";

/// The bytes of the late write that are under way when it is held up.
const BEGUN: u64 = 1 << 20;

fn rounds() -> u32 {
    std::env::var("MC_LATE_WRITES").map_or(5, |rounds| rounds.parse().expect("a number"))
}

/// A write that is held up on its way to the node, with its first bytes there.
struct HeldUp {
    relay: Relay,
    outcome: JoinHandle<Outcome>,
    _transport: TcpTransport,
}

impl HeldUp {
    /// Begins a put, and its write. The node has let it in when this returns.
    async fn begin(client: &Client, key: &str, value: &[u8]) -> Self {
        let (key, config) = (KeyRef::new(key).unwrap(), ReplicateConfig::default());
        let put = PutStart { key, slice_lengths: &[OBJECT as u64], config: &config };
        // The lease of the object before it is about to end.
        let grant = eventually_async(DEADLINE, "there is room", async || {
            client.master().put_start(client.id(), &put).await.ok()
        });
        let grant = grant.await;
        let place = grant.replicas[0].clone();
        let node = place.segment.endpoint.address().parse().unwrap();
        let relay = Relay::between(([127, 0, 0, 1], 0).into(), node, 4).await.unwrap();
        let mut patient = TcpConfig::default();
        patient.stall_timeout = 2 * DEADLINE;
        let transport = TcpTransport::start(patient).await.unwrap();
        let relayed = Endpoint::new("tcp", &relay.address().to_string()).unwrap();
        let link = transport.connect(&relayed).await.unwrap();
        let span =
            RemoteSpan::new(place.segment.remote_key, place.extent).with_ticket(place.ticket);
        loop {
            let before = relay.passed();
            let operation = Operation::write(bytes::Bytes::copy_from_slice(value), span);
            let written = link.submit(vec![operation]);
            let outcome = tokio::spawn(async move { written.await.remove(0) });
            while relay.passed() < before + BEGUN && !outcome.is_finished() {
                tokio::task::yield_now().await;
            }
            relay.pause_flow(Flow::ToNode);
            if !outcome.is_finished() && relay.passed() < before + OBJECT as u64 {
                return Self { relay, outcome, _transport: transport };
            }
            // It was too fast. The same bytes may be written again.
            relay.resume();
            outcome.await.unwrap().expect("the grant is good");
        }
    }

    /// Lets the other bytes go, and waits for what comes of the write.
    async fn goes_on(self) -> Outcome {
        self.relay.resume();
        self.outcome.await.unwrap()
    }
}

/// Has all masters killed, of which the one that does not know the last changes leads next.
fn change_masters(cluster: &Cluster, masters: &mut [Option<Program>; 2], next: usize) {
    for master in &mut *masters {
        master.take().expect("it runs").kill();
    }
    masters[next] = Some(cluster.start(next));
    cluster.wait_until_leads(next);
    masters[1 - next] = Some(cluster.start(1 - next));
}

#[test]
fn a_write_under_the_grant_of_a_master_that_is_gone_destroys_nothing() {
    if !EtcdCluster::is_installed() {
        return;
    }
    let mut cluster = Cluster::new(2);
    // The defaults, and a standby that is frozen stays in sync.
    cluster.flags = vec!["--ha_lease_ttl=2s", "--sync_timeout=30s", "--default_kv_lease_ttl=100"];
    let mut masters = [Some(cluster.start(0)), None];
    cluster.wait_until_leads(0);
    masters[1] = Some(cluster.start(1));
    let settings = tempfile::tempdir().unwrap();
    let settings = settings.path().join("node.json");
    fs::write(&settings, r#"{"transfer_stall_timeout_ms": 60000}"#).unwrap();
    let config = format!("--config={}", settings.display());
    let _node = Node::start_with(&cluster.all(), "node", 0, SEGMENT, &[&config]);
    let runtime = Runtime::new().unwrap();
    let connect = async || {
        let client = Client::builder().master(cluster.all()).node(NodeConfig::default());
        client.put_wait(DEADLINE).connect().await.unwrap()
    };
    let client = runtime.block_on(connect());
    let (old, new) = (content("old", OBJECT), content("new", OBJECT));
    let mut destroyed = Vec::new();
    for round in 0..rounds() {
        let leader = round as usize % 2;
        cluster.wait_until_in_sync(1 - leader, leader);
        masters[1 - leader].as_ref().expect("it runs").freeze();
        let late = runtime.block_on(HeldUp::begin(&client, &format!("old-{round}"), &old));
        change_masters(&cluster, &mut masters, 1 - leader);
        let key = format!("new-{round}");
        eventually_blocking(
            DEADLINE,
            "the node is back, and the space is another object's",
            || {
                let put = runtime.block_on(client.put(&key, new.clone()));
                put.is_ok_and(|put| matches!(put, PutOutcome::Stored | PutOutcome::Existing))
            },
        );
        assert!(runtime.block_on(client.get(&key)).unwrap() == new, "round {round}");
        let outcome = runtime.block_on(late.goes_on());
        let found = runtime.block_on(client.get(&key));
        if !found.as_ref().is_ok_and(|found| *found == new) {
            destroyed.push((round, outcome, found.err()));
        } else {
            runtime.block_on(client.remove(&key, true)).unwrap();
        }
    }
    assert!(destroyed.is_empty(), "{} of {}: {destroyed:?}", destroyed.len(), rounds());
    println!("{} changes of the masters, 0 acknowledged objects destroyed", rounds());
    runtime.block_on(client.shutdown());
}
