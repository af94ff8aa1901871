//! The order in which objects are evicted.
//!
//! Ordinary objects are in the order of the eviction policy, soft-pinned ones and those whose soft
//! pin has lapsed each in an order of last use of their own; all shards share these ([`common`]).
//! The pins of the master's duration lapse in their order; when others do is noted in [`pin_ends`].
//! Objects that were offered as victims while something protected them wait aside, in their shard,
//! until they can be victims again. So each protected object is looked at once for each time it was
//! protected, and eviction costs O(victims) however many objects are protected.

pub(crate) mod choice;
pub(crate) mod common;
mod pin_ends;
pub(crate) mod room;
pub(crate) mod tenant_order;
pub(crate) mod watermark;

use core::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use mc_evict::{Item, Verdict};
use mc_lease::{SoftPinFrom, Terms};
use mc_types::{Generation, Time};

use crate::eviction::common::{CommonOrder, Entry, Fresh, List, Lists, Note};
use crate::eviction::pin_ends::PinEnds;
use crate::eviction::tenant_order::{TenantList, TenantOrder};
use crate::object::{Object, Queue};
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::slot::ObjectSlot;

/// The objects that an eviction may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Ordinary,
    SoftPinned,
}

/// The set of objects that an eviction takes its victims from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    pub(crate) class: Class,
    /// Only objects of this tenant, in the order of their last use.
    pub(crate) tenant: Option<TenantSlot>,
}

/// An object that was offered as a victim while it was protected; ordered by when
/// it may be offered again. It is not taken back when the object goes: it then names
/// no object that is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Aside {
    until: Time,
    generation: Generation,
    slot: ObjectSlot,
}

/// Accesses that are buffered before they are applied to the orders, at most. Moving one object in an
/// order touches three others somewhere in memory; many at a time, the processor waits
/// for all of them at once. Measured at ten million objects: 1.6 × the gets. And the lock of the
/// orders is taken once for all of them.
const NOTED: usize = 64;

/// One object of so many may be ahead of its place in the order, because its use is buffered
/// and not applied.
const PRECISION: usize = 16;

/// The orders as one shard has them.
#[derive(Debug)]
pub(crate) struct Order {
    common: Arc<CommonOrder>,
    /// The number of the shard.
    shard: u32,
    terms: Terms,
    /// Accesses that are not applied to the orders yet.
    noted: Vec<Note>,
    /// How many there may be.
    most_noted: usize,
    /// Whether they are those of a command on many keys, which applies them itself.
    is_collecting: bool,
    aside: Waiting,
    /// When the pins of the objects in [`Queue::Timed`] end.
    pin_ends: PinEnds,
    /// Objects in [`Queue::OnLocalDisk`].
    on_disk: usize,
    /// Objects in [`Queue::Offloading`].
    offloading: usize,
    /// The objects in the orders, by tenant; `None` without tenants.
    tenants: Option<Box<TenantOrder>>,
}

/// Protected objects, by when they may be offered again.
#[derive(Debug, Default)]
struct Waiting {
    heap: BinaryHeap<Reverse<Aside>>,
    /// Objects in [`Queue::Aside`]: those that a client uses.
    leased: usize,
}

impl Waiting {
    fn add(&mut self, slot: ObjectSlot, object: &mut Object, until: Time, leased: bool) {
        object.enter(if leased { Queue::Aside } else { Queue::Held });
        self.leased += usize::from(leased);
        self.heap.push(Reverse(Aside { until, generation: object.generation, slot }));
    }

    /// The next object whose time aside is over. It may have gone meanwhile.
    #[inline]
    fn pop_due(&mut self, now: Time) -> Option<Aside> {
        let &Reverse(entry) = self.heap.peek()?;
        if entry.until > now {
            return None;
        }
        self.heap.pop();
        // Give memory back after a burst, without shrinking at every pop.
        if self.heap.capacity() > 1024 && self.heap.len() * 4 < self.heap.capacity() {
            self.heap.shrink_to(self.heap.len() * 2);
        }
        Some(entry)
    }
}

impl Order {
    pub(crate) fn new(
        common: Arc<CommonOrder>,
        shard: u32,
        terms: Terms,
        with_tenants: bool,
    ) -> Self {
        Self {
            common,
            shard,
            terms,
            noted: Vec::new(),
            most_noted: 0,
            is_collecting: false,
            aside: Waiting::default(),
            pin_ends: PinEnds::default(),
            on_disk: 0,
            offloading: 0,
            tenants: with_tenants.then(Box::default),
        }
    }

    /// Returns whether the policy of ordinary objects looks at the items that it is given.
    pub(crate) fn uses_items(&self) -> bool {
        self.common.uses_items()
    }

    /// An object of this shard in the orders.
    fn entry(&self, slot: ObjectSlot) -> Entry {
        self.common.entry(self.shard, slot)
    }

    /// Notes the tenant of the object in a slot.
    pub(crate) fn assign(&mut self, slot: ObjectSlot, tenant: TenantSlot) {
        if let Some(tenants) = &mut self.tenants {
            tenants.assign(slot, tenant);
        }
    }

    /// Returns the tenant of the object in a slot.
    pub(crate) fn tenant(&self, slot: ObjectSlot) -> TenantSlot {
        self.tenants.as_ref().map_or(TenantSlot::DEFAULT, |tenants| tenants.tenant(slot))
    }

    /// The object that a tenant would lose first to make room within its quota.
    fn coldest_of(&self, tenant: TenantSlot, class: Class) -> Option<ObjectSlot> {
        self.tenants.as_ref()?.coldest(tenant, class.into())
    }

    /// The object of a tenant that is below memory alone and was not used for the longest time.
    pub(crate) fn coldest_below(&self, tenant: TenantSlot) -> Option<ObjectSlot> {
        self.tenants.as_ref()?.coldest(tenant, TenantList::Below)
    }

    /// An object that is below memory alone was used, or stays for another reason.
    #[cold]
    pub(crate) fn spare_below(&mut self, slot: ObjectSlot) {
        if let Some(tenants) = &mut self.tenants {
            tenants.access(slot);
        }
    }

    fn list_for_tenant(&mut self, slot: ObjectSlot, list: List) {
        if let Some(tenants) = &mut self.tenants {
            tenants.insert(slot, class_of(list).into());
        }
    }

    /// Objects that are on disks only.
    pub(crate) const fn on_disk(&self) -> usize {
        self.on_disk
    }

    /// Returns whether objects that a client uses, or that go when they are on a disk, are waiting
    /// to become victims.
    pub(crate) fn any_leased(&self) -> bool {
        self.aside.leased + self.offloading > 0
    }

    /// A new object.
    fn insert(&mut self, slot: ObjectSlot, object: &mut Object, item: Item) {
        if let Some(fresh) = self.admit(slot, object, item) {
            self.change(|lists| lists.insert(fresh));
        }
    }

    /// Puts a new object into the queue that it belongs to. What it returns is to
    /// enter the orders.
    pub(crate) fn admit(
        &mut self,
        slot: ObjectSlot,
        object: &mut Object,
        item: Item,
    ) -> Option<Fresh> {
        if !object.has_memory() {
            self.leave_memory(slot, object);
            return None;
        }
        if object.is_hard_pinned() {
            object.enter(Queue::None);
            return None;
        }
        let queue = match object.protection().wants_soft_pin() {
            true => pinned(object),
            false => Queue::Main,
        };
        let list = self.enter(slot, object, queue)?;
        self.list_for_tenant(slot, list);
        Some(Fresh { entry: self.entry(slot), list, item })
    }

    /// An object comes back from aside, as one that was just used.
    fn readmit(&mut self, slot: ObjectSlot, object: &mut Object, is_pinned: bool, item: Item) {
        let queue = if is_pinned {
            pinned(object)
        } else if object.protection().wants_soft_pin() {
            // Where an access finds it whose pin is in force again with it.
            Queue::Lapsed
        } else {
            Queue::Main
        };
        let Some(list) = self.enter(slot, object, queue) else { return };
        self.list_for_tenant(slot, list);
        let entry = self.entry(slot);
        self.change(|lists| lists.readmit(list, entry, item));
    }

    /// An object was used.
    pub(crate) fn access(&mut self, slot: ObjectSlot, object: &mut Object, now: Time) {
        match object.queue() {
            Queue::Lapsed if object.protection().is_soft_pinned(&self.terms, now) => {
                self.move_to(slot, object, pinned(object));
                self.list_for_tenant(slot, List::Pinned);
            }
            // It is leased now, whatever else keeps it.
            Queue::Held => {
                object.enter(Queue::Aside);
                self.aside.leased += 1;
            }
            Queue::OnLocalDisk => self.spare_below(slot),
            _ => {
                let Some(note) = self.note(slot, object) else { return };
                self.noted.push(note);
                if self.noted.len() > self.most_noted && !self.is_collecting {
                    self.tell();
                }
            }
        }
    }

    /// An object that has nothing in memory was used on a disk.
    pub(crate) fn used_below(&mut self, object: &Object, item: Item) {
        if object.queue() == Queue::OnLocalDisk {
            self.change(|lists| lists.used_below(item));
        }
    }

    /// Returns the note on the use of an object that the orders are to receive.
    pub(crate) fn note(&mut self, slot: ObjectSlot, object: &Object) -> Option<Note> {
        let list = List::of(object.queue())?;
        if list == List::Pinned && self.terms.soft_pin_from == SoftPinFrom::Commit {
            // Such pins lapse in the order in which they began.
            return None;
        }
        if let Some(tenants) = &mut self.tenants {
            tenants.access(slot);
        }
        Some(Note { entry: self.entry(slot), list })
    }

    /// Puts an object that is in no queue into this one; returns the order of that.
    fn enter(&mut self, slot: ObjectSlot, object: &mut Object, queue: Queue) -> Option<List> {
        object.enter(queue);
        self.renew_pin(slot, object);
        List::of(queue)
    }

    /// Notes when the soft pin of an object ends, if it has one of its own duration.
    fn renew_pin(&mut self, slot: ObjectSlot, object: &Object) {
        if object.queue() == Queue::Timed
            && let Some(end) = object.protection().soft_pin_end(&self.terms)
        {
            self.pin_ends.note(slot, end);
        }
    }

    /// Takes an object out of its queue; returns the order of that.
    fn exit(&mut self, slot: ObjectSlot, object: &mut Object) -> Option<List> {
        let queue = object.queue();
        match queue {
            Queue::Timed => self.pin_ends.forget(slot),
            Queue::Aside => self.aside.leased -= 1,
            Queue::OnLocalDisk => self.on_disk -= 1,
            Queue::Offloading => self.offloading -= 1,
            Queue::None | Queue::Main | Queue::Pinned | Queue::Lapsed | Queue::Held => {}
        }
        object.enter(Queue::None);
        List::of(queue)
    }

    /// Moves an object from the order it is in to the end of another.
    fn move_to(&mut self, slot: ObjectSlot, object: &mut Object, queue: Queue) {
        let entry = self.entry(slot);
        let from = self.exit(slot, object);
        let to = self.enter(slot, object, queue);
        self.change(|lists| {
            if let Some(from) = from {
                lists.remove(from, entry);
            }
            if let Some(list) = to {
                lists.readmit(list, entry, Item::UNKNOWN);
            }
        });
    }

    /// An object's soft pin has lapsed.
    fn lapse(&mut self, slot: ObjectSlot, object: &mut Object) {
        self.move_to(slot, object, Queue::Lapsed);
        if let Some(tenants) = &mut self.tenants {
            tenants.insert_coldest(slot, TenantList::Ordinary);
        }
    }

    /// Notes accesses until they are [taken](Self::take_note), and tells the orders of none.
    pub(crate) fn collect(&mut self, is_collecting: bool) {
        self.tell();
        self.is_collecting = is_collecting;
    }

    /// Takes what was noted last.
    pub(crate) fn take_note(&mut self) -> Option<Note> {
        self.noted.pop()
    }

    /// An object has nothing left in memory, and stays for what is on disks.
    fn leave_memory(&mut self, slot: ObjectSlot, object: &mut Object) {
        if object.queue() != Queue::OnLocalDisk {
            self.remove(slot, object);
            object.enter(Queue::OnLocalDisk);
            self.on_disk += 1;
            if let Some(tenants) = &mut self.tenants {
                tenants.insert(slot, TenantList::Below);
            }
        }
    }

    /// An object goes when it is on a disk, and is no victim until then.
    fn wait_for_disk(&mut self, slot: ObjectSlot, object: &mut Object) {
        self.remove(slot, object);
        object.enter(Queue::Offloading);
        self.offloading += 1;
    }

    /// An object is offered again then.
    fn put_aside(&mut self, slot: ObjectSlot, object: &mut Object, until: Time, leased: bool) {
        self.leave(slot, object, |lists, list, entry| lists.take(list, entry, Verdict::SetAside));
        self.aside.add(slot, object, until, leased);
    }

    /// Takes an object out of its order that is evicted.
    fn give_up(&mut self, slot: ObjectSlot, object: &mut Object) {
        self.leave(slot, object, |lists, list, entry| lists.take(list, entry, Verdict::Evict));
    }

    /// Takes an object out of its order.
    pub(crate) fn remove(&mut self, slot: ObjectSlot, object: &mut Object) {
        self.leave(slot, object, |lists, list, entry| lists.remove(list, entry));
    }

    fn leave(
        &mut self,
        slot: ObjectSlot,
        object: &mut Object,
        take: impl FnOnce(&mut Lists, List, Entry),
    ) {
        if let Some(list) = self.exit(slot, object) {
            let entry = self.entry(slot);
            self.change(|lists| take(lists, list, entry));
        }
        if let Some(tenants) = &mut self.tenants {
            tenants.remove(slot);
        }
    }

    /// Tells the orders what was accessed.
    fn tell(&mut self) {
        if !self.noted.is_empty() {
            self.change(|_| ());
        }
    }

    /// Changes the orders, after they were told what was accessed.
    fn change<T>(&mut self, change: impl FnOnce(&mut Lists) -> T) -> T {
        let mut lists = self.common.lock();
        lists.access(&self.noted);
        self.noted.clear();
        self.most_noted = (lists.ordinary() / self.common.shards() / PRECISION).min(NOTED);
        change(&mut lists)
    }
}

/// The queue of an object whose soft pin is in force.
fn pinned(object: &Object) -> Queue {
    match object.protection().soft_pin().own_duration() {
        None => Queue::Pinned,
        Some(_) => Queue::Timed,
    }
}

/// The class that an order is of.
pub(crate) const fn class_of(list: List) -> Class {
    match list {
        List::Main | List::Lapsed => Class::Ordinary,
        List::Pinned | List::Timed => Class::SoftPinned,
    }
}
