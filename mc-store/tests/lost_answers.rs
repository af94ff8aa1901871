//! A put of which the client does not know whether it ended does not block its key.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_store::{ByteSize, Client, Master, Put, PutOutcome, ReplicateConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};

/// How soon a key is free after its put has failed. The master's own time-out is ten times
/// as long.
const FREE_WITHIN: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Where a frame's header has the number of its method.
const METHOD: std::ops::Range<usize> = 12..14;
const BATCH_PUT_END: u16 = 14;
const BATCH_UPSERT_END: u16 = 26;

/// A way to the master that turns into a black hole, with its connections open, when calls
/// that end puts pass.
async fn proxy(master: SocketAddr, left: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(master) = TcpStream::connect(master).await else { continue };
            let ((from_client, mut to_client), (mut from_master, to_master)) =
                (client.into_split(), master.into_split());
            tokio::spawn(pass_requests(from_client, to_master, Arc::clone(&left)));
            tokio::spawn(async move { tokio::io::copy(&mut from_master, &mut to_client).await });
        }
    });
    address
}

async fn pass_requests(
    mut from: OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    left: Arc<AtomicUsize>,
) {
    let (mut buffer, mut lost) = (vec![0; 64 << 10], false);
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        let method = buffer[METHOD].try_into().map(u16::from_le_bytes).unwrap();
        let ends = len > METHOD.end && (method == BATCH_PUT_END || method == BATCH_UPSERT_END);
        let take = |left: usize| left.checked_sub(1);
        lost |= ends && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        if !lost && to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}

struct Cluster {
    _master: Master,
    _node: Client,
    other: Client,
    writer: Client,
    lose: Arc<AtomicUsize>,
}

impl Cluster {
    async fn start() -> Self {
        let master = Master::builder().start().await.unwrap();
        let address = master.local_addr();
        let node = Client::builder()
            .master(address.to_string())
            .listen("127.0.0.1:0".parse().unwrap())
            .segment_size(ByteSize::bytes(32 << 20))
            .connect()
            .await
            .unwrap();
        let other = Client::builder().master(address.to_string()).connect().await.unwrap();
        let lose = Arc::new(AtomicUsize::new(0));
        let through = proxy(address, Arc::clone(&lose)).await;
        let mut rpc = mc_rpc::ClientConfig::default();
        rpc.call_timeout = CALL_TIMEOUT;
        let writer =
            Client::builder().master(through.to_string()).rpc(rpc).connect().await.unwrap();
        Self { _master: master, _node: node, other, writer, lose }
    }

    /// Puts through another client until the key is taken.
    async fn free(&self, key: &str, begun: Instant) {
        while self.other.put(key, "second").await.unwrap() == PutOutcome::Pending {
            assert!(begun.elapsed() < FREE_WITHIN, "{key} is blocked after {FREE_WITHIN:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.other.get(key).await.unwrap(), "second");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_end_got_no_answer_frees_its_key() {
    let cluster = Cluster::start().await;
    cluster.lose.store(1, Ordering::SeqCst);
    cluster.writer.put("one", "first").await.unwrap_err();
    cluster.free("one", Instant::now()).await;

    cluster.lose.store(1, Ordering::SeqCst);
    let puts = ["a", "b"].map(|key| Put::new(key, Bytes::from("first"))).to_vec();
    for outcome in cluster.writer.batch_put(puts, &ReplicateConfig::default()).await {
        outcome.unwrap_err();
    }
    let begun = Instant::now();
    cluster.free("a", begun).await;
    cluster.free("b", begun).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upsert_whose_end_got_no_answer_frees_its_key() {
    let cluster = Cluster::start().await;
    cluster.lose.store(1, Ordering::SeqCst);
    cluster.writer.upsert("one", "first").await.unwrap_err();
    cluster.free("one", Instant::now()).await;
}
