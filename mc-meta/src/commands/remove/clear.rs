//! Clearing: a client takes back replicas of what it has put.

use mc_types::{ClientId, KeyRef, ObjectKey, Time};

use crate::commands::remove::RemovalBlocker;
use crate::effect::emit::Emit;
use crate::master::Master;
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
            let Some((slot, _)) = shard.find_live(key, emit) else { return false };
            shard.removal_blocker(slot, now, false).is_none()
                && shard.client(shard.get(slot)) == client
                && shard.clear(slot, segment_name, emit)
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
        let object = self.get(slot);
        let everything = object.replicas().all(goes) && !object.outlives_memory();
        if segment_name.is_none() || everything {
            self.remove(slot, Removal::Requested, emit);
            self.totals_mut().removed_objects += 1;
            return true;
        }
        if self.offload(slot).is_some() {
            // Its client may be reading there.
            return false;
        }
        let gone = self.get_mut(slot).take_replicas_if(goes);
        if gone.is_empty() {
            return false;
        }
        self.note_lost_memory(slot, emit.now);
        self.emit_changed(slot, emit);
        self.give_back(self.tenant(slot), gone);
        true
    }

    /// Why the object in a slot may not go on request; `None` when it may. `force` disregards a lease.
    pub(crate) fn removal_blocker(
        &self,
        slot: ObjectSlot,
        now: Time,
        force: bool,
    ) -> Option<RemovalBlocker> {
        let object = self.get(slot);
        if !object.is_complete() {
            return Some(RemovalBlocker::Unfinished);
        }
        if self.transfer(slot).is_some() {
            return Some(RemovalBlocker::InTransfer);
        }
        let is_held = !force && object.protection().is_leased(&self.config().terms, now);
        is_held.then_some(RemovalBlocker::Leased)
    }
}
