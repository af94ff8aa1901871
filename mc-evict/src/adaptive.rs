//! Follows the rule that would have found most.

mod arbiter;
mod classes;
mod ghosts;
mod rule;
mod shadow;

use alloc::sync::Arc;
use alloc::vec::Vec;

use self::arbiter::Arbiter;
use self::classes::{Classes, Node, mark_of};
use self::ghosts::Ghosts;
use self::rule::{RULES, Victim};
use self::shadow::Shadow;
use crate::policy::{EvictionPolicy, Handle, Item, MAX_HANDLE, Verdict};

/// Things that the shadows of one rule hold, in all parts of a cache together, and the
/// fewest in one part.
const SAMPLE: usize = 4096;
const LEAST: usize = 64;

/// Gives up what the best of six rules gives up. Which rule is best is measured all the
/// time, in small copies of the cache that hold no more than the names of a sample of what
/// is used.
///
/// * Each thing is in one of eight classes: how often it was used, lately and before it
///   was given up. Uses in quick succession count once (the correlated references of
///   LRU-K; O'Neil, O'Neil and Weikum 1993).
/// * The rules differ in how much longer a thing is kept that was used more often: not at
///   all (LRU), in proportion (as in hyperbolic caching; Blankstein, Sen and Freedman 2017),
///   or with its fourth power (almost LFU). In three of them what was used once is on
///   probation: it has a tenth of the room, or none while there is anything else to keep,
///   or goes again at once, which is best for a loop that is longer than the cache.
/// * A shadow of a rule sees the uses of a sample of all things and holds as large a part of
///   them as the cache does (miniature simulations; Waldspurger et al. 2017). The rule whose
///   shadow has found most of late is the one by which the cache gives things up.
/// * What was given up is remembered for about five times as many new things as are held.
///
/// It knows nothing of chains. A cache that uses the blocks of a prompt in the order from
/// the last to the first has each given up before those it needs: they are of the same or
/// of a higher class, and were used later.
///
/// 32 bytes for each thing, and at most 1.6 MB for the shadows of all parts of a cache, or
/// 25 kB for each part where there are more than 64. No call does work that grows with what
/// is held. A clone goes on learning together with the original, as the parts of a cache do.
#[derive(Clone, Debug)]
pub struct Adaptive {
    things: Classes,
    ghosts: Ghosts,
    /// Uses of all parts of the cache, wrapping around.
    now: u32,
    /// Uses of this part that the others do not know of.
    untold: u32,
    /// One for each rule.
    shadows: Vec<Shadow>,
    /// Things that a shadow may hold.
    most: usize,
    /// One mark in `1 << rarity` is in the shadows.
    rarity: u32,
    /// The most held of late.
    size: usize,
    /// Shared by all parts of a cache.
    arbiter: Arc<Arbiter>,
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
        Self::part(Arc::default(), SAMPLE)
    }

    /// Empty orders for the parts of one cache, which learn from each other: each sees the
    /// things of its part alone, as where a cache is divided by the hash of a key.
    pub fn parts(count: usize) -> impl Iterator<Item = Self> {
        let arbiter = Arc::default();
        let most = (SAMPLE / count.max(1)).max(LEAST);
        (0..count).map(move |_| Self::part(Arc::clone(&arbiter), most))
    }

    fn part(arbiter: Arc<Arbiter>, most: usize) -> Self {
        Self {
            things: Classes::new(),
            ghosts: Ghosts::new(most),
            now: 0,
            untold: 0,
            shadows: RULES.iter().map(|rule| Shadow::new(*rule, most)).collect(),
            most,
            rarity: 0,
            size: 0,
            arbiter,
        }
    }

    /// The time of a use. Parts of a large cache tell each other now and then.
    fn tick(&mut self) -> u32 {
        self.untold += 1;
        self.now = self.now.wrapping_add(1);
        if self.untold as usize > (self.things.len() / 64).min(64) {
            self.now = self.arbiter.tell(core::mem::take(&mut self.untold));
        }
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
        while self.size >> self.rarity >= self.most {
            self.rarity += 1;
        }
        if self.rarity > before {
            let rarity = self.rarity;
            for shadow in &mut self.shadows {
                shadow
                    .thin_out(self.most >> rarity, |mark| scatter(mark).trailing_zeros() >= rarity);
            }
        }
    }

    fn victim(&self) -> Option<Victim> {
        RULES[self.arbiter.choice()].victim(&self.things, self.now)
    }
}

impl EvictionPolicy for Adaptive {
    fn insert(&mut self, handle: Handle, item: Item) {
        if handle > MAX_HANDLE {
            return;
        }
        if self.things.get(handle).is_some() {
            return self.access(handle);
        }
        if self.things.len() >> self.rarity >= self.most {
            self.measure();
        }
        let now = self.tick();
        let mark = mark_of(item.hash);
        let class = self.ghosts.class_of_new(mark, self.things.len(), now);
        self.things.put(handle, Node::new(mark, class, now));
        self.show(mark);
    }

    fn access(&mut self, handle: Handle) {
        let now = self.tick();
        if let Some(mark) = self.things.renew(handle, now) {
            self.show(mark);
        }
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
        while let Some(Victim { handle, .. }) = self.victim() {
            if verdict(handle) == Verdict::Stop {
                return;
            }
            // One that is set aside is as often used when it comes back.
            self.give_up(handle);
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.victim().map(|victim| victim.handle)
    }

    fn urgency(&self) -> Option<u64> {
        let now = self.arbiter.now();
        RULES[self.arbiter.choice()].victim(&self.things, now).map(|victim| victim.urgency)
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
