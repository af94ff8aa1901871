//! Counters of a transport's connections and links.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::transport::PeerConnections;

#[derive(Default)]
pub(crate) struct Counters {
    /// Connections of peers that are open.
    pub(crate) connections: Arc<AtomicUsize>,
    /// Links to peers that are open.
    pub(crate) links: Arc<AtomicUsize>,
    /// Streams beside shared memory that are open.
    #[cfg(target_os = "linux")]
    pub(crate) streams: Arc<AtomicUsize>,
    /// Connections refused so far for lack of a place.
    pub(crate) refused: AtomicU64,
    /// Idle connections closed so far because another one needed its place.
    pub(crate) yielded: AtomicU64,
}

impl Counters {
    /// The connections that peers made.
    pub(crate) fn of_peers(&self) -> PeerConnections {
        PeerConnections {
            open: self.connections.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            yielded: self.yielded.load(Ordering::Relaxed),
        }
    }
}
