//! The client's settings.

use core::time::Duration;

use crate::frame::DEFAULT_MAX_PAYLOAD;

/// Settings of a [`MasterClient`](crate::MasterClient).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientConfig {
    /// How long making a connection may take, name lookup and handshake
    /// included. Default 3 s.
    pub connect_timeout: Duration,
    /// How long one call may take, from its beginning to its answer, the making
    /// of a connection included. Default 10 s.
    pub call_timeout: Duration,
    /// Most calls under way at a time; more wait for their turn. The master may
    /// allow fewer. A call counts once for every 16 KiB that it sends. Default
    /// 4096.
    pub max_in_flight: u32,
    /// Largest answer accepted, in bytes; at least 64 KiB. Default 16 MiB.
    pub max_payload: u32,
    /// How long to wait after the first failed attempt to connect. Each further
    /// failure doubles it, and the wait is drawn between half of that and all of
    /// it, so that clients do not return together. Default 50 ms.
    pub min_backoff: Duration,
    /// Longest wait between attempts to connect. Default 2 s.
    pub max_backoff: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            call_timeout: Duration::from_secs(10),
            max_in_flight: 4096,
            max_payload: DEFAULT_MAX_PAYLOAD,
            min_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
        }
    }
}
