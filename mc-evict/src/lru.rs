//! Least recently used.

use crate::list::{Links, List};
use crate::policy::{EvictionPolicy, Handle, Item, Verdict};

/// Exact least-recently-used order: a doubly linked list threaded through a table
/// of eight bytes for each handle.
#[derive(Clone, Debug)]
pub struct Lru {
    links: Links,
    list: List,
}

impl Default for Lru {
    fn default() -> Self {
        Self::new()
    }
}

impl Lru {
    /// An empty order.
    #[must_use]
    pub const fn new() -> Self {
        Self { links: Links::new(), list: List::new() }
    }
}

impl EvictionPolicy for Lru {
    fn insert(&mut self, handle: Handle, _item: Item) {
        if self.links.admits(handle) {
            self.list.link_hottest(&mut self.links, handle);
        } else {
            self.access(handle);
        }
    }

    fn insert_below(&mut self, handle: Handle, item: Item, other: Handle) {
        if self.links.holds(other) && self.links.admits(handle) {
            self.list.link_below(&mut self.links, handle, other);
        } else {
            self.insert(handle, item);
        }
    }

    fn access(&mut self, handle: Handle) {
        if self.links.holds(handle) {
            self.list.refresh(&mut self.links, handle);
        }
    }

    fn remove(&mut self, handle: Handle) {
        if self.links.holds(handle) {
            self.list.unlink(&mut self.links, handle);
        }
    }

    fn readmit(&mut self, handle: Handle, _item: Item) {
        if self.links.admits(handle) {
            self.list.link_hottest(&mut self.links, handle);
        }
    }

    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some(victim) = self.list.coldest() {
            match verdict(victim) {
                Verdict::Evict | Verdict::SetAside => self.list.unlink(&mut self.links, victim),
                Verdict::Stop => return,
            }
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.list.coldest()
    }

    fn uses_items(&self) -> bool {
        false
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(Handle),
        Access(Handle),
        InsertBelow(Handle, Handle),
        Remove(Handle),
        Readmit(Handle),
        Evict(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        let handle = 0u32..24;
        prop_oneof![
            handle.clone().prop_map(Op::Insert),
            handle.clone().prop_map(Op::Access),
            (handle.clone(), handle.clone()).prop_map(|(one, other)| Op::InsertBelow(one, other)),
            handle.clone().prop_map(Op::Remove),
            handle.prop_map(Op::Readmit),
            (0usize..5).prop_map(Op::Evict),
        ]
    }

    proptest! {
        /// The model is a plain vector, coldest first.
        #[test]
        fn behaves_like_a_vector(ops in proptest::collection::vec(op(), 0..300)) {
            let mut lru = Lru::new();
            let mut model: Vec<Handle> = Vec::new();
            for op in ops {
                match op {
                    Op::Insert(handle) => {
                        lru.insert(handle, Item::UNKNOWN);
                        model.retain(|h| *h != handle);
                        model.push(handle);
                    }
                    Op::InsertBelow(handle, other) => {
                        lru.insert_below(handle, Item::UNKNOWN, other);
                        let is_new = !model.contains(&handle);
                        let place = model.iter().position(|h| *h == other).filter(|_| is_new);
                        model.retain(|h| *h != handle);
                        model.insert(place.unwrap_or(model.len()), handle);
                    }
                    Op::Access(handle) => {
                        lru.access(handle);
                        if model.contains(&handle) {
                            model.retain(|h| *h != handle);
                            model.push(handle);
                        }
                    }
                    Op::Remove(handle) => {
                        lru.remove(handle);
                        model.retain(|h| *h != handle);
                    }
                    Op::Readmit(handle) => {
                        lru.readmit(handle, Item::UNKNOWN);
                        if !model.contains(&handle) {
                            model.push(handle);
                        }
                    }
                    Op::Evict(count) => {
                        let mut victims = Vec::new();
                        lru.evict(&mut |handle| {
                            if victims.len() == count {
                                return Verdict::Stop;
                            }
                            victims.push(handle);
                            if handle % 2 == 0 { Verdict::Evict } else { Verdict::SetAside }
                        });
                        let expected: Vec<Handle> =
                            model.drain(..count.min(model.len())).collect();
                        prop_assert_eq!(victims, expected);
                    }
                }
                prop_assert_eq!(lru.len(), model.len());
                prop_assert_eq!(lru.coldest(), model.first().copied());
            }
            let mut rest = Vec::new();
            lru.evict(&mut |handle| { rest.push(handle); Verdict::Evict });
            prop_assert_eq!(rest, model);
        }
    }
}
