//! The choice of the objects that one shard loses.

use mc_evict::Item;
use mc_lease::Terms;
use mc_types::{Generation, Time};

use crate::eviction::common::{Fresh, List};
use crate::eviction::room::Wanted;
use crate::eviction::{Class, Order};
use crate::object::group::{Member, Protected};
use crate::object::objects::Objects;
use crate::object::{Object, Queue};
use crate::side_tables::SideTables;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::slot::ObjectSlot;

/// The aim of an eviction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim<'a> {
    /// At least so many free bytes, of no more than about so many objects.
    Free { bytes: u64, victims: u64 },
    /// Room for a put, by the going of one object alone.
    Room(&'a Wanted<'a>),
}

impl<'a> Aim<'a> {
    /// Returns the rest of the aim after `outcome`; `None` when it is met, or nothing else helps.
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

    /// The room that one object is to make.
    pub(crate) const fn room(self) -> Option<&'a Wanted<'a>> {
        match self {
            Self::Free { .. } => None,
            Self::Room(wanted) => Some(wanted),
        }
    }
}

/// The bytes that an eviction freed, and the obstacles that it met.
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
    /// Members of condemned groups, still to be taken out of their shards.
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

/// The judgement on an object that is offered as a victim.
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

/// The orders of a shard with the objects that are in them: what an eviction chooses from.
pub(crate) struct Eviction<'a> {
    order: &'a mut Order,
    objects: &'a mut Objects,
    sides: &'a SideTables,
    terms: &'a Terms,
}

/// An object that was taken out of its order to be evicted, if one was, with what is known of the
/// eviction so far.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) victim: Option<ObjectSlot>,
    pub(crate) outcome: Evicted,
}

impl<'a> Eviction<'a> {
    pub(crate) const fn new(
        order: &'a mut Order,
        objects: &'a mut Objects,
        sides: &'a SideTables,
        terms: &'a Terms,
    ) -> Self {
        Self { order, objects, sides, terms }
    }

    /// Returns the object that this tenant would lose first.
    pub(crate) fn coldest_of(&self, tenant: TenantSlot, class: Class) -> Option<ObjectSlot> {
        self.order.coldest_of(tenant, class)
    }

    /// Returns whether an object that went first in its order a moment ago still does. What is in
    /// the order and not in the shard is taken out.
    pub(crate) fn is_first(&mut self, list: List, slot: ObjectSlot) -> bool {
        let entry = self.order.entry(slot);
        let queue = self.objects.get(slot).map_or(Queue::None, Object::queue);
        self.order.change(|lists| {
            let is_first = lists.first(list) == Some(entry);
            let belongs = List::of(queue) == Some(list);
            if is_first && !belongs {
                lists.remove(list, entry);
            }
            is_first && belongs
        })
    }

    /// Offers an object, which is chosen or put aside.
    pub(crate) fn offer(
        &mut self,
        slot: ObjectSlot,
        room: Option<&Wanted<'_>>,
        now: Time,
    ) -> Chosen {
        let mut chosen = Chosen::default();
        let object = &mut self.objects[slot];
        match judge(slot, object, self.sides, self.terms, room, now) {
            Judgement::Unfit => chosen.outcome.unfit = true,
            Judgement::Stays { until, leased } => {
                chosen.outcome.leased = u64::from(leased);
                self.order.put_aside(slot, object, until, leased);
            }
            Judgement::Goes(members) => {
                self.order.give_up(slot, object);
                chosen.outcome.condemned = members;
                chosen.victim = Some(slot);
            }
        }
        chosen
    }

    /// Chooses the object in a slot, for where it lies. Chooses nothing when it is another object,
    /// or protected, by now.
    pub(crate) fn choose_one(
        &mut self,
        slot: ObjectSlot,
        generation: Generation,
        now: Time,
    ) -> Option<Chosen> {
        let object = self.objects.get_mut(slot).filter(|it| it.generation == generation)?;
        let mut chosen = Chosen::default();
        match judge(slot, object, self.sides, self.terms, None, now) {
            Judgement::Stays { leased, .. } => chosen.outcome.leased = u64::from(leased),
            Judgement::Unfit => {}
            Judgement::Goes(members) => {
                self.order.give_up(slot, object);
                chosen.outcome.condemned = members;
                chosen.victim = Some(slot);
            }
        }
        Some(chosen)
    }

    /// Takes an object out of its order.
    pub(crate) fn remove(&mut self, slot: ObjectSlot) {
        self.order.remove(slot, &mut self.objects[slot]);
    }

    /// Offers an object again at this time.
    pub(crate) fn put_aside(&mut self, slot: ObjectSlot, until: Time) {
        self.order.put_aside(slot, &mut self.objects[slot], until, true);
    }

    /// Puts an object into the order that it belongs to, as one that was just put.
    pub(crate) fn insert(&mut self, slot: ObjectSlot, item: Item) {
        self.order.insert(slot, &mut self.objects[slot], item);
    }

    /// Puts an object into the queue that it belongs to; returns what is to enter the orders.
    pub(crate) fn admit(&mut self, slot: ObjectSlot, item: Item) -> Option<Fresh> {
        self.order.admit(slot, &mut self.objects[slot], item)
    }

    /// Puts an object back that was set aside, as one that was just used.
    pub(crate) fn readmit(&mut self, slot: ObjectSlot, is_pinned: bool, item: Item) {
        self.order.readmit(slot, &mut self.objects[slot], is_pinned, item);
    }

    /// Notes when the soft pin of an object ends whose times have changed.
    pub(crate) fn renew_pin(&mut self, slot: ObjectSlot) {
        self.order.renew_pin(slot, &self.objects[slot]);
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
    #[inline]
    pub(crate) fn next_due(&mut self, now: Time) -> Option<Option<(ObjectSlot, bool)>> {
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

    /// Puts an object whose soft pin of a duration of its own has ended among the ordinary. Returns
    /// whether there was one to look at.
    #[inline]
    pub(crate) fn lapse_timed(&mut self, now: Time) -> bool {
        let Some(slot) = self.order.pin_ends.pop_due(now) else { return false };
        let Some(object) = self.objects.get_mut(slot) else { return true };
        match object.protection().soft_pin_end(self.terms) {
            // An access has moved it.
            Some(end) if now < end => self.order.pin_ends.note(slot, end),
            _ => self.order.lapse(slot, object),
        }
        true
    }

    /// Puts the soft-pinned object that goes first among the ordinary if its pin has lapsed; `false`
    /// when it has not, and so none has.
    pub(crate) fn lapse_pin(&mut self, slot: ObjectSlot, now: Time) -> bool {
        if !self.is_first(List::Pinned, slot) {
            return true;
        }
        let object = &mut self.objects[slot];
        let has_lapsed = !object.protection().is_soft_pinned(self.terms, now);
        if has_lapsed {
            self.order.lapse(slot, object);
        }
        has_lapsed
    }
}

/// Returns whether an object that is offered may go.
fn judge(
    slot: ObjectSlot,
    object: &Object,
    sides: &SideTables,
    terms: &Terms,
    room: Option<&Wanted<'_>>,
    now: Time,
) -> Judgement {
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
    if object.is_beside()
        && let Some(until) = sides.busy_until(slot, now, later)
    {
        return Judgement::Stays { until, leased: true };
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
