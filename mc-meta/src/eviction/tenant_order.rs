//! The objects of each tenant in one shard, those used last at the end.
//!
//! Room for all tenants is made by the eviction policy, which knows no tenants. A
//! tenant that needs room within its quota gives up its own objects, and to find these
//! among those of all others would take time in the number of all. So with tenants
//! there is a second order beside the policy's: for each tenant a list of those of its
//! objects that the policy may offer now, and one of those that are below memory alone, threaded through one table of twelve bytes for
//! each object.

use std::collections::BTreeMap;

use crate::eviction::Class;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::slot::ObjectSlot;

/// The list of its tenant that an object is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TenantList {
    /// Objects that the policy may offer of a class.
    Ordinary,
    SoftPinned,
    /// Objects without a replica in memory.
    Below,
}

impl From<Class> for TenantList {
    fn from(class: Class) -> Self {
        match class {
            Class::Ordinary => Self::Ordinary,
            Class::SoftPinned => Self::SoftPinned,
        }
    }
}

/// Marks the end of a list.
const NONE: ObjectSlot = ObjectSlot::NONE;

/// Where an object is.
#[derive(Clone, Copy, Debug)]
struct TenantLink {
    colder: ObjectSlot,
    hotter: ObjectSlot,
    tenant: TenantSlot,
    /// The list of its tenant that it is in.
    list: Option<TenantList>,
}

const _: () = assert!(size_of::<TenantLink>() == 12, "kept once per object");

const VACANT: TenantLink =
    TenantLink { colder: NONE, hotter: NONE, tenant: TenantSlot::DEFAULT, list: None };

#[derive(Clone, Copy, Debug)]
struct Ends {
    coldest: ObjectSlot,
    hottest: ObjectSlot,
}

/// The tenants of a shard's objects, and the order in which each tenant's are evicted.
#[derive(Debug, Default)]
pub(crate) struct TenantOrder {
    /// Entries by slot.
    entries: Vec<TenantLink>,
    /// The ends of the lists that are not empty.
    lists: BTreeMap<(TenantSlot, TenantList), Ends>,
}

impl TenantOrder {
    /// Notes the tenant of the object in a slot, which is in no list yet.
    pub(crate) fn assign(&mut self, slot: ObjectSlot, tenant: TenantSlot) {
        self.remove(slot);
        let at = slot.index();
        if self.entries.len() <= at {
            self.entries.resize(at + 1, VACANT);
        }
        self.entries[at] = TenantLink { tenant, ..VACANT };
    }

    /// Returns the tenant of the object in a slot; the default tenant when none was assigned.
    pub(crate) fn tenant(&self, slot: ObjectSlot) -> TenantSlot {
        self.entry(slot).tenant
    }

    /// The object that its tenant would lose first.
    pub(crate) fn coldest(&self, tenant: TenantSlot, list: TenantList) -> Option<ObjectSlot> {
        self.lists.get(&(tenant, list)).map(|ends| ends.coldest)
    }

    /// Puts an object where those used last are.
    pub(crate) fn insert(&mut self, slot: ObjectSlot, list: TenantList) {
        self.remove(slot);
        let of_tenant = (self.entry(slot).tenant, list);
        let Some(entry) = self.entries.get_mut(slot.index()) else { return };
        entry.list = Some(list);
        let ends = self.lists.entry(of_tenant).or_insert(Ends { coldest: slot, hottest: NONE });
        let colder = core::mem::replace(&mut ends.hottest, slot);
        (entry.colder, entry.hotter) = (colder, NONE);
        self.set_hotter(colder, slot);
    }

    /// Puts an object where those are that go first.
    pub(crate) fn insert_coldest(&mut self, slot: ObjectSlot, list: TenantList) {
        self.remove(slot);
        let of_tenant = (self.entry(slot).tenant, list);
        let Some(entry) = self.entries.get_mut(slot.index()) else { return };
        entry.list = Some(list);
        let ends = self.lists.entry(of_tenant).or_insert(Ends { coldest: NONE, hottest: slot });
        let hotter = core::mem::replace(&mut ends.coldest, slot);
        (entry.colder, entry.hotter) = (NONE, hotter);
        self.set_colder(hotter, slot);
    }

    /// An object was used. Without effect when it is in no list.
    pub(crate) fn access(&mut self, slot: ObjectSlot) {
        if let TenantLink { list: Some(list), hotter, .. } = self.entry(slot)
            && hotter != NONE
        {
            self.insert(slot, list);
        }
    }

    /// Takes an object out of its list, if it is in one.
    pub(crate) fn remove(&mut self, slot: ObjectSlot) {
        let TenantLink { colder, hotter, tenant, list: Some(list) } = self.entry(slot) else {
            return;
        };
        if let Some(entry) = self.entries.get_mut(slot.index()) {
            entry.list = None;
        }
        self.set_hotter(colder, hotter);
        self.set_colder(hotter, colder);
        let list = (tenant, list);
        match self.lists.get_mut(&list) {
            Some(ends) if ends.coldest == slot && ends.hottest == slot => {
                self.lists.remove(&list);
            }
            Some(ends) if ends.coldest == slot => ends.coldest = hotter,
            Some(ends) if ends.hottest == slot => ends.hottest = colder,
            _ => {}
        }
    }

    fn entry(&self, slot: ObjectSlot) -> TenantLink {
        self.entries.get(slot.index()).copied().unwrap_or(VACANT)
    }

    fn set_hotter(&mut self, slot: ObjectSlot, hotter: ObjectSlot) {
        if let Some(entry) = self.entries.get_mut(slot.index()) {
            entry.hotter = hotter;
        }
    }

    fn set_colder(&mut self, slot: ObjectSlot, colder: ObjectSlot) {
        if let Some(entry) = self.entries.get_mut(slot.index()) {
            entry.colder = colder;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::id::TenantId;
    use crate::tenant::quota::{DefaultQuota, Quotas};
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Assign(ObjectSlot, usize),
        Insert(ObjectSlot, bool),
        InsertColdest(ObjectSlot, bool),
        Access(ObjectSlot),
        Remove(ObjectSlot),
        Drain(usize, bool),
    }

    fn op() -> impl Strategy<Value = Op> {
        let slot = || (0..12u32).prop_map(ObjectSlot::new);
        prop_oneof![
            (slot(), 0..3usize).prop_map(|(slot, tenant)| Op::Assign(slot, tenant)),
            (slot(), any::<bool>()).prop_map(|(slot, pinned)| Op::Insert(slot, pinned)),
            (slot(), any::<bool>()).prop_map(|(slot, pinned)| Op::InsertColdest(slot, pinned)),
            slot().prop_map(Op::Access),
            slot().prop_map(Op::Remove),
            (0..3usize, any::<bool>()).prop_map(|(tenant, pinned)| Op::Drain(tenant, pinned)),
        ]
    }

    fn class(pinned: bool) -> TenantList {
        if pinned { TenantList::Below } else { TenantList::Ordinary }
    }

    proptest! {
        /// The model: each list is a vector, the coldest first.
        #[test]
        fn lists_are_what_a_vector_for_each_would_be(
            ops in prop::collection::vec(op(), 1..120),
        ) {
            let quotas = Quotas::on(DefaultQuota::Denied);
            let slots = ["default", "a", "b"]
                .map(|name| quotas.restore(&TenantId::new(name).unwrap(), 1).unwrap());
            let mut order = TenantOrder::default();
            let mut owner = BTreeMap::new();
            let mut lists: BTreeMap<(usize, bool), Vec<ObjectSlot>> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Assign(slot, tenant) => {
                        order.assign(slot, slots[tenant]);
                        owner.insert(slot, tenant);
                        lists.values_mut().for_each(|list| list.retain(|other| *other != slot));
                    }
                    Op::Insert(slot, pinned) | Op::InsertColdest(slot, pinned) => {
                        let Some(tenant) = owner.get(&slot) else { continue };
                        lists.values_mut().for_each(|list| list.retain(|other| *other != slot));
                        let list = lists.entry((*tenant, pinned)).or_default();
                        if matches!(op, Op::Insert(..)) {
                            order.insert(slot, class(pinned));
                            list.push(slot);
                        } else {
                            order.insert_coldest(slot, class(pinned));
                            list.insert(0, slot);
                        }
                    }
                    Op::Access(slot) => {
                        order.access(slot);
                        for list in lists.values_mut().filter(|list| list.contains(&slot)) {
                            list.retain(|other| *other != slot);
                            list.push(slot);
                        }
                    }
                    Op::Remove(slot) => {
                        order.remove(slot);
                        lists.values_mut().for_each(|list| list.retain(|other| *other != slot));
                    }
                    Op::Drain(tenant, pinned) => {
                        let list = lists.remove(&(tenant, pinned)).unwrap_or_default();
                        for slot in list {
                            let coldest = order.coldest(slots[tenant], class(pinned));
                            prop_assert_eq!(coldest, Some(slot));
                            order.remove(slot);
                        }
                    }
                }
                for (tenant, slot) in slots.iter().enumerate() {
                    for pinned in [false, true] {
                        let list = lists.get(&(tenant, pinned));
                        let coldest = list.and_then(|list| list.first()).copied();
                        prop_assert_eq!(order.coldest(*slot, class(pinned)), coldest);
                    }
                }
            }
        }
    }
}
