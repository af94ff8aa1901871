//! The master's state as records: what a journal keeps and a snapshot is made of.

pub(crate) mod record_ref;

use core::num::NonZeroU64;
use core::time::Duration;

use mc_lease::SoftPin;
use mc_types::{Checksum, ClientId, Extent, Generation, ObjectKey, SegmentId};
use smallvec::SmallVec;

use crate::effect::Effect;
use crate::object::local_disk::LocalDiskIds;
use crate::record::record_ref::RecordRef;
use crate::space::replica::Replica;
use crate::space::segment::SegmentSpec;
use crate::tenant::below::TierQuotas;
use crate::tenant::id::TenantId;
use crate::tenant::quota::QuotaMode;
use crate::vocabulary::request::Slices;
use crate::vocabulary::states::{ReplicaStatus, SegmentStatus};

/// One fact about the master's state, owned, to be encoded and kept by the caller.
///
/// [`from_effect`](Self::from_effect) makes records of what a sink is told,
/// [`Master::export`](crate::Master::export) makes them of the state there is, and a
/// [`Rebuild`](crate::Rebuild) makes a master of them. A record says what is, not what
/// was done, so that a later one about the same thing takes the place of an earlier
/// one, and applying one twice changes nothing.
///
/// Not recorded, because it would cost a record for each read or means nothing after a
/// restart: leases but for those of a master that hands over, what was read when (an exported object says it once, by
/// [`idle`](ObjectRecord::idle)), which clients are alive, where objects are on their own
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
        /// The description that its client gave.
        spec: SegmentSpec,
        /// The client.
        client: ClientId,
        /// The status that it has while its client is there. A record of an older version may say
        /// [`Suspended`](SegmentStatus::Suspended), which tells nothing: what the records before it
        /// say of the segment counts on.
        status: SegmentStatus,
        /// The grace of its unmounting, while it is being unmounted. It begins anew after a restart.
        /// Unknown in records of older versions: the segment goes when its client says so then.
        grace: Option<Duration>,
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
        /// The put that the object came from.
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
        /// The treatment of puts beyond the quota.
        mode: QuotaMode,
        /// Its quotas below memory.
        below: TierQuotas,
    },
    /// A part of the list of objects that are leased by a master that hands over. It tells something
    /// to that master's direct successor alone, and only as a whole: see
    /// [`Rebuild::trust_leases`](crate::Rebuild::trust_leases).
    Leased {
        /// The number of objects in the parts before; a part with none begins a list.
        before: u64,
        /// The puts of some more.
        objects: Vec<Generation>,
        /// Whether these were all.
        is_last: bool,
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
    /// The object's key.
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
    /// there are none, no file and no clients' disks, nothing of it outlasts a restart.
    pub replicas: Locations,
    /// The state of its file on the shared tier, if it has one.
    pub file: Option<ReplicaStatus>,
    /// The clients' local disks that it is on. Where it is there their clients say when they come back.
    pub local_disks: LocalDiskIds,
    /// Space set apart for an upsert in its place, or for more replicas of
    /// it. After a restart no client can end that, but its client may still write.
    pub reserved: Locations,
    /// The soft pin that it was put with, in force or not.
    pub soft_pin: SoftPin,
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
            file: None,
            local_disks: LocalDiskIds::new(),
            reserved: Locations::new(),
            soft_pin: SoftPin::NONE,
            hard_pin: false,
            group: None,
            parent: None,
            idle: Duration::ZERO,
        }
    }
}

impl Record {
    /// The record that a journal has to keep of a change; `None` for changes that it need not know
    /// of, or knows from others. Copies what the effect only refers to; a journal that encodes
    /// its records at once does so of a [`RecordRef`], without a copy.
    #[must_use]
    pub fn from_effect(effect: &Effect<'_>) -> Option<Self> {
        RecordRef::from_effect(effect).map(|record| record.to_record())
    }
}

/// Places of replicas by the ids of their segments, but for those that are gone.
pub(crate) fn located<'a>(replicas: impl Iterator<Item = &'a Replica>) -> Locations {
    let live = replicas.filter(|replica| !replica.segment.is_gone());
    let location = |replica: &Replica| Location {
        segment: replica.segment.spec().id,
        extent: replica.allocation.extent(),
    };
    live.map(location).collect()
}
