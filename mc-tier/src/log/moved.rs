//! The state of records that [move](super::moves).

use std::collections::BTreeMap;

use super::index::Location;

/// Records that an object has beside the one that it is read from.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// The new records that are being written, by the numbers of the old ones.
    pub(super) moving: BTreeMap<u64, Location>,
    /// The old records, by the numbers of the new ones, until the new ones are durable.
    pub(super) moved: BTreeMap<u64, Location>,
}

impl Moves {
    /// The other record of an object whose record is dead now.
    pub(super) fn other_of(&mut self, record: &Location) -> Option<Location> {
        let number = record.number();
        self.moving.get(&number).copied().or_else(|| self.moved.remove(&number))
    }

    /// Returns whether objects have moved to a segment or away from it, and may not be durable yet.
    pub(super) fn has(&self, segment: usize) -> bool {
        self.moved
            .iter()
            .any(|(to, from)| (to >> 32) as usize == segment || from.segment() == segment)
    }
}
