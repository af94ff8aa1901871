//! Objects on the shared tier of files.
//!
//! Each put plans a file, if the tier has room. Its writer persists it when it finds
//! the time: before the put ends, after it, or after the memory was evicted. An object
//! can be read while any of its replicas is complete, whatever it lies on, and is
//! there while any is complete or being written.

use std::collections::BTreeMap;

use mc_types::{Generation, Time};

use crate::side_tables::hook::{Leaving, SideTable};
use crate::tenant::below::TierBelow;
use crate::vocabulary::kinds::FileState;
use crate::vocabulary::slot::ObjectSlot;

/// The unfinished files of one shard, oldest first.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles(BTreeMap<Generation, (Time, ObjectSlot)>);

impl OpenFiles {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn begin(&mut self, generation: Generation, now: Time, slot: ObjectSlot) {
        self.0.insert(generation, (now, slot));
    }

    pub(crate) fn ended(&mut self, generation: Generation) {
        self.0.remove(&generation);
    }

    /// When the oldest one was begun, and where its object is.
    pub(crate) fn oldest(&self) -> Option<(Time, ObjectSlot)> {
        self.0.first_key_value().map(|(_, file)| *file)
    }

    pub(crate) fn begun_at(&self, generation: Generation) -> Option<Time> {
        self.0.get(&generation).map(|(begun, _)| *begun)
    }
}

impl SideTable for OpenFiles {
    /// False: open files are found by their generations.
    fn has(&self, _: ObjectSlot) -> bool {
        false
    }

    /// Closes the file, also of an object that stays without it.
    fn forget(&mut self, Leaving { object, tenant, books, .. }: Leaving<'_>) {
        match object.file() {
            FileState::None => return,
            FileState::Writing => self.ended(object.generation),
            FileState::Persisted => {}
        }
        books.files.bytes.give_back(object.len());
        if object.is_file_charged() {
            books.quotas.give_back_below(TierBelow::Files, tenant, object.len());
        }
    }
}
