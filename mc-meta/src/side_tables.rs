//! State that few objects have, or that belongs to no object: tables beside the objects.
//!
//! [`SideTables`] are those of one shard, by the slots of its objects. An object with an entry in one of them
//! has a [mark](Object::is_beside); one that is [plain](Object::is_plain) is evicted and removed without a look
//! at any. A table learns of an object that goes by its [hooks](hook::SideTable), so that a new table is one file, a
//! field of [`SideTables`] and its accessors in `shard/beside.rs`: how objects are evicted and removed does not
//! change. The other tables here are the master's.
//! The commands on them are in [`commands`](crate::commands).

pub(crate) mod books;
pub(crate) mod clients;
pub(crate) mod credits;
pub(crate) mod damage;
pub(crate) mod drain;
pub(crate) mod expiry;
pub(crate) mod files;
pub(crate) mod history;
pub(crate) mod hook;
pub(crate) mod local_disk;
pub(crate) mod offload;
pub(crate) mod offload_queue;
pub(crate) mod open_files;
pub(crate) mod promotion;
pub(crate) mod promotion_queue;
pub(crate) mod readers;
pub(crate) mod replacement;
pub(crate) mod retained;
pub(crate) mod runs;
pub(crate) mod suspicion;
pub(crate) mod tasks;
pub(crate) mod transfer;

use mc_types::Time;
use smallvec::SmallVec;

use crate::side_tables::expiry::Expiring;
use crate::side_tables::hook::{Leaving, Lingering, SideTable};
use crate::side_tables::offload::PendingOffloads;
use crate::side_tables::open_files::OpenFiles;
use crate::side_tables::promotion::OpenPromotions;
use crate::side_tables::replacement::Replacements;
use crate::side_tables::transfer::OpenTransfers;
use crate::vocabulary::slot::ObjectSlot;

/// The side tables of one shard.
#[derive(Debug, Default)]
pub(crate) struct SideTables {
    pub(crate) transfers: OpenTransfers,
    pub(crate) promotions: OpenPromotions,
    pub(crate) offloads: PendingOffloads,
    pub(crate) replacements: Replacements,
    pub(crate) expiring: Expiring,
    pub(crate) files: OpenFiles,
}

impl SideTables {
    fn all(&self) -> [&dyn SideTable; 6] {
        let Self { transfers, promotions, offloads, replacements, expiring, files } = self;
        [transfers, promotions, offloads, replacements, expiring, files]
    }

    fn all_mut(&mut self) -> [&mut dyn SideTable; 6] {
        let Self { transfers, promotions, offloads, replacements, expiring, files } = self;
        [transfers, promotions, offloads, replacements, expiring, files]
    }

    /// Returns whether a table has an entry of the object in this slot.
    pub(crate) fn has(&self, slot: ObjectSlot) -> bool {
        self.all().iter().any(|table| table.has(slot))
    }

    /// [`abandon`](SideTable::abandon) of each table.
    pub(crate) fn abandon(&mut self, leaving: Leaving<'_>) -> SmallVec<[Lingering; 2]> {
        let mut kept = SmallVec::new();
        self.all_mut().into_iter().for_each(|table| table.abandon(leaving, &mut kept));
        kept
    }

    /// [`forget`](SideTable::forget) of each table.
    pub(crate) fn forget(&mut self, leaving: Leaving<'_>) {
        self.all_mut().into_iter().for_each(|table| table.forget(leaving));
    }

    /// Until when an object stays in memory that no client uses: `later` while it is copied or moved, and
    /// for a moment when it is about to be written to a disk.
    pub(crate) fn busy_until(&self, slot: ObjectSlot, now: Time, later: Time) -> Option<Time> {
        match self.transfers.get(slot) {
            Some(_) => Some(later),
            None => self.offloads.awaits_disk(slot, now),
        }
    }
}
