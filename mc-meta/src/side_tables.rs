//! State that few objects have, or that belongs to no object: tables beside the objects.
//!
//! [`SideTables`] are those of one shard, by the slots of its objects. An object with an entry in one of them
//! has a [mark](Object::is_beside); one that is [plain](Object::is_plain) is evicted and removed without a look
//! at any. A table learns of an object that goes by its [hooks](SideTable), so that a new table is one field
//! of [`SideTables`] and one file, and the shard does not change. The other tables here are the master's.
//! The commands on them are in [`commands`](crate::commands).

pub(crate) mod clients;
pub(crate) mod credits;
pub(crate) mod damage;
pub(crate) mod drain;
pub(crate) mod expiry;
pub(crate) mod files;
pub(crate) mod history;
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

use std::sync::Arc;

use mc_types::{KeyRef, Time};
use smallvec::SmallVec;

use crate::object::Object;
use crate::object::disk::OnDisk;
use crate::side_tables::expiry::Expiring;
use crate::side_tables::files::Files;
use crate::side_tables::local_disk::LocalDisks;
use crate::side_tables::offload::PendingOffloads;
use crate::side_tables::open_files::OpenFiles;
use crate::side_tables::promotion::OpenPromotions;
use crate::side_tables::replacement::Replacements;
use crate::side_tables::retained::{GrantId, RetainedSpace};
use crate::side_tables::transfer::OpenTransfers;
use crate::tenant::ledger::TenantSlot;
use crate::tenant::quota::Quotas;
use crate::vocabulary::kinds::FileState;
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

/// The books that all shards share.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    /// Room and work on the shared tier of files.
    pub(crate) files: Arc<Files>,
    /// The clients' own disks.
    pub(crate) local: Arc<LocalDisks>,
    pub(crate) quotas: Arc<Quotas>,
}

impl Books {
    /// Has what is left of an object below memory deleted: it was removed.
    pub(crate) fn delete_below(&self, key: KeyRef<'_>, object: &Object) {
        if object.file() == FileState::Persisted {
            self.files.delete(key, object.generation, object.len());
        }
        for client in object.local_disks().iter().filter_map(OnDisk::client) {
            self.local.book.lock().delete(client, key, object);
        }
    }
}

/// An object that is being taken out of its shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving<'a> {
    pub(crate) slot: ObjectSlot,
    pub(crate) object: &'a Object,
    /// The tenant that is charged for it.
    pub(crate) tenant: TenantSlot,
    pub(crate) books: &'a Books,
}

/// Space of a grant that has ended, which its client may still be writing to.
#[derive(Debug)]
pub(crate) struct Lingering {
    /// When no client writes there any more.
    pub(crate) until: Time,
    pub(crate) grant: GrantId,
    pub(crate) space: RetainedSpace,
}

/// A table of what only some objects have.
pub(crate) trait SideTable {
    /// Returns whether it has an entry of the object in this slot.
    fn has(&self, slot: ObjectSlot) -> bool;

    /// Ends what is under way for an object whose removal is told next. Space that is to be kept goes to `kept`.
    fn abandon(&mut self, leaving: Leaving<'_>, kept: &mut SmallVec<[Lingering; 2]>) {
        let _ = (leaving, kept);
    }

    /// Forgets an object that has gone, and gives back what its tenant was charged for.
    fn forget(&mut self, leaving: Leaving<'_>);
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

    /// [`SideTable::abandon`] of each table.
    pub(crate) fn abandon(&mut self, leaving: Leaving<'_>) -> SmallVec<[Lingering; 2]> {
        let mut kept = SmallVec::new();
        self.all_mut().into_iter().for_each(|table| table.abandon(leaving, &mut kept));
        kept
    }

    /// [`SideTable::forget`] of each table.
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
