//! Why a key is as it is: where its object is and what keeps it, or what became of it.

use core::time::Duration;
use std::collections::VecDeque;

use mc_types::{ErrorCode, Generation, Time};

use crate::effect::Removal;
use crate::side_tables::transfer::TransferKind;
use crate::vocabulary::request::ObjectInfo;

/// Removals and refusals that each shard remembers.
const REMEMBERED: usize = 256;

/// The state of a key, and the latest events about it.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The object, if there is one.
    pub object: Option<ObjectInfo>,
    /// The reasons for which it is not evicted now; empty when there are none, or when there is
    /// no object.
    pub kept_by: Vec<EvictionBlocker>,
    /// The events of earlier objects of the key and of puts of it, the latest first.
    /// The master remembers a few thousand events of the whole cluster.
    pub history: Vec<KeyEvent>,
}

/// A reason for which an object is not evicted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EvictionBlocker {
    /// Its put is not finished.
    Unfinished {
        /// How long ago the put began.
        age: Duration,
    },
    /// A reader may be reading it.
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

/// An event of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEvent {
    /// The time since then.
    pub ago: Duration,
    /// Its kind.
    pub kind: KeyEventKind,
}

/// The kind of an event of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyEventKind {
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
    latest: VecDeque<(u32, Time, KeyEventKind)>,
}

impl History {
    pub(crate) fn add(&mut self, tag: u32, at: Time, kind: KeyEventKind) {
        if self.latest.len() == REMEMBERED {
            self.latest.pop_back();
        }
        self.latest.push_front((tag, at, kind));
    }

    pub(crate) fn of(&self, tag: u32, now: Time) -> Vec<KeyEvent> {
        let own = self.latest.iter().filter(|(other, ..)| *other == tag);
        own.map(|&(_, at, kind)| KeyEvent { ago: now - at, kind }).collect()
    }
}
