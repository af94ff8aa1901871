//! Settings that do not change while a client runs.

use std::sync::Arc;
use std::time::Duration;

use mc_environment::Environment;
use mc_rpc::ClientConfig;
use mc_transport::{BootClock, BootTime, MemoryOptions, NodeConfig};

/// The least that a master may be silent before a client is no longer ready.
#[cfg(feature = "http")]
const LEAST_PATIENCE: Duration = Duration::from_secs(3);

/// Settings that do not change while a client runs.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// How long a put waits for room.
    pub(super) put_wait: Duration,
    /// How long a put may take beside that.
    pub(super) put_timeout: Duration,
    /// How long reads below memory may take.
    pub(super) below_memory: BelowMemory,
    /// Whether replicas in this client's own segment are copied directly.
    pub(super) local_copy: bool,
    /// The surroundings of the client.
    pub(super) environment: Arc<dyn Environment>,
    /// The environment's clock.
    pub(super) clock: BootClock,
    /// Where this client's time begins. It counts on while the host is suspended: leases
    /// do, too.
    pub(super) origin: BootTime,
    /// Whether peers show tickets for what they touch in this client's segments.
    pub(super) tickets: bool,
    /// Whether calls are counted and timed.
    pub(super) metrics: bool,
    /// How often a line of figures is logged; zero for never.
    pub(super) metrics_interval: Duration,
    /// The labels of all metrics.
    pub(super) metrics_labels: Vec<(Box<str>, Box<str>)>,
    /// How the master is told that this client lives, once it has a segment.
    pub(super) pulse: Pulse,
    /// Whether segments can be shared with processes of this host.
    pub(super) shares: bool,
}

impl Settings {
    /// Memory of this kind, such that peers of this host can map it if they may.
    pub(super) fn shareable(&self, memory: MemoryOptions) -> MemoryOptions {
        #[cfg(target_os = "linux")]
        if self.shares && memory.can_be_shared() {
            return memory.shared();
        }
        memory
    }
}

/// How long a read below memory may take, after which the object counts as missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct BelowMemory {
    /// From the client's local disk.
    pub(super) local_disk: Duration,
    /// From a disk of a peer.
    pub(super) peer_disk: Duration,
    /// From the shared tier.
    pub(super) shared_tier: Duration,
}

impl Default for BelowMemory {
    /// Much longer than any medium takes that is well, and less than it takes to compute what a file
    /// would have saved.
    fn default() -> Self {
        let limit = Duration::from_millis(1500);
        Self { local_disk: limit, peer_disk: limit, shared_tier: limit }
    }
}

/// The settings of a heartbeat.
#[derive(Clone, Debug)]
pub(super) struct Pulse {
    /// Where the master is.
    pub(super) master: String,
    /// How to connect to it.
    pub(super) rpc: ClientConfig,
    /// How often to say so.
    pub(super) interval: Duration,
    /// How peers connect to this client; `None` when it accepts none, or in a way that it cannot
    /// check.
    pub(super) peers: Option<NodeConfig>,
    /// The certificates that peers are shown.
    #[cfg(feature = "tls")]
    pub(super) certificates: Vec<Arc<mc_rpc::tls::ServerTls>>,
}

impl Pulse {
    /// How long the master may be silent before it counts as gone: a few heartbeats.
    #[cfg(feature = "http")]
    pub(super) fn patience(&self) -> Duration {
        LEAST_PATIENCE.max(self.interval * 3)
    }
}
