//! SIEVE.

use crate::list::{Links, List};
use crate::pages::Pages;
use crate::policy::{EvictionPolicy, Handle, Item, Verdict};

/// SIEVE (Zhang et al., NSDI 2024): insertion order, and a hand that moves from old
/// to new and takes what was not used since it last came by. Nine bytes for each
/// handle; a use costs no more than setting a bit.
///
/// [`coldest`](EvictionPolicy::coldest) is where the hand is, which may be something
/// that the hand would pass.
#[derive(Clone, Debug)]
pub struct Sieve {
    links: Links,
    list: List,
    used: Pages<bool>,
    hand: Option<Handle>,
}

impl Default for Sieve {
    fn default() -> Self {
        Self::new()
    }
}

impl Sieve {
    /// An empty order.
    #[must_use]
    pub const fn new() -> Self {
        Self { links: Links::new(), list: List::new(), used: Pages::new(), hand: None }
    }

    fn at_hand(&self) -> Option<Handle> {
        self.hand.or_else(|| self.list.coldest())
    }

    fn unlink(&mut self, handle: Handle) {
        if self.hand == Some(handle) {
            self.hand = self.links.hotter(handle);
        }
        self.list.unlink(&mut self.links, handle);
    }

    fn mark(&mut self, handle: Handle, used: bool) {
        *self.used.entry(handle as usize, false) = used;
    }
}

impl EvictionPolicy for Sieve {
    fn insert(&mut self, handle: Handle, item: Item) {
        if self.links.holds(handle) {
            self.access(handle);
        } else {
            self.readmit(handle, item);
        }
    }

    fn access(&mut self, handle: Handle) {
        if self.links.holds(handle) {
            self.mark(handle, true);
        }
    }

    fn remove(&mut self, handle: Handle) {
        if self.links.holds(handle) {
            self.unlink(handle);
        }
    }

    fn readmit(&mut self, handle: Handle, _item: Item) {
        if self.links.admits(handle) {
            self.list.link_hottest(&mut self.links, handle);
            self.mark(handle, false);
        }
    }

    /// The hand may pass everything once before it finds a victim; what it passes was
    /// used since, so that is O(1) for each use.
    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some(handle) = self.at_hand() {
            if self.used.get(handle as usize) == Some(&true) {
                self.mark(handle, false);
                self.hand = self.links.hotter(handle);
                continue;
            }
            self.hand = Some(handle);
            if verdict(handle) == Verdict::Stop {
                return;
            }
            self.unlink(handle);
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.at_hand()
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}
