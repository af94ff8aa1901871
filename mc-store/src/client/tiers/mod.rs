//! Storage below memory: the client's [local disk](local_disk), and the [shared](shared) tier.
//!
//! Gets read from them what memory does not have: [`super::read`].

mod breaker;
mod error;
mod leaving;
pub(super) mod local_disk;
mod objects;
mod peer_disks;
mod reads;
mod sealing;
pub(super) mod shared;
mod untold;

use std::sync::Arc;

use mc_environment::Environment;
use mc_meta::TenantId;
use mc_rpc::ReplicaList;
use mc_tier::{InvalidObject, ObjectId, TierError};
use mc_types::{Generation, KeyRef};

use self::local_disk::LocalDiskSlot;
use self::shared::SharedTier;
use super::settings::BelowMemory;

pub(super) use breaker::{Breaker, Turn};
pub(super) use error::WorkError;
pub(super) use objects::{id_of, ids_of, object_of, slices_of, verified};
pub(super) use peer_disks::{DiskTurn, PeerDisks};
pub(super) use reads::{MAX_READ, NotRead, TierReads};
pub(super) use sealing::Sealing;
pub(super) use untold::Untold;

/// The tiers that a client reads, and the bounds of the reads.
#[derive(Debug)]
pub(super) struct Tiers {
    /// The tenant that the client acts for.
    tenant: TenantId,
    pub(super) environment: Arc<dyn Environment>,
    pub(super) sealing: Sealing,
    pub(super) local_disk: LocalDiskSlot,
    /// Files of objects, where the master plans any.
    pub(super) shared: Option<SharedTier>,
    pub(super) local_disk_reads: TierReads,
    pub(super) peer_disk_reads: PeerDisks,
    pub(super) shared_reads: TierReads,
}

impl Tiers {
    /// The tiers of a client that acts for this tenant.
    pub(super) fn new(
        tenant: TenantId,
        environment: Arc<dyn Environment>,
        sealing: Sealing,
        (local_disk, shared): (LocalDiskSlot, Option<SharedTier>),
        limits: BelowMemory,
    ) -> Self {
        Self {
            tenant,
            environment,
            sealing,
            local_disk,
            shared,
            local_disk_reads: TierReads::new("the local disk", limits.local_disk),
            peer_disk_reads: PeerDisks::new(limits.peer_disk),
            shared_reads: TierReads::new("the shared tier", limits.shared_tier),
        }
    }

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

    /// Returns whether the client can read the object from a file.
    pub(super) fn has_file(&self, list: &ReplicaList) -> bool {
        let shared = self.shared.as_ref();
        list.file.is_some() && shared.is_some_and(|shared| shared.tier().is_some())
    }

    /// Works on a tier in a thread that may block.
    pub(super) async fn on_tier<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, TierError> + Send + 'static,
    ) -> Result<T, WorkError> {
        match self.environment.blocking(work).await {
            Some(Ok(done)) => Ok(done?),
            _ => Err(WorkError::Ended),
        }
    }
}
