//! A way to a node that can go dead while it looks alive: connections are accepted and kept, and
//! nothing passes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A proxy in front of a node's data port.
pub(crate) struct Proxy {
    dead: watch::Sender<bool>,
    passed: Arc<AtomicU64>,
}

impl Proxy {
    /// Listens at 127.0.0.2, on the port that the node has at 127.0.0.1.
    pub(crate) async fn of(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        let node = SocketAddr::from(([127, 0, 0, 1], port));
        let (dead, passed) = (watch::Sender::new(false), Arc::default());
        let proxy = Self { dead, passed: Arc::clone(&passed) };
        let dead = proxy.dead.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(node) = TcpStream::connect(node).await else { continue };
                // What passes in pieces must not wait for acknowledgements of the one before.
                let _ = (client.set_nodelay(true), node.set_nodelay(true));
                let ((from_client, to_client), (from_node, to_node)) =
                    (client.into_split(), node.into_split());
                let passed = &passed;
                tokio::spawn(relay(from_client, to_node, dead.clone(), Arc::clone(passed)));
                tokio::spawn(relay(from_node, to_client, dead.clone(), Arc::clone(passed)));
            }
        });
        proxy
    }

    /// From now on nothing passes; what is on its way waits.
    pub(crate) fn die(&self) {
        self.dead.send_replace(true);
    }

    /// Everything passes again, and what waited.
    pub(crate) fn revive(&self) {
        self.dead.send_replace(false);
    }

    /// Bytes that have passed, in both directions.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }
}

async fn relay(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut dead: watch::Receiver<bool>,
    passed: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if dead.wait_for(|dead| !dead).await.is_err() || to.write_all(&buffer[..len]).await.is_err()
        {
            return;
        }
        passed.fetch_add(len as u64, Ordering::SeqCst);
    }
    let _ = to.shutdown().await;
}
