//! The probability of reuse, learned from a sample of all things.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::cells::{AGES, CELLS, CLASSES, Cells, age_range, least_age};

const NONE: u32 = u32::MAX;

/// The sample reaches back over this many times what the cache holds.
const REACH: usize = 8;
/// One sampled thing for so many in the cache, within the bounds that follow.
const SPARSITY: usize = 8;
const LEAST: usize = 1024;
const MOST: usize = 8192;

/// The weight of one estimate in the next.
const DECAY: f32 = 0.995;
/// A guess at a rate counts as much as so many uses that were seen.
const PRIOR: f32 = 2.0;
/// Things that were used more often are worth less only when they are worth less
/// than this part of those that were not.
const DISTRUST: f32 = 0.5;

/// The last use of a sample of all things, held or not, and how many of them were used
/// again at which age.
///
/// Which things are sampled depends on their marks alone, so that the sample does
/// not depend on what the cache does with them.
#[derive(Clone, Debug)]
pub(super) struct History {
    things: Cells,
    /// The first slot of each chain, by mark.
    heads: Vec<u32>,
    /// The next slot of the chain that a slot is in, or the next free one.
    next: Vec<u32>,
    free: u32,
    room: usize,
    /// One mark in `mask + 1` is sampled.
    mask: u32,
    observed: u32,
    /// Uses of things in each cell.
    uses: Box<[f32; CELLS]>,
    /// Things in each cell, summed over time.
    exposure: Box<[f32; CELLS]>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            things: Cells::new(),
            heads: alloc::vec![NONE; LEAST],
            next: Vec::new(),
            free: NONE,
            room: LEAST,
            mask: 0,
            observed: 0,
            uses: Box::new([0.0; CELLS]),
            exposure: Box::new([0.0; CELLS]),
        }
    }

    /// Records that something was used, and is of `class` from now on.
    pub(super) fn used(&mut self, mark: u32, class: usize, now: u32) {
        if !self.samples(mark) {
            return;
        }
        if let Some(slot) = self.find(mark) {
            if let Some(thing) = self.things.take(slot) {
                let range = age_range(now.wrapping_sub(thing.used));
                self.uses[thing.class() * AGES + range] += 1.0;
            }
            self.things.put(slot, class, mark, now);
            return;
        }
        while self.things.len() >= self.room
            && let Some(oldest) = self.things.oldest(now)
        {
            self.forget_slot(oldest);
        }
        let slot = match self.free {
            NONE => {
                self.next.push(NONE);
                self.next.len() as u32 - 1
            }
            free => {
                self.free = self.next[free as usize];
                free
            }
        };
        let head = self.head(mark);
        self.next[slot as usize] = core::mem::replace(&mut self.heads[head], slot);
        self.things.put(slot, class, mark, now);
    }

    /// Forgets something whose end says nothing of its use.
    pub(super) fn forget(&mut self, mark: u32) {
        if self.samples(mark)
            && let Some(slot) = self.find(mark)
        {
            self.forget_slot(slot);
        }
    }

    /// Counts the things in each cell for the time since the last count.
    pub(super) fn observe(&mut self, now: u32) {
        let elapsed = now.wrapping_sub(self.observed) as f32;
        self.observed = now;
        self.things.age(now, u32::MAX);
        for (cell, len) in self.things.occupied() {
            self.exposure[cell] += len as f32 * elapsed;
        }
    }

    /// Fits the sample to a cache that holds `size` things.
    pub(super) fn fit(&mut self, size: usize, now: u32) {
        self.room = (size / SPARSITY).max(LEAST.min(size * REACH)).clamp(16, MOST);
        let rate = (size.saturating_mul(REACH) / self.room).max(1).next_power_of_two();
        let mask = u32::try_from(rate - 1).unwrap_or(u32::MAX);
        if mask > self.mask {
            // Things that are sampled no more would seem never to be used again.
            let slots = 0..self.next.len() as u32;
            let marks = slots.filter_map(|slot| self.things.get(slot).map(|thing| (slot, *thing)));
            let stray: Vec<u32> = marks
                .filter(|(_, thing)| scatter(thing.mark) & mask != 0)
                .map(|(slot, _)| slot)
                .collect();
            for slot in stray {
                self.forget_slot(slot);
            }
        }
        self.mask = mask;
        while self.things.len() > self.room
            && let Some(oldest) = self.things.oldest(now)
        {
            self.forget_slot(oldest);
        }
        if self.room > self.heads.len() {
            self.index_again(self.room.next_power_of_two());
        }
    }

    /// The value of the things of each cell: the most uses for each unit of time
    /// that they can be expected to have if they are held up to some age (Gittins
    /// 1979; for caches, Beckmann, Chen and Cidon 2018).
    pub(super) fn rank(&mut self, ranks: &mut [f32; CELLS]) {
        let mut rates = [0.0; AGES];
        for (range, rate) in rates.iter_mut().enumerate() {
            let of_all = |values: &[f32; CELLS]| -> f32 {
                (0..CLASSES).map(|class| values[class * AGES + range]).sum()
            };
            let exposure = of_all(&self.exposure);
            *rate = if exposure > 0.0 { of_all(&self.uses) / exposure } else { 0.0 };
        }
        for class in 0..CLASSES {
            let cells = class * AGES..(class + 1) * AGES;
            let (uses, exposure) = (&self.uses[cells.clone()], &self.exposure[cells.clone()]);
            for ((rate, uses), exposure) in rates.iter_mut().zip(uses).zip(exposure) {
                // The class below is the guess for this one.
                *rate = if *rate > 0.0 {
                    (uses + PRIOR) / (exposure + PRIOR / *rate)
                } else {
                    uses / (exposure + 1.0)
                };
            }
            let (lower, this) = ranks.split_at_mut(cells.start);
            let this = &mut this[..AGES];
            indices(&rates, this);
            if class > 0 {
                for (rank, lower) in this.iter_mut().zip(&lower[cells.start - AGES..]) {
                    if *rank > DISTRUST * lower {
                        *rank = rank.max(*lower);
                    }
                }
            }
        }
        for value in self.uses.iter_mut().chain(self.exposure.iter_mut()) {
            *value *= DECAY;
        }
    }

    fn samples(&self, mark: u32) -> bool {
        mark != 0 && scatter(mark) & self.mask == 0
    }

    fn head(&self, mark: u32) -> usize {
        mark as usize & (self.heads.len() - 1)
    }

    fn find(&self, mark: u32) -> Option<u32> {
        let mut slot = self.heads[self.head(mark)];
        while slot != NONE {
            if self.things.get(slot).is_some_and(|thing| thing.mark == mark) {
                return Some(slot);
            }
            slot = self.next[slot as usize];
        }
        None
    }

    fn forget_slot(&mut self, slot: u32) {
        let Some(thing) = self.things.take(slot) else { return };
        let head = self.head(thing.mark);
        let after = core::mem::replace(&mut self.next[slot as usize], self.free);
        self.free = slot;
        if self.heads[head] == slot {
            self.heads[head] = after;
            return;
        }
        let mut before = self.heads[head];
        while before != NONE {
            let next = &mut self.next[before as usize];
            if *next == slot {
                *next = after;
                return;
            }
            before = *next;
        }
    }

    fn index_again(&mut self, heads: usize) {
        self.heads.clear();
        self.heads.resize(heads, NONE);
        for slot in 0..self.next.len() as u32 {
            if let Some(mark) = self.things.get(slot).map(|thing| thing.mark) {
                let head = self.head(mark);
                self.next[slot as usize] = core::mem::replace(&mut self.heads[head], slot);
            }
        }
    }
}

/// For each age range, the largest ratio of expected uses to expected time over all
/// ages up to which a thing can be held, when it is used at these rates.
fn indices(rates: &[f32; AGES], ranks: &mut [f32]) {
    // In a range that is `width` long, a thing is used with this probability, and the
    // time until it is, or until the range ends, is that part of the width.
    let mut steps = [(0.0, 0.0); AGES];
    let mut end = 0;
    for (range, step) in steps.iter_mut().enumerate() {
        let width = least_age(range + 1) - least_age(range);
        let uses = rates[range] * width;
        *step = (uses / (1.0 + uses), width / (1.0 + uses));
        if uses > 0.0 {
            end = range + 1;
        }
    }
    for (range, rank) in ranks.iter_mut().enumerate() {
        let (mut left, mut uses, mut time, mut best) = (1.0_f32, 0.0_f32, 0.0_f32, 0.0_f32);
        for (probability, spent) in steps.get(range..end).unwrap_or_default() {
            uses += left * probability;
            time += left * spent;
            left *= 1.0 - probability;
            best = best.max(uses / time);
        }
        *rank = best;
    }
}

/// Bits of a mark that say nothing of where its ghost is.
const fn scatter(mark: u32) -> u32 {
    let mixed = (mark ^ (mark >> 15)).wrapping_mul(0x2c1b_3c6d);
    mixed ^ (mixed >> 13)
}
