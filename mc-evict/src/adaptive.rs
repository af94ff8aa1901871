//! Learns which things are used again, and when.

mod cells;
mod ghosts;
mod history;

use alloc::boxed::Box;

use self::cells::{CELLS, CLASSES, Cells};
use self::ghosts::Ghosts;
use self::history::History;
use crate::policy::{EvictionPolicy, Handle, Item, MAX_HANDLE, Verdict, mark};

/// Something goes in the place of the least recently used when it is worth less than
/// this part of it.
const DOUBT: f32 = 0.75;
/// Uses between two looks at what has come of age, and how much is moved then. No more
/// than one thing for each use and age range comes of age.
const AGING: u32 = 16;
const MOVES: u32 = 1024;

/// Gives up first what is worth least: what has the fewest uses to expect for the time
/// for which it would have to be held. How likely things are to be used again, by how
/// often and how long ago they were used, is learned from a sample of all things, those
/// that were given up included.
///
/// * Each thing is in one of four classes (used once, twice, three times, more often)
///   and in a range of age. What was given up is remembered with its class, so things
///   that come back are known.
/// * The worth of a cell (class and age) is its Gittins index (Gittins 1979): the
///   largest ratio of expected uses to expected time over all ages up to which things
///   can be held. LHD (Beckmann, Chen and Cidon, NSDI 2018) ranks by such densities too.
/// * The least recently used thing goes unless another is worth less than three
///   quarters of it. So where recency is all there is to know, this is LRU; where
///   things are used once, or again only after longer than they can be held, most of
///   what is new passes through and the rest stays to be found.
///
/// It needs no parents and tells no chains apart, but takes care not to break them:
/// blocks that were used together have the same age, and those before others in a chain
/// are used at least as often.
///
/// About 40 bytes for each thing, and 40 kB. No call does work that grows with what is
/// held.
#[derive(Clone, Debug)]
pub struct Adaptive {
    things: Cells,
    ghosts: Ghosts,
    history: History,
    ranks: Box<[f32; CELLS]>,
    /// Uses, wrapping around.
    now: u32,
    observe_at: u32,
    rank_at: u32,
    /// The most held of late.
    size: usize,
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
            things: Cells::new(),
            ghosts: Ghosts::new(),
            history: History::new(),
            ranks: Box::new([0.0; CELLS]),
            now: 0,
            observe_at: 0,
            rank_at: 0,
            size: 0,
        }
    }

    /// One use more, and the work that is due with it.
    fn tick(&mut self) -> u32 {
        self.now = self.now.wrapping_add(1);
        let now = self.now;
        if now.is_multiple_of(AGING) {
            self.things.age(now, MOVES);
        }
        if is_due(self.observe_at, now) {
            self.observe_at = now.wrapping_add((self.size / 16).clamp(8, 1024) as u32);
            self.history.observe(now);
        }
        if is_due(self.rank_at, now) {
            self.size = self.things.len().max(self.size / 8 * 7);
            self.rank_at = now.wrapping_add((self.size / 8).clamp(64, 1 << 16) as u32);
            self.history.fit(self.size, now);
            self.history.rank(&mut self.ranks);
        }
        now
    }

    fn victim(&self) -> Option<Handle> {
        let oldest = self.things.oldest(self.now)?;
        let cell = self.things.get(oldest)?.cell();
        let (mut victim, mut worth) = (None, DOUBT * self.ranks[cell]);
        for (cell, _) in self.things.occupied() {
            if self.ranks[cell] < worth {
                (victim, worth) = (Some(cell), self.ranks[cell]);
            }
        }
        victim.map_or(Some(oldest), |cell| self.things.coldest_of(cell))
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
        let now = self.tick();
        let mark = mark(item.hash);
        self.ghosts.count_new(self.things.len(), now);
        let class = self.ghosts.find(mark).map_or(0, above);
        self.things.put(handle, class, mark, now);
        self.history.used(mark, class, now);
    }

    fn access(&mut self, handle: Handle) {
        if self.things.get(handle).is_none() {
            return;
        }
        let now = self.tick();
        if let Some(node) = self.things.take(handle) {
            let class = above(node.class());
            self.things.put(handle, class, node.mark, now);
            self.history.used(node.mark, class, now);
        }
    }

    fn remove(&mut self, handle: Handle) {
        if let Some(node) = self.things.take(handle) {
            self.ghosts.forget(node.mark);
            self.history.forget(node.mark);
        }
    }

    fn give_up(&mut self, handle: Handle) {
        if let Some(node) = self.things.take(handle) {
            let held = self.things.len() + 1;
            self.ghosts.put(node.mark, node.class(), node.used, self.now, held);
        }
    }

    fn readmit(&mut self, handle: Handle, item: Item) {
        if handle > MAX_HANDLE || self.things.get(handle).is_some() {
            return;
        }
        let now = self.tick();
        let mark = mark(item.hash);
        let class = self.ghosts.find(mark).unwrap_or(0);
        self.things.put(handle, class, mark, now);
    }

    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some(victim) = self.victim() {
            if verdict(victim) == Verdict::Stop {
                return;
            }
            // One that is set aside is as often used when it comes back.
            self.give_up(victim);
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.victim()
    }

    fn len(&self) -> usize {
        self.things.len()
    }
}

const fn above(class: usize) -> usize {
    if class + 1 < CLASSES { class + 1 } else { class }
}

/// Returns whether `due` is not after `now`.
const fn is_due(due: u32, now: u32) -> bool {
    now.wrapping_sub(due) < 1 << 31
}
