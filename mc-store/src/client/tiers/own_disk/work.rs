//! What the master wants done on the own disk.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use mc_meta::ReplicaKind;
use mc_rpc::{DiskJob, OffloadItem, OffloadJob};
use mc_tier::{ObjectId, TierError, Watermarks};
use mc_types::{ByteSize, ErrorCode};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::OwnDisk;
use crate::client::core::Core;
use crate::client::tiers::objects::{id_of, ids_of, object_of};
use crate::client::tiers::work::{DELETIONS, WorkError};

/// Time between two questions for work: from right after work to a while after there was none.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Time after a failure.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Objects that are fetched at a time, and written at a time.
const JOBS: usize = 64;
const WIDTH: usize = 4;

/// Parts of the capacity above which objects are evicted, and down to which, in percent.
const HIGH_PERCENT: u64 = 90;
const LOW_PERCENT: u64 = 80;

impl Core {
    /// Starts what writes to the own disk and reads from it for the master.
    pub(in crate::client) fn start_own_disk(self: &Arc<Self>) {
        if self.own_disk.is_some() {
            self.background.lock().spawn_on(work(Arc::downgrade(self)), &self.runtime);
        }
    }

    /// Takes the disk back, for its return with the node's next client.
    pub(in crate::client) async fn leave_own_disk(&self) {
        let Some(disk) = &self.own_disk else { return };
        if let Err(error) = self.master.unmount_local_disk(self.id, true).await {
            debug!(%error, "the master was not told that the own disk is away");
        }
        let region = disk.region.lock().take();
        if let Some(region) = region {
            region.withdraw().await;
        }
        *disk.tier.write() = None;
    }
}

/// Asks the master for work and does it, until the client has gone.
async fn work(core: Weak<Core>) {
    let (mut is_mounted, mut pause, mut failures) = (false, SHORTEST_PAUSE, 0_u64);
    loop {
        let Some(core) = core.upgrade() else { return };
        let Some(disk) = core.own_disk.as_ref() else { return };
        let done = async {
            if !is_mounted {
                core.mount_own_disk(disk).await?;
                is_mounted = true;
            }
            core.work_once(disk).await
        };
        match done.await {
            Ok(has_worked) => {
                pause = if has_worked { SHORTEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                failures = 0;
            }
            Err(error) => match error.refused() {
                // The master does not know the disk.
                Some(ErrorCode::SegmentNotFound) => {
                    is_mounted = false;
                    pause = SHORTEST_PAUSE;
                }
                Some(ErrorCode::UnableOffload | ErrorCode::NotSupported) => {
                    warn!(%error, "the own disk is not used");
                    return;
                }
                _ => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        warn!(%error, failures, "work on the own disk failed; trying on");
                    }
                    pause = FAILURE_PAUSE;
                }
            },
        }
        drop(core);
        tokio::time::sleep(pause).await;
    }
}

impl Core {
    /// Does what there is to do now. Returns whether there was anything.
    async fn work_once(&self, disk: &OwnDisk) -> Result<bool, WorkError> {
        let deletions = self.master.fetch_disk_deletions(self.id, 0).await?;
        if deletions.remove_all {
            self.empty_disk(disk).await?;
        }
        let mut has_worked = !deletions.objects.is_empty();
        self.delete_from_disk(disk, ids_of(&deletions.objects)).await?;
        if deletions.report_all {
            self.report_own_disk(disk).await?;
        }
        let jobs = self.master.offload_heartbeat(self.id, true, JOBS).await?;
        has_worked |= !jobs.is_empty();
        self.offload(disk, jobs).await?;
        let promotions = self.master.promotion_heartbeat(self.id).await?;
        has_worked |= !promotions.is_empty();
        let promote = |job: DiskJob| async move { self.promote(&job).await };
        stream::iter(promotions).for_each_concurrent(WIDTH, promote).await;
        self.evict_above_watermark(disk).await?;
        Ok(has_worked)
    }

    /// Writes objects to the disk and tells the master.
    async fn offload(&self, disk: &OwnDisk, jobs: Vec<OffloadJob>) -> Result<(), WorkError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let write = |job: OffloadJob| async move {
            let written_at = self.write_to_disk(disk, &job).await;
            (job, written_at)
        };
        let written: Vec<(OffloadJob, Option<u64>)> =
            stream::iter(jobs).map(write).buffered(WIDTH).collect().await;
        let outcomes = written.iter().map(|(job, written_at)| OffloadItem {
            object: job.job.object(),
            generation: job.job.generation,
            written_at: *written_at,
        });
        let outcomes: Vec<OffloadItem<'_>> = outcomes.collect();
        // If this is lost, the objects are found by the next report.
        let answers = self.master.notify_offload(self.id, &outcomes).await?;
        let useless = written
            .iter()
            .zip(answers)
            .filter(|((_, written_at), answer)| written_at.is_some() && answer.is_err());
        let ids = useless.filter_map(|((job, _), _)| id_of(&job.job).ok()).collect();
        self.delete_from_disk(disk, ids).await
    }

    /// Writes an object to the disk. Returns where it is there; `None` when it could not be written.
    async fn write_to_disk(&self, disk: &OwnDisk, job: &OffloadJob) -> Option<u64> {
        let begun = Instant::now();
        let own = self.segments.held(job.source.segment, job.source.extent)?;
        let (id, tier, slices) = (id_of(&job.job).ok()?, disk.tier()?, job.slices.clone());
        let capacity = disk.capacity;
        let places = Arc::clone(&disk.places);
        let write = move || {
            let bytes = own.on_host().map_err(|error| error.to_string())?;
            let slices = slices.as_slice().iter().map(|slice| (slice.len, slice.checksum));
            // A command that removed the object gave its memory away.
            let object = object_of(Bytes::from(bytes.to_vec()), slices)
                .ok_or("the object has changed in memory")?;
            let mut evicted = Vec::new();
            let put = match tier.put(&id, &object) {
                Err(TierError::Full { .. }) => {
                    let used = tier.usage().map_err(|error| error.to_string())?.bytes;
                    // A tenth of what there is.
                    let low = ByteSize::bytes(used.saturating_sub(capacity.as_u64() / 10));
                    let watermarks = Watermarks { high: low, low };
                    let freed = tier.evict(watermarks, &mut |id| evicted.push(id));
                    freed.and_then(|_| tier.put(&id, &object))
                }
                put => put,
            };
            let len = slices_len(&object);
            let address = put.map(|()| places.address(&id, len)).map_err(|error| error.to_string());
            Ok::<_, String>((address, evicted))
        };
        let written = self.settings.environment.blocking(write).await?.ok()?;
        let written = match written {
            Ok((address, evicted)) => {
                self.evicted(disk, evicted).await;
                address
            }
            Err(error) => Err(error),
        };
        disk.counters.written(begun.elapsed(), written.as_ref().map(|_| job.job.len).map_err(drop));
        if let Err(error) = &written {
            disk.counters.complain(|failures| {
                warn!(key = %job.job.key, %error, failures, "an object could not be written to the own disk");
            });
        }
        written.ok()
    }

    /// Makes room when the disk is nearly full.
    async fn evict_above_watermark(&self, disk: &OwnDisk) -> Result<(), WorkError> {
        let part = |percent| ByteSize::bytes(disk.capacity.as_u64() / 100 * percent);
        let watermarks = Watermarks { high: part(HIGH_PERCENT), low: part(LOW_PERCENT) };
        let tier = disk.tier().ok_or(WorkError::Ended)?;
        let evict = move || {
            let mut ids = Vec::new();
            tier.evict(watermarks, &mut |id| ids.push(id)).map(|_| ids)
        };
        let ids = self.on_tier(evict).await?;
        self.evicted(disk, ids).await;
        Ok(())
    }

    /// Notes objects that were deleted to make room.
    async fn evicted(&self, disk: &OwnDisk, ids: Vec<ObjectId>) {
        if ids.is_empty() {
            return;
        }
        info!(objects = ids.len(), "evicted from the own disk");
        disk.counters.evicted(ids.len() as u64);
        ids.iter().for_each(|id| disk.places.remove(id));
        // Readers that are told of them find none until the next report.
        if let Err(error) = self.tell_evicted(&ids, ReplicaKind::LocalDisk).await {
            debug!(%error, "the master was not told of objects evicted from the own disk");
        }
    }

    /// Deletes objects from the disk.
    pub(super) async fn delete_from_disk(
        &self,
        disk: &OwnDisk,
        ids: Vec<ObjectId>,
    ) -> Result<(), WorkError> {
        for part in ids.chunks(DELETIONS) {
            // Nobody finds them any more from here on.
            part.iter().for_each(|id| disk.places.remove(id));
            let (tier, part) = (disk.tier().ok_or(WorkError::Ended)?, part.to_vec());
            let count = part.len() as u64;
            self.on_tier(move || part.iter().try_for_each(|id| tier.remove(id).map(drop))).await?;
            disk.counters.deleted(count);
        }
        Ok(())
    }

    /// Deletes everything from the disk.
    async fn empty_disk(&self, disk: &OwnDisk) -> Result<(), WorkError> {
        let page = std::num::NonZeroUsize::new(DELETIONS).expect("it is not zero");
        loop {
            let tier = disk.tier().ok_or(WorkError::Ended)?;
            let page = self.on_tier(move || tier.scan(None, page)).await?;
            let ids: Vec<ObjectId> =
                page.objects.iter().map(|object| object.id().clone()).collect();
            if ids.is_empty() {
                return Ok(());
            }
            self.delete_from_disk(disk, ids).await?;
        }
    }
}

fn slices_len(object: &mc_tier::ObjectBytes) -> u64 {
    object.slices().iter().map(|slice| slice.info().len).sum()
}
