//! A link that can be slow: bytes are held back, and delivered later, also when the process that
//! sent them has closed the connection long ago.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Which bytes are held back of the connections that begin from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    Nothing,
    /// The bytes of a client after its first so many. The client gets rid of it.
    Sent(usize),
    /// The bytes of a node's answer after its first so many. The node keeps it.
    Answered(usize),
}

/// A proxy in front of a node.
pub(crate) struct Proxy {
    hold: watch::Sender<Hold>,
    released: watch::Sender<bool>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Directions in which bytes are being held back.
    held: AtomicUsize,
    /// Directions in which everything held back was delivered, or could not be.
    delivered: AtomicUsize,
}

impl Proxy {
    /// Listens at 127.0.0.2, on the port that the node has at 127.0.0.1.
    pub(crate) async fn of(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        let node = SocketAddr::from(([127, 0, 0, 1], port));
        let proxy = Self {
            hold: watch::Sender::new(Hold::Nothing),
            released: watch::Sender::new(false),
            state: Arc::default(),
        };
        let (hold, released) = (proxy.hold.subscribe(), proxy.released.subscribe());
        let state = Arc::clone(&proxy.state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(node) = TcpStream::connect(node).await else { continue };
                let (sent, answered) = match *hold.borrow() {
                    Hold::Nothing => (usize::MAX, usize::MAX),
                    Hold::Sent(first) => (first, usize::MAX),
                    Hold::Answered(first) => (usize::MAX, first),
                };
                let gate = |first| Gate {
                    first,
                    released: released.clone(),
                    state: Arc::clone(&state),
                    waited: false,
                };
                let ((from_client, to_client), (from_node, to_node)) =
                    (client.into_split(), node.into_split());
                let (chunks, queue) = mpsc::unbounded_channel();
                tokio::spawn(take(from_client, chunks));
                tokio::spawn(deliver(queue, to_node, gate(sent)));
                tokio::spawn(relay(from_node, to_client, gate(answered)));
            }
        });
        proxy
    }

    /// Holds back bytes of the connections that begin from now on.
    pub(crate) fn hold(&self, hold: Hold) {
        self.hold.send_replace(hold);
    }

    /// Lets go of everything that is held back, now and later.
    pub(crate) fn release(&self) {
        self.released.send_replace(true);
    }

    /// Directions in which bytes have been held back so far.
    pub(crate) fn held(&self) -> usize {
        self.state.held.load(Ordering::SeqCst)
    }

    /// Whether all that was held back has been delivered, or found nobody.
    pub(crate) fn has_delivered(&self) -> bool {
        self.state.delivered.load(Ordering::SeqCst) == self.held()
    }
}

/// Lets a number of bytes pass, and holds back the others until they are released.
struct Gate {
    first: usize,
    released: watch::Receiver<bool>,
    state: Arc<State>,
    waited: bool,
}

impl Gate {
    /// How many of `len` bytes may pass now; waits if there is none.
    async fn pass(&mut self, len: usize) -> usize {
        if self.waited {
            return len;
        }
        if self.first == 0 {
            self.waited = true;
            self.state.held.fetch_add(1, Ordering::SeqCst);
            let _ = self.released.wait_for(|released| *released).await;
            return len;
        }
        let passing = len.min(self.first);
        self.first -= passing;
        passing
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        if self.waited {
            self.state.delivered.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Takes all that comes.
async fn take(mut from: OwnedReadHalf, chunks: mpsc::UnboundedSender<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        if chunks.send(buffer[..len].to_vec()).is_err() {
            return;
        }
    }
}

/// Passes on what was taken, to the last byte.
async fn deliver(
    mut chunks: mpsc::UnboundedReceiver<Vec<u8>>,
    mut to: OwnedWriteHalf,
    mut gate: Gate,
) {
    while let Some(chunk) = chunks.recv().await {
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            let passing = gate.pass(rest.len()).await;
            if to.write_all(&rest[..passing]).await.is_err() {
                return;
            }
            rest = &rest[passing..];
        }
    }
    let _ = to.shutdown().await;
}

/// Passes bytes on, and takes no more than it passes on.
async fn relay(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut gate: Gate) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let room = gate.pass(buffer.len()).await;
        let Ok(len @ 1..) = from.read(&mut buffer[..room]).await else { break };
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
