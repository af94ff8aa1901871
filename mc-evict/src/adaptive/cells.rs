//! Things sorted into cells by how often and how long ago they were used.

use alloc::boxed::Box;

use crate::pages::Pages;
use crate::policy::Handle;

/// Classes of use: once, twice, three times, more often.
pub(super) const CLASSES: usize = 4;
/// Ranges of age, two for each power of two up to 2^32 uses.
pub(super) const AGES: usize = 64;
/// All cells; the cell of a class and an age is `class * AGES + age`.
pub(super) const CELLS: usize = CLASSES * AGES;

const NONE: Handle = Handle::MAX;
const ABSENT: Handle = Handle::MAX - 1;

/// The range that an age of so many uses falls into.
pub(super) const fn age_range(age: u32) -> usize {
    if age < 2 {
        return 0;
    }
    let log = age.ilog2();
    (2 * log + (age >> (log - 1) & 1)) as usize
}

/// The least age of a range.
pub(super) fn least_age(range: usize) -> f32 {
    match range {
        0 => 0.0,
        1 => 1.5,
        range => {
            let octave = (1u64 << (range / 2)) as f32;
            if range % 2 == 1 { octave * 1.5 } else { octave }
        }
    }
}

/// The record of one thing: 20 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    colder: Handle,
    hotter: Handle,
    /// When it was last used, in uses of the cache.
    pub(super) used: u32,
    /// A hash of what the thing is; 0 when it is not known.
    pub(super) mark: u32,
    cell: u8,
}

impl Node {
    const VACANT: Self = Self { colder: NONE, hotter: ABSENT, used: 0, mark: 0, cell: 0 };

    pub(super) fn class(&self) -> usize {
        self.cell as usize / AGES
    }

    pub(super) fn cell(&self) -> usize {
        self.cell as usize
    }
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    coldest: Handle,
    hottest: Handle,
    len: u32,
}

/// For each cell, a list of the things in it in the order of their last use. The
/// cells of a class, older ones first, are that class in the order of last use.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    nodes: Pages<Node>,
    cells: Box<[Cell; CELLS]>,
    /// For each class, the age ranges that have things.
    occupied: [u64; CLASSES],
    len: usize,
}

impl Cells {
    pub(super) fn new() -> Self {
        let empty = Cell { coldest: NONE, hottest: NONE, len: 0 };
        Self {
            nodes: Pages::new(),
            cells: Box::new([empty; CELLS]),
            occupied: [0; CLASSES],
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The record of a thing that is held.
    pub(super) fn get(&self, handle: Handle) -> Option<&Node> {
        self.nodes.get(handle as usize).filter(|node| node.hotter != ABSENT)
    }

    /// Takes a thing out, and says what was known of it.
    pub(super) fn take(&mut self, handle: Handle) -> Option<Node> {
        let node = *self.get(handle)?;
        self.unlink(handle, node);
        self.len -= 1;
        Some(node)
    }

    /// Adds a thing that is not held, as used at `now`, later than all others.
    pub(super) fn put(&mut self, handle: Handle, class: usize, mark: u32, now: u32) {
        let node = self.nodes.entry(handle as usize, Node::VACANT);
        (node.used, node.mark) = (now, mark);
        self.link(handle, class * AGES);
        self.len += 1;
    }

    /// The things of each cell that has any.
    pub(super) fn occupied(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.occupied.iter().enumerate().flat_map(move |(class, ranges)| {
            let mut ranges = *ranges;
            core::iter::from_fn(move || {
                // Older ones first.
                let range = ranges.checked_ilog2()? as usize;
                ranges ^= 1 << range;
                let cell = class * AGES + range;
                Some((cell, self.cells[cell].len))
            })
        })
    }

    /// The least recently used thing of a cell.
    pub(super) fn coldest_of(&self, cell: usize) -> Option<Handle> {
        let coldest = self.cells[cell].coldest;
        (coldest != NONE).then_some(coldest)
    }

    /// The least recently used thing of all.
    pub(super) fn oldest(&self, now: u32) -> Option<Handle> {
        let mut oldest = None;
        for (class, ranges) in self.occupied.iter().enumerate() {
            let Some(range) = ranges.checked_ilog2() else { continue };
            let handle = self.cells[class * AGES + range as usize].coldest;
            let Some(node) = self.get(handle) else { continue };
            // The range goes before the age: ages wrap around.
            let age = (range, now.wrapping_sub(node.used));
            if oldest.is_none_or(|(oldest, _)| age > oldest) {
                oldest = Some((age, handle));
            }
        }
        oldest.map(|(_, handle)| handle)
    }

    /// Moves things that have come of age to the cells for their age, `limit` of them
    /// at most; the rest follows next time. Older ones go first, so that the order
    /// holds.
    pub(super) fn age(&mut self, now: u32, mut limit: u32) {
        for class in 0..CLASSES {
            let mut ranges = self.occupied[class];
            while let Some(range) = ranges.checked_ilog2() {
                ranges ^= 1 << range;
                let cell = class * AGES + range as usize;
                while let Some(handle) = self.coldest_of(cell) {
                    let Some(node) = self.get(handle).copied() else { break };
                    let due = age_range(now.wrapping_sub(node.used));
                    if due <= range as usize {
                        break;
                    }
                    if limit == 0 {
                        return;
                    }
                    limit -= 1;
                    self.unlink(handle, node);
                    self.link(handle, class * AGES + due);
                }
            }
        }
    }

    fn node(&mut self, handle: Handle) -> &mut Node {
        self.nodes.get_mut(handle as usize).expect("handles in lists have nodes")
    }

    fn unlink(&mut self, handle: Handle, node: Node) {
        let Node { colder, hotter, .. } = node;
        let cell = node.cell();
        match colder {
            NONE => self.cells[cell].coldest = hotter,
            colder => self.node(colder).hotter = hotter,
        }
        match hotter {
            NONE => self.cells[cell].hottest = colder,
            hotter => self.node(hotter).colder = colder,
        }
        self.node(handle).hotter = ABSENT;
        self.cells[cell].len -= 1;
        if self.cells[cell].len == 0 {
            self.occupied[cell / AGES] &= !(1 << (cell % AGES));
        }
    }

    fn link(&mut self, handle: Handle, cell: usize) {
        let hottest = self.cells[cell].hottest;
        let node = self.node(handle);
        (node.colder, node.hotter, node.cell) = (hottest, NONE, cell as u8);
        match hottest {
            NONE => self.cells[cell].coldest = handle,
            hottest => self.node(hottest).hotter = handle,
        }
        self.cells[cell].hottest = handle;
        self.cells[cell].len += 1;
        self.occupied[cell / AGES] |= 1 << (cell % AGES);
    }
}
