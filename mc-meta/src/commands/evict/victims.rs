//! The eviction of objects from one shard.

use mc_types::{Generation, Time};

use crate::commands::tier::offload::OffloadDecision;
use crate::effect::emit::Emit;
use crate::eviction::Class;
use crate::eviction::choice::{Aim, Chosen, Evicted};
use crate::eviction::common::List;
use crate::shard::Shard;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::slot::ObjectSlot;

/// Offers after which the eviction of a tenant's objects lets go of the shard, so that commands
/// waiting for its lock wait microseconds.
const MAX_OFFERS: u64 = 256;

impl Shard {
    /// When an object was used last, if it is there.
    pub(crate) fn last_touched(&self, slot: ObjectSlot) -> Option<Time> {
        self.object(slot).map(|object| object.protection().last_touched())
    }

    /// Returns the object that this tenant would lose first.
    pub(crate) fn coldest_of(&mut self, tenant: TenantSlot, class: Class) -> Option<ObjectSlot> {
        self.eviction().coldest_of(tenant, class)
    }

    /// Evicts an object if it still goes first in its order, and may.
    pub(crate) fn evict_first(
        &mut self,
        list: List,
        slot: ObjectSlot,
        aim: Aim<'_>,
        emit: Emit<'_>,
    ) -> Evicted {
        if self.eviction().is_first(list, slot) {
            self.offer(slot, aim, emit)
        } else {
            Evicted::default()
        }
    }

    /// Evicts objects of a tenant until `aim` is met, none is left or enough have been looked at for
    /// one time.
    pub(crate) fn evict_of_tenant(
        &mut self,
        tenant: TenantSlot,
        class: Class,
        aim: Aim<'_>,
        emit: Emit<'_>,
    ) -> Evicted {
        let mut outcome = Evicted::default();
        for _ in 0..MAX_OFFERS {
            let Some(rest) = aim.after(&outcome) else { return outcome };
            let Some(slot) = self.coldest_of(tenant, class) else { return outcome };
            outcome += self.offer(slot, rest, emit);
        }
        outcome.cut_short = true;
        outcome
    }

    fn offer(&mut self, slot: ObjectSlot, aim: Aim<'_>, emit: Emit<'_>) -> Evicted {
        self.totals_mut().eviction_offers += 1;
        let chosen = self.eviction().offer(slot, aim.room(), emit.now);
        self.take_chosen(chosen, emit)
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
                self.take_chosen(chosen, emit)
            }
            None => Evicted::default(),
        }
    }

    fn take_chosen(&mut self, chosen: Chosen, emit: Emit<'_>) -> Evicted {
        let Chosen { victim, mut outcome } = chosen;
        if let Some(slot) = victim {
            self.take_victim(slot, &mut outcome, emit);
        }
        outcome
    }

    /// Takes a victim's memory, and it out of the shard's tables if that was all it had;
    /// or has it written to a disk first.
    fn take_victim(&mut self, slot: ObjectSlot, outcome: &mut Evicted, emit: Emit<'_>) {
        if self.writes_at_eviction() && self.is_spared(slot, outcome, emit) {
            return;
        }
        let gone = self.evict_from_memory(slot, emit);
        outcome.bytes = outcome.bytes.saturating_add(gone.bytes);
        outcome.objects += u64::from(gone.cause == Removal::Evicted);
    }

    /// Has a victim written to a disk before its memory goes. Returns whether it stays until then, or until it
    /// can be written.
    fn is_spared(&mut self, slot: ObjectSlot, outcome: &mut Evicted, emit: Emit<'_>) -> bool {
        match self.spare(slot, emit) {
            OffloadDecision::No => false,
            OffloadDecision::Writing { freed, promised } => {
                outcome.bytes = outcome.bytes.saturating_add(freed);
                outcome.promised = outcome.promised.saturating_add(promised);
                outcome.objects += u64::from(freed > 0);
                outcome.leased += 1;
                true
            }
            OffloadDecision::Later => {
                outcome.leased += 1;
                let until = emit.now + self.config().terms.lease;
                self.eviction().put_aside(slot, until);
                true
            }
        }
    }

    /// Takes out a member of a condemned group.
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

    /// Puts objects whose protection has ended back where victims are taken from, at most `limit`.
    /// Returns how many were looked at.
    pub(crate) fn readmit_due(&mut self, now: Time, limit: usize) -> usize {
        let mut done = 0;
        while done < limit && self.eviction().lapse_timed(now) {
            done += 1;
        }
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
        done
    }

    /// Puts the soft-pinned object that goes first among the ordinary if its pin has lapsed; `false`
    /// when it has not, and so none has.
    pub(crate) fn lapse_pin(&mut self, slot: ObjectSlot, now: Time) -> bool {
        self.eviction().lapse_pin(slot, now)
    }
}
