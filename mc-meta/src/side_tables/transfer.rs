//! Copies and moves: an object gets replicas in other segments and stays readable throughout.
//! [Tasks](super::tasks) are copies and moves that clients fetch from the master, and
//! [drain jobs](super::drain) empty segments by moves.
//!
//! The master grants space in the targets, a client copies the bytes, and when it says
//! so the targets become replicas. A move then gives the source up. An object has one
//! transfer at a time. It can end in any of these ways:
//!
//! * ended by its client: the targets become replicas. The space of a moved source comes
//!   back when the object's lease is over, since a client may be reading there;
//! * revoked by its client: the targets' space comes back at once if no write can arrive
//!   there any more, otherwise when the transfer's time is up or the client says so;
//! * cancelled `put_start_release_timeout` after it began, as unfinished puts are discarded;
//! * with the object, when that loses the last place that holds it, is replaced, or has
//!   been kept as long as it should: the targets' space comes back when the transfer's
//!   time is up, since its client may still be writing.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use mc_types::{ClientId, Generation, Time, TransferId};
use smallvec::SmallVec;

use crate::object::group::Hold;
use crate::side_tables::hook::{Leaving, Lingering, SideTable};
use crate::side_tables::retained::RetainedSpace;
use crate::space::replica::{Placement, Placements, Replicas};
use crate::space::segment::Segment;
use crate::tables::open_puts::OpenPuts;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::request::{Slices, TransferHandle};
use crate::vocabulary::slot::ObjectSlot;

/// The kind of a transfer: what happens to its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferKind {
    /// The source stays.
    Copy,
    /// The source goes when the target is there.
    Move,
}

impl fmt::Display for TransferKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Copy => "copy",
            Self::Move => "move",
        })
    }
}

/// The source and the targets of a transfer.
#[derive(Clone, Debug)]
pub struct TransferGrant {
    /// Names this transfer, and is needed to end it.
    pub handle: TransferHandle,
    /// The put that the object comes from.
    pub generation: Generation,
    /// The object's slices, with the checksums that the bytes must have.
    pub slices: Slices,
    /// The replica to read from.
    pub source: Placement,
    /// One range for each replica to be made, each as long as the object. Segments that
    /// hold a replica already have none here. A copy without any is over, and there is
    /// nothing to end; a move without any is still to be ended.
    pub targets: Placements,
    /// How long from now on the targets are the transfer's own. They may be given to others
    /// right after that, so the client must have stopped writing by then.
    pub time_left: Duration,
}

/// A transfer that is under way.
#[derive(Clone, Debug)]
pub struct TransferInfo {
    /// Names it among all transfers of the object.
    pub transfer: TransferId,
    /// The kind of a transfer: what happens to its source.
    pub kind: TransferKind,
    /// The client that makes it.
    pub client: ClientId,
    /// The segment that it reads from.
    pub source: Arc<Segment>,
    /// The space that it writes to.
    pub targets: Placements,
    /// The time at which it is cancelled.
    pub due: Time,
}

/// A transfer that is under way, and the space that is its own until it ends.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) id: TransferId,
    pub(crate) kind: TransferKind,
    pub(crate) client: ClientId,
    pub(crate) source: Arc<Segment>,
    pub(crate) targets: Replicas,
    pub(crate) due: Time,
    /// Keeps the object's group from being condemned.
    pub(crate) hold: Option<Hold>,
}

impl Transfer {
    pub(crate) fn info(&self) -> TransferInfo {
        TransferInfo {
            transfer: self.id,
            kind: self.kind,
            client: self.client,
            source: Arc::clone(&self.source),
            targets: self.targets.placements(),
            due: self.due,
        }
    }
}

impl Transfer {
    /// The space of a transfer whose writes may still arrive. A later revoke of it gives the space back.
    pub(crate) fn linger(self, tenant: TenantSlot) -> Lingering {
        let space = RetainedSpace {
            tenant: Some(tenant),
            replicas: self.targets,
            writer: Some(self.client),
            read_at: None,
        };
        Lingering { until: self.due, grant: self.id.into(), space }
    }
}

/// The copies and moves under way of the objects of one shard.
#[derive(Debug, Default)]
pub(crate) struct OpenTransfers {
    by_slot: BTreeMap<ObjectSlot, Transfer>,
    /// Oldest first.
    order: OpenPuts<TransferId>,
}

impl OpenTransfers {
    pub(crate) fn len(&self) -> usize {
        self.by_slot.len()
    }

    pub(crate) fn get(&self, slot: ObjectSlot) -> Option<&Transfer> {
        self.by_slot.get(&slot)
    }

    pub(crate) fn begin(&mut self, slot: ObjectSlot, transfer: Transfer) {
        self.order.begin(transfer.id, slot);
        self.by_slot.insert(slot, transfer);
    }

    /// Takes the transfer of an object that ends.
    pub(crate) fn end(&mut self, slot: ObjectSlot) -> Option<Transfer> {
        let transfer = self.by_slot.remove(&slot)?;
        self.order.ended(transfer.id);
        Some(transfer)
    }

    /// Returns the oldest one with the slot of its object.
    pub(crate) fn oldest(&self) -> Option<(ObjectSlot, &Transfer)> {
        let (_, slot) = self.order.oldest()?;
        Some((slot, self.get(slot)?))
    }

    /// Holds the group of an object no longer.
    pub(crate) fn leave_group(&mut self, slot: ObjectSlot) {
        if let Some(transfer) = self.by_slot.get_mut(&slot) {
            transfer.hold = None;
        }
    }
}

impl SideTable for OpenTransfers {
    fn has(&self, slot: ObjectSlot) -> bool {
        self.by_slot.contains_key(&slot)
    }

    /// The client of the transfer does not know yet that the object goes.
    fn abandon(&mut self, leaving: Leaving<'_>, kept: &mut SmallVec<[Lingering; 2]>) {
        kept.extend(self.end(leaving.slot).map(|transfer| transfer.linger(leaving.tenant)));
    }

    fn forget(&mut self, leaving: Leaving<'_>) {
        debug_assert!(!self.has(leaving.slot), "it was abandoned");
    }
}

/// From where to where, by the names of segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    pub(crate) kind: TransferKind,
    pub(crate) source: &'a str,
    pub(crate) targets: &'a [&'a str],
}

/// A transfer as its client names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransferRef {
    pub(crate) kind: TransferKind,
    pub(crate) client: ClientId,
    pub(crate) id: TransferId,
    /// Whether the client knows what only the transfer's start told.
    pub(crate) is_genuine: bool,
}
