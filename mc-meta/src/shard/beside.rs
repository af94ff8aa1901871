//! The entries of a shard's objects in its side tables.
//!
//! Every change of one passes by [`Shard::change_sides`], which keeps the mark of its object.

use mc_types::Time;

use crate::effect::emit::Emit;
use crate::shard::Shard;
use crate::side_tables::SideTables;
use crate::side_tables::hook::{Leaving, Lingering, SideTable};
use crate::side_tables::offload::Offload;
use crate::side_tables::promotion::Promotion;
use crate::side_tables::transfer::Transfer;
use crate::vocabulary::slot::ObjectSlot;

impl Shard {
    /// The side tables, if one has an entry of the object in a slot.
    fn beside(&self, slot: ObjectSlot) -> Option<&SideTables> {
        self.object(slot)?.is_beside().then_some(&self.sides)
    }

    /// Changes the entries of the object in a slot.
    pub(super) fn change_sides<T>(
        &mut self,
        slot: ObjectSlot,
        change: impl FnOnce(&mut SideTables) -> T,
    ) -> T {
        let value = change(&mut self.sides);
        let is_beside = self.sides.has(slot);
        if let Some(object) = self.objects.get_mut(slot) {
            object.set_beside(is_beside);
        }
        value
    }

    /// Returns the copy or move of an object. While there is one, no client removes the object
    /// or takes a replica of it but with the segment.
    pub(crate) fn transfer(&self, slot: ObjectSlot) -> Option<&Transfer> {
        self.beside(slot)?.transfers.get(slot)
    }

    /// Notes that the copy or move of an object has begun.
    pub(crate) fn open_transfer(&mut self, slot: ObjectSlot, transfer: Transfer) {
        self.change_sides(slot, |sides| sides.transfers.begin(slot, transfer));
    }

    /// Takes the copy or move of an object that ends.
    pub(crate) fn close_transfer(&mut self, slot: ObjectSlot) -> Option<Transfer> {
        self.beside(slot)?;
        self.change_sides(slot, |sides| sides.transfers.end(slot))
    }

    /// Returns the oldest copy or move with the slot of its object.
    pub(crate) fn oldest_transfer(&self) -> Option<(ObjectSlot, &Transfer)> {
        self.sides.transfers.oldest()
    }

    /// Returns who is to write an object to a disk.
    pub(crate) fn offload(&self, slot: ObjectSlot) -> Option<Offload> {
        self.beside(slot)?.offloads.get(slot)
    }

    pub(crate) fn set_offload(&mut self, slot: ObjectSlot, offload: Offload) {
        self.change_sides(slot, |sides| sides.offloads.set(slot, offload));
    }

    /// Notes that the client that is to write an object to a disk has come for it.
    pub(crate) fn offload_fetched(&mut self, slot: ObjectSlot, now: Time) {
        self.sides.offloads.fetched(slot, now);
    }

    pub(crate) fn take_offload(&mut self, slot: ObjectSlot) -> Option<Offload> {
        self.beside(slot)?;
        self.change_sides(slot, |sides| sides.offloads.take(slot))
    }

    /// Returns where an object comes back into memory.
    pub(crate) fn promotion(&self, slot: ObjectSlot) -> Option<&Promotion> {
        self.beside(slot)?.promotions.get(slot)
    }

    pub(crate) fn open_promotion(&mut self, slot: ObjectSlot, promotion: Promotion) {
        self.change_sides(slot, |sides| sides.promotions.begin(slot, promotion));
    }

    pub(crate) fn close_promotion(&mut self, slot: ObjectSlot) -> Option<Promotion> {
        self.beside(slot)?;
        self.change_sides(slot, |sides| sides.promotions.end(slot))
    }

    /// Returns whether an object stays although no client uses it, because it is copied, moved or about to be
    /// written to a disk.
    pub(crate) fn is_busy(&self, slot: ObjectSlot, now: Time) -> bool {
        self.beside(slot).is_some_and(|sides| sides.busy_until(slot, now, now).is_some())
    }

    /// Returns the slot of the object that is being written to take this one's place.
    pub(crate) fn replacement(&self, old: ObjectSlot) -> Option<ObjectSlot> {
        self.beside(old)?.replacements.replacement(old)
    }

    /// Returns the slot of the object that this one, once written, takes the place of.
    pub(crate) fn replaced(&self, new: ObjectSlot) -> Option<ObjectSlot> {
        self.beside(new)?.replacements.replaced(new)
    }

    /// Notes that an object is to take the place of another one.
    pub(super) fn replace(&mut self, old: ObjectSlot, new: ObjectSlot) {
        self.change_sides(old, |sides| sides.replacements.begin(old, new));
        self.get_mut(new).set_beside(true);
    }

    /// Parts an object from the one that it was to replace, or that was to replace it; returns the slot of
    /// that.
    pub(super) fn part(&mut self, slot: ObjectSlot) -> Option<ObjectSlot> {
        let other = self.sides.replacements.part(slot)?;
        self.change_sides(other, |_| ());
        Some(other)
    }

    /// Has an object removed at this time, unless it already is to go.
    pub(crate) fn expire_at(&mut self, slot: ObjectSlot, due: Time) -> bool {
        let is_new = self.beside(slot).is_none_or(|sides| !sides.expiring.has(slot));
        if is_new {
            self.change_sides(slot, |sides| sides.expiring.add(slot, due));
        }
        is_new
    }

    /// Lets an object stay that was to be removed at some time.
    pub(crate) fn expire_never(&mut self, slot: ObjectSlot) {
        if self.beside(slot).is_some_and(|sides| sides.expiring.has(slot)) {
            self.change_sides(slot, |sides| sides.expiring.cancel(slot));
        }
    }

    /// Returns whether an object's time is over.
    pub(crate) fn is_expired(&self, slot: ObjectSlot, now: Time) -> bool {
        self.beside(slot).is_some_and(|sides| sides.expiring.is_over(slot, now))
    }

    /// Takes the next entry whose time is over: the slot of its object, unless that went earlier.
    pub(crate) fn next_expired(&mut self, now: Time) -> Option<Option<ObjectSlot>> {
        self.sides.expiring.pop_due(now)
    }

    /// Gives back what the file of an object that stays had.
    pub(crate) fn forget_file(&mut self, slot: ObjectSlot) {
        let (tenant, books) = (self.order.tenant(slot), &self.config.books);
        let object = &self.objects[slot];
        self.sides.files.forget(Leaving { slot, object, tenant, books });
    }

    /// Takes an object out of its group.
    pub(crate) fn leave_group(&mut self, slot: ObjectSlot) {
        self.get_mut(slot).leave_group();
        self.sides.transfers.leave_group(slot);
    }

    /// Ends what is under way for an object that goes. Space that clients may still be writing to is kept.
    pub(super) fn abandon(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        let (tenant, books) = (self.order.tenant(slot), &self.config.books);
        let object = &self.objects[slot];
        for kept in self.sides.abandon(Leaving { slot, object, tenant, books }) {
            self.linger(kept, emit);
        }
    }

    /// Keeps the space of a grant that has ended for as long as its client may be writing there.
    pub(crate) fn linger(&mut self, kept: Lingering, emit: Emit<'_>) {
        self.keep_until(kept.until, kept.grant, kept.space, emit);
    }
}
