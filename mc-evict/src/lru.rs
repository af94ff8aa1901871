//! Least recently used.

use alloc::vec::Vec;

use crate::policy::{EvictionPolicy, Handle, Verdict};

/// Marks the end of the list, and in `next` of a link that is in no list.
const NONE: Handle = Handle::MAX;
const ABSENT: Handle = Handle::MAX - 1;

/// Exact least-recently-used order: a doubly linked list threaded through a table
/// of eight bytes for each handle.
#[derive(Clone, Debug)]
pub struct Lru {
    links: Vec<Link>,
    coldest: Handle,
    hottest: Handle,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    colder: Handle,
    hotter: Handle,
}

impl Default for Lru {
    fn default() -> Self {
        Self::new()
    }
}

impl Lru {
    /// The largest handle that can be held.
    pub const MAX_HANDLE: Handle = ABSENT - 1;

    /// An empty order.
    #[must_use]
    pub const fn new() -> Self {
        Self { links: Vec::new(), coldest: NONE, hottest: NONE, len: 0 }
    }

    fn holds(&self, handle: Handle) -> bool {
        self.links.get(handle as usize).is_some_and(|link| link.hotter != ABSENT)
    }

    fn reserve(&mut self, handle: Handle) {
        assert!(handle <= Self::MAX_HANDLE, "handle {handle} is beyond {}", Self::MAX_HANDLE);
        if self.links.len() <= handle as usize {
            self.links.resize(handle as usize + 1, Link { colder: NONE, hotter: ABSENT });
        }
    }

    fn unlink(&mut self, handle: Handle) {
        let Link { colder, hotter } = self.links[handle as usize];
        match colder {
            NONE => self.coldest = hotter,
            colder => self.links[colder as usize].hotter = hotter,
        }
        match hotter {
            NONE => self.hottest = colder,
            hotter => self.links[hotter as usize].colder = colder,
        }
        self.links[handle as usize].hotter = ABSENT;
        self.len -= 1;
    }

    fn link_hottest(&mut self, handle: Handle) {
        self.links[handle as usize] = Link { colder: self.hottest, hotter: NONE };
        match self.hottest {
            NONE => self.coldest = handle,
            hottest => self.links[hottest as usize].hotter = handle,
        }
        self.hottest = handle;
        self.len += 1;
    }

    fn link_coldest(&mut self, handle: Handle) {
        self.links[handle as usize] = Link { colder: NONE, hotter: self.coldest };
        match self.coldest {
            NONE => self.hottest = handle,
            coldest => self.links[coldest as usize].colder = handle,
        }
        self.coldest = handle;
        self.len += 1;
    }
}

impl EvictionPolicy for Lru {
    /// # Panics
    /// When `handle` is beyond [`Lru::MAX_HANDLE`].
    fn insert(&mut self, handle: Handle) {
        self.reserve(handle);
        if self.holds(handle) {
            self.unlink(handle);
        }
        self.link_hottest(handle);
    }

    fn access(&mut self, handle: Handle) {
        if self.holds(handle) && self.hottest != handle {
            self.unlink(handle);
            self.link_hottest(handle);
        }
    }

    fn remove(&mut self, handle: Handle) {
        if self.holds(handle) {
            self.unlink(handle);
        }
    }

    /// # Panics
    /// When `handle` is beyond [`Lru::MAX_HANDLE`].
    fn readmit(&mut self, handle: Handle) {
        self.reserve(handle);
        if !self.holds(handle) {
            self.link_coldest(handle);
        }
    }

    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while self.coldest != NONE {
            let victim = self.coldest;
            match verdict(victim) {
                Verdict::Evict | Verdict::SetAside => self.unlink(victim),
                Verdict::Stop => return,
            }
        }
    }

    fn coldest(&self) -> Option<Handle> {
        (self.coldest != NONE).then_some(self.coldest)
    }

    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(Handle),
        Access(Handle),
        Remove(Handle),
        Readmit(Handle),
        Evict(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        let handle = 0u32..24;
        prop_oneof![
            handle.clone().prop_map(Op::Insert),
            handle.clone().prop_map(Op::Access),
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
                        lru.insert(handle);
                        model.retain(|h| *h != handle);
                        model.push(handle);
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
                        lru.readmit(handle);
                        if !model.contains(&handle) {
                            model.insert(0, handle);
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
