//! Puts that end without an object, or without its memory.
//!
//! Their writers may still be writing: unless a writer says that no write can arrive any more, the
//! space is kept until the time of its grant is over.

use mc_types::Time;

use crate::effect::emit::Emit;
use crate::shard::Shard;
use crate::side_tables::retained::RetainedSpace;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

impl Shard {
    /// Ends an unfinished put whose writer does not go on. What is on a disk already
    /// stays; true when there was nothing, and the put is gone. Its space is kept until
    /// then, if a time is given.
    pub(crate) fn give_up_put(
        &mut self,
        slot: ObjectSlot,
        until: Option<Time>,
        emit: Emit<'_>,
    ) -> bool {
        let persisted = self.get_mut(slot).is_in_tier();
        if persisted {
            self.revoke_memory(slot, until, emit);
            return false;
        }
        self.keep_written(slot, until, emit);
        self.remove(slot, Removal::Requested, emit).cause == Removal::Requested
    }

    /// Takes back the memory of an unfinished put, or keeps it until then.
    pub(crate) fn revoke_memory(&mut self, slot: ObjectSlot, until: Option<Time>, emit: Emit<'_>) {
        self.keep_written(slot, until, emit);
        let object = self.get_mut(slot);
        if !object.outlives_memory() {
            self.remove(slot, Removal::Requested, emit);
            return;
        }
        let finished = object.is_in_tier();
        let memory = object.take_replicas();
        if finished {
            self.end_without_memory(slot, emit.now);
        }
        self.emit_given_up(slot, emit);
        self.give_back(self.tenant(slot), memory);
    }

    /// Keeps the memory of an unfinished put until then, because writes may still arrive.
    pub(crate) fn keep_written(&mut self, slot: ObjectSlot, until: Option<Time>, emit: Emit<'_>) {
        let Some(until) = until else { return };
        let object = self.get_mut(slot);
        let (generation, replicas) = (object.generation, object.take_replicas());
        let (tenant, writer) = (Some(self.tenant(slot)), self.writer(slot));
        let space = RetainedSpace { tenant, replicas, writer, read_at: None };
        self.keep_until(until, generation, space, emit);
    }

    /// Ends an unfinished put that can be read from a disk. Its memory is kept until then,
    /// because its writer may still be writing.
    pub(crate) fn leave_to_disk(&mut self, slot: ObjectSlot, until: Time, emit: Emit<'_>) {
        self.keep_written(slot, Some(until), emit);
        self.end_without_memory(slot, emit.now);
        self.emit_changed(slot, emit);
    }
}
