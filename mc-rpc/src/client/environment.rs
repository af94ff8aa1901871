//! The surroundings of a client: its streams to the master, and its randomness.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use std::io;

use super::config::ClientConfig;
use crate::stream::ByteStream;

/// A stream that is being made.
pub type Connecting<'a> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'a>>;

/// The world of a [`MasterClient`](crate::MasterClient) that is not the operating system's: a
/// simulated network, for example. See [`ClientConfig::environment`].
///
/// A client in such an environment opens no socket, reads the clock and sleeps by [`tokio::time`]
/// alone (which `tokio`'s feature `test-util` can pause), draws nothing from the system's
/// randomness, and starts tasks but no threads. The exceptions are what the application asks for
/// beside it: a [resolver](ClientConfig::resolver) and credentials in files are read on a thread
/// that may block.
pub trait ClientEnvironment: fmt::Debug + Send + Sync + 'static {
    /// Connects to `address`, one of those that the client was given, as it was written:
    /// `host:port` or `unix:/path`. The client gives up by dropping the future.
    ///
    /// Bytes go over the stream as they are; [`ClientConfig`]'s `tls` is refused.
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a>;

    /// Fills `bytes` with random ones, for the identity by which the master knows repeated calls
    /// and for the pauses between attempts. Two clients of one master must not get the same.
    ///
    /// # Errors
    /// When there is no randomness; calls are not repeated then that must not be executed twice.
    fn random(&self, bytes: &mut [u8]) -> io::Result<()>;
}

impl ClientConfig {
    /// Fills `bytes` with random ones; returns whether there were any.
    pub(super) fn random(&self, bytes: &mut [u8]) -> bool {
        match &self.environment {
            None => getrandom::fill(bytes).is_ok(),
            Some(environment) => environment.random(bytes).is_ok(),
        }
    }

    /// Returns a random number from 0 to 1, for the pauses between attempts.
    pub(super) fn fraction(&self) -> f64 {
        let Some(environment) = &self.environment else { return fastrand::f64() };
        let mut bytes = [0; 4];
        // Without randomness the pause is the shortest.
        drop(environment.random(&mut bytes));
        f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
    }
}
