//! The two halves of a connection's socket: one task reads, every caller may write.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;
use std::net::Shutdown;

use bytes::{Buf, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
#[cfg(feature = "tls")]
use tokio::io::{ReadHalf, WriteHalf};
#[cfg(feature = "tls")]
use tokio::net::TcpStream;
use tokio::net::tcp;
#[cfg(unix)]
use tokio::net::unix;

use super::address::Address;
use super::config::ClientConfig;
use super::credentials::{Identity, Prepared};
use super::dial::tune;
use super::handed::HandedStream;
use crate::stream::Stream;

#[cfg(feature = "tls")]
type TlsStream = tokio_rustls::TlsStream<TcpStream>;

/// Connects; the name lookup and TLS included, the handshake of the protocol not.
pub(super) async fn connect(
    address: &Address,
    prepared: &Prepared,
    identity: &Identity,
    config: &ClientConfig,
) -> io::Result<Stream> {
    if let Some(environment) = &config.environment {
        #[cfg(feature = "tls")]
        if config.tls.is_some() {
            let text = "the streams of an environment are not encrypted; leave out tls";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        return environment.connect(address.text()).await.map(Stream::Handed);
    }
    match address {
        Address::Tcp(addr) => {
            let stream = mc_net::connect(&**addr).await?;
            tune(&SockRef::from(&stream), config)?;
            #[cfg(feature = "tls")]
            if let (Some(settings), Some(tls)) = (&prepared.tls, &config.tls) {
                let name = tls.expected_name(address.host()).map_err(io::Error::other)?;
                let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::clone(settings));
                let stream = connector.connect(name, stream).await?;
                return Ok(Stream::Tls(Box::new(stream.into())));
            }
            #[cfg(not(feature = "tls"))]
            let _ = prepared;
            identity.note_clear_text(config, stream.peer_addr()?.ip());
            Ok(Stream::Tcp(stream))
        }
        #[cfg(unix)]
        Address::Unix { path, .. } => {
            Ok(Stream::Unix(tokio::net::UnixStream::connect(&**path).await?))
        }
        #[cfg(not(unix))]
        Address::Unix { .. } => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Returns the half to read from, the half that every caller writes to, and the state of the
/// writer's task.
pub(super) fn split(stream: Stream) -> io::Result<(Arriving, Leaving, Writer)> {
    Ok(match stream {
        Stream::Tcp(stream) => {
            let (arriving, leaving) = stream.into_split();
            (Arriving::Tcp(arriving), Leaving::Tcp(leaving), Writer::Direct)
        }
        #[cfg(unix)]
        Stream::Unix(stream) => {
            let (arriving, leaving) = stream.into_split();
            (Arriving::Unix(arriving), Leaving::Unix(leaving), Writer::Direct)
        }
        #[cfg(feature = "tls")]
        Stream::Tls(stream) => {
            let socket = SockRef::from(stream.get_ref().0).try_clone()?;
            let (arriving, leaving) = tokio::io::split(*stream);
            (Arriving::Tls(arriving), Leaving::Tls(socket), Writer::Tls(leaving))
        }
        Stream::Handed(stream) => {
            let stream = HandedStream::new(stream);
            (
                Arriving::Handed(stream.clone()),
                Leaving::Handed(stream.clone()),
                Writer::Handed(stream),
            )
        }
    })
}

pub(super) enum Arriving {
    Tcp(tcp::OwnedReadHalf),
    #[cfg(unix)]
    Unix(unix::OwnedReadHalf),
    #[cfg(feature = "tls")]
    Tls(ReadHalf<TlsStream>),
    Handed(HandedStream),
}

impl AsyncRead for Arriving {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_read(cx, into),
            #[cfg(unix)]
            Self::Unix(half) => Pin::new(half).poll_read(cx, into),
            #[cfg(feature = "tls")]
            Self::Tls(half) => Pin::new(half).poll_read(cx, into),
            Self::Handed(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

pub(super) enum Leaving {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
    /// The socket below, to end it; what is written has to be encrypted by the writer.
    #[cfg(feature = "tls")]
    Tls(socket2::Socket),
    /// To end it; what is written has to be flushed by the writer.
    Handed(HandedStream),
}

impl Leaving {
    /// Writes what the socket takes now, without the writer.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(half) => half.try_write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
            Self::Handed(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.writable().await,
            #[cfg(unix)]
            Self::Unix(half) => half.writable().await,
            #[cfg(feature = "tls")]
            Self::Tls(_) => Ok(()),
            Self::Handed(_) => Ok(()),
        }
    }

    /// Ends one direction or both, so that the master notices.
    pub(super) fn shut_down(&self, how: Shutdown) {
        // A socket that is gone already needs no end.
        drop(match self {
            Self::Tcp(half) => SockRef::from(half.as_ref()).shutdown(how),
            #[cfg(unix)]
            Self::Unix(half) => SockRef::from(half.as_ref()).shutdown(how),
            #[cfg(feature = "tls")]
            Self::Tls(socket) => socket.shutdown(how),
            Self::Handed(stream) => {
                // The writer ends one half.
                if how != Shutdown::Write {
                    stream.close();
                }
                Ok(())
            }
        });
    }
}

/// The writer's task writes by this.
pub(super) enum Writer {
    Direct,
    #[cfg(feature = "tls")]
    Tls(WriteHalf<TlsStream>),
    Handed(HandedStream),
}

impl Writer {
    /// Waits until some of `frames` has gone, and takes it from them.
    pub(super) async fn write_some(
        &mut self,
        socket: &Leaving,
        frames: &mut BytesMut,
    ) -> io::Result<()> {
        match self {
            Self::Direct => {
                socket.writable().await?;
                match socket.try_write(frames) {
                    Ok(written) => frames.advance(written),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
                Ok(())
            }
            #[cfg(feature = "tls")]
            Self::Tls(half) => {
                half.write_all_buf(frames).await?;
                half.flush().await
            }
            Self::Handed(stream) => {
                stream.write_all_buf(frames).await?;
                stream.flush().await
            }
        }
    }

    /// Ends this side of the connection.
    pub(super) async fn end(&mut self, socket: &Leaving) {
        match self {
            Self::Direct => socket.shut_down(Shutdown::Write),
            #[cfg(feature = "tls")]
            // A connection that is gone already needs no end.
            Self::Tls(half) => drop(half.shutdown().await),
            Self::Handed(stream) => drop(stream.shutdown().await),
        }
    }
}
