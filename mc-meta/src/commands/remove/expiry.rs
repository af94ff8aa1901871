//! Reads set the time at which an object expires, and ticks remove those whose time is over.

use mc_types::Time;

use crate::effect::emit::Emit;
use crate::shard::Shard;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

impl Shard {
    /// Notes that an object was read. When it will go because this was the first time,
    /// says when.
    pub(crate) fn was_read(&mut self, slot: ObjectSlot, now: Time) -> Option<Time> {
        let due = now + self.config().ttl_after_get?;
        let object = self.get_mut(slot);
        let pinned = object.is_hard_pinned() || object.protection().wants_soft_pin();
        // What is read of an unfinished object is its file; its memory is being written.
        if pinned || !object.is_complete() {
            return None;
        }
        self.expire_at(slot, due).then_some(due)
    }

    /// Takes out an object whose time is over. Who reads it may do so until the lease
    /// ends.
    pub(crate) fn expire(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        self.retire(slot, Removal::Expired, emit);
        self.totals_mut().expired_objects += 1;
    }

    /// Takes out up to `limit` objects whose time is over; says how many entries were
    /// looked at.
    pub(crate) fn expire_due(&mut self, limit: usize, emit: Emit<'_>) -> usize {
        let mut looked_at = 0;
        while looked_at < limit
            && let Some(expired) = self.next_expired(emit.now)
        {
            looked_at += 1;
            if let Some(slot) = expired {
                self.expire(slot, emit);
            }
        }
        looked_at
    }
}
