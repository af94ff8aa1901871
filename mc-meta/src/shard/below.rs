//! Objects that lose their memory and stay for what is on disks, or lose what is there.

use mc_types::{ClientId, Time};

use crate::effect::emit::Emit;
use crate::shard::{RemovedObject, Shard};
use crate::tenant::below::TierBelow;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::kinds::FileState;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

impl Shard {
    /// Evicts the memory of an object that is on a disk, too, and stays for that.
    pub(crate) fn leave_on_disk(&mut self, slot: ObjectSlot, emit: Emit<'_>) -> RemovedObject {
        let tenant = self.tenant(slot);
        let object = self.get_mut(slot);
        let had_memory = object.has_memory();
        let memory = object.take_replicas();
        self.stay_on_disk(slot);
        self.emit_changed(slot, emit);
        let bytes = self.give_back(tenant, memory);
        if !had_memory {
            return RemovedObject { cause: Removal::SegmentLost, bytes };
        }
        self.totals_mut().add_evicted(1, bytes);
        self.config().books.quotas.evicted(tenant, bytes);
        RemovedObject { cause: Removal::Evicted, bytes }
    }

    /// Ends a put that has no memory, because it is on a disk.
    pub(crate) fn end_without_memory(&mut self, slot: ObjectSlot, now: Time) {
        self.leave_group(slot);
        let object = self.get_mut(slot);
        let generation = object.generation;
        object.complete(now, true);
        self.close_put(generation);
        self.stay_on_disk(slot);
    }

    /// Takes an object that has no memory left out of the order of eviction, and out of
    /// its group, with which it shares nothing any more.
    fn stay_on_disk(&mut self, slot: ObjectSlot) {
        self.leave_group(slot);
        self.eviction().leave_memory(slot);
    }

    /// An object that has lost its segments leaves the order of eviction, and its put is
    /// over when it is on a disk.
    pub(crate) fn note_lost_memory(&mut self, slot: ObjectSlot, now: Time) {
        let Some(object) = self.object(slot) else { return };
        if object.has_memory() {
            return;
        }
        if object.is_complete() {
            self.stay_on_disk(slot);
        } else if object.is_in_tier() {
            self.end_without_memory(slot, now);
        }
    }

    /// The file of an object will not come.
    pub(crate) fn give_up_file(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        self.drop_file(slot);
        self.lost_from_disk(slot, Removal::DiskLost, emit);
    }

    /// Takes a replica away that is damaged: on the disk of this client, or else the file.
    pub(crate) fn drop_damaged_from_disk(
        &mut self,
        slot: ObjectSlot,
        client: Option<ClientId>,
        emit: Emit<'_>,
    ) {
        match client {
            Some(client) => self.leave_disk_of(slot, client),
            None => {
                let object = self.object(slot).expect("the caller has found it");
                let (key, generation, len) = (self.key(slot), object.generation, object.len());
                self.config().books.files.delete(key, generation, len);
                self.drop_file(slot);
            }
        }
        self.lost_from_disk(slot, Removal::Damaged, emit);
    }

    /// An object is not on the disk of this client any more.
    pub(crate) fn leave_disk_of(&mut self, slot: ObjectSlot, client: ClientId) {
        self.get_mut(slot).remove_local_disk(client);
    }

    /// Forgets the file of an object.
    pub(crate) fn drop_file(&mut self, slot: ObjectSlot) {
        self.forget_file(slot);
        self.get_mut(slot).set_file(FileState::None);
    }

    /// Charges its tenant for the file of an object, beyond the quota if need be.
    pub(crate) fn charge_file(&mut self, slot: ObjectSlot) {
        let object = self.get_mut(slot);
        if object.file() == FileState::None || object.is_file_charged() {
            return;
        }
        let len = object.len();
        object.set_file_charged(true);
        self.config().books.quotas.add_below(TierBelow::Files, self.tenant(slot), len);
    }

    /// Charges a tenant for all that an object has below memory, when a master is rebuilt.
    pub(crate) fn charge_below(&mut self, slot: ObjectSlot, tenant: TenantSlot) {
        self.charge_file(slot);
        self.get_mut(slot).charge_disks(tenant);
    }

    /// An object is on one disk less; it goes when that was all there was of it.
    pub(crate) fn lost_from_disk(&mut self, slot: ObjectSlot, cause: Removal, emit: Emit<'_>) {
        let object = self.get_mut(slot);
        if object.has_memory() || object.outlives_memory() {
            self.emit_given_up(slot, emit);
        } else {
            self.remove(slot, cause, emit);
        }
    }
}
