//! Objects that are gone from a tier, of which the master is still to be told.

use std::collections::VecDeque;

use mc_tier::ObjectId;
use parking_lot::Mutex;

/// Objects that wait to be told at most. Readers find out of the others.
const MOST: usize = 1 << 18;

/// Evicted objects, in the order of their evictions.
#[derive(Debug, Default)]
pub(in crate::client) struct Untold(Mutex<VecDeque<ObjectId>>);

impl Untold {
    /// Notes evicted objects.
    pub(in crate::client) fn note(&self, evicted: impl Iterator<Item = ObjectId>) {
        let mut untold = self.0.lock();
        let room = MOST.saturating_sub(untold.len());
        untold.extend(evicted.take(room));
    }

    /// Takes the first ones, so many at most.
    pub(in crate::client) fn take(&self, most: usize) -> Vec<ObjectId> {
        let mut untold = self.0.lock();
        let count = untold.len().min(most);
        untold.drain(..count).collect()
    }

    /// Puts those back that were taken last.
    pub(in crate::client) fn put_back(&self, ids: Vec<ObjectId>) {
        let mut untold = self.0.lock();
        ids.into_iter().rev().for_each(|id| untold.push_front(id));
    }
}
