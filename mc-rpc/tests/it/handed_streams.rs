//! A client and a server on streams that are handed in, on virtual time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mc_meta::{Master, ReplicateConfig};
use mc_rpc::{
    ByteStream, ClientConfig, ClientEnvironment, Clock, Connecting, MasterClient, MasterService,
    PutStartItem, RpcError, Server, ServerConfig, ServerHandle, Streams,
};
use mc_types::Time;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, sleep};

use crate::common::{ME, key, master, segment};

/// A network on which the master's answers can be lost.
#[derive(Debug)]
struct Network {
    master: Streams,
    is_mute: Arc<AtomicBool>,
    connections: AtomicU64,
    random: AtomicU64,
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    is_mute: Option<Arc<AtomicBool>>,
) {
    let mut piece = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut piece).await {
        let is_lost = is_mute.as_ref().is_some_and(|is_mute| is_mute.load(Relaxed));
        if !is_lost && to.write_all(&piece[..len]).await.is_err() {
            break;
        }
    }
    // The other side may have gone.
    drop(to.shutdown().await);
}

impl ClientEnvironment for Network {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        assert_eq!(address, "master:1");
        Box::pin(async {
            self.connections.fetch_add(1, Relaxed);
            let (client, near) = tokio::io::duplex(1 << 16);
            let (far, server) = tokio::io::duplex(1 << 16);
            self.master.hand_in(server, SocketAddr::from(([10, 0, 0, 9], 4000)))?;
            let ((near_in, near_out), (far_in, far_out)) =
                (tokio::io::split(near), tokio::io::split(far));
            tokio::spawn(carry(near_in, far_out, None));
            tokio::spawn(carry(far_in, near_out, Some(Arc::clone(&self.is_mute))));
            Ok(Box::new(client) as Box<dyn ByteStream>)
        })
    }

    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        bytes.fill_with(|| self.random.fetch_add(1, Relaxed) as u8);
        Ok(())
    }
}

struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Time {
        Time::ORIGIN + self.0.elapsed()
    }
}

fn start(master: &Arc<Master>) -> (ServerHandle, Arc<Network>) {
    let service = MasterService::new(Arc::clone(master), Virtual(Instant::now()));
    let (server, streams) = Server::over_streams(service, ServerConfig::default()).unwrap();
    let network = Network {
        master: streams,
        is_mute: Arc::default(),
        connections: AtomicU64::new(0),
        random: AtomicU64::new(1),
    };
    (server.spawn(), Arc::new(network))
}

fn config(network: &Arc<Network>) -> ClientConfig {
    let mut config = ClientConfig::default();
    config.environment(Arc::clone(network) as Arc<dyn ClientEnvironment>);
    config
}

#[tokio::test(start_paused = true)]
async fn calls_are_made_over_streams_of_the_environment() {
    let master = master();
    let (server, network) = start(&master);
    let client = MasterClient::connect("master:1", config(&network)).await.unwrap();
    client.ping(ME).await.unwrap();
    let (one, two) = tokio::join!(client.exist(key("a")), client.exist(key("b")));
    assert!(!one.unwrap() && !two.unwrap());
    assert_eq!(network.connections.load(Relaxed), 1);
    server.shutdown().await;
    // Nothing takes streams any more, and that is soon known.
    assert!(matches!(client.ping(ME).await, Err(RpcError::Unreachable { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_put_whose_answer_was_lost_is_settled_by_a_task() {
    let master = master();
    let (server, network) = start(&master);
    let client = MasterClient::connect("master:1", config(&network)).await.unwrap();
    client.mount_segment(ME, &segment(1, 1 << 20)).await.unwrap();
    network.is_mute.store(true, Relaxed);
    let puts = [PutStartItem::new(key("k"), &[100])];
    let lost = client.batch_put_start(ME, &ReplicateConfig::default(), &puts).await;
    assert!(matches!(lost, Err(RpcError::TimedOut { .. })), "{lost:?}");
    assert_eq!(master.report().totals.processing, 1, "the master has begun it");
    network.is_mute.store(false, Relaxed);
    let end = Instant::now() + Duration::from_secs(30);
    while master.report().totals.processing > 0 {
        assert!(Instant::now() < end, "the put stays open");
        sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(master.report().totals.put_revokes, 1);
    server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_given_up_ends_on_both_sides() {
    let master = master();
    let (server, network) = start(&master);
    let client = MasterClient::connect("master:1", config(&network)).await.unwrap();
    client.ping(ME).await.unwrap();
    assert_eq!(server.metrics().connections, 1);
    drop(client);
    let end = Instant::now() + Duration::from_secs(30);
    while server.metrics().connections > 0 {
        assert!(Instant::now() < end, "the server keeps the connection");
        sleep(Duration::from_millis(10)).await;
    }
    server.shutdown().await;
}
