//! Reads set the time at which an object expires, and ticks remove those whose time is over.

use mc_types::Time;

use crate::shard::Shard;
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
}
