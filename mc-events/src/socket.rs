//! The sockets that a publisher sends to.

use std::pin::Pin;

use crate::error::SocketBusy;
use crate::stream::Message;

/// A publishing socket. The crate has one for ZeroMQ;
/// [`EventSystem::start_with`](crate::EventSystem::start_with) takes others.
pub trait EventSocket: Send + Sync {
    /// Hands the message to all subscribers whose subscription matches its topic, without waiting.
    ///
    /// A subscriber that is too slow misses the message and sees a gap in the numbers.
    ///
    /// # Errors
    /// No subscriber got the message; the publisher tries again a few times.
    fn send(&self, message: &Message) -> Result<(), SocketBusy>;

    /// Waits until everything is with the operating system.
    fn flush(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Closes the socket and waits until another can take its place.
    fn close(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Counts for [`EventStats`](crate::EventStats).
    fn stats(&self) -> SocketStats;
}

/// Counts of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketStats {
    /// Connections with at least one subscription.
    pub subscribers: usize,
    /// Bytes that wait for subscribers.
    pub waiting_bytes: usize,
    /// Messages that were not sent to a subscriber because too many waited for it.
    pub skipped: u64,
}
