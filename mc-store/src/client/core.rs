//! The state that the clones of a client share.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mc_meta::TenantId;
use mc_rpc::{MasterClient, ReadCounter};
use mc_tier::{InvalidObject, ObjectId};
use mc_transport::{BufferPool, Node};
use mc_types::{ClientId, Generation, KeyRef};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;

use super::admission::Admission;
use super::heartbeat::{Heard, Heartbeat};
use super::hot_cache::HotCache;
use super::load::Loads;
use super::metrics::Metrics;
use super::peers::Peers;
use super::put_keys::PutKeys;
use super::reports::Reports;
use super::segments::Segments;
use super::settings::Settings;
use super::tiers::local_disk::LocalDiskSlot;
use super::tiers::shared::SharedTier;
use super::tiers::{PeerDisks, TierReads};
use crate::error::Unusable;

/// How long a client that ends waits for the master to hear which of its reads are over.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The state that all clones share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) id: ClientId,
    pub(super) master: MasterClient,
    /// Its reads under way, of which the master learns when they are over.
    pub(super) reads: ReadCounter,
    pub(super) transport: Arc<Node>,
    pub(super) peers: Arc<Peers>,
    pub(super) segments: Arc<Segments>,
    /// The name of the segment that it began with.
    pub(super) first_segment: OnceLock<Box<str>>,
    pub(super) loads: Arc<Loads>,
    pub(super) reports: Reports,
    pub(super) put_keys: PutKeys,
    /// Memory that values are read into.
    pub(super) pool: BufferPool,
    pub(super) hot: Option<HotCache>,
    /// Files of objects, where the master plans any.
    pub(super) shared_tier: Option<SharedTier>,
    /// Objects on the client's local disk.
    pub(super) local_disk: LocalDiskSlot,
    /// The bounds of reads from its local disk, disks of peers, and the shared tier.
    pub(super) local_disk_reads: TierReads,
    pub(super) peer_disk_reads: PeerDisks,
    pub(super) shared_tier_reads: TierReads,
    /// The tenant that the client acts for.
    pub(super) tenant: TenantId,
    /// The conversions for other models.
    #[cfg(feature = "c2c")]
    pub(super) c2c: Option<Arc<super::c2c::Conversions>>,
    pub(super) heartbeat: Mutex<Option<Heartbeat>>,
    /// When the master was last heard of, by the heartbeat.
    pub(super) heard: Arc<Heard>,
    pub(super) admission: Admission,
    pub(super) left: OnceCell<()>,
    pub(super) settings: Settings,
    pub(super) metrics: Metrics,
    /// Where the client was connected: its sockets belong to this runtime.
    pub(super) runtime: Handle,
    /// Background tasks in the application's runtime; they end with the client.
    pub(super) background: Mutex<JoinSet<()>>,
    /// One for each task that asks peers for the end of lost links.
    pub(super) fencing: Arc<Semaphore>,
    /// Where its pages are.
    pub(super) http: Option<SocketAddr>,
}

impl Core {
    /// The id by which tiers know an object of the client's own tenant.
    ///
    /// # Errors
    /// When the tenant's name is too long.
    pub(super) fn object_id(
        &self,
        key: KeyRef<'_>,
        generation: Generation,
    ) -> Result<ObjectId, InvalidObject> {
        ObjectId::new(self.tenant.as_str(), key.to_owned(), generation)
    }

    /// Tells the master which reads are over, unless a call has told it.
    pub(super) async fn tell_reads(&self) {
        if self.reads.has_news() {
            // Any call tells it. Without a master it learns nothing, and needs not.
            let _ = tokio::time::timeout(LAST_WORDS, self.master.longest_prefix(&[])).await;
        }
    }

    /// The master, for a request about objects.
    pub(super) fn request(&self) -> Result<&MasterClient, Unusable> {
        self.admission.request().map(|()| &self.master)
    }

    /// The master, for a question about the cluster, which any role may ask.
    pub(super) fn question(&self) -> Result<&MasterClient, Unusable> {
        self.admission.question().map(|()| &self.master)
    }
}
