//! First in, first out.

use crate::list::{Links, List};
use crate::policy::{EvictionPolicy, Handle, Item, Verdict};

/// The order of insertion, whatever is used: the mark below which no policy should
/// fall. Eight bytes for each handle.
#[derive(Clone, Debug)]
pub struct Fifo {
    links: Links,
    list: List,
}

impl Default for Fifo {
    fn default() -> Self {
        Self::new()
    }
}

impl Fifo {
    /// An empty order.
    #[must_use]
    pub const fn new() -> Self {
        Self { links: Links::new(), list: List::new() }
    }
}

impl EvictionPolicy for Fifo {
    fn insert(&mut self, handle: Handle, _item: Item) {
        if self.links.admits(handle) {
            self.list.link_hottest(&mut self.links, handle);
        }
    }

    fn access(&mut self, _handle: Handle) {}

    fn remove(&mut self, handle: Handle) {
        if self.links.holds(handle) {
            self.list.unlink(&mut self.links, handle);
        }
    }

    fn readmit(&mut self, handle: Handle, _item: Item) {
        if self.links.admits(handle) {
            self.list.link_hottest(&mut self.links, handle);
        }
    }

    fn evict(&mut self, verdict: &mut dyn FnMut(Handle) -> Verdict) {
        while let Some(victim) = self.list.coldest() {
            match verdict(victim) {
                Verdict::Evict | Verdict::SetAside => self.list.unlink(&mut self.links, victim),
                Verdict::Stop => return,
            }
        }
    }

    fn coldest(&self) -> Option<Handle> {
        self.list.coldest()
    }

    fn uses_items(&self) -> bool {
        false
    }

    fn len(&self) -> usize {
        self.list.len()
    }
}
