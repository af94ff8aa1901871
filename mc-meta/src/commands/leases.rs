//! Leases over a planned change of the master.
//!
//! Leases are not recorded: a record for each read would cost more than it saves, so that a
//! [`Rebuild`](crate::Rebuild) counts every object as leased. A master that hands over lists what is
//! leased, and its successor can evict the rest at once.

use mc_types::{Generation, Time};

use crate::effect::Effect;
use crate::effect::emit::Effects;
use crate::master::Master;
use crate::rebuild::leases::{AT_A_TIME, MAX_LISTED};
use crate::shard::Shard;
use crate::vocabulary::slot::ObjectSlot;

/// Slots of a shard that are looked at while it is locked.
const SLOTS: u32 = 4096;

impl Master {
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
