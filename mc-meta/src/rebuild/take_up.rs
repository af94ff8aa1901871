//! Shards enter their objects where they belong.

use mc_types::{Generation, ObjectKey, Time};

use crate::eviction::common::Fresh;
use crate::rebuild::sort::sort;
use crate::shard::Shard;
use crate::tenant::id::{TenantId, unscoped};
use crate::tenant::quota::PolicyError;
use crate::vocabulary::kinds::FileState;
use crate::vocabulary::slot::ObjectSlot;

/// The objects that shards have admitted.
#[derive(Default)]
pub(crate) struct Admitted {
    /// The objects that are to enter the orders of eviction, with the time of their last use.
    pub(crate) fresh: Vec<Fresh>,
    pub(crate) used: Vec<u64>,
    /// Objects that cannot be.
    pub(crate) dropped: Vec<(ObjectKey, Generation)>,
}

impl Admitted {
    pub(crate) fn add(&mut self, more: Self) {
        self.fresh.extend(more.fresh);
        self.used.extend(more.used);
        self.dropped.extend(more.dropped);
    }
}

/// The work that shards have taken up.
#[derive(Default)]
pub(crate) struct TakenUp {
    pub(crate) objects: u64,
    pub(crate) unfinished: u64,
    /// Objects that have lost their last segment.
    pub(crate) lost: u64,
    /// Objects that cannot be.
    pub(crate) dropped: Vec<(ObjectKey, Generation)>,
}

impl TakenUp {
    pub(crate) fn add(&mut self, more: Self) {
        self.objects += more.objects;
        self.unfinished += more.unfinished;
        self.lost += more.lost;
        self.dropped.extend(more.dropped);
    }
}

impl Shard {
    /// Charges the owners of its objects, and puts those that are in memory into the queues that they
    /// belong to.
    pub(crate) fn admit_found(&mut self) -> Admitted {
        let mut admitted = Admitted::default();
        // When objects were used that are in memory.
        let mut in_memory: Vec<(u64, u32)> = Vec::new();
        for slot in ObjectSlot::range(0..self.end()) {
            if self.object(slot).is_some() && self.charge(slot).is_err() {
                admitted.dropped.push(self.name_of(slot));
                self.detach(slot).take_replicas().release_uncharged();
            }
            let Some(object) = self.object(slot) else { continue };
            if object.is_complete() && object.has_memory() {
                in_memory.push((object.protection().last_touched().as_millis(), slot.as_u32()));
            }
        }
        if self.config().books.quotas.is_on() {
            // Each tenant's objects are in the order of their last use as soon as they are admitted.
            sort(&mut in_memory);
        }
        for (used, slot) in in_memory {
            if let Some(fresh) = self.admit(ObjectSlot::new(slot)) {
                admitted.fresh.push(fresh);
                admitted.used.push(used);
            }
        }
        self.shrink_index();
        admitted
    }

    /// Puts an object into the queue that it belongs to; returns what is to enter the orders.
    pub(crate) fn admit(&mut self, slot: ObjectSlot) -> Option<Fresh> {
        let item = self.item(slot);
        self.eviction().admit(slot, item)
    }

    /// Counts the times of its objects from now on, and enters them where it matters what is unfinished.
    /// Those that can be read count as leased: all, or those of `leased`, which is sorted.
    pub(crate) fn take_up(&mut self, leased: Option<&[Generation]>, now: Time) -> TakenUp {
        let is_leased =
            |generation| leased.is_none_or(|all| all.binary_search(&generation).is_ok());
        let mut open: Vec<(Generation, ObjectSlot)> = Vec::new();
        let mut taken = TakenUp::default();
        for slot in ObjectSlot::range(0..self.end()) {
            let Some(object) = self.object(slot) else { continue };
            // It lost a segment after the last record of it.
            if !object.is_whole() && self.lose_gone(slot) {
                taken.lost += 1;
                continue;
            }
            let object = self.get(slot);
            let has_memory = object.has_memory();
            if object.file() == FileState::Writing {
                // The client that writes it has its whole time again.
                self.reopen_file(slot, now);
            }
            if !self.get(slot).is_complete() {
                open.push((self.get(slot).generation, slot));
                continue;
            }
            taken.objects += 1;
            let is_leased = is_leased(self.get(slot).generation);
            self.renew(slot, is_leased, now);
            // A sink that needs the objects lists them.
            self.get_mut(slot).tell_kinds();
            if !has_memory {
                self.note_lost_memory(slot, now);
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
                self.config().books.quotas.release(tenant, 0);
            }
            is_double
        });
        for &(generation, slot) in &open {
            self.reopen_put(slot, generation);
            self.renew(slot, false, now);
            self.note_lost_memory(slot, now);
        }
        taken.unfinished = open.len() as u64;
        taken.objects += taken.unfinished;
        taken
    }

    /// Takes what an object had in segments that are gone, and the object when it has nothing else; true
    /// when it went.
    #[cold]
    fn lose_gone(&mut self, slot: ObjectSlot) -> bool {
        let tenant = self.tenant(slot);
        let gone = self.get_mut(slot).take_dead_replicas();
        self.give_back(tenant, gone);
        let object = self.get(slot);
        if object.has_memory() || object.outlives_memory() {
            return false;
        }
        self.detach(slot);
        self.config().books.quotas.release(tenant, 0);
        true
    }

    /// An object by what records name it.
    pub(crate) fn name_of(&self, slot: ObjectSlot) -> (ObjectKey, Generation) {
        let object = self.get(slot);
        (self.owned_key(slot), object.generation)
    }

    /// Charges the owner of an object's key with it, above the quota if need be.
    pub(crate) fn charge(&mut self, slot: ObjectSlot) -> Result<(), PolicyError> {
        if let Some(object) = self.object(slot)
            && self.config().books.quotas.is_on()
        {
            let bytes = object.replicas().fold(0, |sum: u64, r| sum.saturating_add(r.len()));
            let tenant = TenantId::new(unscoped(self.key(slot)).0).unwrap_or_default();
            let tenant = self.config().books.quotas.restore(&tenant, bytes)?;
            self.assign(slot, tenant);
            self.charge_below(slot, tenant);
        }
        Ok(())
    }

    /// Counts an object's times from now on, and those of its group.
    fn renew(&mut self, slot: ObjectSlot, is_leased: bool, now: Time) {
        let lease_end = now + self.config().terms.lease;
        let object = self.get_mut(slot);
        let is_complete = object.is_complete();
        object.renew(now, is_leased);
        if !object.has_memory() {
            // It is not evicted, so it shares nothing with its group.
            object.leave_group();
        }
        if let Some(membership) = object.membership() {
            membership.settle(slot);
            if is_leased || !is_complete {
                membership.group().access(lease_end);
            }
        }
        if is_complete {
            object.release_group();
        }
        self.eviction().renew_pin(slot);
    }
}
