//! Why a key is as it is: where its object is and what keeps it, or what became of it.

use core::time::Duration;
use std::collections::VecDeque;

use mc_types::{ErrorCode, Generation, KeyRef, Time};

use crate::command::ObjectInfo;
use crate::journal::effect::Removal;
use crate::master::Master;
use crate::object::{Object, Queue};
use crate::shard::Shard;
use crate::shard::index::tag_of;
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

    fn of(&self, tag: u32, now: Time) -> Vec<Happening> {
        let own = self.latest.iter().filter(|(other, ..)| *other == tag);
        own.map(|&(_, at, what)| Happening { ago: now - at, what }).collect()
    }
}

impl Master {
    /// Why a key is as it is. Looking grants no lease and counts as no access.
    #[must_use]
    pub fn explain(&self, now: Time, key: KeyRef<'_>) -> Explanation {
        let object = self.describe(now, key).ok();
        let key = self.hashed(key);
        let shard = self.shard_of(key);
        let found = shard.find(key).and_then(|slot| shard.object(slot));
        Explanation {
            object,
            kept_by: found.map_or_else(Vec::new, |object| shard.kept_by(object, now)),
            history: shard.history.of(tag_of(key.hash), now),
        }
    }
}

impl Shard {
    fn kept_by(&self, object: &Object, now: Time) -> Vec<KeptBy> {
        let terms = &self.config.terms;
        let mut reasons = Vec::new();
        if !object.is_complete() {
            reasons.push(KeptBy::Unfinished { age: now - object.protection().last_touched() });
        }
        if object.hard_pin {
            reasons.push(KeptBy::HardPin);
        }
        if let Some(transfer) = object.transfer() {
            let (kind, remaining) = (transfer.kind, transfer.due - now);
            reasons.push(KeptBy::Transfer { kind, remaining });
        }
        let remaining = object.protection().lease_remaining(terms, now);
        if !remaining.is_zero() {
            reasons.push(KeptBy::Lease { remaining });
        }
        if let Some(end) = object.protection().soft_pin_end(terms)
            && now < end
        {
            reasons.push(KeptBy::SoftPin { remaining: end - now });
        }
        let group = object.group().map(|group| group.lease_end() - now).unwrap_or_default();
        if group > remaining {
            reasons.push(KeptBy::Group { remaining: group });
        }
        if object.offload().is_some() {
            reasons.push(KeptBy::Offload);
        }
        let is_offered = !matches!(object.queue(), Queue::None | Queue::OnDisk | Queue::Offloading);
        if object.is_complete() && is_offered && !object.frees_room() {
            reasons.push(KeptBy::NoRoomToGain);
        }
        reasons
    }
}
