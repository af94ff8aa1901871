//! Deleting the oldest files, and telling the master.

use std::sync::Arc;

use mc_meta::ReplicaKind;
use mc_tier::{MediumSpace, Tier, TierUsage, Watermarks};
use mc_types::ByteSize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::FileWork;
use crate::client::tier_work::tell::{DELETIONS, tell_untold};
use crate::client::tiers::WorkError;
use crate::client::tiers::shared::{FREE_PART, Room, excess, is_short};

impl FileWork<'_> {
    /// Looks at the free space. Returns whether there is too little, and whether evicting files was of no
    /// use a moment ago.
    pub(super) async fn look_at_room(&self, tier: &Arc<dyn Tier>) -> (bool, bool) {
        let Some(medium) = self.medium(tier).await else { return (false, false) };
        let mut room = self.shared.room.lock();
        let was_paused = room.is_paused;
        if !is_short(medium) {
            *room = Room::default();
        }
        // Then it is tried again.
        room.is_vain &= room.is_resting(Instant::now(), medium.free);
        let is_full = medium.free.as_u64() < medium.total.as_u64() / FREE_PART;
        room.is_paused = room.is_vain || is_full;
        if was_paused && !room.is_paused {
            info!("the file system of the shared tier has room again; files are written");
        }
        if is_full && !was_paused {
            warn!(
                "the file system of the shared tier is full; no files are written until it has room"
            );
        }
        (is_short(medium), room.is_vain)
    }

    /// Deletes the oldest files, as many as have to go.
    pub(super) async fn evict_files(&self) -> Result<(), WorkError> {
        let tier = self.shared.tier().ok_or(WorkError::Ended)?;
        if let Some(quota) = self.shared.quota {
            return self.evict_to(Watermarks::of_quota(quota)).await.map(drop);
        }
        let Some(before) = self.medium(&tier).await.filter(|medium| is_short(*medium)) else {
            return Ok(());
        };
        if self.shared.room.lock().is_resting(Instant::now(), before.free) {
            return Ok(());
        }
        let counted = Arc::clone(&tier);
        let ours = self.tiers.on_tier(move || counted.usage()).await?.bytes;
        let excess = excess(before, ours);
        if excess == 0 {
            // To find that out again takes a listing of the directory.
            debug!("others have filled the file system of the shared tier");
            self.shared.room.lock().is_in_order(Instant::now(), before.free);
            return Ok(());
        }
        let low = ByteSize::bytes(ours - excess);
        let removed = self.evict_to(Watermarks { high: low, low }).await?;
        let Some(after) = self.medium(&tier).await else { return Ok(()) };
        let freed = after.free.as_u64().saturating_sub(before.free.as_u64());
        let mut room = self.shared.room.lock();
        if removed.bytes > 0 && freed < removed.bytes / 2 {
            if room.rest.is_zero() {
                let (removed, freed) = (ByteSize::bytes(removed.bytes), ByteSize::bytes(freed));
                warn!(
                    %removed, %freed,
                    "evicting files makes no room in the file system of the shared tier: no more are \
                     evicted or written for a while; look for snapshots, a trash, or others that fill it"
                );
            }
            room.was_vain(Instant::now());
        } else {
            *room = Room::default();
        }
        Ok(())
    }

    /// Deletes the oldest files, and tells the master while it goes on: it is not to list files that are gone,
    /// whatever ends this client or the eviction.
    async fn evict_to(&self, watermarks: Watermarks) -> Result<TierUsage, WorkError> {
        let tier = self.shared.tier().ok_or(WorkError::Ended)?;
        let evicting = tier;
        let (gone, mut told) = mpsc::unbounded_channel();
        let evict = self.tiers.on_tier(move || {
            // There is no receiver any more when the client ends.
            evicting.evict(watermarks, &mut |id| drop(gone.send(id)))
        });
        let tell = async {
            let mut part = Vec::new();
            while told.recv_many(&mut part, DELETIONS).await > 0 {
                self.shared.note_untold(&mut part);
                if let Err(error) =
                    tell_untold(self.link, &self.shared.untold, ReplicaKind::SharedFile).await
                {
                    debug!(%error, "the master is told later of files that were evicted");
                }
            }
        };
        let (removed, ()) = tokio::join!(evict, tell);
        let removed = removed?;
        if removed.objects > 0 {
            let bytes = ByteSize::bytes(removed.bytes);
            info!(files = removed.objects, %bytes, "evicted from the shared tier");
        }
        self.shared.counters.evicted(removed.objects);
        Ok(removed)
    }

    async fn medium(&self, tier: &Arc<dyn Tier>) -> Option<MediumSpace> {
        let tier = Arc::clone(tier);
        self.tiers.on_tier(move || tier.medium()).await.ok()?
    }
}
