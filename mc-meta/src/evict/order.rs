//! Which objects of a shard go first.
//!
//! Ordinary objects are in the order of the eviction policy, soft-pinned ones and those whose soft
//! pin has lapsed each in an order of last use of their own, and objects that were offered as
//! victims while something protected them wait aside until they can be victims again. So each
//! protected object is looked at once for each time it was protected, and eviction costs O(victims)
//! however many objects are protected.

pub(crate) mod choice;
pub(crate) mod victims;

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use mc_evict::{EvictionPolicy, Item, Lru, Verdict};
use mc_lease::{SoftPinFrom, Terms};
use mc_types::{Generation, Time};

use crate::evict::tenant_order::TenantOrder;
use crate::object::slot::ObjectSlot;
use crate::object::{Object, Queue};
use crate::tenant::ledger::TenantSlot;

/// Which objects an eviction may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Ordinary,
    SoftPinned,
}

/// What an eviction takes its victims from.
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

/// Accesses that are noted before the policy is told of them. Moving one object in an
/// order touches three others somewhere in memory; many at a time, the processor waits
/// for all of them at once. Measured at ten million objects: 1.6 × the gets.
const NOTED: usize = 64;

/// The orders over the objects of one shard.
#[derive(Debug)]
pub(crate) struct Order {
    main: Box<dyn EvictionPolicy>,
    pinned: Lru,
    /// These compete with `main` by their last use.
    lapsed: Lru,
    /// Objects accessed since the policy was last told, in that order. They are in
    /// `main`: whatever takes an object out of it tells the policy first.
    noted: Vec<ObjectSlot>,
    aside: Waiting,
    /// Objects in [`Queue::OnDisk`].
    on_disk: usize,
    /// Objects in [`Queue::Offloading`].
    offloading: usize,
    /// What is in `main`, `pinned` or `lapsed`, by tenant; `None` without tenants.
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
    pub(crate) fn new(policy: Box<dyn EvictionPolicy>, with_tenants: bool) -> Self {
        Self {
            main: policy,
            pinned: Lru::new(),
            lapsed: Lru::new(),
            noted: Vec::new(),
            aside: Waiting::default(),
            on_disk: 0,
            offloading: 0,
            tenants: with_tenants.then(Box::default),
        }
    }

    /// Has ordinary objects evicted by another policy, which is given those that are there,
    /// the coldest first, as what `item` says.
    fn use_policy(&mut self, policy: Box<dyn EvictionPolicy>, item: impl Fn(ObjectSlot) -> Item) {
        self.tell();
        let mut before = core::mem::replace(&mut self.main, policy);
        before.evict(&mut |slot| {
            self.main.insert(slot, item(ObjectSlot::new(slot)));
            Verdict::SetAside
        });
    }

    /// Returns whether the policy of ordinary objects looks at the items that it is given.
    pub(crate) fn uses_items(&self) -> bool {
        self.main.uses_items()
    }

    /// Says whose the object in a slot is from now on.
    pub(crate) fn assign(&mut self, slot: ObjectSlot, tenant: TenantSlot) {
        if let Some(tenants) = &mut self.tenants {
            tenants.assign(slot, tenant);
        }
    }

    /// Whose the object in a slot is.
    pub(crate) fn tenant(&self, slot: ObjectSlot) -> TenantSlot {
        self.tenants.as_ref().map_or(TenantSlot::DEFAULT, |tenants| tenants.tenant(slot))
    }

    /// The object that a tenant would lose first to make room within its quota.
    fn coldest_of(&self, tenant: TenantSlot, class: Class) -> Option<ObjectSlot> {
        self.tenants.as_ref()?.coldest(tenant, class)
    }

    fn list(&mut self, slot: ObjectSlot, class: Class) {
        if let Some(tenants) = &mut self.tenants {
            tenants.insert(slot, class);
        }
    }

    /// Objects that can be victims.
    fn len(&self) -> usize {
        self.main.len() + self.pinned.len() + self.lapsed.len()
    }

    /// The ordinary object that the policy would evict first.
    fn coldest_main(&self) -> Option<ObjectSlot> {
        self.main.coldest().map(ObjectSlot::new)
    }

    fn coldest_pinned(&self) -> Option<ObjectSlot> {
        self.pinned.coldest().map(ObjectSlot::new)
    }

    fn coldest_lapsed(&self) -> Option<ObjectSlot> {
        self.lapsed.coldest().map(ObjectSlot::new)
    }

    pub(crate) fn soft_pinned(&self) -> usize {
        self.pinned.len()
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
    pub(crate) fn insert(&mut self, slot: ObjectSlot, object: &mut Object, item: Item) {
        if let Some(class) = self.admit(slot, object) {
            self.append(slot, class, item);
        }
    }

    /// Notes with a new object where it belongs; returns what it has to be
    /// [appended](Self::append) to, if that is an order.
    pub(crate) fn admit(&mut self, slot: ObjectSlot, object: &mut Object) -> Option<Class> {
        if !object.has_memory() {
            self.leave_memory(slot, object);
            None
        } else if object.hard_pin {
            object.enter(Queue::None);
            None
        } else if object.protection().wants_soft_pin() {
            object.enter(Queue::Pinned);
            Some(Class::SoftPinned)
        } else {
            object.enter(Queue::Main);
            Some(Class::Ordinary)
        }
    }

    /// Puts an object that was [admitted](Self::admit) behind all others of its class.
    pub(crate) fn append(&mut self, slot: ObjectSlot, class: Class, item: Item) {
        match class {
            Class::SoftPinned => self.pinned.insert(slot.as_u32(), Item::UNKNOWN),
            Class::Ordinary => {
                self.tell();
                self.main.insert(slot.as_u32(), item);
            }
        }
        self.list(slot, class);
    }

    /// An object comes back from aside, as one that was just used.
    fn readmit(&mut self, slot: ObjectSlot, object: &mut Object, pinned: bool, item: Item) {
        if pinned {
            object.enter(Queue::Pinned);
            self.pinned.insert(slot.as_u32(), Item::UNKNOWN);
            self.list(slot, Class::SoftPinned);
        } else if object.protection().wants_soft_pin() {
            // Where an access finds it whose pin is in force again with it.
            object.enter(Queue::Lapsed);
            self.lapsed.insert(slot.as_u32(), Item::UNKNOWN);
            self.list(slot, Class::Ordinary);
        } else {
            self.tell();
            object.enter(Queue::Main);
            self.main.readmit(slot.as_u32(), item);
            self.list(slot, Class::Ordinary);
        }
    }

    /// An object was used.
    pub(crate) fn access(
        &mut self,
        slot: ObjectSlot,
        object: &mut Object,
        terms: &Terms,
        now: Time,
    ) {
        match object.queue() {
            Queue::Main => {
                if self.noted.len() == NOTED {
                    self.tell();
                }
                self.noted.push(slot);
            }
            // Pins that count from the commit lapse in the order in which they began.
            Queue::Pinned if terms.soft_pin_from == SoftPinFrom::Commit => {}
            Queue::Pinned => {
                self.pinned.access(slot.as_u32());
                self.list(slot, Class::SoftPinned);
            }
            Queue::Lapsed if object.protection().is_soft_pinned(terms, now) => {
                self.lapsed.remove(slot.as_u32());
                self.pinned.insert(slot.as_u32(), Item::UNKNOWN);
                object.enter(Queue::Pinned);
                self.list(slot, Class::SoftPinned);
            }
            Queue::Lapsed => {
                self.lapsed.access(slot.as_u32());
                self.list(slot, Class::Ordinary);
            }
            // It is leased now, whatever else keeps it.
            Queue::Held => {
                object.enter(Queue::Aside);
                self.aside.leased += 1;
            }
            Queue::Aside | Queue::None | Queue::OnDisk | Queue::Offloading => {}
        }
    }

    /// An object has nothing left in memory, and stays for what is on disks.
    pub(crate) fn leave_memory(&mut self, slot: ObjectSlot, object: &mut Object) {
        if object.queue() != Queue::OnDisk {
            self.remove(slot, object);
            object.enter(Queue::OnDisk);
            self.on_disk += 1;
        }
    }

    /// An object goes when it is on a disk, and is no victim until then.
    pub(crate) fn wait_for_disk(&mut self, slot: ObjectSlot, object: &mut Object) {
        self.remove(slot, object);
        object.enter(Queue::Offloading);
        self.offloading += 1;
    }

    /// An object is offered again then.
    fn put_aside(&mut self, slot: ObjectSlot, object: &mut Object, until: Time, leased: bool) {
        self.remove(slot, object);
        self.aside.add(slot, object, until, leased);
    }

    /// Takes an object out of its order that is evicted although it was not offered.
    fn give_up(&mut self, slot: ObjectSlot, object: &mut Object) {
        if object.queue() == Queue::Main {
            self.tell();
            self.main.give_up(slot.as_u32());
        }
        self.remove(slot, object);
    }

    /// Takes an object out of its order.
    pub(crate) fn remove(&mut self, slot: ObjectSlot, object: &mut Object) {
        match object.queue() {
            Queue::Main => {
                self.tell();
                self.main.remove(slot.as_u32());
            }
            Queue::Pinned => self.pinned.remove(slot.as_u32()),
            Queue::Lapsed => self.lapsed.remove(slot.as_u32()),
            Queue::Aside => self.aside.leased -= 1,
            Queue::OnDisk => self.on_disk -= 1,
            Queue::Offloading => self.offloading -= 1,
            Queue::Held | Queue::None => {}
        }
        if let Some(tenants) = &mut self.tenants {
            tenants.remove(slot);
        }
        object.enter(Queue::None);
    }

    /// Tells the policy what was accessed.
    fn tell(&mut self) {
        for slot in self.noted.drain(..) {
            self.main.access(slot.as_u32());
            if let Some(tenants) = &mut self.tenants {
                tenants.access(slot);
            }
        }
    }
}
