//! The choice of the objects that one shard loses.

use mc_evict::{EvictionPolicy, Item, Verdict};
use mc_lease::Terms;
use mc_types::{Generation, Time};
use smallvec::SmallVec;

use super::Order;
use crate::evict::group::{Member, Protected};
use crate::evict::order::{Class, Pool};
use crate::evict::room::Wanted;
use crate::object::slot::ObjectSlot;
use crate::object::{Object, Queue};
use crate::shard::objects::Objects;

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
    /// `leased` when a client uses it, or another of its group: it may go soon.
    Stays {
        until: Time,
        leased: bool,
    },
    /// Its going would not make the room that is wanted.
    Unfit,
}

/// The part of its objects that one shard may lose before others are looked at: the next victim
/// may be colder there.
const PART: usize = 32;

/// What one eviction may still do.
struct Budget<'a> {
    offers: u64,
    /// Objects that may still be chosen.
    victims: usize,
    /// Bytes still to be freed.
    bytes: u64,
    /// The room that one object is to make.
    room: Option<&'a Wanted<'a>>,
    /// Whether nothing else is to be offered.
    is_over: bool,
}

impl<'a> Budget<'a> {
    fn new(aim: Aim<'a>, held: usize) -> Self {
        let bytes = match aim {
            Aim::Free { bytes, .. } => bytes,
            Aim::Room(_) => 1,
        };
        let victims = (held / PART).max(1);
        Self { offers: 0, victims, bytes, room: aim.room(), is_over: false }
    }

    fn is_spent(&self) -> bool {
        self.is_over || self.bytes == 0 || self.victims == 0 || self.offers >= MAX_OFFERS
    }

    fn plan(&mut self, object: &Object) {
        let freed =
            object.replicas().fold(0, |sum: u64, replica| sum.saturating_add(replica.len()));
        self.bytes = self.bytes.saturating_sub(freed);
        self.victims = self.victims.saturating_sub(1);
        // What has nothing left makes no room, and goes all the same.
        self.is_over |= self.room.is_some() && freed > 0;
    }
}

/// The orders of a shard with the objects that are in them: what an eviction chooses from.
pub(crate) struct Eviction<'a> {
    order: &'a mut Order,
    objects: &'a mut Objects,
    terms: &'a Terms,
}

/// Objects that were taken out of their order to be evicted, with what is known of the eviction so
/// far.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub(super) victims: SmallVec<[ObjectSlot; 16]>,
    pub(super) outcome: Evicted,
}

impl<'a> Eviction<'a> {
    pub(crate) const fn new(
        order: &'a mut Order,
        objects: &'a mut Objects,
        terms: &'a Terms,
    ) -> Self {
        Self { order, objects, terms }
    }

    /// Returns the object that this pool would lose first.
    pub(super) fn coldest(&mut self, pool: Pool) -> Option<ObjectSlot> {
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

    /// How urgently the policy would evict an object; `None` when it has no measure for that.
    pub(super) fn urgency(&self) -> Option<u64> {
        self.order.main.urgency()
    }

    /// Returns the object whose soft pin has lapsed and that goes before any ordinary one.
    fn coldest_lapsed(&self) -> Option<ObjectSlot> {
        let touched =
            |slot| self.objects.get(slot).map(|object| object.protection().last_touched());
        let slot = self.order.coldest_lapsed()?;
        let main = self.order.coldest_main().and_then(touched);
        (main.is_none() || touched(slot) <= main).then_some(slot)
    }

    /// Chooses objects of `pool` until `aim` is met, none is left or enough have been looked at
    /// for one time.
    pub(super) fn choose(&mut self, pool: Pool, aim: Aim<'_>, now: Time) -> (Chosen, u64) {
        let mut chosen = Chosen::default();
        let mut budget = Budget::new(aim, self.order.len());
        self.order.tell();
        if let Some(tenant) = pool.tenant {
            let next = |all: &mut Self| all.order.coldest_of(tenant, pool.class);
            self.offer_all(next, &mut budget, &mut chosen, now);
        } else if pool.class == Class::SoftPinned {
            self.offer_all(|all| all.order.coldest_pinned(), &mut budget, &mut chosen, now);
        } else {
            self.offer_all(|all| all.coldest_lapsed(), &mut budget, &mut chosen, now);
            self.offer_main(&mut budget, &mut chosen, now);
            self.offer_all(|all| all.order.coldest_lapsed(), &mut budget, &mut chosen, now);
        }
        chosen.outcome.cut_short = budget.offers >= MAX_OFFERS;
        (chosen, budget.offers)
    }

    /// Offers ordinary objects in the order of the policy.
    fn offer_main(&mut self, budget: &mut Budget<'_>, chosen: &mut Chosen, now: Time) {
        let Order { main, aside, tenants, .. } = &mut *self.order;
        let (objects, terms) = (&mut *self.objects, self.terms);
        main.evict(&mut |handle| {
            if budget.is_spent() {
                return Verdict::Stop;
            }
            let slot = ObjectSlot::new(handle);
            budget.offers += 1;
            let object = &mut objects[slot];
            let judgement = judge(object, terms, budget.room, now);
            if let Some(tenants) = tenants
                && !matches!(judgement, Judgement::Unfit)
            {
                tenants.remove(slot);
            }
            match judgement {
                Judgement::Unfit => {
                    budget.is_over = true;
                    chosen.outcome.unfit = true;
                    Verdict::Stop
                }
                Judgement::Stays { until, leased } => {
                    chosen.outcome.leased += u64::from(leased);
                    aside.add(slot, object, until, leased);
                    Verdict::SetAside
                }
                Judgement::Goes(members) => {
                    object.enter(Queue::None);
                    budget.plan(object);
                    chosen.outcome.condemned.extend(members);
                    chosen.victims.push(slot);
                    Verdict::Evict
                }
            }
        });
    }

    /// Offers the objects that `next` names, one after the other.
    fn offer_all(
        &mut self,
        next: impl Fn(&mut Self) -> Option<ObjectSlot>,
        budget: &mut Budget<'_>,
        chosen: &mut Chosen,
        now: Time,
    ) {
        while !budget.is_spent()
            && let Some(slot) = next(self)
        {
            budget.offers += 1;
            let object = &mut self.objects[slot];
            match judge(object, self.terms, budget.room, now) {
                Judgement::Unfit => {
                    budget.is_over = true;
                    chosen.outcome.unfit = true;
                }
                Judgement::Stays { until, leased } => {
                    chosen.outcome.leased += u64::from(leased);
                    self.order.put_aside(slot, object, until, leased);
                }
                Judgement::Goes(members) => {
                    self.order.remove(slot, object);
                    budget.plan(object);
                    chosen.outcome.condemned.extend(members);
                    chosen.victims.push(slot);
                }
            }
        }
    }

    /// Chooses the object in a slot, for where it lies. Chooses nothing when it is another object,
    /// or protected, by now.
    pub(super) fn choose_one(
        &mut self,
        slot: ObjectSlot,
        generation: Generation,
        now: Time,
    ) -> Option<Chosen> {
        let object = self.objects.get_mut(slot).filter(|it| it.generation == generation)?;
        let mut chosen = Chosen::default();
        match judge(object, self.terms, None, now) {
            Judgement::Stays { leased, .. } => chosen.outcome.leased = u64::from(leased),
            Judgement::Unfit => {}
            Judgement::Goes(members) => {
                self.order.give_up(slot, object);
                chosen.outcome.condemned = members;
                chosen.victims.push(slot);
            }
        }
        Some(chosen)
    }

    /// Takes an object out of its order.
    pub(crate) fn remove(&mut self, slot: ObjectSlot) {
        self.order.remove(slot, &mut self.objects[slot]);
    }

    /// Offers an object again at this time.
    pub(super) fn put_aside(&mut self, slot: ObjectSlot, until: Time) {
        self.order.put_aside(slot, &mut self.objects[slot], until, true);
    }

    /// Puts an object into the order that it belongs to, as one that was just put.
    pub(crate) fn insert(&mut self, slot: ObjectSlot, item: Item) {
        self.order.insert(slot, &mut self.objects[slot], item);
    }

    /// Notes with an object where it belongs; returns what it has to be appended to.
    pub(crate) fn admit(&mut self, slot: ObjectSlot) -> Option<Class> {
        self.order.admit(slot, &mut self.objects[slot])
    }

    /// Puts an object that was admitted behind all others of its class.
    pub(crate) fn append(&mut self, slot: ObjectSlot, class: Class, item: Item) {
        self.order.append(slot, class, item);
    }

    /// Puts an object back that was set aside, as one that was just used.
    pub(super) fn readmit(&mut self, slot: ObjectSlot, is_pinned: bool, item: Item) {
        self.order.readmit(slot, &mut self.objects[slot], is_pinned, item);
    }

    /// Has ordinary objects evicted by another policy.
    pub(super) fn use_policy(
        &mut self,
        policy: Box<dyn EvictionPolicy>,
        item: impl Fn(ObjectSlot) -> Item,
    ) {
        self.order.use_policy(policy, item);
    }

    /// Notes that an object has nothing left in memory, and stays for what is on disks.
    pub(crate) fn leave_memory(&mut self, slot: ObjectSlot) {
        self.order.leave_memory(slot, &mut self.objects[slot]);
    }

    /// Notes that an object goes when it is on a disk.
    pub(crate) fn wait_for_disk(&mut self, slot: ObjectSlot) {
        self.order.wait_for_disk(slot, &mut self.objects[slot]);
    }

    /// Takes the next object out of those set aside whose time is over, unless it is leased again
    /// or has gone: its slot, and whether its soft pin is in force.
    pub(super) fn next_due(&mut self, now: Time) -> Option<Option<(ObjectSlot, bool)>> {
        let entry = self.order.aside.pop_due(now)?;
        let Some(object) = self.objects.get_mut(entry.slot) else { return Some(None) };
        let waits = matches!(object.queue(), Queue::Aside | Queue::Held);
        if object.generation != entry.generation || !waits {
            return Some(None);
        }
        self.order.remove(entry.slot, object);
        let group_end = object.group().map_or(Time::ORIGIN, |group| group.lease_end());
        let lease_end = object.protection().lease_end(self.terms).max(group_end);
        if lease_end > now {
            self.order.aside.add(entry.slot, object, lease_end, true);
            return Some(None);
        }
        Some(Some((entry.slot, object.protection().is_soft_pinned(self.terms, now))))
    }

    /// Puts up to `limit` soft-pinned objects whose pin has lapsed among the ordinary; returns
    /// their number.
    pub(super) fn lapse_pins(&mut self, now: Time, limit: usize) -> usize {
        let mut done = 0;
        while done < limit
            && let Some(slot) = self.order.coldest_pinned()
            && let Some(object) = self.objects.get_mut(slot)
            && !object.protection().is_soft_pinned(self.terms, now)
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
}

/// Returns whether an object that is offered may go.
fn judge(object: &Object, terms: &Terms, room: Option<&Wanted<'_>>, now: Time) -> Judgement {
    // The client that reads from a segment that is gone needs no protection any more.
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
