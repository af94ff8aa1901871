//! Things by how often they were used, and of each class by when.

use crate::pages::Pages;
use crate::policy::{Handle, mark};

/// Classes: used once, twice, and so on; eight times or more often.
pub(super) const CLASSES: usize = 8;

/// The bits of a node's word that are its class; those of its mark are the others.
const CLASS: u32 = CLASSES as u32 - 1;

/// The class rises with a use when the last one is longer ago than the length by this, in uses.
const QUICK: usize = 64;

const NONE: Handle = Handle::MAX;
const ABSENT: Handle = Handle::MAX - 1;

/// 29 bits for a hash, the lowest of 32 being zero; all are zero for nothing alone.
pub(super) const fn mark_of(hash: u64) -> u32 {
    let mark = mark(hash) & !CLASS;
    if mark == 0 && hash != 0 { CLASS + 1 } else { mark }
}

/// The class of something that was used once more.
pub(super) const fn above(class: usize) -> usize {
    if class + 1 < CLASSES { class + 1 } else { class }
}

/// The record of one thing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    colder: Handle,
    hotter: Handle,
    /// When it was last used, in uses of the cache.
    pub(super) used: u32,
    word: u32,
}

const _: () = assert!(size_of::<Node>() == 16, "kept once for each thing");

impl Node {
    const VACANT: Self = Self { colder: NONE, hotter: ABSENT, used: 0, word: 0 };

    pub(super) const fn new(mark: u32, class: usize, used: u32) -> Self {
        Self { colder: NONE, hotter: NONE, used, word: mark | class as u32 }
    }

    pub(super) const fn mark(&self) -> u32 {
        self.word & !CLASS
    }

    pub(super) const fn class(&self) -> usize {
        (self.word & CLASS) as usize
    }
}

#[derive(Clone, Copy, Debug)]
struct List {
    coldest: Handle,
    hottest: Handle,
    len: u32,
}

/// For each class, a list of the things in it in the order of their last use.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    nodes: Pages<Node>,
    lists: [List; CLASSES],
    /// One bit for each class that has things.
    occupied: u32,
    len: usize,
}

impl Classes {
    pub(super) const fn new() -> Self {
        let empty = List { coldest: NONE, hottest: NONE, len: 0 };
        Self { nodes: Pages::new(), lists: [empty; CLASSES], occupied: 0, len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn len_of(&self, class: usize) -> usize {
        self.lists[class].len as usize
    }

    /// The record of a thing that is held.
    #[inline]
    pub(super) fn get(&self, handle: Handle) -> Option<&Node> {
        self.nodes.get(handle as usize).filter(|node| node.hotter != ABSENT)
    }

    /// The least recently used thing of a class.
    pub(super) fn coldest(&self, class: usize) -> Option<Handle> {
        Some(self.lists[class].coldest).filter(|handle| *handle != NONE)
    }

    /// The least recently used thing of each class that has any, the class of those used least first.
    pub(super) fn coldest_of_each(&self) -> impl Iterator<Item = (usize, Handle)> {
        let mut left = self.occupied;
        core::iter::from_fn(move || {
            let class = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            self.lists.get(class).map(|list| (class, list.coldest))
        })
    }

    /// The most recently used thing of a class.
    pub(super) fn hottest(&self, class: usize) -> Option<Handle> {
        Some(self.lists[class].hottest).filter(|handle| *handle != NONE)
    }

    /// A thing and those of its class that were used after it, in the order of that, with their marks.
    pub(super) fn from(&self, handle: Handle) -> impl Iterator<Item = (Handle, u32)> {
        let mut next = handle;
        core::iter::from_fn(move || {
            let (handle, node) = (next, self.get(next)?);
            next = node.hotter;
            Some((handle, node.mark()))
        })
    }

    /// Adds a thing that is not held, as used later than all others.
    pub(super) fn put(&mut self, handle: Handle, node: Node) {
        self.nodes.entry(handle as usize, Node::VACANT);
        self.link(handle, node);
        self.len += 1;
    }

    /// Puts a thing that is in no list and has a place at the hot end of its class.
    #[inline]
    fn link(&mut self, handle: Handle, node: Node) {
        self.occupied |= 1 << node.class();
        let list = &mut self.lists[node.class()];
        let colder = core::mem::replace(&mut list.hottest, handle);
        list.len += 1;
        if colder == NONE {
            list.coldest = handle;
        } else {
            self.node(colder).hotter = handle;
        }
        *self.node(handle) = Node { colder, hotter: NONE, ..node };
    }

    /// Joins what is on both sides of a thing in its list.
    #[inline]
    fn unlink(&mut self, node: &Node) {
        let class = node.class();
        match node.colder {
            NONE => self.lists[class].coldest = node.hotter,
            colder => self.node(colder).hotter = node.hotter,
        }
        match node.hotter {
            NONE => self.lists[class].hottest = node.colder,
            hotter => self.node(hotter).colder = node.colder,
        }
        self.lists[class].len -= 1;
        if self.lists[class].len == 0 {
            self.occupied &= !(1 << class);
        }
    }

    /// Adds a thing that is not held, as used just before one that is held and in its class.
    pub(super) fn put_below(&mut self, handle: Handle, node: Node, other: Handle) {
        let Some(&Node { colder, used, .. }) =
            self.get(other).filter(|other| other.class() == node.class())
        else {
            return self.put(handle, node);
        };
        self.node(other).colder = handle;
        let list = &mut self.lists[node.class()];
        list.len += 1;
        if colder == NONE {
            list.coldest = handle;
        } else {
            self.node(colder).hotter = handle;
        }
        *self.nodes.entry(handle as usize, Node::VACANT) =
            Node { colder, hotter: other, used, ..node };
        self.len += 1;
    }

    /// Takes a thing out, and says what was known of it.
    pub(super) fn take(&mut self, handle: Handle) -> Option<Node> {
        let node = *self.get(handle)?;
        self.unlink(&node);
        self.node(handle).hotter = ABSENT;
        self.len -= 1;
        Some(node)
    }

    /// Reads the records that moving these things will change, and does nothing with them. These
    /// reads do not depend on each other, so the processor has many of them under way at once.
    pub(super) fn load(&self, handles: &[Handle]) {
        let mut words = 0;
        for handle in handles {
            let Some(node) = self.nodes.get(*handle as usize) else { continue };
            for other in [node.colder, node.hotter] {
                words ^= self.nodes.get(other as usize).map_or(0, |node| node.word);
            }
        }
        core::hint::black_box(words);
    }

    /// Notes that a thing was used, later than all others. Returns its mark; `None` when it is
    /// not held.
    #[inline]
    pub(super) fn renew(&mut self, handle: Handle, now: u32) -> Option<u32> {
        let node = *self.get(handle)?;
        self.unlink(&node);
        let age = now.wrapping_sub(node.used) as usize;
        let class = if age > self.len / QUICK { above(node.class()) } else { node.class() };
        self.link(handle, Node::new(node.mark(), class, now));
        Some(node.mark())
    }

    #[inline]
    fn node(&mut self, handle: Handle) -> &mut Node {
        self.nodes.get_mut(handle as usize).expect("handles in lists have nodes")
    }
}
