//! The state that the clones of a client share.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use mc_meta::TenantId;
use mc_tier::{InvalidObject, ObjectId};
use mc_transport::BufferPool;
use mc_types::{Generation, KeyRef};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use super::background::Background;
use super::data::Transfers;
use super::heartbeat::{Heard, Heartbeat};
use super::hot_cache::HotCache;
use super::master_link::MasterLink;
use super::metrics::Metrics;
use super::put_keys::PutKeys;
use super::reports::Reports;
use super::segments::Segments;
use super::settings::Settings;
use super::tiers::local_disk::LocalDiskSlot;
use super::tiers::shared::SharedTier;
use super::tiers::{PeerDisks, TierReads};

/// The state that all clones share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) link: MasterLink,
    pub(super) transfers: Transfers,
    pub(super) segments: Arc<Segments>,
    /// The name of the segment that it began with.
    pub(super) first_segment: OnceLock<Box<str>>,
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
    pub(super) left: OnceCell<()>,
    pub(super) settings: Settings,
    pub(super) metrics: Metrics,
    pub(super) background: Arc<Background>,
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
}
