//! Why a key is as it is: where its object is and what keeps it, or what became of it.

use core::time::Duration;

use mc_types::{KeyRef, Time};

use crate::commands::reply::ObjectInfo;
use crate::master::Master;
use crate::object::Queue;
use crate::shard::Shard;
use crate::side_tables::history::KeyEvent;
use crate::side_tables::transfer::TransferKind;
use crate::vocabulary::slot::ObjectSlot;

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
    /// The object is soft-pinned: others are evicted first.
    SoftPin {
        /// How long the pin lasts without an access.
        remaining: Duration,
    },
    /// The object is hard-pinned.
    HardPin,
    /// The object is being copied or moved.
    Transfer {
        /// Whether it is copied or moved.
        kind: TransferKind,
        /// The time until it is cancelled.
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

impl Master {
    /// Why a key is as it is. Looking grants no lease and counts as no access.
    #[must_use]
    pub fn explain(&self, now: Time, key: KeyRef<'_>) -> Explanation {
        let object = self.describe(now, key).ok();
        let key = self.hashed(key);
        let shard = self.shard_of(key);
        let found = shard.find(key);
        Explanation {
            object,
            kept_by: found.map_or_else(Vec::new, |slot| shard.kept_by(slot, now)),
            history: shard.events(key.hash, now),
        }
    }
}

impl Shard {
    fn kept_by(&self, slot: ObjectSlot, now: Time) -> Vec<EvictionBlocker> {
        let object = self.get(slot);
        let terms = &self.config().terms;
        let mut reasons = Vec::new();
        if !object.is_complete() {
            reasons.push(EvictionBlocker::Unfinished {
                age: now - object.protection().last_touched(),
            });
        }
        if object.is_hard_pinned() {
            reasons.push(EvictionBlocker::HardPin);
        }
        if let Some(transfer) = self.transfer(slot) {
            let (kind, remaining) = (transfer.kind, transfer.due - now);
            reasons.push(EvictionBlocker::Transfer { kind, remaining });
        }
        let remaining = object.protection().lease_remaining(terms, now);
        if !remaining.is_zero() {
            reasons.push(EvictionBlocker::Lease { remaining });
        }
        if let Some(end) = object.protection().soft_pin_end(terms)
            && now < end
        {
            reasons.push(EvictionBlocker::SoftPin { remaining: end - now });
        }
        let group = object.group().map(|group| group.lease_end() - now).unwrap_or_default();
        if group > remaining {
            reasons.push(EvictionBlocker::Group { remaining: group });
        }
        if self.offload(slot).is_some() {
            reasons.push(EvictionBlocker::Offload);
        }
        let is_offered =
            !matches!(object.queue(), Queue::None | Queue::OnLocalDisk | Queue::Offloading);
        if object.is_complete() && is_offered && !object.frees_room() {
            reasons.push(EvictionBlocker::NoRoomToGain);
        }
        reasons
    }
}
