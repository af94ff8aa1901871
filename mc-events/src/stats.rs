//! Counters of a publisher.

use std::time::Duration;

/// Counts since the start, and the state of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventStats {
    /// Events in the queue.
    pub queued: usize,
    /// Events that were sent.
    pub published: u64,
    /// Messages that were sent, by all endpoints.
    pub batches: u64,
    /// Bytes of the payloads of these messages.
    pub bytes: u64,
    /// Attempts to send a message again.
    pub retries: u64,
    /// Events that were not sent: the queue was full, the event too large, the socket busy for too
    /// long, or the time to shut down over.
    pub dropped: u64,
    /// How long the oldest event of the last message was queued.
    pub lag: Duration,
    /// Connections with a subscription, at all endpoints.
    pub subscribers: usize,
    /// Bytes that wait for subscribers.
    pub waiting_bytes: usize,
    /// Messages that a subscriber missed because too many waited for it.
    pub skipped: u64,
    /// Requests to replay sockets that were not understood.
    pub ignored_requests: u64,
}
