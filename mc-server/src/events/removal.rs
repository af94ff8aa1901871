//! The removal of all objects as one event.

use std::collections::HashSet;

/// The state of subscribers while all objects are being removed: they have forgotten everything at
/// the one event about it, so the removal of each object needs no event, and an event about an
/// object makes them know it again.
#[derive(Debug, Default)]
pub(super) struct RemoveAll {
    /// Removals under way.
    active: usize,
    /// Keys that were published since the event.
    known: HashSet<Box<str>>,
    /// Whether a snapshot was read since, which may have any object.
    is_listed: bool,
}

impl RemoveAll {
    pub(super) fn began(&mut self) {
        self.active += 1;
        self.known.clear();
    }

    pub(super) fn ended(&mut self) {
        self.active = self.active.saturating_sub(1);
        if self.active == 0 {
            *self = Self::default();
        }
    }

    /// A snapshot is about to be read.
    pub(super) const fn listing(&mut self) {
        self.is_listed |= self.active > 0;
    }

    /// Notes that an object is published. Returns whether subscribers know it already.
    pub(super) fn publishes(&mut self, key: &str) -> bool {
        self.active == 0 || !self.known.insert(key.into())
    }

    /// Notes that an object goes. Returns whether subscribers may know it.
    pub(super) fn removes(&mut self, key: &str) -> bool {
        self.active == 0 || self.known.remove(key) || self.is_listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_that_subscribers_know_again_are_removed_one_by_one() {
        let mut removal = RemoveAll::default();
        assert!(removal.publishes("a") && removal.removes("a"), "nothing is under way");
        removal.began();
        assert!(!removal.removes("a"), "forgotten with all others");
        assert!(!removal.publishes("b"), "new to them, so it is told in full");
        assert!(removal.publishes("b") && removal.removes("b"));
        assert!(!removal.removes("b"));
        // A second removal of everything makes them forget again.
        assert!(!removal.publishes("c"));
        removal.began();
        assert!(!removal.removes("c"));
        removal.ended();
        assert!(!removal.removes("d"), "the first is still under way");
        removal.ended();
        assert!(removal.publishes("d") && removal.removes("d"));
    }

    #[test]
    fn after_a_snapshot_was_read_each_removal_is_told() {
        let mut removal = RemoveAll::default();
        removal.listing();
        removal.began();
        assert!(!removal.removes("a"), "that snapshot is older than the event");
        removal.listing();
        assert!(removal.removes("a"));
        removal.ended();
        removal.began();
        assert!(!removal.removes("a"));
    }
}
