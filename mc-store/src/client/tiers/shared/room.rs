//! Room in the file system of the shared tier.
//!
//! Where there is no quota, files may take nine tenths of what others leave. A file system that others have
//! filled is not a reason to delete all files, and one that gives space back late, or not at all (snapshots,
//! a trash, a queue of purges), not one to go on deleting.

use std::sync::Arc;
use std::time::Duration;

use mc_tier::{MediumSpace, Tier, TierUsage, Watermarks};
use mc_types::ByteSize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::SharedTier;
use crate::client::core::Core;
use crate::client::tiers::work::{DELETIONS, WorkError};

/// The part of what others leave that files may take, in percent.
const USABLE_PERCENT: u64 = 90;

/// Less free space than this part of the file system is none: files are not written.
const FREE_PART: u64 = 1000;

/// Time for which nothing is evicted after that did not help: the first, and the longest, of doubling ones.
const FIRST_REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// Time for which nothing is evicted after that was not needed, though others have filled the file system,
/// unless half of the free space goes meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(300);

/// What is known of the room in the file system.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Nothing is evicted until then, or until less than so many bytes are free.
    rest_until: Option<(Instant, u64)>,
    /// How long that was when it did not help, the last time; zero since it did.
    rest: Duration,
    /// Whether the space of files that were evicted did not come back.
    is_vain: bool,
    /// Whether no files are written.
    is_paused: bool,
}

impl Room {
    fn is_resting(&self, now: Instant, free: ByteSize) -> bool {
        self.rest_until.is_some_and(|(until, least)| now < until && free.as_u64() >= least)
    }

    /// Evicting files made no room.
    fn was_vain(&mut self, now: Instant) {
        self.rest = (self.rest * 2).clamp(FIRST_REST, LONGEST_REST);
        self.rest_until = Some((now + self.rest, 0));
        (self.is_vain, self.is_paused) = (true, true);
    }

    /// Files take no more than they may.
    fn is_in_order(&mut self, now: Instant, free: ByteSize) {
        self.rest_until = Some((now + LOOK_AGAIN, free.as_u64() / 2));
    }
}

/// The bytes of files that are to be deleted, of those that take `ours`.
fn excess(MediumSpace { free, .. }: MediumSpace, ours: u64) -> u64 {
    let free = free.as_u64();
    let spare = ours.saturating_add(free) / 100 * (100 - USABLE_PERCENT);
    match spare.checked_sub(free) {
        // A little more than is missing, so that not every put evicts again.
        Some(missing) if missing > 0 => (missing + spare / 2).min(ours),
        _ => 0,
    }
}

/// Returns whether less is free than files should leave, if all others were ours.
fn is_short(MediumSpace { total, free }: MediumSpace) -> bool {
    free.as_u64() < total.as_u64() / 100 * (100 - USABLE_PERCENT)
}

impl SharedTier {
    /// Returns whether no files are written since there is no room for them.
    pub(super) fn is_paused(&self) -> bool {
        self.room.lock().is_paused
    }
}

impl Core {
    /// Looks at the free space. Returns whether there is too little, and whether evicting files was of no
    /// use a moment ago.
    pub(super) async fn look_at_room(
        &self,
        shared: &SharedTier,
        tier: &Arc<dyn Tier>,
    ) -> (bool, bool) {
        let Some(medium) = self.medium(tier).await else { return (false, false) };
        let mut room = shared.room.lock();
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
    pub(super) async fn evict_files(&self, shared: &SharedTier) -> Result<(), WorkError> {
        let tier = shared.tier().ok_or(WorkError::Ended)?;
        if let Some(quota) = shared.quota {
            return self.evict_to(shared, Watermarks::of_quota(quota)).await.map(drop);
        }
        let Some(before) = self.medium(&tier).await.filter(|medium| is_short(*medium)) else {
            return Ok(());
        };
        if shared.room.lock().is_resting(Instant::now(), before.free) {
            return Ok(());
        }
        let counted = Arc::clone(&tier);
        let ours = self.on_tier(move || counted.usage()).await?.bytes;
        let excess = excess(before, ours);
        if excess == 0 {
            // To find that out again takes a listing of the directory.
            debug!("others have filled the file system of the shared tier");
            shared.room.lock().is_in_order(Instant::now(), before.free);
            return Ok(());
        }
        let low = ByteSize::bytes(ours - excess);
        let removed = self.evict_to(shared, Watermarks { high: low, low }).await?;
        let Some(after) = self.medium(&tier).await else { return Ok(()) };
        let freed = after.free.as_u64().saturating_sub(before.free.as_u64());
        let mut room = shared.room.lock();
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
    async fn evict_to(
        &self,
        shared: &SharedTier,
        watermarks: Watermarks,
    ) -> Result<TierUsage, WorkError> {
        let tier = shared.tier().ok_or(WorkError::Ended)?;
        let evicting = tier;
        let (gone, mut told) = mpsc::unbounded_channel();
        let evict = self.on_tier(move || {
            // Nobody hears of it any more when the client ends.
            evicting.evict(watermarks, &mut |id| drop(gone.send(id)))
        });
        let tell = async {
            let mut part = Vec::new();
            while told.recv_many(&mut part, DELETIONS).await > 0 {
                shared.note_untold(&mut part);
                if let Err(error) = self.tell_untold(shared).await {
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
        shared.counters.evicted(removed.objects);
        Ok(removed)
    }

    async fn medium(&self, tier: &Arc<dyn Tier>) -> Option<MediumSpace> {
        let tier = Arc::clone(tier);
        self.on_tier(move || tier.medium()).await.ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_end_with_time_or_when_space_goes_quickly() {
        let (now, bytes) = (Instant::now(), ByteSize::bytes);
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut room = Room::default();
        assert!(!room.is_resting(now, bytes(0)));
        room.is_in_order(now, bytes(100));
        assert!(room.is_resting(at(299), bytes(50)) && !room.is_resting(at(300), bytes(50)));
        assert!(!room.is_resting(now, bytes(49)));
        room.was_vain(now);
        assert!(room.is_vain && room.is_paused);
        assert!(room.is_resting(at(59), bytes(0)) && !room.is_resting(at(60), bytes(0)));
        room.was_vain(at(60));
        assert!(room.is_resting(at(179), bytes(0)) && !room.is_resting(at(180), bytes(0)));
    }

    fn space(total: u64, free: u64) -> MediumSpace {
        MediumSpace { total: ByteSize::bytes(total), free: ByteSize::bytes(free) }
    }

    #[test]
    fn files_leave_a_tenth_of_what_others_leave() {
        assert!(!is_short(space(1000, 100)) && is_short(space(1000, 99)));
        assert_eq!(excess(space(1000, 0), 1000), 150);
        assert_eq!(excess(space(1000, 60), 940), 90);
        assert_eq!(excess(space(1000, 100), 900), 0);
        // Of 1000 bytes, others have 900.
        assert_eq!(excess(space(1000, 0), 100), 15);
        assert_eq!(excess(space(1000, 50), 50), 0);
        assert_eq!(excess(space(1000, 0), 0), 0);
        assert_eq!(excess(space(u64::MAX, u64::MAX), u64::MAX), 0);
    }
}
