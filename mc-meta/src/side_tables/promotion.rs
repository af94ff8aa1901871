//! Objects that are read from disks come back into memory.
//!
//! A read that finds an object on disks only counts for it. Read often enough, it is
//! handed to a client to bring back: the one whose disk it is on, or, when it is on the
//! shared tier alone, one that contributes memory. That client is given space, reads the
//! object into it, and says so; then the object has a memory replica again and is in the
//! order of eviction. Nothing is evicted to make room: while memory is above the
//! watermark objects stay where they are, and are tried again a little later.

use core::time::Duration;

use mc_types::{ClientId, ErrorCode, Time, TransferId};
use thiserror::Error;

use crate::side_tables::promotion_queue::PromotionError;
use crate::space::replica::Placement;
use crate::space::replica::Replica;
use crate::vocabulary::request::TransferHandle;

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

/// Why a client gets no space to bring an object back into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PromotionStartError {
    /// The object has gone, or is another one now.
    #[error("no such object")]
    NotFound,
    /// It is in memory already.
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
