//! Counters of a transport's connections and links.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::transport::PeerConnections;

/// The gauges and totals of a transport.
#[derive(Default)]
pub struct Counters {
    /// Connections of peers that are open.
    pub connections: Arc<AtomicUsize>,
    /// Links to peers that are open.
    pub links: Arc<AtomicUsize>,
    /// Streams beside shared memory that are open.
    #[cfg(target_os = "linux")]
    pub streams: Arc<AtomicUsize>,
    /// Connections refused so far for lack of a place.
    pub refused: AtomicU64,
    /// Idle connections closed so far because another one needed its place.
    pub yielded: AtomicU64,
}

impl Counters {
    /// The connections that peers made.
    pub fn of_peers(&self) -> PeerConnections {
        PeerConnections {
            open: self.connections.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            yielded: self.yielded.load(Ordering::Relaxed),
        }
    }
}
