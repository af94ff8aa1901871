//! Objects that go some time after they were first read, where the settings say so: a
//! store between those who compute and those who read once.
//!
//! All have the same time to live, so they come in nearly the order in which it ends,
//! and a queue holds them. An object that went earlier leaves an entry that leads
//! nowhere; those go when it is their turn or when they are most of the queue.

use std::collections::VecDeque;

use mc_types::{Generation, Time};

use crate::object::objects::Objects;
use crate::vocabulary::slot::ObjectSlot;

/// Entries that lead nowhere and are left alone however few others there are.
const LEFT_ALONE: usize = 64;

/// When which objects of one shard go.
#[derive(Debug, Default)]
pub(crate) struct Expiring {
    entries: VecDeque<Entry>,
    /// Entries that lead to an object.
    objects: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) due: Time,
    pub(crate) generation: Generation,
    pub(crate) slot: ObjectSlot,
}

impl Entry {
    pub(crate) fn leads_to_one_of(&self, objects: &Objects) -> bool {
        objects.get(self.slot).is_some_and(|object| object.generation == self.generation)
    }
}

impl Expiring {
    /// When the next one goes, or would.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.entries.front().map(|entry| entry.due)
    }

    /// An object will go. O(1) unless times come out of order.
    pub(crate) fn add(&mut self, entry: Entry) {
        self.objects += 1;
        let at = match self.entries.back() {
            Some(last) if last.due > entry.due => {
                self.entries.partition_point(|other| other.due <= entry.due)
            }
            _ => self.entries.len(),
        };
        self.entries.insert(at, entry);
    }

    /// An object has gone, and is not among `objects` any more. O(1) on average.
    pub(crate) fn gone(&mut self, objects: &Objects) {
        self.objects = self.objects.saturating_sub(1);
        if self.entries.len() > self.objects * 2 + LEFT_ALONE {
            self.entries.retain(|entry| entry.leads_to_one_of(objects));
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Entry> {
        let entry = self.entries.front().copied().filter(|entry| entry.due <= now)?;
        self.entries.pop_front();
        Some(entry)
    }
}
