//! The eviction of objects from one shard.

use std::collections::HashMap;

use mc_evict::{EvictionPolicy, Item};
use mc_types::{Generation, Time};

use super::choice::Chosen;
use crate::evict::order::choice::{Aim, Evicted};
use crate::evict::order::{Class, Pool};
use crate::journal::effect::Removal;
use crate::journal::emit::Emit;
use crate::object::Queue;
use crate::object::slot::ObjectSlot;
use crate::shard::{RemovedObject, Shard};
use crate::tier::offload::OffloadDecision;

impl Shard {
    /// Returns how urgently this pool should lose an object here, to be compared with other
    /// shards.
    pub(crate) fn urgency(&mut self, pool: Pool, now: Time) -> Option<u64> {
        let slot = self.coldest_slot(pool)?;
        let object = self.object(slot)?;
        let idle = now.as_millis().saturating_sub(object.protection().last_touched().as_millis());
        if pool.tenant.is_some() || pool.class == Class::SoftPinned {
            return Some(idle);
        }
        // An object whose soft pin has lapsed is here when it goes before all ordinary ones; a
        // policy's measure says nothing of it.
        let is_lapsed = object.queue() == Queue::Lapsed;
        let own = self.eviction().urgency();
        Some(own.map_or(idle, |own| if is_lapsed { u64::MAX } else { own }))
    }

    /// Returns the object that this pool would lose first.
    pub(crate) fn coldest_slot(&mut self, pool: Pool) -> Option<ObjectSlot> {
        self.eviction().coldest(pool)
    }

    /// Evicts objects of `pool` until `aim` is met, none is left or enough have been looked at for
    /// one time.
    pub(crate) fn evict(&mut self, pool: Pool, aim: Aim<'_>, emit: Emit<'_>) -> Evicted {
        let (chosen, offers) = self.eviction().choose(pool, aim, emit.now);
        self.totals_mut().eviction_offers += offers;
        self.take_victims(chosen, emit)
    }

    /// Evicts an object that was chosen for where it lies; nothing when it is another one,
    /// or protected, by now.
    pub(crate) fn evict_chosen(
        &mut self,
        slot: ObjectSlot,
        generation: Generation,
        emit: Emit<'_>,
    ) -> Evicted {
        match self.eviction().choose_one(slot, generation, emit.now) {
            Some(chosen) => {
                self.totals_mut().eviction_offers += 1;
                self.take_victims(chosen, emit)
            }
            None => Evicted::default(),
        }
    }

    fn take_victims(&mut self, chosen: Chosen, emit: Emit<'_>) -> Evicted {
        let Chosen { victims, mut outcome } = chosen;
        for slot in victims {
            self.take_victim(slot, &mut outcome, emit);
        }
        outcome
    }

    /// Takes a victim's memory, and it out of the shard's tables if that was all it had;
    /// or has it written to a disk first.
    fn take_victim(&mut self, slot: ObjectSlot, outcome: &mut Evicted, emit: Emit<'_>) {
        match self.spare(slot, emit) {
            OffloadDecision::No => {}
            OffloadDecision::Writing { freed, promised } => {
                outcome.bytes = outcome.bytes.saturating_add(freed);
                outcome.promised = outcome.promised.saturating_add(promised);
                outcome.objects += u64::from(freed > 0);
                outcome.leased += 1;
                return;
            }
            OffloadDecision::Later => {
                outcome.leased += 1;
                let until = emit.now + self.config().terms.lease;
                self.eviction().put_aside(slot, until);
                return;
            }
        }
        let gone = self.evict_from_memory(slot, emit);
        outcome.bytes = outcome.bytes.saturating_add(gone.bytes);
        outcome.objects += u64::from(gone.cause == Removal::Evicted);
    }

    /// Takes out a member of a group that was given up.
    pub(crate) fn evict_group_member(
        &mut self,
        generation: Generation,
        slot: ObjectSlot,
        emit: Emit<'_>,
    ) -> Evicted {
        let mut outcome = Evicted::default();
        if self.object(slot).is_some_and(|object| object.generation == generation) {
            self.take_victim(slot, &mut outcome, emit);
        }
        outcome
    }

    /// Puts objects whose protection has ended back where victims are taken from, and
    /// soft-pinned ones whose pin has lapsed among the ordinary; at most `limit`. Returns
    /// how many were looked at.
    pub(crate) fn readmit_due(&mut self, now: Time, limit: usize) -> usize {
        let mut done = 0;
        while done < limit
            && let Some(due) = self.eviction().next_due(now)
        {
            done += 1;
            if let Some((slot, is_pinned)) = due {
                // As if used when the protection ended: objects that come back one after the
                // other keep their order that way, and none is further from its place than
                // its protection lasted.
                let item = self.item(slot);
                self.eviction().readmit(slot, is_pinned, item);
            }
        }
        done + self.eviction().lapse_pins(now, limit - done)
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

    /// Has ordinary objects evicted by another policy.
    pub(crate) fn use_policy(&mut self, policy: Box<dyn EvictionPolicy>) {
        let items: HashMap<ObjectSlot, Item> = ObjectSlot::range(0..self.end())
            .filter_map(|slot| Some((slot, self.known_item(self.object(slot)?))))
            .collect();
        let item = |slot| items.get(&slot).copied().unwrap_or(Item::UNKNOWN);
        self.eviction().use_policy(policy, item);
    }

    /// An object can be evicted as one that was just put.
    pub(crate) fn back_in_order(&mut self, slot: ObjectSlot) {
        let item = self.item(slot);
        let mut eviction = self.eviction();
        eviction.remove(slot);
        eviction.insert(slot, item);
    }
}
