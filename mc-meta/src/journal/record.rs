//! The master's state as records: what a journal keeps and a snapshot is made of.

use core::num::NonZeroU64;
use core::time::Duration;

use mc_types::{Checksum, ClientId, Extent, Generation, ObjectKey, SegmentId, Time};
use smallvec::SmallVec;

use crate::command::{Placement, Placements, Slices};
use crate::journal::effect::Effect;
use crate::object::replica::Replica;
use crate::object::states::{ReplicaStatus, SegmentStatus};
use crate::object::view::ObjectView;
use crate::space::segment::{Segment, SegmentSpec};
use crate::tenant::id::TenantId;

/// One fact about the master's state, owned, to be encoded and kept by the caller.
///
/// [`from_effect`](Self::from_effect) makes records of what a sink is told,
/// [`Master::export`](crate::Master::export) makes them of the state there is, and a
/// [`Rebuild`](crate::Rebuild) makes a master of them. A record says what is, not what
/// was done, so that a later one about the same thing takes the place of an earlier
/// one, and applying one twice changes nothing.
///
/// Not recorded, because it would cost a record for each read or means nothing after a
/// restart: leases, what was read when (an exported object says it once, by
/// [`idle`](ObjectRecord::idle)), which clients are alive, what they have on their own
/// disks, which they say when they come back, tasks and jobs, which are asked for again,
/// and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// Generations below this one have been given to puts.
    Generations {
        /// The next one.
        next: Generation,
    },
    /// A segment is mounted.
    Segment {
        /// What its client said of it.
        spec: SegmentSpec,
        /// The client.
        client: ClientId,
        /// Its status.
        status: SegmentStatus,
    },
    /// A segment is gone for good, with all that lay in it. One of the same id that is
    /// mounted later is another one, and empty.
    SegmentGone {
        /// The segment.
        id: SegmentId,
    },
    /// An object is as this says. A complete one and a younger unfinished one of the same
    /// key are there at the same time while the one is to be replaced by the other;
    /// otherwise the younger of two is all there is.
    Object(ObjectRecord),
    /// The object of this key and put is gone; its space may still be kept. An older one
    /// of the key, which it was to replace, may still be there.
    Removed {
        /// The object's key.
        key: ObjectKey,
        /// Its put.
        generation: Generation,
    },
    /// Space that belongs to no object must not be given out: a client may still be
    /// writing to it or reading from it.
    SpaceKept {
        /// The space.
        space: Locations,
        /// For how long at most; never longer than the time after which the space of an
        /// unfinished put is taken back.
        left: Duration,
    },
    /// Space that was kept can be given out.
    SpaceFreed {
        /// The space.
        space: Locations,
    },
    /// A tenant has this quota, or none.
    TenantPolicy {
        /// The tenant.
        tenant: TenantId,
        /// Bytes.
        requested: Option<u64>,
    },
}

/// A range of bytes inside a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The segment.
    pub segment: SegmentId,
    /// The range.
    pub extent: Extent,
}

/// The places of replicas; no heap for a single one.
pub type Locations = SmallVec<[Location; 1]>;

/// Everything of one object that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectRecord {
    /// Its key.
    pub key: ObjectKey,
    /// The put that it comes from.
    pub generation: Generation,
    /// The client that put it.
    pub owner: ClientId,
    /// Whether the put has ended, so that it can be read.
    pub complete: bool,
    /// Its slices with their checksums.
    pub slices: Slices,
    /// The checksums of the slices' prefixes, as [`PutEnd::prefixes`](crate::PutEnd::prefixes)
    /// gave them; empty when there are none.
    pub prefixes: Box<[Checksum]>,
    /// Its memory replicas, each as long as the object, in segments of their own. When
    /// there are none and no file either, nothing of it outlasts a restart.
    pub replicas: Locations,
    /// The state of its file on the shared tier, if it has one.
    pub disk: Option<ReplicaStatus>,
    /// Space set apart for an upsert in its place, or for more replicas of
    /// it. After a restart no client can end that, but its client may still write.
    pub reserved: Locations,
    /// Whether it was put with a soft pin.
    pub soft_pin: bool,
    /// Whether it is never evicted.
    pub hard_pin: bool,
    /// The name of the group that it is evicted with.
    pub group: Option<Box<str>>,
    /// The eviction policy's name of the object that this one continues: its key's
    /// hash, which depends on the master's seed.
    pub parent: Option<NonZeroU64>,
    /// Time since it was last used when the record was made.
    pub idle: Duration,
}

impl ObjectRecord {
    /// An unfinished object of these slices, without replicas and without pins.
    #[must_use]
    pub fn new(key: ObjectKey, generation: Generation, owner: ClientId, slices: Slices) -> Self {
        Self {
            key,
            generation,
            owner,
            complete: false,
            slices,
            prefixes: Box::default(),
            replicas: Locations::new(),
            disk: None,
            reserved: Locations::new(),
            soft_pin: false,
            hard_pin: false,
            group: None,
            parent: None,
            idle: Duration::ZERO,
        }
    }
}

impl Record {
    /// The record that a journal has to keep of a change; `None` for changes that it need not know
    /// of, or knows from others. Copies what the effect only refers to: a sink that
    /// keeps no journal need not call this.
    #[must_use]
    pub fn from_effect(effect: &Effect<'_>) -> Option<Self> {
        Some(match *effect {
            Effect::Began { object }
            | Effect::Stored { object, .. }
            | Effect::Changed { object, .. }
            | Effect::Transferring { object } => Self::Object(object.to_record(None)),
            Effect::Abandoned { key, generation, .. } | Effect::Removed { key, generation, .. } => {
                Self::Removed { key: key.to_owned(), generation }
            }
            Effect::SpaceKept { space, left } => {
                Self::SpaceKept { space: located(&space.placements()), left }
            }
            Effect::SpaceFreed { space } => {
                Self::SpaceFreed { space: located(&space.placements()) }
            }
            Effect::SegmentMounted { segment } | Effect::SegmentChanged { segment, .. } => {
                Self::of_segment(segment)
            }
            Effect::TenantPolicy { tenant, requested } => {
                Self::TenantPolicy { tenant: tenant.clone(), requested }
            }
            Effect::SegmentGone { segment } => Self::SegmentGone { id: segment.spec().id },
            // What becomes of its segments is told, too.
            Effect::ClientExpired { .. }
            | Effect::RemoveAllBegan
            | Effect::Spared { .. }
            | Effect::RemoveAllEnded => return None,
            // The client that wants a copy or move asks again when it is not heard of any more.
            // What goes with the replica is told as a change or a removal.
            Effect::Task { .. }
            | Effect::DrainJob { .. }
            | Effect::Damaged { .. }
            | Effect::SegmentSuspected { .. } => return None,
        })
    }

    pub(crate) fn of_segment(segment: &Segment) -> Self {
        Self::Segment {
            spec: segment.spec().clone(),
            client: segment.client(),
            status: segment.status(),
        }
    }
}

impl ObjectView<'_> {
    /// Space set apart for more replicas of it.
    pub(crate) fn reserved(self) -> Placements {
        let transfer = self.object.transfer().into_iter().flat_map(|t| t.targets.iter());
        let promotion = self.object.promotion().map(|promotion| &promotion.space);
        transfer.chain(promotion).map(Replica::placement).collect()
    }

    /// A copy of what is kept of the object; how long ago it was used is known with the
    /// time.
    pub(crate) fn to_record(self, now: Option<Time>) -> ObjectRecord {
        let object = self.object;
        ObjectRecord {
            key: self.key().to_owned(),
            generation: object.generation,
            owner: self.owner,
            complete: self.is_complete(),
            slices: object.slices(),
            prefixes: object.prefixes().into(),
            replicas: located(&self.placements()),
            disk: self.disk(),
            reserved: located(&self.reserved()),
            soft_pin: object.protection().wants_soft_pin(),
            hard_pin: object.hard_pin,
            group: object.group().map(|group| group.name().into()),
            parent: object.parent(),
            idle: now.map_or(Duration::ZERO, |now| now - object.protection().last_touched()),
        }
    }
}

/// Placements by the ids of their segments, but for those that are gone.
pub(crate) fn located(placements: &Placements) -> Locations {
    let live = placements.iter().filter(|placement| !placement.segment.is_gone());
    let location = |placement: &Placement| Location {
        segment: placement.segment.spec().id,
        extent: placement.extent,
    };
    live.map(location).collect()
}
