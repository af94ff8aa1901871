//! Which node is slow, as the master is told by those who use it.

use std::net::SocketAddr;
use std::time::Duration;

use mc_rpc::NodeReport;
use mc_store::{Client, Master, ReplicateConfig};
use mc_testkit::{Relay, eventually_async};
use mc_transport::NodeConfig;
use mc_types::ByteSize;

const DEADLINE: Duration = Duration::from_secs(60);

/// The time of a chunk on its way to the slow node.
const DELAY: Duration = Duration::from_millis(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_at_the_end_of_a_slow_way_is_slow_to_itself_and_to_others() {
    let master = Master::builder().start().await.unwrap();
    let at = master.local_addr().to_string();
    let (mut nodes, mut relays) = (Vec::new(), Vec::new());
    for name in ["a", "b", "c"] {
        let node = Client::builder().master(&*at).node(NodeConfig::default());
        let node = node.listen("127.0.0.1:0".parse().unwrap()).segment_name(name);
        let node = node.advertise("127.0.0.2".parse().unwrap()).segment_size(ByteSize::mib(8));
        let node = node.heartbeat_interval(Duration::from_millis(200)).connect().await.unwrap();
        let address: SocketAddr = node.endpoint().unwrap().address().parse().unwrap();
        relays.push(Relay::to(address.port(), 4).await.unwrap());
        nodes.push(node);
    }
    relays[2].delay(DELAY);
    let (near, far) = (&nodes[0], &nodes[2]);
    for name in ["b", "c"] {
        let config = ReplicateConfig::default().prefer(name);
        near.put_with(name, vec![1; 1000], &config).await.unwrap();
    }
    // The first of the nodes reads from the others as long as it takes to tell.
    let told = eventually_async(DEADLINE, "the master knows how fast each is", async || {
        near.get("b").await.unwrap();
        near.get("c").await.unwrap();
        let report = near.cluster_report().await.unwrap();
        let told = |node: &Client| {
            let known = |report: &&NodeReport| report.client == node.id();
            report.nodes.iter().find(known).filter(|it| it.answer.is_some()).cloned()
        };
        let (b, c) = (told(&nodes[1])?, told(far)?);
        (b.small.is_some() && c.small.is_some()).then_some((b, c))
    });
    let (quick, slow) = told.await;
    assert_eq!((quick.judges, slow.judges), (1, 1));
    assert!(slow.small > Some(DELAY) && slow.answer > Some(DELAY), "{slow:?}");
    assert!(quick.small < slow.small && quick.answer < slow.answer, "{quick:?} {slow:?}");
    for node in nodes {
        node.shutdown().await;
    }
    master.shutdown().await;
}
