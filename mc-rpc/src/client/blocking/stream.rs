//! A socket that blocks.

use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::fd::AsFd;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Instant;

#[cfg(feature = "tls")]
use mc_tls::rustls::{ClientConnection, StreamOwned};
#[cfg(unix)]
use rustix::io::Errno;
#[cfg(unix)]
use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
#[cfg(unix)]
use socket2::{Domain, SockAddr, Socket, Type};

use crate::client::address::Address;
use crate::client::config::ClientConfig;
use crate::client::credentials::{Identity, Prepared};
use crate::client::dial::tune;

pub(super) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Connects until `deadline`. TLS shakes hands with the first bytes that are sent.
    pub(super) fn connect(
        address: &Address,
        prepared: &Prepared,
        identity: &Identity,
        config: &ClientConfig,
        deadline: Instant,
    ) -> io::Result<Self> {
        match address {
            Address::Tcp(addr) => {
                let stream = mc_net::connect_blocking(addr, deadline)?;
                tune(&SockRef::from(&stream), config)?;
                #[cfg(feature = "tls")]
                if let (Some(settings), Some(tls)) = (&prepared.tls, &config.tls) {
                    let name = tls.expected_name(address.host()).map_err(io::Error::other)?;
                    let connection = ClientConnection::new(Arc::clone(settings), name);
                    let connection = connection.map_err(io::Error::other)?;
                    return Ok(Self::Tls(Box::new(StreamOwned::new(connection, stream))));
                }
                #[cfg(not(feature = "tls"))]
                let _ = prepared;
                identity.note_clear_text(config, stream.peer_addr()?.ip());
                Ok(Self::Tcp(stream))
            }
            #[cfg(unix)]
            Address::Unix { path, .. } => {
                let left = deadline.saturating_duration_since(Instant::now());
                let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
                socket.connect_timeout(&SockAddr::unix(&**path)?, left)?;
                Ok(Self::Unix(socket.into()))
            }
            #[cfg(not(unix))]
            Address::Unix { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Where a connection without TLS comes from.
    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.local_addr().ok(),
            #[cfg(unix)]
            Self::Unix(_) => None,
            #[cfg(feature = "tls")]
            Self::Tls(_) => None,
        }
    }

    /// Reads what is here now, if anything is or an error. Never with TLS, whose records are read
    /// by those who wait for them.
    pub(super) fn try_read(&self, into: &mut [u8]) -> Option<io::Result<usize>> {
        #[cfg(unix)]
        {
            let socket = match self {
                Self::Tcp(stream) => stream.as_fd(),
                Self::Unix(stream) => stream.as_fd(),
                #[cfg(feature = "tls")]
                Self::Tls(_) => return None,
            };
            match recv(socket, into, RecvFlags::DONTWAIT) {
                Ok((read, _)) => Some(Ok(read)),
                Err(Errno::AGAIN | Errno::INTR) => None,
                Err(error) => Some(Err(error.into())),
            }
        }
        #[cfg(not(unix))]
        {
            let _ = into;
            None
        }
    }

    /// How long one read or write may take; not zero.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let socket = match self {
            Self::Tcp(stream) => SockRef::from(stream),
            #[cfg(unix)]
            Self::Unix(stream) => SockRef::from(stream),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => SockRef::from(&stream.sock),
        };
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            #[cfg(unix)]
            Self::Unix(stream) => stream.read(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Ok(()),
            #[cfg(unix)]
            Self::Unix(_) => Ok(()),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}
