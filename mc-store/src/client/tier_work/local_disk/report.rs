//! Telling the master what is on the disk.

use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::future::try_join_all;
use mc_rpc::RpcError;
use mc_tier::{ObjectId, ScanCursor, StoredObject};
use mc_types::ErrorCode;
use tokio::time::Instant;
use tracing::{debug, info};

use super::DiskWork;
use crate::client::tier_work::tell::{found_items, is_useless, with_tenants};
use crate::client::tiers::WorkError;

/// Objects that are reported between two questions for other work, in calls that are under way together, and
/// objects in a call.
const OBJECTS: NonZeroUsize = NonZeroUsize::new(8192).expect("it is not zero");
const IN_CALL: usize = 1024;

/// A report of everything on the disk, which goes on while the disk is in use. After a failure it goes on
/// where it was.
#[derive(Debug)]
pub(super) struct Report {
    begun: Instant,
    /// The last object that the master was told of.
    after: Option<ScanCursor>,
    kept: usize,
    deleted: usize,
}

impl Report {
    pub(super) fn begin() -> Self {
        Self { begun: Instant::now(), after: None, kept: 0, deleted: 0 }
    }
}

impl DiskWork<'_> {
    /// Mounts the disk. Everything on it is to be reported after that.
    pub(super) async fn mount(&self) -> Result<(), WorkError> {
        self.link.master.mount_local_disk(self.link.id, &self.disk.spec, true).await?;
        self.disk.told.store(0, Relaxed);
        self.tell_capacity().await
    }

    /// Tells the master how much the disk can hold, if that has changed.
    pub(super) async fn tell_capacity(&self) -> Result<(), WorkError> {
        let capacity = self.disk.capacity().as_u64();
        if self.disk.told.load(Relaxed) != capacity {
            self.link.master.report_ssd_capacity(self.link.id, capacity).await?;
            self.disk.told.store(capacity, Relaxed);
        }
        Ok(())
    }

    /// Reports the next objects on the disk, and deletes those that the master has no use for. Returns whether
    /// these were the last.
    pub(super) async fn report_some(&self, report: &mut Report) -> Result<bool, WorkError> {
        let (tier, from) = (self.disk.tier().ok_or(WorkError::Ended)?, report.after.clone());
        let page = self.tiers.on_tier(move || tier.scan(from.as_ref(), OBJECTS)).await?;
        for error in &page.unreadable {
            debug!(%error, "an object on the local disk cannot be read");
        }
        let (objects, is_last) = (&page.objects, page.next.is_none());
        // The call that says so comes behind all others.
        let in_last = if is_last { objects.len().min(IN_CALL) } else { 0 };
        let (others, last) = objects.split_at(objects.len() - in_last);
        let calls = others.chunks(IN_CALL).map(|part| self.report_from_disk(part, false));
        let mut useless = try_join_all(calls).await?.concat();
        if is_last {
            useless.extend(self.report_from_disk(last, true).await?);
        }
        let deleted = useless.len();
        self.delete_from_disk(useless).await?;
        report.kept += objects.len() - deleted;
        report.deleted += deleted;
        report.after = page.next;
        let Report { begun, kept, deleted, .. } = *report;
        if is_last && kept + deleted > 0 {
            let after = begun.elapsed();
            info!(kept, deleted, ?after, "the master knows what is on the local disk");
        }
        Ok(is_last)
    }

    /// Reports objects. Returns those that the master has no use for.
    async fn report_from_disk(
        &self,
        objects: &[StoredObject],
        is_last: bool,
    ) -> Result<Vec<ObjectId>, WorkError> {
        let found = with_tenants(objects, StoredObject::id);
        let address =
            |object: &StoredObject| self.disk.places.address(object.id(), object.object_len());
        let items = found_items(&found, address);
        let answers = self.link.master.report_local_disk(self.link.id, &items, is_last).await?;
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
