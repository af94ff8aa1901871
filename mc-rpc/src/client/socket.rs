//! The two halves of a connection's socket: one task reads, whoever has something to say
//! writes.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::io;
use std::net::Shutdown;

use socket2::SockRef;
use tokio::io::{AsyncRead, ReadBuf};
#[cfg(unix)]
use tokio::net::unix;
use tokio::net::{TcpStream, tcp};

use super::address::Address;
use super::config::ClientConfig;
use super::credentials::Identity;
use super::dial::tune;
use crate::stream::Stream;

/// Connects; the name lookup included, the handshake not.
pub(super) async fn connect(
    address: &Address,
    identity: &Identity,
    config: &ClientConfig,
) -> io::Result<Stream> {
    match address {
        Address::Tcp(addr) => {
            let stream = TcpStream::connect(&**addr).await?;
            tune(&SockRef::from(&stream), config)?;
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

pub(super) fn split(stream: Stream) -> (Arriving, Leaving) {
    match stream {
        Stream::Tcp(stream) => {
            let (arriving, leaving) = stream.into_split();
            (Arriving::Tcp(arriving), Leaving::Tcp(leaving))
        }
        #[cfg(unix)]
        Stream::Unix(stream) => {
            let (arriving, leaving) = stream.into_split();
            (Arriving::Unix(arriving), Leaving::Unix(leaving))
        }
    }
}

pub(super) enum Arriving {
    Tcp(tcp::OwnedReadHalf),
    #[cfg(unix)]
    Unix(unix::OwnedReadHalf),
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
        }
    }
}

pub(super) enum Leaving {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
}

impl Leaving {
    /// Writes what the socket takes now.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(half) => half.try_write(bytes),
        }
    }

    pub(super) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(half) => half.writable().await,
            #[cfg(unix)]
            Self::Unix(half) => half.writable().await,
        }
    }

    /// Ends one direction or both, so that the master notices.
    pub(super) fn shut_down(&self, how: Shutdown) {
        // A socket that is gone already needs no end.
        drop(match self {
            Self::Tcp(half) => SockRef::from(half.as_ref()).shutdown(how),
            #[cfg(unix)]
            Self::Unix(half) => SockRef::from(half.as_ref()).shutdown(how),
        });
    }
}
