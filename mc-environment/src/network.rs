//! The network between a client and its master.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// A stream of bytes in both directions that is neither TCP's nor a Unix socket's: one of a
/// simulated network, or of a process's own.
///
/// It is flushed when what was written is to leave, and dropped when the connection ends, which its
/// other end must see as an end or an error.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

impl fmt::Debug for dyn ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteStream").finish_non_exhaustive()
    }
}

/// A stream that is being made.
pub type Connecting<'a> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'a>>;

/// The world of a client of a master (`mc_rpc::MasterClient`) that is not the operating system's: a
/// simulated network, for example. `ClientConfig::environment` of `mc-rpc` takes it.
///
/// A client in such an environment opens no socket, reads the clock and sleeps by [`tokio::time`]
/// alone (which `tokio`'s feature `test-util` can pause), draws nothing from the system's
/// randomness, and starts tasks but no threads. The exceptions are what the application asks for
/// beside it: a resolver and credentials in files are read on a thread
/// that may block.
pub trait ClientEnvironment: fmt::Debug + Send + Sync + 'static {
    /// Connects to `address`, one of those that the client was given, as it was written:
    /// `host:port` or `unix:/path`. The client gives up by dropping the future.
    ///
    /// Bytes go over the stream as they are; the client's settings of TLS are refused.
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a>;

    /// Fills `bytes` with random ones, for the identity by which the master knows repeated calls
    /// and for the pauses between attempts. Two clients of one master must not get the same.
    ///
    /// # Errors
    /// When there is no randomness; calls are not repeated then that must not be executed twice.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
}
