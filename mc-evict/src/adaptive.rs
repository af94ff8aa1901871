//! Follows the rule that would have found most.

mod arbiter;
mod classes;
mod ghosts;
mod rule;
mod shadow;

use alloc::vec::Vec;

use self::arbiter::Arbiter;
use self::classes::{Classes, Node, mark_of};
use self::ghosts::Ghosts;
use self::rule::RULES;
use self::shadow::Shadow;
use crate::policy::{EvictionPolicy, Handle, Item, MAX_HANDLE, Verdict};

/// Things that the shadow of a rule may hold.
const SAMPLE: usize = 4096;

/// Gives up what the best of six rules gives up. Which rule is best is measured all the
/// time, in small copies of the cache that hold no more than the names of a sample of what
/// is used.
///
/// * Each thing is in one of eight classes: how often it was used, lately and before it
///   its eviction. Uses in quick succession count once (the correlated references of
///   LRU-K; O'Neil, O'Neil and Weikum 1993).
/// * The rules differ in how much longer a thing is kept that was used more often: not at
///   all (LRU), in proportion (as in hyperbolic caching; Blankstein, Sen and Freedman 2017),
///   or with its fourth power (almost LFU). In three of them what was used once is on
///   probation: it has a tenth of the room, or none while there is anything else to keep,
///   or goes again at once, which is best for a loop that is longer than the cache.
/// * A shadow of a rule sees the uses of a sample of all things and holds as large a part of
///   them as the cache does (miniature simulations; Waldspurger et al. 2017). The rule whose
///   shadow has found most of late is the one by which the cache evicts.
/// * Evicted things are remembered for about five times as many new things as are held.
///
/// It knows nothing of chains. A cache that uses the blocks of a prompt in the order from
/// the last to the first has each evicted before those it needs: they are of the same or
/// of a higher class, and were used later.
///
/// 32 bytes for each thing, and at most 1.6 MB for the shadows. No call does work that grows
/// with what is held.
#[derive(Clone, Debug)]
pub struct Adaptive {
    things: Classes,
    ghosts: Ghosts,
    /// Uses, wrapping around.
    now: u32,
    /// One for each rule.
    shadows: Vec<Shadow>,
    /// One mark in `1 << rarity` is in the shadows.
    rarity: u32,
    /// The most held of late.
    size: usize,
    arbiter: Arbiter,
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::new()
    }
}

impl Adaptive {
    /// An empty order.
    #[must_use]
    pub fn new() -> Self {
        Self {
            things: Classes::new(),
            ghosts: Ghosts::new(SAMPLE),
            now: 0,
            shadows: RULES.iter().map(|rule| Shadow::new(*rule, SAMPLE)).collect(),
            rarity: 0,
            size: 0,
            arbiter: Arbiter::default(),
        }
    }

    /// The time of a use.
    const fn tick(&mut self) -> u32 {
        self.now = self.now.wrapping_add(1);
        self.now
    }

    fn is_sampled(&self, mark: u32) -> bool {
        mark != 0 && scatter(mark).trailing_zeros() >= self.rarity
    }

    /// Shows the use of something to the shadows.
    fn show(&mut self, mark: u32) {
        if !self.is_sampled(mark) {
            return;
        }
        let room = (self.things.len().max(self.size) >> self.rarity).max(1);
        let mut found = 0;
        for (at, shadow) in self.shadows.iter_mut().enumerate() {
            found |= u32::from(shadow.shows(mark, room)) << at;
        }
        self.arbiter.record(found);
    }

    /// Notes how much is held, and samples less where that is more.
    fn measure(&mut self) {
        self.size = self.things.len().max(self.size - self.size / 64);
        let before = self.rarity;
        while self.size >> self.rarity >= SAMPLE {
            self.rarity += 1;
        }
        if self.rarity > before {
            let rarity = self.rarity;
            for shadow in &mut self.shadows {
                shadow.thin_out(SAMPLE >> rarity, |mark| scatter(mark).trailing_zeros() >= rarity);
            }
        }
    }

    fn victim(&self) -> Option<Handle> {
        RULES[self.arbiter.choice()].victim(&self.things, self.now)
    }
}

impl EvictionPolicy for Adaptive {
    fn insert(&mut self, handle: Handle, item: Item) {
        self.insert_below(handle, item, Handle::MAX);
    }

    fn insert_below(&mut self, handle: Handle, item: Item, other: Handle) {
        if handle > MAX_HANDLE {
            return;
        }
        if self.things.get(handle).is_some() {
            return self.access(handle);
        }
        if self.things.len() >> self.rarity >= SAMPLE {
            self.measure();
        }
        let now = self.tick();
        let mark = mark_of(item.hash);
        let class = self.ghosts.class_of_new(mark, self.things.len(), now);
        self.things.put_below(handle, Node::new(mark, class, now), other);
        self.show(mark);
    }

    fn access(&mut self, handle: Handle) {
        let now = self.tick();
        if let Some(mark) = self.things.renew(handle, now) {
            self.show(mark);
        }
    }

    fn access_all(&mut self, handles: &[Handle]) {
        self.things.load(handles);
        handles.iter().for_each(|handle| self.access(*handle));
    }

    fn remove(&mut self, handle: Handle) {
        let Some(node) = self.things.take(handle) else { return };
        self.ghosts.forget(node.mark());
        if self.is_sampled(node.mark()) {
            self.shadows.iter_mut().for_each(|shadow| shadow.forget(node.mark()));
        }
    }

    fn give_up(&mut self, handle: Handle) {
        if self.things.len() > self.size || self.now.is_multiple_of(64) {
            self.measure();
        }
        let held = self.things.len();
        if let Some(node) = self.things.take(handle) {
            self.ghosts.put(&node, self.now, held);
        }
    }

    fn used_below(&mut self, item: Item) {
        self.tick();
        self.show(mark_of(item.hash));
    }

    fn readmit(&mut self, handle: Handle, item: Item) {
        if handle > MAX_HANDLE || self.things.get(handle).is_some() {
            return;
        }
        let now = self.tick();
        let mark = mark_of(item.hash);
        let class = self.ghosts.find(mark).unwrap_or(0);
        self.things.put(handle, Node::new(mark, class, now));
    }

    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some(handle) = self.victim() {
            if verdict(handle) == Verdict::Stop {
                return;
            }
            // One that is set aside is as often used when it comes back.
            self.give_up(handle);
        }
    }

    fn take(&mut self, handle: Handle, verdict: Verdict) {
        match verdict {
            // Whether it goes first or not: that takes a look at every class.
            Verdict::Evict => self.give_up(handle),
            Verdict::SetAside if self.victim() == Some(handle) => self.give_up(handle),
            Verdict::SetAside => self.remove(handle),
            Verdict::Stop => {}
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.victim()
    }

    fn upcoming(&self, likely: &mut [Handle]) -> usize {
        let Some(victim) = self.victim() else { return 0 };
        let mut found = 0;
        let mut touched = 0;
        for ((handle, mark), place) in self.things.from(victim).zip(likely) {
            *place = handle;
            found += 1;
            // A line of memory that the processor has under way until it is written to.
            touched ^= self.ghosts.touch(mark);
        }
        core::hint::black_box(touched);
        found
    }

    fn len(&self) -> usize {
        self.things.len()
    }
}

/// Bits of a mark that say nothing of where its ghost is.
const fn scatter(mark: u32) -> u32 {
    let mixed = (mark ^ (mark >> 15)).wrapping_mul(0x2c1b_3c6d);
    mixed ^ (mixed >> 13)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shadows_see_what_is_used_below() {
        let item = |number: u64| Item::new((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut policy = Adaptive::new();
        (0..100).for_each(|number| policy.insert(number as Handle, item(number)));
        let is_seen = |policy: &Adaptive, number| {
            let mark = mark_of(item(number).hash);
            let shadows = policy.shadows.clone();
            shadows.into_iter().filter_map(|mut it| it.shows(mark, 100).then_some(())).count()
        };
        assert_eq!(is_seen(&policy, 200), 0);
        policy.used_below(item(200));
        policy.used_below(item(200));
        assert!(is_seen(&policy, 200) > 1, "as of something that is held");
        assert_eq!(policy.len(), 100, "it is not held");
        assert!(policy.things.get(99).is_some());
    }
}
