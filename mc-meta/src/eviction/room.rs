//! Making room for one put: which objects are evicted so that it fits.
//!
//! The coldest object is evicted if that alone makes the room, as it does while all objects
//! are of about one size. Otherwise a run of neighbours in one segment is evicted: objects and
//! gaps that lie side by side, together as long as the put. Runs are looked for around the
//! coldest objects of a few shards and in a few places drawn at random, and the one that is
//! worth least goes. So a put costs about as many bytes as it brings, and time in their
//! number, not in that of all objects.
//!
//! The allocator of a segment keeps with each allocation a [`Label`]: the shard and the slot of
//! the object that lies there. A label is a hint. Whether the object still has that space is
//! checked in its shard.
//!
//! No lock is held for longer than 256 neighbours take, and never two shards' at once.

pub(crate) mod run;

use core::time::Duration;

use mc_alloc::Label;
use mc_types::{Generation, MediaType, SegmentId, Time};

use crate::object::Object;
use crate::space::segment::Segment;
use crate::vocabulary::request::ReplicateConfig;
use crate::vocabulary::slot::ObjectSlot;

/// Times its bytes, in all replicas, that a put may cost, where any run allows it.
const MOST_LOST: u64 = 2;

/// How long after a search in vain no put as long or longer makes another one. A lease that
/// ends may make room at any time, so this is short; it only keeps clients that try again
/// and again from having everything searched each time.
pub(crate) const HOPELESS: Duration = Duration::from_millis(100);

/// The layout of labels: the shard's number and the slot in one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels {
    slot_bits: u32,
}

impl Labels {
    /// Returns the layout for a master with this many shards.
    pub(crate) fn new(shards: usize) -> Self {
        let shard_bits = shards.next_power_of_two().trailing_zeros();
        Self { slot_bits: Label::BITS.saturating_sub(shard_bits) }
    }

    /// Returns an object's label; `None` for slots beyond the bits that are left for them: two
    /// billion objects in all. Such an object is never part of a run.
    pub(crate) fn of(self, shard: u32, slot: ObjectSlot) -> Option<Label> {
        let is_small = u64::from(slot.as_u32()) >> self.slot_bits == 0;
        is_small.then_some(()).and_then(|()| Label::new(shard << self.slot_bits | slot.as_u32()))
    }

    pub(crate) fn split(self, label: Label) -> (usize, ObjectSlot) {
        let number = label.number();
        let slot = ObjectSlot::new(number & ((1 << self.slot_bits) - 1));
        ((number >> self.slot_bits) as usize, slot)
    }
}

/// The room that a put needs.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) len: u64,
    config: &'a ReplicateConfig,
    /// The segments that the put avoids, in the order of their ids: they are asked about for each
    /// object that is looked at.
    avoided: Vec<SegmentId>,
    /// The medium that the put goes to.
    pub(crate) medium: MediaType,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(len: u64, config: &'a ReplicateConfig, medium: MediaType) -> Self {
        let mut avoided = config.avoided_segments.clone();
        avoided.sort_unstable();
        Self { len, config, avoided, medium }
    }

    /// Bytes that the put may cost, where any run allows it.
    pub(crate) fn most_lost(&self) -> u64 {
        let replicas = u64::from(self.config.replica_num.max(1));
        self.len.saturating_mul(replicas).saturating_mul(MOST_LOST)
    }

    pub(crate) fn is_usable(&self, segment: &Segment) -> bool {
        segment.is_allocatable()
            && segment.medium() == self.medium
            && segment.largest_object() >= self.len
            && !self.config.excluded_segments.contains(&segment.spec().name)
            && self.avoided.binary_search(&segment.spec().id).is_err()
    }

    /// Returns whether evicting this object alone makes the room, and does not cost too much. An
    /// object whose group is protected passes: condemning the group finds that out.
    pub(crate) fn is_made_by(&self, object: &Object, now: Time) -> bool {
        let members = match object.group() {
            None => 1,
            Some(group) => match group.at_stake(now) {
                None => return true,
                Some(members) => members.max(1) as u64,
            },
        };
        bytes_of(object).saturating_mul(members) <= self.most_lost()
            && object.replicas().any(|replica| {
                self.is_usable(&replica.segment)
                    && replica.segment.makes_room(&replica.allocation, self.len)
            })
    }
}

/// A search for room that found none, so that another one is not needed yet.
#[derive(Debug)]
pub(crate) struct Hopeless {
    pub(crate) len: u64,
    pub(crate) medium: MediaType,
    pub(crate) met_passing: bool,
    pub(crate) until: Time,
}

/// The bytes lost with an object. Bytes in a segment that is gone are lost already.
pub(crate) fn bytes_of(object: &Object) -> u64 {
    let left = object.replicas().filter(|replica| !replica.segment.is_gone());
    left.fold(0, |sum: u64, replica| sum.saturating_add(replica.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_names_one_slot_of_one_shard() {
        for shards in [1usize, 2, 3, 64, 1000, 65_536] {
            let labels = Labels::new(shards);
            for shard in [0, shards as u32 / 2, shards as u32 - 1] {
                for slot in [0, 1, 4095].map(ObjectSlot::new) {
                    let label = labels.of(shard, slot).expect("both are small");
                    assert_eq!(labels.split(label), (shard as usize, slot), "{shards}");
                }
            }
            assert!(labels.of(0, ObjectSlot::NONE).is_none(), "{shards}");
        }
    }
}
