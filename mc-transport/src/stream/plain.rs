//! Connected sockets: moving bytes, and closing.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use super::raw_io::{self, ToFill, ToSend};

/// Unwanted bytes are received into a buffer of this size.
const DROPPED_AT_ONCE: usize = 16 << 10;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum PlainSocket {
    /// To another host.
    Tcp(TcpStream),
    /// To another process of this host.
    Unix(UnixStream),
}

impl From<TcpStream> for PlainSocket {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for PlainSocket {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl PlainSocket {
    /// Waits until something can be received, or the stream has ended.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    /// Waits until something can be sent, or the stream has ended.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
        }
    }

    /// Sends what the socket takes now.
    ///
    /// # Errors
    /// `WouldBlock` when it takes nothing; what the socket said otherwise.
    pub(crate) fn try_send(&self, out: &mut ToSend<'_>) -> io::Result<usize> {
        let offered = out.bytes();
        self.once_ready(Interest::WRITABLE, offered, || out.send(self.as_fd()))
    }

    /// Receives what has arrived, as far as there is room; zero at the end of the
    /// stream, and when there is no room.
    ///
    /// # Errors
    /// `WouldBlock` when nothing has arrived; what the socket said otherwise.
    pub(crate) fn try_receive(&self, fill: &mut ToFill<'_>) -> io::Result<usize> {
        let room = fill.bytes();
        self.once_ready(Interest::READABLE, room, || fill.receive(self.as_fd()))
    }

    /// [`try_receive`](Self::try_receive) with one buffer.
    pub(crate) fn try_receive_into(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut fill = ToFill::new();
        fill.push_buffer(buffer);
        self.try_receive(&mut fill)
    }

    /// Runs `io` if the socket was found ready, and takes note that it is not when
    /// `io` moved less than it could: the next edge then wakes us, and the call that
    /// would only learn `EAGAIN` is saved.
    fn once_ready(
        &self,
        interest: Interest,
        room: usize,
        io: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut short = None;
        let noting = || {
            let moved = io()?;
            if moved > 0 && moved < room {
                short = Some(moved);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(moved)
        };
        let outcome = match self {
            Self::Tcp(stream) => stream.try_io(interest, noting),
            Self::Unix(stream) => stream.try_io(interest, noting),
        };
        short.map_or(outcome, Ok)
    }

    /// Drops what still arrives, until the peer closes or `limit` bytes are dropped:
    /// closing with unread bytes would reset the connection, and lose what was sent last.
    pub(crate) async fn drop_incoming(&self, limit: usize) {
        let mut buffer = vec![0; DROPPED_AT_ONCE];
        let mut dropped = 0;
        while dropped < limit {
            match self.try_receive_into(&mut buffer) {
                Ok(0) => return,
                Ok(received) => dropped += received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.readable().await.is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Tells the peer that nothing more comes.
    pub(crate) fn close_sending(&self) {
        self.close(Shutdown::Write);
    }

    /// Ends both directions, and takes back what was not delivered: the system would go
    /// on to send it, for minutes if need be.
    pub(crate) fn abort(&self) {
        raw_io::abort(self.as_fd());
        self.close_both();
    }

    /// Ends both directions, which wakes every task that waits for the socket.
    pub(crate) fn close_both(&self) {
        self.close(Shutdown::Both);
    }

    fn close(&self, how: Shutdown) {
        // Fails only when the connection is gone already, which is what we want.
        let _ = SockRef::from(self).shutdown(how);
    }
}

impl AsFd for PlainSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}
