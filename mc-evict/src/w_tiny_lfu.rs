//! W-TinyLFU.

use crate::list::{Links, List};
use crate::pages::{Buckets, Pages};
use crate::policy::{EvictionPolicy, Handle, Item, Verdict, mark};

/// The part of what is held that new things have for themselves: one in a hundred.
const WINDOW: usize = 100;

/// W-TinyLFU (Einziger, Friedman and Manes, TOS 2017): a small window in the order of
/// last use; what leaves it replaces the coldest of the rest only if it was used more
/// often, by a sketch of how often things were used, here or not. The rest is a
/// segmented LRU, four fifths of it for what was used again. About 20 bytes for each
/// handle.
#[derive(Clone, Debug)]
pub struct WTinyLfu {
    links: Links,
    lists: [List; 3],
    things: Pages<Thing>,
    sketch: Sketch,
}

/// Where a thing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Part {
    #[default]
    Window,
    Probation,
    Protected,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thing {
    mark: u32,
    part: Part,
}

impl Default for WTinyLfu {
    fn default() -> Self {
        Self::new()
    }
}

impl WTinyLfu {
    /// An empty order.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            links: Links::new(),
            lists: [List::new(); 3],
            things: Pages::new(),
            sketch: Sketch::new(),
        }
    }

    fn thing(&mut self, handle: Handle) -> &mut Thing {
        self.things.entry(handle as usize, Thing::default())
    }

    fn link(&mut self, handle: Handle, part: Part) {
        self.thing(handle).part = part;
        self.lists[part as usize].link_hottest(&mut self.links, handle);
    }

    fn unlink(&mut self, handle: Handle) {
        let part = self.thing(handle).part;
        self.lists[part as usize].unlink(&mut self.links, handle);
    }

    fn coldest_of(&self, part: Part) -> Option<Handle> {
        self.lists[part as usize].coldest()
    }

    fn uses(&self, handle: Handle) -> u64 {
        self.things.get(handle as usize).map_or(0, |thing| self.sketch.uses(thing.mark))
    }

    /// The next victim, and the thing that then leaves the window for the rest.
    fn next(&self) -> Option<(Handle, Option<Handle>)> {
        let rest = self.coldest_of(Part::Probation).or_else(|| self.coldest_of(Part::Protected));
        let window = self.coldest_of(Part::Window);
        let full = self.lists[Part::Window as usize].len() > self.len() / WINDOW;
        match (window, rest) {
            (Some(new), Some(old)) if full => {
                Some(if self.uses(new) > self.uses(old) { (old, Some(new)) } else { (new, None) })
            }
            (window, rest) => rest.or(window).map(|handle| (handle, None)),
        }
    }

    /// Marks a use of something in the rest.
    fn protect(&mut self, handle: Handle) {
        self.unlink(handle);
        self.link(handle, Part::Protected);
        let rest = self.len() - self.lists[Part::Window as usize].len();
        if self.lists[Part::Protected as usize].len() > rest - rest / 5
            && let Some(coldest) = self.coldest_of(Part::Protected)
        {
            self.unlink(coldest);
            self.link(coldest, Part::Probation);
        }
    }
}

impl EvictionPolicy for WTinyLfu {
    fn insert(&mut self, handle: Handle, item: Item) {
        if self.links.admits(handle) {
            let mark = mark(item.hash);
            self.thing(handle).mark = mark;
            self.link(handle, Part::Window);
            self.sketch.add(mark, self.len());
            // While nothing is evicted, the rest fills from the window.
            if self.lists[Part::Window as usize].len() > self.len() / WINDOW * 2 + 1
                && let Some(coldest) = self.coldest_of(Part::Window)
            {
                self.unlink(coldest);
                self.link(coldest, Part::Probation);
            }
        } else {
            self.access(handle);
        }
    }

    fn access(&mut self, handle: Handle) {
        if !self.links.holds(handle) {
            return;
        }
        let Thing { mark, part } = *self.thing(handle);
        self.sketch.add(mark, self.len());
        match part {
            Part::Window => self.lists[part as usize].refresh(&mut self.links, handle),
            Part::Probation | Part::Protected => self.protect(handle),
        }
    }

    fn remove(&mut self, handle: Handle) {
        if self.links.holds(handle) {
            self.unlink(handle);
        }
    }

    /// A thing that comes back goes to the part of the rest that was used again.
    fn readmit(&mut self, handle: Handle, item: Item) {
        if self.links.admits(handle) {
            self.thing(handle).mark = mark(item.hash);
            self.link(handle, Part::Probation);
            self.protect(handle);
        }
    }

    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some((handle, admitted)) = self.next() {
            if verdict(handle) == Verdict::Stop {
                return;
            }
            self.unlink(handle);
            if let Some(admitted) = admitted {
                self.unlink(admitted);
                self.link(admitted, Part::Probation);
            }
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.next().map(|(handle, _)| handle)
    }

    fn len(&self) -> usize {
        self.lists.iter().map(List::len).sum()
    }
}

/// Words of a block of the sketch.
const WORDS: usize = 4;
/// Things for each block.
const SPARSITY: usize = 8;
/// All counters are halved each time that so many uses for each thing were counted.
const PERIOD: usize = 10;
/// The lower three bits of each counter.
const HALVES: u64 = 0x7777_7777_7777_7777;

/// The recent number of uses of things: a count-min sketch (Cormode and Muthukrishnan
/// 2005) with counters of four bits, one in each word of a thing's block.
#[derive(Clone, Debug)]
struct Sketch {
    blocks: Buckets<[u64; WORDS]>,
    uses: usize,
    aged: usize,
}

impl Sketch {
    const fn new() -> Self {
        Self { blocks: Buckets::new([0; WORDS]), uses: 0, aged: 0 }
    }

    /// Counts a use in a cache that holds `held`.
    fn add(&mut self, mark: u32, held: usize) {
        self.blocks.step_towards(held.div_ceil(SPARSITY));
        self.uses += 1;
        if self.uses >= PERIOD * SPARSITY {
            // One block at a time, so that no call waits for all.
            self.uses = 0;
            self.aged = if self.aged + 1 < self.blocks.len() { self.aged + 1 } else { 0 };
            for word in self.blocks.nth_mut(self.aged).into_iter().flatten() {
                *word = (*word >> 1) & HALVES;
            }
        }
        if mark != 0
            && let Some(block) = self.blocks.get_mut(mark)
        {
            for (word, shift) in block.iter_mut().zip(shifts(mark)) {
                if (*word >> shift) & 15 < 15 {
                    *word += 1 << shift;
                }
            }
        }
    }

    /// At least as many as were counted since the counters were halved; 0 for a mark
    /// of nothing.
    fn uses(&self, mark: u32) -> u64 {
        let Some(block) = self.blocks.get(mark).filter(|_| mark != 0) else { return 0 };
        block.iter().zip(shifts(mark)).map(|(word, shift)| (word >> shift) & 15).min().unwrap_or(0)
    }
}

/// Where a thing's counter is in each word, from bits that do not choose the block.
fn shifts(mark: u32) -> [u32; WORDS] {
    let mixed = mark.wrapping_mul(0x9e37_79b1);
    [28, 24, 20, 16].map(|from| (mixed >> from & 15) * 4)
}
