//! How the objects that one shard loses are chosen and taken.

use std::collections::HashMap;

use mc_evict::{EvictionPolicy, Item, Verdict};
use mc_lease::Terms;
use mc_types::{Generation, Time};

use super::{Aside, Order};
use crate::evict::group::{Member, Protected};
use crate::evict::order::{Class, Pool};
use crate::evict::room::Wanted;
use crate::journal::effect::Removal;
use crate::journal::emit::Emit;
use crate::object::slot::ObjectSlot;
use crate::object::{Object, Queue};
use crate::shard::{Gone, Shard};
use crate::tier::offload::Spared;

/// Offers after which one eviction call lets go of the shard, so that commands
/// waiting for its lock wait microseconds.
const MAX_OFFERS: u64 = 256;

/// What an eviction is to achieve.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim<'a> {
    /// At least so many free bytes, of no more than about so many objects.
    Free { bytes: u64, victims: u64 },
    /// Room for a put, by the going of one object alone.
    Room(&'a Wanted<'a>),
}

impl<'a> Aim<'a> {
    /// What is left to do after `outcome`; `None` when nothing is, or nothing else helps.
    pub(crate) const fn after(self, outcome: &Evicted) -> Option<Self> {
        match self {
            Self::Free { bytes, victims } => {
                let is_left = outcome.taken() < bytes && outcome.objects < victims;
                let (bytes, victims) = (
                    bytes.saturating_sub(outcome.taken()),
                    victims.saturating_sub(outcome.objects),
                );
                if is_left { Some(Self::Free { bytes, victims }) } else { None }
            }
            Self::Room(_) if outcome.taken() > 0 || outcome.unfit => None,
            Self::Room(_) => Some(self),
        }
    }

    /// A part of it for one shard: the next victim may be colder in another.
    pub(crate) const fn share(self) -> Self {
        match self {
            Self::Free { bytes, victims } => Self::Free { bytes: bytes.div_ceil(16), victims },
            Self::Room(_) => self,
        }
    }

    const fn room(self) -> Option<&'a Wanted<'a>> {
        match self {
            Self::Free { .. } => None,
            Self::Room(wanted) => Some(wanted),
        }
    }
}

/// What an eviction freed, and what stopped it.
#[derive(Debug, Default)]
pub(crate) struct Evicted {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// Bytes that come free when what is evicted is on a disk.
    pub(crate) promised: u64,
    /// Objects set aside because they are leased, or about to be written to a disk.
    pub(crate) leased: u64,
    /// Whether there was more to look at than one eviction may.
    pub(crate) cut_short: bool,
    /// Whether the coldest object alone does not make the room that is wanted.
    pub(crate) unfit: bool,
    /// Members of groups that were given up, still to be taken out of their shards.
    pub(crate) condemned: Vec<(Generation, Member)>,
}

impl Evicted {
    /// Bytes that are free, or will be.
    pub(crate) const fn taken(&self) -> u64 {
        self.bytes.saturating_add(self.promised)
    }
}

impl std::ops::AddAssign for Evicted {
    fn add_assign(&mut self, mut more: Self) {
        self.objects += more.objects;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.promised = self.promised.saturating_add(more.promised);
        self.leased += more.leased;
        self.cut_short |= more.cut_short;
        self.unfit |= more.unfit;
        self.condemned.append(&mut more.condemned);
    }
}

/// What stands between a victim and its eviction.
enum Judgement {
    Goes(Vec<(Generation, Member)>),
    /// `leased` when somebody uses it, or another of its group: it may go soon.
    Stays {
        until: Time,
        leased: bool,
    },
    /// Its going would not make the room that is wanted.
    Unfit,
}

/// What one eviction may still do.
struct Budget<'a> {
    offers: u64,
    /// Bytes still to be freed.
    bytes: u64,
    /// The room that one object is to make.
    room: Option<&'a Wanted<'a>>,
    /// Whether nothing else is to be offered.
    is_over: bool,
}

impl<'a> Budget<'a> {
    const fn new(aim: Aim<'a>) -> Self {
        let bytes = match aim {
            Aim::Free { bytes, .. } => bytes,
            Aim::Room(_) => 1,
        };
        Self { offers: 0, bytes, room: aim.room(), is_over: false }
    }

    fn is_spent(&self) -> bool {
        self.is_over || self.bytes == 0 || self.offers >= MAX_OFFERS
    }

    fn plan(&mut self, object: &Object) {
        let freed =
            object.replicas().fold(0, |sum: u64, replica| sum.saturating_add(replica.len()));
        self.bytes = self.bytes.saturating_sub(freed);
        // What has nothing left makes no room, and goes all the same.
        self.is_over |= self.room.is_some() && freed > 0;
    }
}

impl Shard {
    /// When the object that this pool would lose first was last used.
    pub(crate) fn coldest(&mut self, pool: Pool) -> Option<Time> {
        let slot = self.coldest_slot(pool)?;
        self.objects.get(slot).map(|object| object.protection().last_touched())
    }

    /// The object that this pool would lose first.
    pub(crate) fn coldest_slot(&mut self, pool: Pool) -> Option<ObjectSlot> {
        // What was accessed is no longer the coldest.
        self.order.tell();
        if let Some(tenant) = pool.tenant {
            return self.order.coldest_of(tenant, pool.class);
        }
        match pool.class {
            Class::SoftPinned => self.order.coldest_pinned(),
            Class::Ordinary => self.coldest_lapsed().or_else(|| self.order.coldest_main()),
        }
    }

    /// Evicts objects of `pool` until `aim` is met, none is left or enough have been looked at for
    /// one time.
    pub(crate) fn evict(&mut self, pool: Pool, aim: Aim<'_>, emit: Emit<'_>) -> Evicted {
        let mut outcome = Evicted::default();
        let mut budget = Budget::new(aim);
        if let Some(tenant) = pool.tenant {
            self.order.tell();
            while !budget.is_spent()
                && let Some(slot) = self.order.coldest_of(tenant, pool.class)
            {
                self.offer(slot, &mut budget, &mut outcome, emit);
            }
        } else if pool.class == Class::SoftPinned {
            while !budget.is_spent()
                && let Some(slot) = self.order.coldest_pinned()
            {
                self.offer(slot, &mut budget, &mut outcome, emit);
            }
        } else {
            while !budget.is_spent()
                && let Some(slot) = self.coldest_lapsed()
            {
                self.offer(slot, &mut budget, &mut outcome, emit);
            }
            self.evict_main(&mut budget, &mut outcome, emit);
            while !budget.is_spent()
                && let Some(slot) = self.order.coldest_lapsed()
            {
                self.offer(slot, &mut budget, &mut outcome, emit);
            }
        }
        self.totals.eviction_offers += budget.offers;
        outcome.cut_short |= budget.offers >= MAX_OFFERS;
        outcome
    }

    fn evict_main(&mut self, budget: &mut Budget<'_>, outcome: &mut Evicted, emit: Emit<'_>) {
        self.order.tell();
        // Nothing else can change while the policy offers: what goes is collected first.
        let mut victims = smallvec::SmallVec::<[ObjectSlot; 16]>::new();
        let Order { main, aside, tenants, .. } = &mut self.order;
        let (objects, terms) = (&mut self.objects, &self.config.terms);
        main.evict(&mut |handle| {
            if budget.is_spent() {
                return Verdict::Stop;
            }
            let slot = ObjectSlot::new(handle);
            budget.offers += 1;
            let object = &mut objects[slot];
            let judgement = judge(object, terms, budget.room, emit.now);
            if let Some(tenants) = tenants
                && !matches!(judgement, Judgement::Unfit)
            {
                tenants.remove(slot);
            }
            match judgement {
                Judgement::Unfit => {
                    budget.is_over = true;
                    outcome.unfit = true;
                    Verdict::Stop
                }
                Judgement::Stays { until, leased } => {
                    outcome.leased += u64::from(leased);
                    aside.add(slot, object, until, leased);
                    Verdict::SetAside
                }
                Judgement::Goes(members) => {
                    object.enter(Queue::None);
                    budget.plan(object);
                    outcome.condemned.extend(members);
                    victims.push(slot);
                    Verdict::Evict
                }
            }
        });
        for slot in victims {
            self.take_victim(slot, outcome, emit);
        }
    }

    /// The object whose soft pin has lapsed and that goes before any ordinary one.
    fn coldest_lapsed(&self) -> Option<ObjectSlot> {
        let touched =
            |slot| self.objects.get(slot).map(|object| object.protection().last_touched());
        let slot = self.order.coldest_lapsed()?;
        let main = self.order.coldest_main().and_then(touched);
        (main.is_none() || touched(slot) <= main).then_some(slot)
    }

    /// Offers one object as a victim.
    fn offer(
        &mut self,
        slot: ObjectSlot,
        budget: &mut Budget<'_>,
        outcome: &mut Evicted,
        emit: Emit<'_>,
    ) {
        budget.offers += 1;
        let object = &mut self.objects[slot];
        match judge(object, &self.config.terms, budget.room, emit.now) {
            Judgement::Unfit => {
                budget.is_over = true;
                outcome.unfit = true;
            }
            Judgement::Stays { until, leased } => {
                outcome.leased += u64::from(leased);
                self.order.remove(slot, object);
                self.order.aside.add(slot, object, until, leased);
            }
            Judgement::Goes(members) => {
                self.order.remove(slot, object);
                budget.plan(object);
                outcome.condemned.extend(members);
                self.take_victim(slot, outcome, emit);
            }
        }
    }

    /// Evicts an object that was chosen for where it lies; nothing when it is another one,
    /// or protected, by now.
    pub(crate) fn evict_chosen(
        &mut self,
        slot: ObjectSlot,
        generation: Generation,
        emit: Emit<'_>,
    ) -> Evicted {
        let mut outcome = Evicted::default();
        let Some(object) = self.objects.get_mut(slot).filter(|it| it.generation == generation)
        else {
            return outcome;
        };
        self.totals.eviction_offers += 1;
        match judge(object, &self.config.terms, None, emit.now) {
            Judgement::Stays { leased, .. } => outcome.leased += u64::from(leased),
            Judgement::Unfit => {}
            Judgement::Goes(members) => {
                self.order.give_up(slot, object);
                outcome.condemned.extend(members);
                self.take_victim(slot, &mut outcome, emit);
            }
        }
        outcome
    }

    /// Takes a victim's memory, and it out of the shard's tables if that was all it had;
    /// or has it written to a disk first.
    fn take_victim(&mut self, slot: ObjectSlot, outcome: &mut Evicted, emit: Emit<'_>) {
        match self.spare(slot, emit) {
            Spared::No => {}
            Spared::Writing { freed, promised } => {
                outcome.bytes = outcome.bytes.saturating_add(freed);
                outcome.promised = outcome.promised.saturating_add(promised);
                outcome.objects += u64::from(freed > 0);
                outcome.leased += 1;
                return;
            }
            Spared::Later => {
                outcome.leased += 1;
                let until = emit.now + self.config.terms.lease;
                let object = &mut self.objects[slot];
                self.order.put_aside(slot, object, until, true);
                return;
            }
        }
        let gone = self.evict_memory(slot, emit);
        outcome.bytes = outcome.bytes.saturating_add(gone.bytes);
        outcome.objects += u64::from(gone.cause == Removal::Evicted);
    }

    /// Takes out a member of a group that was given up.
    pub(crate) fn evict_member(
        &mut self,
        generation: Generation,
        slot: ObjectSlot,
        emit: Emit<'_>,
    ) -> Evicted {
        let mut outcome = Evicted::default();
        if self.objects.get(slot).is_some_and(|object| object.generation == generation) {
            self.take_victim(slot, &mut outcome, emit);
        }
        outcome
    }

    /// Puts objects whose protection has ended back where victims are taken from, and
    /// soft-pinned ones whose pin has lapsed among the ordinary; at most `limit`. Says
    /// how many were looked at.
    pub(crate) fn readmit_due(&mut self, now: Time, limit: usize) -> usize {
        let mut done = 0;
        while done < limit
            && let Some(entry) = self.order.aside.pop_due(now)
        {
            done += 1;
            self.readmit(entry, now);
        }
        while done < limit
            && let Some(slot) = self.order.coldest_pinned()
            && let Some(object) = self.objects.get_mut(slot)
            && !object.protection().is_soft_pinned(&self.config.terms, now)
        {
            done += 1;
            self.order.remove(slot, object);
            self.order.lapsed.insert(slot.as_u32(), Item::UNKNOWN);
            if let Some(tenants) = &mut self.order.tenants {
                tenants.insert_coldest(slot, Class::Ordinary);
            }
            object.enter(Queue::Lapsed);
        }
        done
    }

    fn readmit(&mut self, entry: Aside, now: Time) {
        let terms = self.config.terms;
        let Some(object) = self.objects.get_mut(entry.slot) else { return };
        let waits = matches!(object.queue(), Queue::Aside | Queue::Held);
        if object.generation != entry.generation || !waits {
            return;
        }
        self.order.remove(entry.slot, object);
        let group_end = object.group().map_or(Time::ORIGIN, |group| group.lease_end());
        let lease_end = object.protection().lease_end(&terms).max(group_end);
        if lease_end > now {
            self.order.aside.add(entry.slot, object, lease_end, true);
            return;
        }
        // As if used when the protection ended: objects that come back one after the
        // other keep their order that way, and none is further from its place than
        // its protection lasted.
        let pinned = object.protection().is_soft_pinned(&terms, now);
        let object = &self.objects[entry.slot];
        let item = self.item(object);
        let object = &mut self.objects[entry.slot];
        self.order.readmit(entry.slot, object, pinned, item);
    }

    /// Takes the memory of a complete object. One that has nothing else goes with it.
    /// The cause is the loss of its segment when there was no memory to take.
    pub(crate) fn evict_memory(&mut self, slot: ObjectSlot, emit: Emit<'_>) -> Gone {
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
            .filter_map(|slot| Some((slot, self.item(self.object(slot)?))))
            .collect();
        self.order.use_policy(policy, |slot| items.get(&slot).copied().unwrap_or(Item::UNKNOWN));
    }

    /// An object can be evicted as one that was just put.
    pub(crate) fn back_in_order(&mut self, slot: ObjectSlot) {
        let item = self.item(&self.objects[slot]);
        let object = &mut self.objects[slot];
        self.order.remove(slot, object);
        self.order.insert(slot, object, item);
    }
}

/// Whether an object that is offered may go.
fn judge(object: &Object, terms: &Terms, room: Option<&Wanted<'_>>, now: Time) -> Judgement {
    // Whoever reads from a segment that is gone needs no protection any more.
    if !object.is_live() || !object.has_memory() {
        return Judgement::Goes(Vec::new());
    }
    if object.protection().is_leased(terms, now) {
        return Judgement::Stays { until: object.protection().lease_end(terms), leased: true };
    }
    // What lies in segments that take no new objects makes no room by going.
    let later = now + terms.lease;
    if !object.frees_room() {
        return Judgement::Stays { until: later, leased: false };
    }
    // What is being copied stays until that is over.
    if object.transfer().is_some() || object.offload().is_some() {
        return Judgement::Stays { until: later, leased: true };
    }
    if room.is_some_and(|room| !room.is_made_by(object, now)) {
        return Judgement::Unfit;
    }
    let Some(group) = object.group() else { return Judgement::Goes(Vec::new()) };
    match group.condemn(now) {
        Ok(mut members) => {
            members.retain(|(member, _)| *member != object.generation);
            Judgement::Goes(members)
        }
        Err(Protected::Leased(until)) => Judgement::Stays { until, leased: true },
        Err(Protected::Held) => Judgement::Stays { until: later, leased: true },
    }
}
