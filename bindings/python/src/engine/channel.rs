//! A connection over which an engine asks another one: TCP, or TLS where the bytes travel so.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mc_tls::{ClientTls, Protocol, ServerTls};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::protocol::{Header, Hello, ProtocolError, Reply, Request};

/// Time limit for connecting, and for a message once it has begun.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

const TLS: Protocol = Protocol::new(&[b"mc-engine/1"]).tls13_only();

/// Why there is no message.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One side of a connection whose hellos were exchanged.
pub(super) struct Channel {
    stream: Box<dyn Stream>,
    /// The other side's.
    pub(super) hello: Hello,
}

impl Channel {
    /// Connects to a peer. With `tls` it has to show a certificate for `host`.
    pub(super) async fn connect(
        host: &str,
        port: u16,
        tls: Option<&ClientTls>,
        ours: Hello,
    ) -> Result<Self, ChannelError> {
        let connecting = async {
            let stream = mc_net::connect((host, port)).await?;
            stream.set_nodelay(true)?;
            let Some(tls) = tls else {
                return Self::greet(stream, ours, Side::Client).await;
            };
            let (tls, name) = (tls.clone(), tls.expected_name(host).map_err(io::Error::other)?);
            // Reads files.
            let config = tokio::task::spawn_blocking(move || tls.connect_config(TLS));
            let config = config.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Self::greet(stream, ours, Side::Client).await
        };
        within(connecting).await
    }

    /// Accepts the connection of a peer.
    pub(super) async fn accept(
        stream: TcpStream,
        tls: Option<&Arc<ServerTls>>,
        ours: Hello,
    ) -> Result<Self, ChannelError> {
        let accepting = async {
            stream.set_nodelay(true)?;
            let Some(tls) = tls else { return Self::greet(stream, ours, Side::Server).await };
            let stream = TlsAcceptor::from(tls.current(TLS)).accept(stream).await?;
            Self::greet(stream, ours, Side::Server).await
        };
        within(accepting).await
    }

    async fn greet(
        stream: impl Stream + 'static,
        ours: Hello,
        side: Side,
    ) -> Result<Self, ChannelError> {
        let mut stream: Box<dyn Stream> = Box::new(stream);
        let mut theirs = [0; Hello::LEN];
        if side == Side::Client {
            send(&mut stream, &ours.encode()).await?;
            stream.read_exact(&mut theirs).await?;
            return Ok(Self { stream, hello: Hello::decode(&theirs)? });
        }
        stream.read_exact(&mut theirs).await?;
        let hello = Hello::decode(&theirs);
        // Answered also if the versions differ, so that the peer learns of it; others learn nothing.
        if !matches!(hello, Err(ProtocolError::NotAPeer)) {
            send(&mut stream, &ours.encode()).await?;
        }
        Ok(Self { stream, hello: hello? })
    }

    /// Returns whether nothing shows that the other side is gone. It sends nothing by itself, so
    /// that there is nothing to read while it is there.
    pub(super) async fn is_alive(&mut self) -> bool {
        let mut byte = [0];
        let mut read = pin!(self.stream.read(&mut byte));
        poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx).is_pending())).await
    }

    /// Sends a frame that is a request and returns the reply.
    pub(super) async fn exchange(&mut self, frame: &[u8]) -> Result<Reply, ChannelError> {
        within(async {
            send(&mut self.stream, frame).await?;
            let (header, body) = self.frame(super::protocol::MAX_REPLY).await?;
            Ok(Reply::decode(header, &body)?)
        })
        .await
    }

    /// Waits for a request; `None` when the other side has left.
    ///
    /// # Cancellation
    /// The connection is of no use when the future is dropped.
    pub(super) async fn request(&mut self) -> Result<Option<Request>, ChannelError> {
        let mut header = [0; Header::LEN];
        if self.stream.read(&mut header[..1]).await? == 0 {
            return Ok(None);
        }
        within(async {
            self.stream.read_exact(&mut header[1..]).await?;
            let header = Header::decode(header, super::protocol::MAX_REQUEST)?;
            let body = self.body(header).await?;
            Ok(Some(Request::decode(header, &body)?))
        })
        .await
    }

    /// Sends a reply.
    pub(super) async fn reply(&mut self, reply: &Reply) -> Result<(), ChannelError> {
        within(async { Ok(send(&mut self.stream, &reply.encode()).await?) }).await
    }

    async fn frame(&mut self, max: usize) -> Result<(Header, Vec<u8>), ChannelError> {
        let mut header = [0; Header::LEN];
        self.stream.read_exact(&mut header).await?;
        let header = Header::decode(header, max)?;
        Ok((header, self.body(header).await?))
    }

    /// Reads the body of a frame. Room is made as bytes come, not as many as the peer announces.
    async fn body(&mut self, header: Header) -> Result<Vec<u8>, ChannelError> {
        let mut body = Vec::new();
        (&mut self.stream).take(header.body_len() as u64).read_to_end(&mut body).await?;
        Ok(body)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

async fn send(stream: &mut Box<dyn Stream>, bytes: &[u8]) -> Result<(), io::Error> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

async fn within<T>(work: impl Future<Output = Result<T, ChannelError>>) -> Result<T, ChannelError> {
    let late = |_| Err(ChannelError::Io(io::ErrorKind::TimedOut.into()));
    timeout(MESSAGE_TIMEOUT, work).await.unwrap_or_else(late)
}
