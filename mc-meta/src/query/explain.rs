//! Why a key is as it is: where its object is and what keeps it, or what became of it.

mod commands;

use core::time::Duration;
use std::collections::VecDeque;

use mc_types::{ErrorCode, Generation, Time};

use crate::command::ObjectInfo;
use crate::journal::effect::Removal;
use crate::transfer::TransferKind;

/// Removals and refusals that each shard remembers.
const REMEMBERED: usize = 256;

/// What the master knows of a key.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The object, if there is one.
    pub object: Option<ObjectInfo>,
    /// What keeps it from being evicted now; empty when nothing does, or when there is
    /// no object.
    pub kept_by: Vec<KeptBy>,
    /// What happened to earlier objects of the key and to puts of it, the latest first.
    /// Only the latest happenings of the whole cluster are remembered, a few thousand.
    pub history: Vec<Happening>,
}

/// A reason for which an object is not evicted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeptBy {
    /// Its put is not finished.
    Unfinished {
        /// How long ago the put began.
        age: Duration,
    },
    /// Somebody may be reading it.
    Lease {
        /// How long the lease still runs.
        remaining: Duration,
    },
    /// It is soft-pinned: others go first.
    SoftPin {
        /// How long the pin lasts without an access.
        remaining: Duration,
    },
    /// It is hard-pinned.
    HardPin,
    /// It is being copied or moved.
    Transfer {
        /// Which of them.
        kind: TransferKind,
        /// How long until that is given up.
        remaining: Duration,
    },
    /// Another object of its group is under lease.
    Group {
        /// How long that lease still runs.
        remaining: Duration,
    },
    /// A client is to write it to its disk first.
    Offload,
    /// None of its replicas is in a segment that takes new objects, so evicting it would
    /// make no room.
    NoRoomToGain,
}

/// Something that happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happening {
    /// How long ago.
    pub ago: Duration,
    /// What.
    pub what: What,
}

/// What can happen to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// An object of this key is gone.
    Removed {
        /// Its put.
        generation: Generation,
        /// Why.
        cause: Removal,
    },
    /// A put of the key was refused.
    Refused {
        /// The cause's number.
        code: ErrorCode,
    },
}

/// The latest happenings of one shard. Keys are told apart by 32 bits of their hash, so
/// once in millions of questions a happening is another key's.
#[derive(Debug, Default)]
pub(crate) struct History {
    latest: VecDeque<(u32, Time, What)>,
}

impl History {
    pub(crate) fn add(&mut self, tag: u32, at: Time, what: What) {
        if self.latest.len() == REMEMBERED {
            self.latest.pop_back();
        }
        self.latest.push_front((tag, at, what));
    }

    pub(crate) fn of(&self, tag: u32, now: Time) -> Vec<Happening> {
        let own = self.latest.iter().filter(|(other, ..)| *other == tag);
        own.map(|&(_, at, what)| Happening { ago: now - at, what }).collect()
    }
}
