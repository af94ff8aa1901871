//! Protection of objects: pins of those that are there already, and leases over a planned change of the master.
//!
//! Leases are not recorded: a record for each read would cost more than it saves, so that a
//! [`Rebuild`](crate::Rebuild) counts every object as leased. A master that hands over lists what is
//! leased, and its successor can evict the rest at once.

use core::time::Duration;

use mc_lease::SoftPin;
use mc_types::{Generation, KeyRef, Time};

use crate::commands::error::PinError;
use crate::effect::Effect;
use crate::effect::emit::Effects;
use crate::eviction::common::List;
use crate::master::Master;
use crate::object::{Access, Queue};
use crate::rebuild::leases::{AT_A_TIME, MAX_LISTED};
use crate::shard::Shard;
use crate::vocabulary::slot::ObjectSlot;

/// Slots of a shard that are looked at while it is locked.
const SLOTS: u32 = 4096;

impl Master {
    /// Keeps an object in preference to others for `ttl` from now on, or for
    /// [`soft_pin_ttl`](crate::MasterConfig::soft_pin_ttl): as if its put had asked for that just now. The pin
    /// takes the place of another one; an object that is pinned for ever stays so. It counts as a use of the
    /// object, as [`exist`](Self::exist) does.
    ///
    /// # Errors
    /// [`PinError`] when there is no such object, or not yet, or the pin is too long.
    pub fn pin(&self, now: Time, key: KeyRef<'_>, ttl: Option<Duration>) -> Result<(), PinError> {
        let max = self.config.max_soft_pin_ttl;
        match ttl {
            Some(ttl) if ttl.is_zero() => Err(PinError::Zero),
            Some(ttl) if ttl > max => Err(PinError::TooLong { ttl, max }),
            ttl => self.set_pin(now, key, ttl.map_or(SoftPin::STANDARD, SoftPin::lasting)),
        }
    }

    /// Takes the pins from an object, those that keep it for ever too: it is evicted like any other from now
    /// on.
    ///
    /// # Errors
    /// [`PinError`] when there is no such object, or not yet.
    pub fn unpin(&self, now: Time, key: KeyRef<'_>) -> Result<(), PinError> {
        self.set_pin(now, key, SoftPin::NONE)
    }

    fn set_pin(&self, now: Time, key: KeyRef<'_>, pin: SoftPin) -> Result<(), PinError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let (slot, object) = shard.find_live(key, emit).ok_or(PinError::NotFound)?;
        if !object.is_complete() {
            return Err(PinError::NotReady);
        }
        if pin.is_wanted() && !shard.access(slot, Access::Asks, now) {
            return Err(PinError::NotFound);
        }
        shard.set_pin(slot, pin);
        shard.emit_pinned(slot, emit);
        Ok(())
    }

    /// Tells the sinks which objects are leased, for a successor that takes over now.
    ///
    /// From now on every command on a key depends on the list's beginning
    /// ([`Receipt::sequence`](crate::Receipt::sequence)), because it may grant a lease that the
    /// list lacks: a server that acknowledges nothing from before the list on shows no such lease.
    ///
    /// Looks at every object, a few thousand at a time under their shard's lock.
    pub fn list_leases(&self, now: Time) {
        let Some(effects) = &self.effects else { return };
        // Before the first look: a lease that the list lacks is granted after it.
        effects.begin_leases(now);
        let mut listed = Listed { effects, now, before: 0, some: Vec::new() };
        for shard in self.shards() {
            let mut from = 0;
            loop {
                let shard = shard.lock();
                let (to, end) = (shard.end().min(from + SLOTS), shard.end());
                let slots = ObjectSlot::range(from..to);
                listed.some.extend(slots.filter_map(|slot| shard.protected(slot, now)));
                drop(shard);
                listed.tell_full();
                if listed.len() > MAX_LISTED {
                    return;
                }
                from = to;
                if from >= end {
                    break;
                }
            }
        }
        listed.tell_last();
    }

    /// Tells the sinks that the list of [`list_leases`](Self::list_leases) is no longer valid: this
    /// master stays in service. Every command on a key depends on this, and is not to be
    /// acknowledged before all masters that could take over know it.
    pub fn withdraw_leases(&self, now: Time) {
        if let Some(effects) = &self.effects {
            effects.begin_leases(now);
        }
    }
}

/// A list that is told.
struct Listed<'a> {
    effects: &'a Effects,
    now: Time,
    /// Objects that were told.
    before: u64,
    some: Vec<Generation>,
}

impl Listed<'_> {
    fn len(&self) -> usize {
        self.before as usize + self.some.len()
    }

    fn tell_full(&mut self) {
        while self.some.len() > AT_A_TIME {
            let rest = self.some.split_off(AT_A_TIME);
            self.tell(false);
            self.some = rest;
        }
    }

    fn tell_last(mut self) {
        self.tell(true);
    }

    fn tell(&mut self, is_last: bool) {
        let (before, objects) = (self.before, &self.some[..]);
        self.effects.tell(self.now, &Effect::Leased { before, objects, is_last });
        self.before += self.some.len() as u64;
    }
}

impl Shard {
    /// Gives an object a pin, or none, and the place in the orders of eviction that it has by that.
    fn set_pin(&mut self, slot: ObjectSlot, pin: SoftPin) {
        let item = self.item(slot);
        let object = self.get(slot);
        let was_kept = object.is_hard_pinned() && object.queue() == Queue::None;
        let is_offered = List::of(object.queue()).is_some();
        if is_offered {
            self.eviction().remove(slot);
        }
        self.get_mut(slot).pin(pin);
        if pin.is_wanted() {
            // One that would go by itself some time after it was read stays.
            self.expire_never(slot);
        }
        // One that is aside comes back by its pin, and one that is below memory has no place.
        let is_kept = self.get(slot).is_hard_pinned();
        if is_offered || (was_kept && !is_kept && self.get(slot).has_memory()) {
            let is_pinned = pin.is_wanted();
            self.eviction().readmit(slot, is_pinned, item);
        }
    }

    /// The put of the object in a slot, if a client may use the object now, so that it stays.
    fn protected(&self, slot: ObjectSlot, now: Time) -> Option<Generation> {
        let object = self.object(slot)?;
        let is_used = self.transfer(slot).is_some()
            || self.offload(slot).is_some()
            || self.promotion(slot).is_some()
            || object.protection().is_leased(&self.config().terms, now);
        let stays = is_used || object.group().is_some_and(|it| it.lease_end() > now);
        (object.is_complete() && stays).then_some(object.generation)
    }
}
