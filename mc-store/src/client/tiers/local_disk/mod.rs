//! The client's local disk: objects of the cluster that do not fit into memory.
//!
//! The disk is a log of objects ([`mc_tier::LogTier`]) that peers read like memory: its region is
//! staged through memory of the host. What goes to the disk, and comes back, the master decides
//! ([`tier_work`](crate::client::tier_work)).

mod directory;
mod opening;
mod options;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mc_meta::{LocalDiskSpec, MAX_DISK_OBJECTS};
use mc_tier::{FileBackend, LogSettings, LogTier, StorageBackend as _, Tier};
use mc_transport::{Access, Memory, Node, Region, Staging, Transport as _};
use mc_types::{ByteSize, LocalDiskId};
use parking_lot::{Mutex, RwLock};
use tracing::{info, warn};

use super::Sealing;
use super::leaving::wait_until_unused;
use super::untold::Untold;
use crate::client::disk_region::{LocalDiskLook, LocalDiskRegion, Places};
use crate::client::metrics::{TierCounters, TierMetrics};
use crate::client::segments::Segments;
use crate::error::LocalDiskOpenError;

pub(in crate::client) use opening::{LaterLocalDisk, LocalDiskSlot};
pub(in crate::client) use options::OwnPlace;
pub use options::{LocalDiskOptions, OwnTier};

/// Stages between the disk and peers: as many reads for peers at a time.
const STAGES: usize = 32;
const STAGE_LEN: usize = 512 << 10;

/// The client's local disk.
pub(in crate::client) struct LocalDisk {
    /// `None` once the client has left: the directory is free for the next one.
    tier: RwLock<Option<Arc<dyn Tier>>>,
    pub(in crate::client) places: Arc<Places>,
    pub(in crate::client) spec: LocalDiskSpec,
    /// Whether only this client has the tier: it has opened the log itself.
    is_own_log: bool,
    /// The bytes that objects may take.
    most: ByteSize,
    /// The objects that it may have, as far as the master has said.
    pub(in crate::client) most_objects: AtomicU64,
    /// Evicted objects that the master is still to be told of.
    pub(in crate::client) untold: Untold,
    /// The capacity that the master was told.
    pub(in crate::client) told: AtomicU64,
    /// `None` once the client has left.
    region: Mutex<Option<Region>>,
    pub(in crate::client) counters: Arc<TierCounters>,
}

impl std::fmt::Debug for LocalDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnDisk").field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl LocalDisk {
    /// Makes an open disk readable to peers, who hear of it when it is mounted.
    ///
    /// # Errors
    /// [`LocalDiskOpenError`].
    pub(in crate::client) fn new(
        opened: OwnTier,
        is_own_log: bool,
        node: &Node,
        segments: &Segments,
        sealing: &Sealing,
    ) -> Result<Self, LocalDiskOpenError> {
        let endpoint = node.endpoint().cloned().ok_or(LocalDiskOpenError::NotReachable)?;
        let OwnTier { tier, capacity, id } = opened;
        let tier = sealing.around(tier);
        let (places, counters) = (Arc::new(Places::default()), Arc::new(TierCounters::default()));
        let device =
            LocalDiskRegion::new(Arc::clone(&tier), Arc::clone(&places), Arc::clone(&counters));
        let stages: Result<Vec<Memory>, _> =
            std::iter::repeat_with(|| Memory::allocate(STAGE_LEN)).take(STAGES).collect();
        let staging = Staging::new(device, stages?);
        let tickets = segments.new_tickets().map_err(LocalDiskOpenError::NoRandomness)?;
        let ticket_key = tickets.as_ref().map(|tickets| tickets.key);
        let region = node.register_staged(&staging, Access::Read, tickets)?;
        let spec = LocalDiskSpec { id, endpoint, remote_key: region.key(), ticket_key };
        info!(disk = %id, %capacity, "the local disk is open");
        let look = LocalDiskLook { tier: Arc::clone(&tier), places: Arc::clone(&places) };
        segments.set_disk(Some(look));
        let tier = RwLock::new(Some(tier));
        let (region, told) = (Mutex::new(Some(region)), AtomicU64::new(0));
        let (most, most_objects) = (capacity, AtomicU64::new(MAX_DISK_OBJECTS as u64));
        let untold = Untold::default();
        Ok(Self {
            tier,
            places,
            spec,
            is_own_log,
            most,
            most_objects,
            untold,
            told,
            region,
            counters,
        })
    }

    /// The bytes that objects can take now: fewer than they may where the disk has less space.
    pub(in crate::client) fn capacity(&self) -> ByteSize {
        self.tier().and_then(|tier| tier.capacity()).map_or(self.most, |now| now.min(self.most))
    }

    /// The objects on it; `None` once the client has left.
    pub(in crate::client) fn tier(&self) -> Option<Arc<dyn Tier>> {
        self.tier.read().clone()
    }

    /// Closes the disk, for the node's next client, which gets the directory when what is under way has
    /// ended: that is waited for, for five seconds.
    pub(in crate::client) async fn close(&self, segments: &Segments) {
        let region = self.region.lock().take();
        if let Some(region) = region {
            region.withdraw().await;
        }
        segments.set_disk(None);
        let tier = self.tier.write().take();
        // Otherwise the application may keep it.
        if let Some(tier) = tier.filter(|_| self.is_own_log) {
            let unused = Arc::downgrade(&tier);
            drop(tier);
            if !wait_until_unused(unused).await {
                warn!(
                    "the local disk has not ended a write or a read; its directory is not free yet"
                );
            }
        }
    }

    pub(in crate::client) fn metrics(&self) -> TierMetrics {
        self.counters.metrics(0)
    }
}

/// Opens the log of a directory that no other process has, and reads or makes the disk's id; `None` when
/// [another attempt](directory::open_free) is due.
fn open_log(
    root: &Path,
    said: Option<ByteSize>,
    fresh: LocalDiskId,
    may_wait: bool,
) -> Result<Option<OwnTier>, LocalDiskOpenError> {
    let size = match said {
        Some(size) => size,
        None => options::default_size(root)?,
    };
    let Some((mut backend, directory)) = directory::open_free(root, size, may_wait)? else {
        return Ok(None);
    };
    if said.is_some() {
        shrink(&mut backend, size)?;
    }
    directory::warn_of_sum(root);
    let mut settings = LogSettings::default();
    settings.segment_len = options::segment_len(size, said.is_some());
    let mut last = 0;
    let tier = LogTier::open_with_progress(backend, settings, |done, all| {
        // Every tenth part of a long opening.
        let part = done.as_u64().saturating_mul(10).checked_div(all.as_u64()).unwrap_or(10);
        if part > last && part < 10 {
            last = part;
            info!(%done, %all, "reading what is on the local disk");
        }
    })?;
    let recovery = tier.recovery();
    if recovery.damaged > 0 {
        warn!(
            objects = recovery.objects,
            damaged = recovery.damaged,
            "parts of the local disk are damaged; their objects are lost"
        );
    }
    let id = options::identity(&directory, fresh)?;
    info!(path = %directory.display(), disk = %id, "opened a log of objects");
    let capacity = ByteSize::bytes(tier.capacity());
    Ok(Some(OwnTier::new(Arc::new(tier), capacity, id)))
}

/// Cuts a log that was made for more than `size`. What is behind is lost, as if it had been evicted.
fn shrink(backend: &mut FileBackend, size: ByteSize) -> Result<(), LocalDiskOpenError> {
    let found = ByteSize::bytes(backend.len());
    if found <= size {
        return Ok(());
    }
    // No log that can be cut: opening it says what it is.
    let Some(least) = LogTier::least_len(&*backend)? else { return Ok(()) };
    if size < least {
        warn!(
            path = %backend.path().display(), was = %found, wanted = %size, now = %least,
            "the local disk cannot be made as small as it is to be; remove the file to make a new one"
        );
    } else {
        info!(path = %backend.path().display(), was = %found, now = %size, "the local disk is made smaller");
    }
    Ok(backend.cut(size.max(least))?)
}
