//! The removal of all objects as one event.

use std::collections::HashSet;

/// What subscribers know while all objects are being removed: they have forgotten everything at the
/// one event about it, so the removal of each object needs no event, and whatever is published about
/// an object makes them know it again.
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
