//! Removal on request.
//!
//! [`clear`]: clients take back replicas of what they have put. [`expiry`]: objects that go some
//! time after they were first read.

pub(crate) mod clear;
pub(crate) mod expiry;

use mc_types::{Generation, KeyRef, Time};

use crate::commands::error::RemoveError;
use crate::effect::Effect;
use crate::effect::emit::Emit;
use crate::master::Master;
use crate::object::Object;
use crate::shard::{RemovedObject, Retired, Shard};
use crate::tenant::id::TenantId;
use crate::vocabulary::pattern::Pattern;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

/// Objects that one hold of a shard's lock may remove.
const BATCH: u32 = 256;

/// The outcome of a removal of many objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovalCounts {
    /// Objects that are removed.
    pub removed: u64,
    /// Objects that were meant and are left.
    pub left: ObjectsLeft,
}

/// Objects that a removal left, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectsLeft {
    /// Objects under lease; a forced removal leaves none.
    pub leased: u64,
    /// Objects that are being copied or moved.
    pub in_transfer: u64,
    /// Objects that are being written, or whose writer has gone silent.
    pub unfinished: u64,
}

/// Why an object stays that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalBlocker {
    Leased,
    InTransfer,
    Unfinished,
}

impl RemovalCounts {
    fn count_left(&mut self, blocker: RemovalBlocker) {
        let counter = match blocker {
            RemovalBlocker::Leased => &mut self.left.leased,
            RemovalBlocker::InTransfer => &mut self.left.in_transfer,
            RemovalBlocker::Unfinished => &mut self.left.unfinished,
        };
        *counter += 1;
    }
}

impl Master {
    /// Removes an object and takes its space back. `force` disregards a lease: no client finds
    /// the object from now on, and readers may continue for as long as
    /// [they were told](crate::ReplicaList::lease). Its space comes back when the last reader is
    /// done, and at once when there is none: [`exist`](Self::exist) is no read.
    ///
    /// # Errors
    /// [`RemoveError`] when there is no object, or it may not go now.
    pub fn remove(&self, now: Time, key: KeyRef<'_>, force: bool) -> Result<(), RemoveError> {
        self.remove_one(now, key, None, force)
    }

    /// Removes the object that the put `generation` stored, and no other of its key, as a forced
    /// [`remove`](Self::remove) does. Of several callers that name one put, one succeeds: it is how a
    /// value is given to one reader.
    ///
    /// # Errors
    /// [`RemoveError`] when there is no object, it is of another put, or it may not go now.
    pub fn remove_generation(
        &self,
        now: Time,
        key: KeyRef<'_>,
        generation: Generation,
    ) -> Result<(), RemoveError> {
        self.remove_one(now, key, Some(generation), true)
    }

    fn remove_one(
        &self,
        now: Time,
        key: KeyRef<'_>,
        generation: Option<Generation>,
        force: bool,
    ) -> Result<(), RemoveError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let (slot, object) = shard.find_live(key, emit).ok_or(RemoveError::NotFound)?;
        if generation.is_some_and(|wanted| wanted != object.generation) {
            return Err(RemoveError::Replaced);
        }
        if !object.is_complete() {
            return Err(RemoveError::NotReady);
        }
        let remaining = object.protection().lease_remaining(&self.terms, now);
        if shard.transfer(slot).is_some() {
            return Err(RemoveError::InTransfer);
        }
        if !remaining.is_zero() && !force {
            return Err(RemoveError::Leased { remaining });
        }
        self.remove_requested(&mut shard, slot, emit);
        Ok(())
    }

    /// Removes every object but unfinished ones, those that are being copied or moved
    /// and, unless forced, those under lease; says how many. Objects put meanwhile may or
    /// may not be among them. By force, clients are told to delete everything on their
    /// local disks, too; see [`poll_remove_all`](Self::poll_remove_all).
    pub fn remove_all(&self, now: Time, force: bool) -> u64 {
        self.remove_all_counted(now, force).removed
    }

    /// The same, and counts what is left.
    pub(crate) fn remove_all_counted(&self, now: Time, force: bool) -> RemovalCounts {
        let counts = self.remove_matching(now, None, None, force);
        if force {
            self.wipe_local_disks(now);
        }
        counts
    }

    /// Removes every object whose key the pattern matches, as
    /// [`remove_all`](Self::remove_all) would: not unfinished ones, nor those that are
    /// being copied or moved, nor, unless forced, those under lease. Says how many.
    /// Objects put meanwhile may or may not be among them.
    ///
    /// Looks at every object; the longest that another command waits for it is the time
    /// to match some hundred keys.
    pub fn remove_by_regex(&self, now: Time, pattern: &Pattern, force: bool) -> u64 {
        self.remove_matching(now, None, Some(pattern), force).removed
    }

    /// Removes an object; false when it had lost its segments, and goes for that.
    fn remove_requested(&self, shard: &mut Shard, slot: ObjectSlot, emit: Emit<'_>) -> bool {
        let requested = match shard.retire(slot, Removal::Requested, emit) {
            Retired::Kept { until } => {
                self.release_not_before(until);
                true
            }
            Retired::Gone(RemovedObject { cause, .. }) => cause == Removal::Requested,
        };
        shard.totals_mut().removed_objects += u64::from(requested);
        requested
    }

    /// Removes objects of one tenant by their keys as it knows them, or of all by their
    /// keys as they are stored.
    pub(crate) fn remove_matching(
        &self,
        now: Time,
        tenant: Option<&TenantId>,
        pattern: Option<&Pattern>,
        force: bool,
    ) -> RemovalCounts {
        let is_any = tenant.is_none() && pattern.is_none();
        let is_meant = |key: KeyRef<'_>| pattern.is_none_or(|p| p.is_match(key.as_str()));
        let emit = self.emit(now);
        let tells = is_any && emit.wants_objects();
        if tells {
            emit.effect(&Effect::RemoveAllBegan);
        }
        let mut counts = RemovalCounts::default();
        for shard in self.shards() {
            let mut from = 0;
            loop {
                let mut shard = shard.lock();
                let to = shard.end().min(from + BATCH);
                for slot in ObjectSlot::range(from..to) {
                    let meant = shard
                        .object(slot)
                        .filter(|_| is_any || shard.key_for(slot, tenant).is_some_and(is_meant));
                    match meant.map(|_| shard.removal_blocker(slot, now, force)) {
                        Some(None) if self.remove_requested(&mut shard, slot, emit) => {
                            counts.removed += 1;
                        }
                        Some(Some(blocker)) => counts.count_left(blocker),
                        _ => {}
                    }
                    if tells && shard.object(slot).is_some_and(Object::is_stored) {
                        emit.effect(&Effect::Spared { object: shard.view(slot) });
                    }
                }
                from = to;
                if to == shard.end() {
                    break;
                }
            }
        }
        if tells {
            emit.effect(&Effect::RemoveAllEnded);
        }
        // Objects that are gone already are not there to be removed.
        self.see_all();
        counts
    }
}
