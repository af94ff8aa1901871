//! Clearing: a client takes back replicas of what it has put.

use mc_lease::Terms;
use mc_types::{ClientId, KeyRef, ObjectKey, Time};

use crate::commands::remove::RemovalBlocker;
use crate::effect::emit::Emit;
use crate::master::Master;
use crate::object::Object;
use crate::shard::Shard;
use crate::space::replica::Replica;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

impl Master {
    /// Takes back the replicas of those of `keys` that `client` has put: all of them,
    /// those on disks included, and so the object, or with a segment's name only the one
    /// there. An object goes with its last replica. Says which keys were cleared, in the
    /// order in which they were given.
    ///
    /// Passed over are objects that are not there or not this client's, that are under
    /// lease, being written, copied or moved, or for one segment on their way to a disk, and
    /// that have no replica in the segment.
    pub fn batch_replica_clear(
        &self,
        now: Time,
        client: ClientId,
        keys: &[KeyRef<'_>],
        segment_name: Option<&str>,
    ) -> Vec<ObjectKey> {
        let emit = self.emit(now);
        let cleared = |key: &&KeyRef<'_>| {
            let key = self.hashed(**key);
            let mut shard = self.shard_of(key);
            let slot = match shard.find_live(key, emit) {
                Some((slot, object)) if object.may_be_removed(&self.terms, now, false) => slot,
                _ => return false,
            };
            let own = shard.object(slot).is_some_and(|object| shard.client(object) == client);
            own && shard.clear(slot, segment_name, emit)
        };
        keys.iter().filter(cleared).map(|key| KeyRef::to_owned(*key)).collect()
    }
}

impl Shard {
    /// Takes the replicas in the segment of this name out, or all; false when there are
    /// none.
    fn clear(&mut self, slot: ObjectSlot, segment_name: Option<&str>, emit: Emit<'_>) -> bool {
        let goes = |replica: &Replica| {
            segment_name.is_none_or(|name| *replica.segment.spec().name == *name)
        };
        let object = self.get_mut(slot);
        let everything = object.replicas().all(goes) && !object.outlives_memory();
        if segment_name.is_none() || everything {
            self.remove(slot, Removal::Requested, emit);
            self.totals_mut().removed_objects += 1;
            return true;
        }
        if object.offload().is_some() {
            // Its client may be reading there.
            return false;
        }
        let gone = object.take_replicas_if(goes);
        if gone.is_empty() {
            return false;
        }
        self.note_lost_memory(slot, emit.now);
        self.emit_changed(slot, emit);
        self.give_back(self.tenant(slot), gone);
        true
    }
}

impl Object {
    /// Returns whether it may go on request. `force` disregards a lease.
    pub(crate) fn may_be_removed(&self, terms: &Terms, now: Time, force: bool) -> bool {
        self.removal_blocker(terms, now, force).is_none()
    }

    /// Why it may not go on request; `None` when it may.
    pub(crate) fn removal_blocker(
        &self,
        terms: &Terms,
        now: Time,
        force: bool,
    ) -> Option<RemovalBlocker> {
        if !self.is_complete() {
            return Some(RemovalBlocker::Unfinished);
        }
        if self.transfer().is_some() {
            return Some(RemovalBlocker::InTransfer);
        }
        let is_held = !force && self.protection().is_leased(terms, now);
        is_held.then_some(RemovalBlocker::Leased)
    }
}
