//! SUB and DEALER sockets with one connection.

use std::io;

use tokio::io::{AsyncWriteExt, BufReader, ReadHalf, WriteHalf};

use super::accept::HANDSHAKE_TIMEOUT;
use super::endpoint::{Connection, connect};
use super::wire::{self, Bounds, Incoming};
use crate::error::SubscribeError;

const READ_BUFFER: usize = 64 << 10;

/// A connection to a publisher.
pub(crate) struct PeerSocket {
    pub(crate) messages: Messages,
    pub(crate) sender: Sender,
}

/// The messages that arrive.
pub(crate) struct Messages {
    reader: BufReader<ReadHalf<Box<dyn Connection>>>,
    bounds: Bounds,
}

/// The sending half of a connection.
pub(crate) struct Sender(WriteHalf<Box<dyn Connection>>);

impl PeerSocket {
    /// Connects a SUB socket.
    pub(crate) async fn subscribe(
        endpoint: &str,
        topic: &str,
        frame_bytes: usize,
    ) -> Result<Self, SubscribeError> {
        let bounds = Bounds { frames: 3, frame_bytes };
        let mut socket = Self::open(endpoint, ("SUB", &["PUB", "XPUB"]), bounds).await?;
        let subscribed = socket.sender.send(&[&[1], topic.as_bytes()].concat()).await;
        subscribed
            .map_err(|source| SubscribeError::Connect { endpoint: endpoint.into(), source })?;
        Ok(socket)
    }

    /// Connects a DEALER socket.
    pub(crate) async fn dealer(endpoint: &str, frame_bytes: usize) -> Result<Self, SubscribeError> {
        Self::open(endpoint, ("DEALER", &["ROUTER"]), Bounds { frames: 5, frame_bytes }).await
    }

    async fn open(
        endpoint: &str,
        (ours, theirs): (&str, &[&str]),
        bounds: Bounds,
    ) -> Result<Self, SubscribeError> {
        let failed = |source| SubscribeError::Connect { endpoint: endpoint.into(), source };
        let open = async {
            let mut connection = connect(endpoint).await?;
            wire::shake_hands(&mut connection, ours, theirs).await.map_err(failed)?;
            Ok::<_, SubscribeError>(connection)
        };
        let opened = tokio::time::timeout(HANDSHAKE_TIMEOUT, open).await;
        let (reader, writer) = tokio::io::split(opened.map_err(|late| failed(late.into()))??);
        let reader = BufReader::with_capacity(READ_BUFFER, reader);
        Ok(Self { messages: Messages { reader, bounds }, sender: Sender(writer) })
    }
}

impl Messages {
    /// Reads the next message. Not to be read on after the future was dropped.
    pub(crate) async fn next(&mut self) -> io::Result<Vec<Vec<u8>>> {
        loop {
            match wire::read(&mut self.reader, self.bounds).await? {
                Incoming::Message { frames, too_many: false } => return Ok(frames),
                Incoming::Message { .. } => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "a message of too many frames",
                    ));
                }
                // Publishers of this crate send none.
                Incoming::Ping(_) => {}
            }
        }
    }
}

impl Sender {
    /// Sends a message of one frame.
    pub(crate) async fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        let mut out = Vec::new();
        wire::append_message(&mut out, &[frame]);
        self.0.write_all(&out).await
    }
}
