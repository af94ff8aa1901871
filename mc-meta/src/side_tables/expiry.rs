//! Objects that go some time after they were first read, where the settings say so: a
//! store between those who compute and those who read once.
//!
//! All have the same time to live, so they come in nearly the order in which it ends,
//! and a queue holds them. An object that went earlier leaves an entry that leads
//! nowhere; those go when it is their turn or when they are most of the queue.

use std::collections::{BTreeMap, VecDeque};

use mc_types::Time;

use crate::side_tables::hook::{Leaving, SideTable};
use crate::vocabulary::slot::ObjectSlot;

/// Entries that lead nowhere and are left alone however few others there are.
const LEFT_ALONE: usize = 64;

/// The times at which objects of one shard go.
#[derive(Debug, Default)]
pub(crate) struct Expiring {
    entries: VecDeque<ExpiryEntry>,
    due: BTreeMap<ObjectSlot, Time>,
}

/// Leads nowhere when the object has gone. Another object that has its slot is led to if it goes at the very same
/// time, and then rightly so.
#[derive(Clone, Copy, Debug)]
struct ExpiryEntry {
    due: Time,
    slot: ObjectSlot,
}

impl Expiring {
    /// Returns when the next one goes, or would.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.entries.front().map(|entry| entry.due)
    }

    /// Returns whether the time of an object is over.
    pub(crate) fn is_over(&self, slot: ObjectSlot, now: Time) -> bool {
        self.due.get(&slot).is_some_and(|due| *due <= now)
    }

    /// Notes that an object will go. O(log n) unless times come out of order.
    pub(crate) fn add(&mut self, slot: ObjectSlot, due: Time) {
        self.due.insert(slot, due);
        let at = match self.entries.back() {
            Some(last) if last.due > due => self.entries.partition_point(|other| other.due <= due),
            _ => self.entries.len(),
        };
        self.entries.insert(at, ExpiryEntry { due, slot });
    }

    /// Takes the next entry whose time is over: the slot of its object, unless that went earlier.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Option<ObjectSlot>> {
        let entry = self.entries.front().copied().filter(|entry| entry.due <= now)?;
        self.entries.pop_front();
        Some(self.leads_somewhere(&entry).then_some(entry.slot))
    }

    /// An object will not go by itself. O(log n) on average.
    pub(crate) fn cancel(&mut self, slot: ObjectSlot) {
        if self.due.remove(&slot).is_none() {
            return;
        }
        if self.entries.len() > self.due.len() * 2 + LEFT_ALONE {
            let mut entries = core::mem::take(&mut self.entries);
            entries.retain(|entry| self.leads_somewhere(entry));
            entries.shrink_to(entries.len() * 2);
            self.entries = entries;
        }
    }

    fn leads_somewhere(&self, entry: &ExpiryEntry) -> bool {
        self.due.get(&entry.slot) == Some(&entry.due)
    }
}

impl SideTable for Expiring {
    fn has(&self, slot: ObjectSlot) -> bool {
        self.due.contains_key(&slot)
    }

    fn forget(&mut self, leaving: Leaving<'_>) {
        self.cancel(leaving.slot);
    }
}
