//! Telling the master what is on the disk.

use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::Relaxed;

use mc_rpc::RpcError;
use mc_tier::{ObjectId, StoredObject};
use mc_types::ErrorCode;
use tracing::{debug, info};

use super::OwnDisk;
use crate::client::core::Core;
use crate::client::tiers::work::{WorkError, found_items, is_useless, with_tenants};

/// Objects that are reported at a time.
const PAGE: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");

impl Core {
    /// Mounts the disk and reports everything on it.
    pub(super) async fn mount_own_disk(&self, disk: &OwnDisk) -> Result<(), WorkError> {
        self.master.mount_local_disk(self.id, &disk.spec, true).await?;
        disk.told.store(0, Relaxed);
        self.tell_capacity(disk).await?;
        self.report_own_disk(disk).await
    }

    /// Tells the master how much the disk can hold, if that has changed.
    pub(super) async fn tell_capacity(&self, disk: &OwnDisk) -> Result<(), WorkError> {
        let capacity = disk.capacity().as_u64();
        if disk.told.load(Relaxed) != capacity {
            self.master.report_ssd_capacity(self.id, capacity).await?;
            disk.told.store(capacity, Relaxed);
        }
        Ok(())
    }

    /// Reports everything on the disk, and deletes what the master has no use for.
    pub(super) async fn report_own_disk(&self, disk: &OwnDisk) -> Result<(), WorkError> {
        let (mut kept, mut deleted, mut after) = (0, 0, None);
        loop {
            let (tier, from) = (disk.tier().ok_or(WorkError::Ended)?, after);
            let page = self.on_tier(move || tier.scan(from.as_ref(), PAGE)).await?;
            for error in &page.unreadable {
                debug!(%error, "an object on the own disk cannot be read");
            }
            after = page.next;
            let useless = self.report_page(disk, &page.objects, after.is_none()).await?;
            kept += page.objects.len() - useless.len();
            deleted += useless.len();
            self.delete_from_disk(disk, useless).await?;
            if after.is_none() {
                break;
            }
        }
        if kept + deleted > 0 {
            info!(kept, deleted, "the master knows what is on the own disk");
        }
        Ok(())
    }

    /// Reports objects. Returns those that the master has no use for.
    async fn report_page(
        &self,
        disk: &OwnDisk,
        objects: &[StoredObject],
        is_last: bool,
    ) -> Result<Vec<ObjectId>, WorkError> {
        let found = with_tenants(objects, StoredObject::id);
        let address = |object: &StoredObject| disk.places.address(object.id(), object.object_len());
        let items = found_items(&found, address);
        let answers = self.master.report_local_disk(self.id, &items, is_last).await?;
        let mut useless = Vec::new();
        for ((_, object), answer) in found.iter().zip(answers) {
            match answer {
                Err(refusal) if refusal.code == ErrorCode::SegmentNotFound => {
                    return Err(RpcError::Refused(refusal).into());
                }
                Err(refusal) if is_useless(&refusal) => useless.push(object.id().clone()),
                _ => {}
            }
        }
        Ok(useless)
    }
}
