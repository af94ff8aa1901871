//! A small copy of the cache, which counts the hits that a rule would have had.

use alloc::vec::Vec;

use super::classes::{Classes, Node};
use super::ghosts::Ghosts;
use super::rule::Rule;
use crate::policy::Handle;

const NONE: Handle = Handle::MAX;

/// A cache of the marks of a sample of all things, which gives them up by one rule.
#[derive(Clone, Debug)]
pub(super) struct Shadow {
    rule: Rule,
    things: Classes,
    ghosts: Ghosts,
    /// The first handle of each chain, by mark.
    heads: Vec<Handle>,
    /// The next handle of the chain that a handle is in, or the next free one.
    next: Vec<Handle>,
    free: Handle,
    now: u32,
}

impl Shadow {
    pub(super) const fn new(rule: Rule, spare: usize) -> Self {
        Self {
            rule,
            things: Classes::new(),
            ghosts: Ghosts::new(spare),
            heads: Vec::new(),
            next: Vec::new(),
            free: NONE,
            now: 0,
        }
    }

    /// Uses something, in a cache that holds `room`. Returns whether it was there.
    pub(super) fn shows(&mut self, mark: u32, room: usize) -> bool {
        self.now = self.now.wrapping_add(1);
        if let Some(handle) = self.find(mark) {
            self.things.renew(handle, self.now);
            return true;
        }
        while self.things.len() >= room
            && let Some(victim) = self.rule.victim(&self.things, self.now)
        {
            let held = self.things.len();
            if let Some(node) = self.take(victim) {
                self.ghosts.put(&node, self.now, held);
            }
        }
        let class = self.ghosts.class_of_new(mark, self.things.len(), self.now);
        let handle = self.vacant();
        self.chain(handle, mark);
        self.things.put(handle, Node::new(mark, class, self.now));
        false
    }

    /// Forgets something.
    pub(super) fn forget(&mut self, mark: u32) {
        self.ghosts.forget(mark);
        if let Some(handle) = self.find(mark) {
            self.take(handle);
        }
    }

    /// Goes on with a part of the sample.
    pub(super) fn thin_out(&mut self, spare: usize, stays: impl Fn(u32) -> bool) {
        self.ghosts.set_spare(spare);
        for handle in 0..self.next.len() as Handle {
            if self.things.get(handle).is_some_and(|node| !stays(node.mark())) {
                self.take(handle);
            }
        }
    }

    fn find(&self, mark: u32) -> Option<Handle> {
        let mut handle = *self.heads.get(self.head(mark))?;
        while handle != NONE {
            if self.things.get(handle).is_some_and(|node| node.mark() == mark) {
                return Some(handle);
            }
            handle = self.next[handle as usize];
        }
        None
    }

    fn take(&mut self, handle: Handle) -> Option<Node> {
        let node = self.things.take(handle)?;
        let after = core::mem::replace(&mut self.next[handle as usize], self.free);
        self.free = handle;
        let head = self.head(node.mark());
        let mut link = &mut self.heads[head];
        while *link != handle && *link != NONE {
            let at = *link as usize;
            link = &mut self.next[at];
        }
        *link = after;
        Some(node)
    }

    fn vacant(&mut self) -> Handle {
        if self.free != NONE {
            let handle = self.free;
            self.free = self.next[handle as usize];
            return handle;
        }
        self.next.push(NONE);
        if self.next.len() > self.heads.len() {
            let heads = (self.heads.len() * 2).max(16);
            self.heads.clear();
            self.heads.resize(heads, NONE);
            for handle in 0..self.next.len() as Handle {
                if let Some(mark) = self.things.get(handle).map(Node::mark) {
                    self.chain(handle, mark);
                }
            }
        }
        self.next.len() as Handle - 1
    }

    fn chain(&mut self, handle: Handle, mark: u32) {
        let head = self.head(mark);
        self.next[handle as usize] = core::mem::replace(&mut self.heads[head], handle);
    }

    /// The chain of a mark. The lowest bits of marks are all the same, and there is a power of
    /// two of chains.
    fn head(&self, mark: u32) -> usize {
        mark.rotate_right(8) as usize & self.heads.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule::RULES;
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Show(u32),
        Forget(u32),
        ThinOut(u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        let mark = || (1..40u32).prop_map(|number| number << 3);
        prop_oneof![
            8 => mark().prop_map(Op::Show),
            1 => mark().prop_map(Op::Forget),
            1 => (1..5u32).prop_map(Op::ThinOut),
        ]
    }

    proptest! {
        /// The model of the shadow of LRU: marks in the order of their last use.
        #[test]
        fn the_first_is_lru(ops in prop::collection::vec(op(), 1..400)) {
            const ROOM: usize = 12;
            let mut shadow = Shadow::new(RULES[0], 64);
            let mut model: Vec<u32> = Vec::new();
            for op in ops {
                match op {
                    Op::Show(mark) => {
                        let known = model.contains(&mark);
                        model.retain(|other| *other != mark);
                        if model.len() == ROOM {
                            model.remove(0);
                        }
                        model.push(mark);
                        prop_assert_eq!(shadow.shows(mark, ROOM), known);
                    }
                    Op::Forget(mark) => {
                        model.retain(|other| *other != mark);
                        shadow.forget(mark);
                    }
                    Op::ThinOut(rest) => {
                        model.retain(|mark| (mark >> 3) % 5 != rest);
                        shadow.thin_out(32, |mark| (mark >> 3) % 5 != rest);
                    }
                }
                prop_assert_eq!(shadow.things.len(), model.len());
                prop_assert!(model.iter().all(|mark| shadow.find(*mark).is_some()));
            }
        }
    }
}
