//! Objects that go, and their space: given back at once, or kept for as long as clients may be reading it or
//! writing to it.

use mc_types::{ClientId, Time};

use crate::effect::Effect;
use crate::effect::emit::Emit;
use crate::effect::view::SpaceView;
use crate::object::Object;
use crate::shard::{RemovedObject, Retired, Shard};
use crate::side_tables::hook::Leaving;
use crate::side_tables::retained::{GrantId, LastRead, RetainedSpace};
use crate::space::replica::Replicas;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::request::LateWrites;
use crate::vocabulary::slot::ObjectSlot;

impl Shard {
    /// Takes an object out of every table and gives its space back. For one that had
    /// nothing left already the cause is another one.
    pub(crate) fn remove(
        &mut self,
        slot: ObjectSlot,
        cause: Removal,
        emit: Emit<'_>,
    ) -> RemovedObject {
        let object = self.get_mut(slot);
        let live = object.is_live();
        let lost = object.replicas().all(|replica| replica.segment.is_gone());
        let cause = match (live || object.outlives_memory(), lost) {
            _ if matches!(cause, Removal::DiskLost | Removal::Damaged) => cause,
            (true, _) => cause,
            (false, true) => Removal::SegmentLost,
            // Evicted with its group.
            (false, false) => Removal::Evicted,
        };
        if !self.objects[slot].is_plain() {
            self.abandon(slot, emit);
        }
        self.emit_removed(slot, cause, emit);
        let tenant = self.tenant(slot);
        let mut object = self.detach(slot);
        // Its bytes go with its replicas.
        self.config.books.quotas.release(tenant, 0);
        let bytes = self.give_back(tenant, object.take_replicas());
        if cause == Removal::Evicted {
            self.totals.add_evicted(1, bytes);
            self.config.books.quotas.evicted(tenant, bytes);
        }
        RemovedObject { cause, bytes }
    }

    /// Takes an object out of every table that others may be reading. Its space is kept for as
    /// long as they may.
    pub(crate) fn retire(&mut self, slot: ObjectSlot, cause: Removal, emit: Emit<'_>) -> Retired {
        let object = self.get(slot);
        if object.is_live()
            && let Some(read) = self.last_read(object, emit.now)
        {
            let until = read.until;
            let object = self.get_mut(slot);
            let (generation, replicas) = (object.generation, object.take_replicas());
            self.keep_read(slot, generation, replicas, read, emit);
            // Its space was taken already.
            let _ = self.take_out(slot, cause, emit);
            return Retired::Kept { until };
        }
        Retired::Gone(self.remove(slot, cause, emit))
    }

    /// The last read of an object, when clients may still be reading its memory.
    pub(crate) fn last_read(&self, object: &Object, now: Time) -> Option<LastRead> {
        let protection = object.protection();
        let until = protection.read_end(&self.config.terms).filter(|end| *end > now)?;
        let told = protection.last_read().filter(|_| protection.readers_tell());
        Some(LastRead { until, told })
    }

    /// Keeps space that was an object's for those who may be reading it. To be called before the
    /// object is reported as gone or changed.
    pub(crate) fn keep_read(
        &mut self,
        slot: ObjectSlot,
        grant: impl Into<GrantId>,
        replicas: Replicas,
        read: LastRead,
        emit: Emit<'_>,
    ) {
        let read_at = read.told.map(|at| (at, self.config.readers.keep(at)));
        let tenant = Some(self.tenant(slot));
        let space = RetainedSpace { tenant, replicas, writer: None, read_at };
        self.keep_until(read.until, grant, space, emit);
    }

    /// Takes an object out of every table and keeps its space until `release_at`,
    /// because a client may still be using it.
    pub(crate) fn discard(
        &mut self,
        slot: ObjectSlot,
        release_at: Time,
        cause: Removal,
        emit: Emit<'_>,
    ) {
        self.keep_written(slot, Some(release_at), emit);
        // Its space was taken already.
        let _ = self.take_out(slot, cause, emit);
    }

    /// Takes an object out of every table. Its space is the caller's, and stays charged.
    pub(crate) fn take_out(
        &mut self,
        slot: ObjectSlot,
        cause: Removal,
        emit: Emit<'_>,
    ) -> Replicas {
        if !self.objects[slot].is_plain() {
            self.abandon(slot, emit);
        }
        self.emit_removed(slot, cause, emit);
        let mut object = self.detach(slot);
        self.config.books.quotas.release(self.tenant(slot), 0);
        object.take_replicas()
    }

    /// Returns the client that writes the memory of an object: that of an unfinished put.
    pub(crate) fn writer(&self, slot: ObjectSlot) -> Option<ClientId> {
        let object = self.object(slot)?;
        (!object.is_complete()).then(|| self.client(object))
    }

    /// Keeps the space of a grant until then. To be called before its object is reported as
    /// gone or changed.
    pub(crate) fn keep_until(
        &mut self,
        until: Time,
        grant: impl Into<GrantId>,
        space: RetainedSpace,
        emit: Emit<'_>,
    ) {
        if !space.replicas.is_empty() {
            let (left, view) = (until - emit.now, SpaceView { replicas: &space.replicas });
            emit.effect(&Effect::SpaceKept { space: view, left });
            self.retained.add(until, grant.into(), space);
        }
    }

    /// Gives space back that the tenant was charged for; see [`Replicas::release`].
    pub(crate) fn give_back(&self, tenant: TenantSlot, space: Replicas) -> u64 {
        space.release(&self.config.books.quotas, tenant)
    }

    /// Forgets the replicas of an object whose segments or disks are gone, those in memory
    /// when its group was condemned, and the object when nothing is left; true when it
    /// stays.
    #[cold]
    pub(super) fn lose_dead(&mut self, slot: ObjectSlot, emit: Emit<'_>) -> bool {
        let object = self.get_mut(slot);
        if object.is_live() {
            let dead = object.take_dead_replicas();
            self.give_back(self.tenant(slot), dead);
            self.note_lost_memory(slot, emit.now);
            self.emit_changed(slot, emit);
            return true;
        }
        let stays = object.outlives_memory();
        if stays {
            self.evict_from_memory(slot, emit);
        } else {
            let cause = Removal::of_lost(object);
            self.remove(slot, cause, emit);
        }
        stays
    }

    /// Takes an object out of every table, reports nothing and leaves accounts as they are.
    pub(crate) fn detach(&mut self, slot: ObjectSlot) -> Object {
        let mut object = self.objects.take(slot);
        let is_plain = object.is_plain();
        self.take_key_from(slot, &object);
        self.owners.remove(object.owner);
        self.order.remove(slot, &mut object);
        if !object.is_complete() {
            self.open.ended(object.generation);
        }
        if !is_plain {
            let (tenant, books) = (self.tenant(slot), &self.config.books);
            self.sides.forget(Leaving { slot, object: &object, tenant, books });
        }
        object.leave_group();
        object
    }

    /// The key of an object that goes leads to its replacement from now on, if there is
    /// one. To a replacement no key has led.
    fn take_key_from(&mut self, slot: ObjectSlot, object: &Object) {
        let other = if object.is_beside() { self.part(slot) } else { None };
        let Some(name) = self.index.remove(object.tag, slot) else {
            debug_assert!(other.is_some(), "every key leads to an object");
            return;
        };
        match other {
            Some(replacement) => self.index.insert(object.tag, replacement, name),
            None => self.keys.remove(name),
        }
    }

    /// Notes that a client which has revoked a put or transfer writes no more, or that it
    /// still may; returns false when none of its space is kept. The caller has seen proof
    /// that the client began it.
    pub(crate) fn revoked_again(
        &mut self,
        client: ClientId,
        grant: impl Into<GrantId>,
        late: LateWrites,
        emit: Emit<'_>,
    ) -> bool {
        let grant = grant.into();
        if !self.retained.is_written_by(client, grant) {
            return false;
        }
        if late == LateWrites::Impossible
            && let Some(space) = self.retained.take(grant)
        {
            self.free(space, emit);
        }
        true
    }

    /// Gives space back that was kept.
    pub(super) fn free(&mut self, space: RetainedSpace, emit: Emit<'_>) {
        let RetainedSpace { tenant, replicas, .. } = space;
        emit.effect(&Effect::SpaceFreed { space: SpaceView { replicas: &replicas } });
        match tenant {
            Some(tenant) => self.give_back(tenant, replicas),
            None => replicas.release_uncharged(),
        };
    }

    /// Takes the memory of a complete object. One that has nothing else goes with it.
    /// The cause is the loss of its segment when there was no memory to take.
    pub(crate) fn evict_from_memory(&mut self, slot: ObjectSlot, emit: Emit<'_>) -> RemovedObject {
        let tenant = self.tenant(slot);
        let dead = self.get_mut(slot).take_dead_replicas();
        self.give_back(tenant, dead);
        if !self.get_mut(slot).outlives_memory() {
            return self.remove(slot, Removal::Evicted, emit);
        }
        self.leave_on_disk(slot, emit)
    }

    /// An object can be evicted as one that was just put.
    pub(crate) fn back_in_order(&mut self, slot: ObjectSlot) {
        let item = self.item(slot);
        let mut eviction = self.eviction();
        eviction.remove(slot);
        eviction.insert(slot, item);
    }
}
