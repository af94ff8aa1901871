//! Values that are being written to take the place of others.

use std::collections::BTreeMap;

use crate::side_tables::hook::{Leaving, SideTable};
use crate::vocabulary::slot::ObjectSlot;

/// The new values of one shard that replace objects once they are written.
#[derive(Debug, Default)]
pub(crate) struct Replacements {
    by_old: BTreeMap<ObjectSlot, ObjectSlot>,
    by_new: BTreeMap<ObjectSlot, ObjectSlot>,
}

impl Replacements {
    pub(crate) fn begin(&mut self, old: ObjectSlot, new: ObjectSlot) {
        self.by_old.insert(old, new);
        self.by_new.insert(new, old);
    }

    /// The slot of the object that is being written to take this one's place.
    pub(crate) fn replacement(&self, old: ObjectSlot) -> Option<ObjectSlot> {
        self.by_old.get(&old).copied()
    }

    /// The slot of the object that this one, once written, takes the place of.
    pub(crate) fn replaced(&self, new: ObjectSlot) -> Option<ObjectSlot> {
        self.by_new.get(&new).copied()
    }

    /// Parts an object from the one it was to replace, or that was to replace it; returns the slot of that.
    pub(crate) fn part(&mut self, slot: ObjectSlot) -> Option<ObjectSlot> {
        if let Some(new) = self.by_old.remove(&slot) {
            self.by_new.remove(&new);
            return Some(new);
        }
        let old = self.by_new.remove(&slot)?;
        self.by_old.remove(&old);
        Some(old)
    }
}

impl SideTable for Replacements {
    fn has(&self, slot: ObjectSlot) -> bool {
        self.by_old.contains_key(&slot) || self.by_new.contains_key(&slot)
    }

    /// The key went to the other one already.
    fn forget(&mut self, leaving: Leaving<'_>) {
        debug_assert!(!self.has(leaving.slot), "a key that goes leads to its replacement");
    }
}
