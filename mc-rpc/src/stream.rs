//! The kinds of byte streams that the protocol runs over.

use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::io;
use std::net::SocketAddr;

pub use mc_environment::ByteStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

/// A stream between a client and a server.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
    /// A stream that was handed in.
    Handed(Box<dyn ByteStream>),
}

impl Stream {
    /// Sets what the sockets of both sides have set: small messages leave at once, and a
    /// host that is gone is noticed.
    pub(crate) fn prepare(&self, keepalive: Duration) -> io::Result<()> {
        let tcp = match self {
            Self::Tcp(stream) => stream,
            #[cfg(unix)]
            Self::Unix(_) => return Ok(()),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.get_ref().0,
            Self::Handed(_) => return Ok(()),
        };
        tcp.set_nodelay(true)?;
        let keepalive = socket2::TcpKeepalive::new().with_time(keepalive);
        socket2::SockRef::from(tcp).set_tcp_keepalive(&keepalive)
    }

    /// Where a connection without TLS comes from.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            #[cfg(unix)]
            Self::Unix(_) => None,
            #[cfg(feature = "tls")]
            Self::Tls(_) => None,
            Self::Handed(_) => None,
        }
    }

    /// Returns whether what was written may stay in this process until it is flushed.
    pub(crate) const fn holds_back(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            #[cfg(unix)]
            Self::Unix(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
            Self::Handed(_) => true,
        }
    }
}

macro_rules! of_each {
    ($stream:expr, $inner:ident => $then:expr) => {
        match $stream {
            Stream::Tcp($inner) => $then,
            #[cfg(unix)]
            Stream::Unix($inner) => $then,
            #[cfg(feature = "tls")]
            Stream::Tls($inner) => $then,
            Stream::Handed($inner) => $then,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        of_each!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, into))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        of_each!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_each!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        of_each!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}
