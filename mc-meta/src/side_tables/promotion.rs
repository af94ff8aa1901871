//! Objects that are read from disks come back into memory.
//!
//! A read that finds an object on disks only counts for it. Read often enough, it is
//! handed to a client to bring back: the one whose disk it is on, or, when it is on the
//! shared tier alone, one that contributes memory. That client is given space, reads the
//! object into it, and says so; then the object has a memory replica again and is in the
//! order of eviction. Nothing is evicted to make room: while memory is above the
//! watermark objects stay where they are, and are tried again a little later.

use core::time::Duration;
use std::collections::BTreeMap;

use mc_types::{ClientId, ErrorCode, Time, TransferId};
use smallvec::SmallVec;
use thiserror::Error;

use crate::object::Queue;
use crate::side_tables::hook::{Leaving, Lingering, SideTable};
use crate::side_tables::promotion_queue::PromotionError;
use crate::side_tables::retained::RetainedSpace;
use crate::space::replica::{Placement, Replica, Replicas};
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::request::TransferHandle;
use crate::vocabulary::slot::ObjectSlot;

/// Tasks and candidates that one tick sees to.
pub(crate) const TICK_JOBS: usize = 512;

/// Space to read an object into that comes back into memory.
#[derive(Clone, Debug)]
pub struct PromotionGrant {
    /// Names this way back, and is needed to end it.
    pub handle: TransferHandle,
    /// Where the object is to be read into.
    pub placement: Placement,
    /// How long from now on the space is the client's own. It may be given to others right
    /// after that, so the client must have stopped writing by then.
    pub time_left: Duration,
}

/// Space that an object on its way back into memory is read into.
#[derive(Debug)]
pub(crate) struct Promotion {
    pub(crate) space: Replica,
    pub(crate) id: TransferId,
    pub(crate) client: ClientId,
    /// Until when its client may be writing there if it is not heard of.
    pub(crate) due: Time,
}

impl Promotion {
    /// The space of a promotion whose client may still be writing there.
    pub(crate) fn linger(self, tenant: TenantSlot) -> Lingering {
        let space = RetainedSpace {
            tenant: Some(tenant),
            replicas: Replicas::from_iter([self.space]),
            writer: Some(self.client),
            read_at: None,
        };
        Lingering { until: self.due, grant: self.id.into(), space }
    }
}

/// The objects of one shard that are being read into memory.
#[derive(Debug, Default)]
pub(crate) struct OpenPromotions(BTreeMap<ObjectSlot, Promotion>);

impl OpenPromotions {
    pub(crate) fn get(&self, slot: ObjectSlot) -> Option<&Promotion> {
        self.0.get(&slot)
    }

    pub(crate) fn begin(&mut self, slot: ObjectSlot, promotion: Promotion) {
        self.0.insert(slot, promotion);
    }

    pub(crate) fn end(&mut self, slot: ObjectSlot) -> Option<Promotion> {
        self.0.remove(&slot)
    }
}

impl SideTable for OpenPromotions {
    fn has(&self, slot: ObjectSlot) -> bool {
        self.0.contains_key(&slot)
    }

    fn abandon(&mut self, leaving: Leaving<'_>, kept: &mut SmallVec<[Lingering; 2]>) {
        let Leaving { slot, object, tenant, books } = leaving;
        let promotion = self.end(slot);
        // One that was read on a disk may be about to come back.
        if books.local.promotes && (promotion.is_some() || object.queue() == Queue::OnLocalDisk) {
            books.local.book.lock().promotions.cancel(object.generation);
        }
        kept.extend(promotion.map(|promotion| promotion.linger(tenant)));
    }

    fn forget(&mut self, leaving: Leaving<'_>) {
        debug_assert!(!self.has(leaving.slot), "it was abandoned");
    }
}

/// Why a client gets no space to bring an object back into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PromotionStartError {
    /// The object has gone, or is another one now.
    #[error("no such object")]
    NotFound,
    /// The object is in memory already.
    #[error("the object is in memory already")]
    InMemory,
    /// The client was not told to, or not about this.
    #[error("{0}")]
    Task(#[from] PromotionError),
    /// No segment has room, or the tenant's quota has none.
    #[error("{len} bytes wanted, and there is no room for them")]
    NoRoom {
        /// The object's length in bytes.
        len: u64,
    },
}

impl PromotionStartError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound => ErrorCode::ObjectNotFound,
            Self::InMemory => ErrorCode::ObjectAlreadyExists,
            Self::Task(error) => error.code(),
            Self::NoRoom { .. } => ErrorCode::Full,
        }
    }

    /// Returns whether the same call may succeed later: never, the task is over.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}
