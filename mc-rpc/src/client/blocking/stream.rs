//! A socket that blocks.

use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::Instant;

use socket2::SockRef;
#[cfg(unix)]
use socket2::{Domain, SockAddr, Socket, Type};

use crate::client::address::Address;
use crate::client::config::ClientConfig;
use crate::client::credentials::Identity;
use crate::client::dial::tune;

pub(super) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Stream {
    /// Connects within `config.connect_timeout`, until `deadline` at the latest.
    pub(super) fn connect(
        address: &Address,
        identity: &Identity,
        config: &ClientConfig,
        deadline: Instant,
    ) -> io::Result<Self> {
        match address {
            Address::Tcp(addr) => {
                let stream = connect_tcp(addr, deadline)?;
                tune(&SockRef::from(&stream), config)?;
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

    /// How long one read or write may take; not zero.
    pub(super) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout);
        match self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            #[cfg(unix)]
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }
}

/// Tries each address of the host.
fn connect_tcp(addr: &str, deadline: Instant) -> io::Result<TcpStream> {
    let mut failure = None;
    for addr in addr.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failure.unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
        }
        match TcpStream::connect_timeout(&addr, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = Some(error),
        }
    }
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    Err(failure.unwrap_or_else(nowhere))
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            #[cfg(unix)]
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
