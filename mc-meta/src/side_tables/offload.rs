//! Objects that are to be written to a client's disk.

use std::collections::BTreeMap;

use mc_types::{ClientId, Time};

use crate::side_tables::books::Books;
use crate::side_tables::hook::{Leaving, SideTable};
use crate::side_tables::offload_queue::PROMPT;
use crate::tenant::below::TierBelow;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::slot::ObjectSlot;

/// An object is to be written to a client's disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offload {
    pub(crate) client: ClientId,
    /// Bytes of memory that come free then.
    pub(crate) promised: u64,
    /// When that was decided, or the client came for it.
    pub(crate) since: Time,
}

impl Offload {
    /// Gives back what the offload of an object of `len` bytes had of its tenant's quotas.
    pub(crate) fn give_back(self, books: &Books, tenant: TenantSlot, len: u64) {
        books.quotas.leaves_no_more(tenant, self.promised);
        books.quotas.give_back_below(TierBelow::Disks, tenant, len);
    }
}

/// The objects of one shard that are to be written to disks.
#[derive(Debug, Default)]
pub(crate) struct PendingOffloads(BTreeMap<ObjectSlot, Offload>);

impl PendingOffloads {
    pub(crate) fn get(&self, slot: ObjectSlot) -> Option<Offload> {
        self.0.get(&slot).copied()
    }

    /// Notes who is to write an object, in place of what was noted before.
    pub(crate) fn set(&mut self, slot: ObjectSlot, offload: Offload) {
        self.0.insert(slot, offload);
    }

    /// Notes that the client has come for it.
    pub(crate) fn fetched(&mut self, slot: ObjectSlot, now: Time) {
        if let Some(offload) = self.0.get_mut(&slot) {
            offload.since = now;
        }
    }

    pub(crate) fn take(&mut self, slot: ObjectSlot) -> Option<Offload> {
        self.0.remove(&slot)
    }

    /// Returns until when a command that wants the object's memory waits, because it is about to be written. A
    /// disk that does not come to it in time is not waited for.
    pub(crate) fn awaits_disk(&self, slot: ObjectSlot, now: Time) -> Option<Time> {
        self.get(slot).map(|offload| offload.since + PROMPT).filter(|until| now < *until)
    }
}

impl SideTable for PendingOffloads {
    fn has(&self, slot: ObjectSlot) -> bool {
        self.0.contains_key(&slot)
    }

    fn forget(&mut self, Leaving { slot, object, tenant, books }: Leaving<'_>) {
        let Some(offload) = self.take(slot) else { return };
        books.local.book.lock().offloads.cancel(offload.client, object.generation);
        offload.give_back(books, tenant, object.len());
    }
}
