//! Shards take up the objects that are in them.

use mc_types::{Generation, ObjectKey, Time};

use super::sort::sort;
use crate::evict::order::common::Fresh;
use crate::object::slot::ObjectSlot;
use crate::shard::Shard;
use crate::tenant::id::{TenantId, unscoped};
use crate::tenant::quota::PolicyError;
use crate::tier::kinds::FileState;

/// What a shard took up.
#[derive(Default)]
pub(super) struct TakenUp {
    pub(super) objects: u64,
    pub(super) unfinished: u64,
    /// Objects that cannot be.
    pub(super) dropped: Vec<(ObjectKey, Generation)>,
    /// What is to enter the orders of eviction, and when each of that was used last.
    pub(super) fresh: Vec<Fresh>,
    pub(super) used: Vec<u64>,
}

impl Shard {
    /// Enters its objects, which are there already, in the queues and groups that they
    /// belong to.
    pub(super) fn take_up(&mut self, now: Time) -> TakenUp {
        let mut open: Vec<(Generation, ObjectSlot)> = Vec::new();
        // When objects were used that are in memory.
        let mut in_memory: Vec<(u64, u32)> = Vec::new();
        let mut taken = TakenUp::default();
        let mut is_any_file_open = false;
        for slot in ObjectSlot::range(0..self.end()) {
            if self.object(slot).is_some() && self.charge(slot).is_err() {
                taken.dropped.push(self.name_of(slot));
                self.detach(slot).take_replicas().release_uncharged();
            }
            let Some(object) = self.object(slot) else { continue };
            is_any_file_open |= object.file() == FileState::Writing;
            if !object.is_complete() {
                open.push((object.generation, slot));
                continue;
            }
            taken.objects += 1;
            let used = object.protection().last_touched().as_millis();
            self.renew(slot, now);
            // A sink that needs the objects lists them.
            self.get_mut(slot).tell_kinds();
            if !self.get(slot).has_memory() {
                self.note_lost_memory(slot, now);
                continue;
            }
            in_memory.push((used, slot.as_u32()));
        }
        if self.config().quotas.is_on() {
            // Each tenant's objects are in the order of their last use as soon as they are admitted.
            sort(&mut in_memory);
        }
        for (used, slot) in in_memory {
            let slot = ObjectSlot::new(slot);
            let item = self.item(slot);
            if let Some(fresh) = self.eviction().admit(slot, item) {
                taken.fresh.push(fresh);
                taken.used.push(used);
            }
        }
        open.sort_unstable();
        open.dedup_by(|(later, slot), (generation, _)| {
            // A put is known by its generation alone.
            let is_double = later == generation;
            if is_double {
                taken.dropped.push(self.name_of(*slot));
                let tenant = self.tenant(*slot);
                let replicas = self.detach(*slot).take_replicas();
                self.give_back(tenant, replicas);
                self.config().quotas.release(tenant, 0);
            }
            is_double
        });
        if is_any_file_open {
            self.take_up_files(now);
        }
        for &(generation, slot) in &open {
            self.reopen_put(slot, generation);
            self.renew(slot, now);
            self.note_lost_memory(slot, now);
        }
        self.shrink_index();
        taken.unfinished = open.len() as u64;
        taken.objects += taken.unfinished;
        taken
    }

    /// An object by what records name it.
    pub(super) fn name_of(&self, slot: ObjectSlot) -> (ObjectKey, Generation) {
        let object = self.get(slot);
        (self.owned_key(object), object.generation)
    }

    /// Charges the owner of an object's key with it, above the quota if need be.
    fn charge(&mut self, slot: ObjectSlot) -> Result<(), PolicyError> {
        if let Some(object) = self.object(slot)
            && self.config().quotas.is_on()
        {
            let bytes = object.replicas().fold(0, |sum: u64, r| sum.saturating_add(r.len()));
            let tenant = TenantId::new(unscoped(self.key(object)).0).unwrap_or_default();
            let tenant = self.config().quotas.restore(&tenant, bytes)?;
            self.assign(slot, tenant);
        }
        Ok(())
    }

    /// The client that writes a file has its whole time again.
    fn take_up_files(&mut self, now: Time) {
        for slot in ObjectSlot::range(0..self.end()) {
            if self.object(slot).is_some_and(|object| object.file() == FileState::Writing) {
                self.reopen_file(slot, now);
            }
        }
    }

    /// Counts an object's times from now on, and those of its group.
    fn renew(&mut self, slot: ObjectSlot, now: Time) {
        let lease_end = now + self.config().terms.lease;
        let object = self.get_mut(slot);
        let is_complete = object.is_complete();
        object.renew(now, is_complete);
        if !object.has_memory() {
            // It is not evicted, so it shares nothing with its group.
            object.leave_group();
        }
        if let Some(membership) = object.membership() {
            membership.settle(slot);
            membership.group().access(lease_end);
        }
        if is_complete {
            object.release_group();
        }
    }
}
