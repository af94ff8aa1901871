//! The byte streams that the protocol runs over.

use std::io;

use tokio::net::{TcpStream, UnixStream};

use super::plain::PlainSocket;
#[cfg(feature = "tls")]
use super::tls::TlsStream;

/// Bytes moved before other tasks of the thread get a turn; a fraction of a
/// millisecond.
const TURN: usize = 4 << 20;

/// The same where each byte is encrypted too.
#[cfg(feature = "tls")]
const TLS_TURN: usize = 1 << 20;

/// A connected stream, of any kind: the same protocol runs over each. One task may send
/// while another receives.
#[derive(Debug)]
pub(crate) enum Stream {
    /// The bytes as they are.
    Plain(PlainSocket),
    /// The bytes in TLS.
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream>),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Plain(stream.into())
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::Plain(stream.into())
    }
}

impl Stream {
    /// The socket below.
    pub(crate) fn socket(&self) -> &PlainSocket {
        match self {
            Self::Plain(socket) => socket,
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.socket(),
        }
    }

    /// Waits until something can be received, or the stream has ended. For tasks that
    /// found that nothing more can be now.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.socket().readable().await
    }

    /// Waits until something can be sent, or the stream has ended.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.socket().writable().await
    }

    /// Bytes to move before other tasks of the thread get a turn.
    pub(crate) fn turn(&self) -> usize {
        match self {
            Self::Plain(_) => TURN,
            #[cfg(feature = "tls")]
            Self::Tls(_) => TLS_TURN,
        }
    }

    /// Returns whether payloads go between socket and memory without a buffer between.
    pub(crate) fn is_zero_copy(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Tells the peer that nothing more comes.
    pub(crate) fn close_sending(&self) {
        self.say_goodbye();
        self.socket().close_sending();
    }

    /// Ends both directions without a word, and takes back what was not delivered.
    pub(crate) fn abort(&self) {
        self.socket().abort();
    }

    /// Ends both directions, which wakes every task that waits for the socket.
    pub(crate) fn close_both(&self) {
        self.say_goodbye();
        self.socket().close_both();
    }

    /// TLS says that a stream ends, so that no third party can pretend it did.
    fn say_goodbye(&self) {
        match self {
            Self::Plain(_) => {}
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.say_goodbye(),
        }
    }
}
