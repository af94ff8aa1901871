//! A link to a node that pauses, and delivers later what was sent in the meantime, also when
//! the sender has closed it.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Chunks that wait in one direction, of 64 KiB each.
const WAITING: usize = 1024;

pub(crate) struct SlowLink {
    open: watch::Sender<bool>,
}

impl SlowLink {
    /// Listens at 127.0.0.2, on the port that the node has at 127.0.0.1.
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        let node = SocketAddr::from(([127, 0, 0, 1], port));
        let open = watch::Sender::new(true);
        let gate = open.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(node) = TcpStream::connect(node).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_node, to_node) = node.into_split();
                for (from, to) in [(from_client, to_node), (from_node, to_client)] {
                    let (chunks, queue) = mpsc::channel(WAITING);
                    tokio::spawn(take(from, chunks));
                    tokio::spawn(deliver(queue, to, gate.clone()));
                }
            }
        });
        Self { open }
    }

    pub(crate) fn pause(&self) {
        self.open.send_replace(false);
    }

    pub(crate) fn go_on(&self) {
        self.open.send_replace(true);
    }
}

async fn take(mut from: OwnedReadHalf, chunks: mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
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
) {
    while let Some(chunk) = chunks.recv().await {
        if open.wait_for(|open| *open).await.is_err() || to.write_all(&chunk).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
