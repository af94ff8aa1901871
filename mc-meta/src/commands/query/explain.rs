//! The command that explains the state of a key.

use mc_types::{KeyRef, Time};

use crate::master::Master;
use crate::object::{Object, Queue};
use crate::shard::Shard;
use crate::side_tables::history::{EvictionBlocker, Explanation};

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
            history: shard.events(key.hash, now),
        }
    }
}

impl Shard {
    fn kept_by(&self, object: &Object, now: Time) -> Vec<EvictionBlocker> {
        let terms = &self.config().terms;
        let mut reasons = Vec::new();
        if !object.is_complete() {
            reasons.push(EvictionBlocker::Unfinished {
                age: now - object.protection().last_touched(),
            });
        }
        if object.hard_pin {
            reasons.push(EvictionBlocker::HardPin);
        }
        if let Some(transfer) = object.transfer() {
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
        if object.offload().is_some() {
            reasons.push(EvictionBlocker::Offload);
        }
        let is_offered = !matches!(object.queue(), Queue::None | Queue::OnDisk | Queue::Offloading);
        if object.is_complete() && is_offered && !object.frees_room() {
            reasons.push(EvictionBlocker::NoRoomToGain);
        }
        reasons
    }
}
