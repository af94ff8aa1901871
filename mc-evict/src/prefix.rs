//! Leaves first.

use alloc::collections::BTreeMap;

use crate::pages::Pages;
use crate::policy::{EvictionPolicy, Handle, Item, MAX_HANDLE, Verdict};

/// Least recently used among the leaves: nothing is evicted before what continues it.
///
/// For blocks of prompts, which are of no use without all blocks before them, as in the
/// radix tree of SGLang (Zheng et al. 2024). Chains are known from
/// [`Item::parent`]; a thing that names none, or one that is not held, is only a child
/// of nothing, and the policy is exact LRU when no parents are named. A thing that is
/// set aside keeps its parent no longer.
///
/// Unlike the others, its methods cost O(log n), and about 100 bytes for each thing.
#[derive(Clone, Debug)]
pub struct Prefix {
    things: Pages<Option<Thing>>,
    /// Things that nothing held continues, by when they were last used.
    leaves: BTreeMap<u64, Handle>,
    /// The others.
    inner: BTreeMap<u64, Handle>,
    /// Entries by hash: the handle, and how many held things continue it.
    known: BTreeMap<u64, Known>,
    now: u64,
}

#[derive(Clone, Copy, Debug)]
struct Thing {
    item: Item,
    used: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    held: Option<Handle>,
    children: u32,
}

impl Default for Prefix {
    fn default() -> Self {
        Self::new()
    }
}

impl Prefix {
    /// An empty order.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            things: Pages::new(),
            leaves: BTreeMap::new(),
            inner: BTreeMap::new(),
            known: BTreeMap::new(),
            now: 0,
        }
    }

    fn get(&self, handle: Handle) -> Option<Thing> {
        self.things.get(handle as usize).copied().flatten()
    }

    fn order_of(&mut self, item: Item) -> &mut BTreeMap<u64, Handle> {
        let children = self.known.get(&item.hash).map_or(0, |known| known.children);
        if children == 0 { &mut self.leaves } else { &mut self.inner }
    }

    fn add(&mut self, handle: Handle, mut item: Item) {
        if self.known.get(&item.hash).is_some_and(|known| known.held.is_some()) {
            // Two things with one hash: the first has it.
            item.hash = 0;
        }
        if item.parent == item.hash {
            item.parent = 0;
        }
        if item.hash != 0 {
            self.known.entry(item.hash).or_default().held = Some(handle);
        }
        if item.parent != 0 {
            self.move_parent(item.parent, |children| children + 1);
        }
        self.now += 1;
        let used = self.now;
        *self.things.entry(handle as usize, None) = Some(Thing { item, used });
        self.order_of(item).insert(used, handle);
    }

    fn take(&mut self, handle: Handle) {
        let Some(Thing { item, used }) = self.get(handle) else { return };
        *self.things.entry(handle as usize, None) = None;
        self.order_of(item).remove(&used);
        if item.hash != 0
            && let Some(known) = self.known.get_mut(&item.hash)
        {
            known.held = None;
            if known.children == 0 {
                self.known.remove(&item.hash);
            }
        }
        if item.parent != 0 {
            self.move_parent(item.parent, |children| children - 1);
        }
    }

    /// Changes how many things continue the one with this hash.
    fn move_parent(&mut self, hash: u64, change: impl FnOnce(u32) -> u32) {
        let known = self.known.entry(hash).or_default();
        known.children = change(known.children);
        let Known { held, children } = *known;
        if held.is_none() && children == 0 {
            self.known.remove(&hash);
        }
        let Some((handle, used)) = held.and_then(|held| Some((held, self.get(held)?.used))) else {
            return;
        };
        let (from, to) = if children == 0 {
            (&mut self.inner, &mut self.leaves)
        } else {
            (&mut self.leaves, &mut self.inner)
        };
        if from.remove(&used).is_some() {
            to.insert(used, handle);
        }
    }
}

impl EvictionPolicy for Prefix {
    fn insert(&mut self, handle: Handle, item: Item) {
        if self.get(handle).is_some() {
            self.access(handle);
        } else {
            self.readmit(handle, item);
        }
    }

    fn access(&mut self, handle: Handle) {
        let Some(Thing { item, used }) = self.get(handle) else { return };
        self.now += 1;
        let now = self.now;
        let order = self.order_of(item);
        order.remove(&used);
        order.insert(now, handle);
        *self.things.entry(handle as usize, None) = Some(Thing { item, used: now });
    }

    fn remove(&mut self, handle: Handle) {
        self.take(handle);
    }

    fn readmit(&mut self, handle: Handle, item: Item) {
        if handle <= MAX_HANDLE && self.get(handle).is_none() {
            self.add(handle, item);
        }
    }

    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some(victim) = self.coldest() {
            if verdict(victim) == Verdict::Stop {
                return;
            }
            self.take(victim);
        }
    }

    /// The least recently used leaf. Things that continue each other in a circle have
    /// none, and go in the order of last use.
    fn coldest(&self) -> Option<Handle> {
        let (_, handle) = self.leaves.first_key_value().or_else(|| self.inner.first_key_value())?;
        Some(*handle)
    }

    fn len(&self) -> usize {
        self.leaves.len() + self.inner.len()
    }
}
