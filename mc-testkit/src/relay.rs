//! A way to a node that can stand still.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};

/// Bytes of a chunk, at most.
const CHUNK: usize = 64 << 10;

/// Bytes that the kernel keeps of what a client sends. Left to itself it takes more and more of a fast
/// connection, up to 32 MiB, and large values would pass a relay that stands still.
const RECEIVED: u32 = 128 << 10;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// A direction through a [`Relay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// From the clients to the node.
    ToNode,
    /// From the node to the clients.
    FromNode,
}

/// A TCP proxy in front of a node, which looks alive while nothing passes: connections are
/// accepted and kept, and what was sent is delivered later, also when its sender has closed the
/// connection. Ends with the runtime.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    to_node: watch::Sender<bool>,
    from_node: watch::Sender<bool>,
    passed: Arc<AtomicU64>,
    /// How long each chunk is on its way, in microseconds.
    delay: Arc<AtomicU64>,
}

impl Relay {
    /// Listens at 127.0.0.2, on the port that the node has at 127.0.0.1. In each direction of a
    /// connection so many chunks of up to 64 KiB wait while the relay stands still; beyond that
    /// their sender waits.
    ///
    /// # Errors
    /// When the address is taken.
    pub async fn to(port: u16, waiting: usize) -> io::Result<Self> {
        let node = SocketAddr::from(([127, 0, 0, 1], port));
        Self::between(SocketAddr::from(([127, 0, 0, 2], port)), node, waiting).await
    }

    /// Listens at `address`, whose port may be zero, in front of `node`; as [`to`](Self::to).
    ///
    /// # Errors
    /// When the address is taken.
    pub async fn between(
        address: SocketAddr,
        node: SocketAddr,
        waiting: usize,
    ) -> io::Result<Self> {
        let listener = listen(address)?;
        let address = listener.local_addr()?;
        let open = || watch::Sender::new(true);
        let (passed, delay) = Default::default();
        let relay = Self { address, to_node: open(), from_node: open(), passed, delay };
        let (open_to, open_from) = (relay.to_node.subscribe(), relay.from_node.subscribe());
        let (passed, delay) = (Arc::clone(&relay.passed), Arc::clone(&relay.delay));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(node) = TcpStream::connect(node).await else { continue };
                // What passes in pieces must not wait for acknowledgements of the one before.
                let _ = (client.set_nodelay(true), node.set_nodelay(true));
                let (from_client, to_client) = client.into_split();
                let (from_node, to_node) = node.into_split();
                for (from, to, open) in
                    [(from_client, to_node, &open_to), (from_node, to_client, &open_from)]
                {
                    let (chunks, queue) = mpsc::channel(waiting);
                    tokio::spawn(take(from, chunks));
                    let (passed, delay) = (Arc::clone(&passed), Arc::clone(&delay));
                    tokio::spawn(deliver(queue, to, open.clone(), passed, delay));
                }
            }
        });
        Ok(relay)
    }

    /// Returns the address at which the relay listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets nothing pass from now on; what is on its way waits.
    pub fn pause(&self) {
        self.pause_flow(Flow::ToNode);
        self.pause_flow(Flow::FromNode);
    }

    /// Lets nothing pass in one direction from now on; what is on its way there waits.
    pub fn pause_flow(&self, flow: Flow) {
        match flow {
            Flow::ToNode => self.to_node.send_replace(false),
            Flow::FromNode => self.from_node.send_replace(false),
        };
    }

    /// Lets everything pass again, and what waited.
    pub fn resume(&self) {
        self.to_node.send_replace(true);
        self.from_node.send_replace(true);
    }

    /// Has each chunk of up to 64 KiB take so long from now on, as over a long or a bad way.
    pub fn delay(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.delay.store(micros, Ordering::SeqCst);
    }

    /// Returns how many bytes have passed, in both directions.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_recv_buffer_size(RECEIVED)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn take(mut from: OwnedReadHalf, chunks: mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if chunks.send(buffer[..len].to_vec()).await.is_err() {
            return;
        }
    }
}

async fn deliver(
    mut chunks: mpsc::Receiver<Vec<u8>>,
    mut to: OwnedWriteHalf,
    mut open: watch::Receiver<bool>,
    passed: Arc<AtomicU64>,
    delay: Arc<AtomicU64>,
) {
    while let Some(chunk) = chunks.recv().await {
        match delay.load(Ordering::SeqCst) {
            0 => {}
            micros => tokio::time::sleep(Duration::from_micros(micros)).await,
        }
        if open.wait_for(|open| *open).await.is_err() || to.write_all(&chunk).await.is_err() {
            return;
        }
        passed.fetch_add(chunk.len() as u64, Ordering::SeqCst);
    }
    let _ = to.shutdown().await;
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::eventually;

    #[tokio::test]
    async fn one_direction_stands_still_alone() {
        let node = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = Relay::between(([127, 0, 0, 1], 0).into(), node.local_addr().unwrap(), 1);
        let relay = relay.await.unwrap();
        let mut client = TcpStream::connect(relay.address()).await.unwrap();
        let (mut taken, _) = node.accept().await.unwrap();
        let mut byte = [0];
        relay.pause_flow(Flow::ToNode);
        client.write_all(b"a").await.unwrap();
        taken.write_all(b"b").await.unwrap();
        client.read_exact(&mut byte).await.unwrap();
        eventually(Duration::from_secs(30), "one byte", || relay.passed() == 1).await;
        relay.resume();
        taken.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"a");
    }

    #[tokio::test]
    async fn what_waits_is_delivered_after_its_sender_has_gone() {
        let node = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = node.local_addr().unwrap().port();
        let relay = Relay::to(port, 1).await.unwrap();
        let mut client = TcpStream::connect(("127.0.0.2", port)).await.unwrap();
        let (mut taken, _) = node.accept().await.unwrap();
        relay.pause();
        client.write_all(b"late").await.unwrap();
        drop(client);
        assert_eq!(relay.passed(), 0);
        relay.resume();
        let mut bytes = Vec::new();
        taken.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, b"late");
        eventually(Duration::from_secs(30), "it is counted", || relay.passed() == 4).await;
    }
}
