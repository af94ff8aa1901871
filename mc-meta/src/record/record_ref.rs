//! Records that borrow, to be encoded and decoded without the heap.

use core::num::NonZeroU64;
use core::time::Duration;

use mc_lease::SoftPin;
use mc_types::{Checksum, ClientId, Generation, KeyRef, Time};

use crate::effect::Effect;
use crate::effect::view::ObjectView;
use crate::object::local_disk::LocalDiskIds;
use crate::record::{Locations, ObjectRecord, Record, located};
use crate::space::segment::{Purpose, Segment, SegmentSpec};
use crate::tenant::below::TierQuotas;
use crate::tenant::id::TenantId;
use crate::tenant::quota::QuotaMode;
use crate::vocabulary::request::Slices;
use crate::vocabulary::states::{ReplicaStatus, SegmentStatus};

/// A [`Record`] that borrows its texts and checksums.
///
/// A journal makes one of each effect and encodes it where it stands; a decoder makes one of the
/// bytes that it read and [applies](crate::Rebuild::apply) it. Neither takes memory from the heap
/// for an object with one replica and one slice.
///
/// ```
/// use mc_meta::{Record, RecordRef};
/// use mc_types::Generation;
///
/// let record = Record::Generations { next: Generation::new(7) };
/// assert_eq!(record.as_ref(), RecordRef::Generations { next: Generation::new(7) });
/// assert_eq!(record.as_ref().to_record(), record);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RecordRef<'a> {
    /// See [`Record::Generations`].
    Generations {
        /// The next one.
        next: Generation,
    },
    /// See [`Record::Segment`].
    Segment {
        /// The description that its client gave.
        spec: &'a SegmentSpec,
        /// The client.
        client: ClientId,
        /// The status that it has while its client is there.
        status: SegmentStatus,
        /// The grace of its unmounting.
        grace: Option<Duration>,
    },
    /// See [`Record::SegmentGone`].
    SegmentGone {
        /// The segment.
        id: mc_types::SegmentId,
    },
    /// See [`Record::Object`].
    Object(ObjectRecordRef<'a>),
    /// See [`Record::Removed`].
    Removed {
        /// The object's key.
        key: KeyRef<'a>,
        /// The put that the object came from.
        generation: Generation,
    },
    /// See [`Record::SpaceKept`].
    SpaceKept {
        /// The space.
        space: Locations,
        /// For how long at most.
        left: Duration,
    },
    /// See [`Record::SpaceFreed`].
    SpaceFreed {
        /// The space.
        space: Locations,
    },
    /// See [`Record::TenantPolicy`].
    TenantPolicy {
        /// The tenant.
        tenant: &'a TenantId,
        /// Bytes.
        requested: Option<u64>,
        /// The treatment of puts beyond the quota.
        mode: QuotaMode,
        /// Its quotas below memory.
        below: TierQuotas,
    },
    /// See [`Record::Leased`].
    Leased {
        /// The number of objects in the parts before.
        before: u64,
        /// The puts of some more.
        objects: &'a [Generation],
        /// Whether these were all.
        is_last: bool,
    },
}

/// An [`ObjectRecord`] that borrows its texts and checksums.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ObjectRecordRef<'a> {
    /// See [`ObjectRecord::key`].
    pub key: KeyRef<'a>,
    /// See [`ObjectRecord::generation`].
    pub generation: Generation,
    /// See [`ObjectRecord::owner`].
    pub owner: ClientId,
    /// See [`ObjectRecord::complete`].
    pub complete: bool,
    /// See [`ObjectRecord::slices`].
    pub slices: Slices,
    /// See [`ObjectRecord::prefixes`].
    pub prefixes: &'a [Checksum],
    /// See [`ObjectRecord::replicas`].
    pub replicas: Locations,
    /// See [`ObjectRecord::file`].
    pub file: Option<ReplicaStatus>,
    /// See [`ObjectRecord::local_disks`].
    pub local_disks: LocalDiskIds,
    /// See [`ObjectRecord::reserved`].
    pub reserved: Locations,
    /// See [`ObjectRecord::soft_pin`].
    pub soft_pin: SoftPin,
    /// See [`ObjectRecord::hard_pin`].
    pub hard_pin: bool,
    /// See [`ObjectRecord::group`].
    pub group: Option<&'a str>,
    /// See [`ObjectRecord::parent`].
    pub parent: Option<NonZeroU64>,
    /// See [`ObjectRecord::idle`].
    pub idle: Duration,
}

impl<'a> ObjectRecordRef<'a> {
    /// An unfinished object of these slices, without replicas and without pins.
    #[must_use]
    pub fn new(key: KeyRef<'a>, generation: Generation, owner: ClientId, slices: Slices) -> Self {
        Self {
            key,
            generation,
            owner,
            complete: false,
            slices,
            prefixes: &[],
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

    /// Returns an owned copy.
    #[must_use]
    pub fn to_record(&self) -> ObjectRecord {
        let Self { key, generation, owner, complete, prefixes, file, .. } = *self;
        let Self { soft_pin, hard_pin, group, parent, idle, .. } = *self;
        ObjectRecord {
            key: key.to_owned(),
            generation,
            owner,
            complete,
            slices: self.slices.clone(),
            prefixes: prefixes.into(),
            replicas: self.replicas.clone(),
            file,
            local_disks: self.local_disks.clone(),
            reserved: self.reserved.clone(),
            soft_pin,
            hard_pin,
            group: group.map(Into::into),
            parent,
            idle,
        }
    }
}

impl<'a> RecordRef<'a> {
    /// Returns the record that a journal has to keep of a change; `None` for changes that it need
    /// not know of, or knows from others.
    #[must_use]
    pub fn from_effect(effect: &Effect<'a>) -> Option<Self> {
        Some(match *effect {
            Effect::Began { object }
            | Effect::Stored { object, .. }
            | Effect::Changed { object, .. }
            | Effect::Pinned { object }
            | Effect::Transferring { object } => Self::Object(object.record(None)),
            Effect::Abandoned { key, generation, .. } | Effect::Removed { key, generation, .. } => {
                Self::Removed { key, generation }
            }
            Effect::SpaceKept { space, left } => {
                Self::SpaceKept { space: located(space.replicas.iter()), left }
            }
            Effect::SpaceFreed { space } => {
                Self::SpaceFreed { space: located(space.replicas.iter()) }
            }
            Effect::SegmentMounted { segment } | Effect::SegmentChanged { segment, .. } => {
                Self::of_segment(segment)
            }
            Effect::TenantPolicy { tenant, requested, mode, below } => {
                Self::TenantPolicy { tenant, requested, mode, below }
            }
            Effect::Leased { before, objects, is_last } => {
                Self::Leased { before, objects, is_last }
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

    /// The key, if it is a record of one object.
    #[must_use]
    pub fn key(&self) -> Option<KeyRef<'a>> {
        match self {
            Self::Object(object) => Some(object.key),
            Self::Removed { key, .. } => Some(*key),
            _ => None,
        }
    }

    pub(crate) fn of_segment(segment: &'a Segment) -> Self {
        let Purpose { status, grace } = segment.purpose();
        Self::Segment { spec: segment.spec(), client: segment.client(), status, grace }
    }

    /// Returns an owned copy.
    #[must_use]
    pub fn to_record(&self) -> Record {
        match *self {
            Self::Generations { next } => Record::Generations { next },
            Self::Segment { spec, client, status, grace } => {
                Record::Segment { spec: spec.clone(), client, status, grace }
            }
            Self::SegmentGone { id } => Record::SegmentGone { id },
            Self::Object(ref object) => Record::Object(object.to_record()),
            Self::Removed { key, generation } => {
                Record::Removed { key: key.to_owned(), generation }
            }
            Self::SpaceKept { ref space, left } => Record::SpaceKept { space: space.clone(), left },
            Self::SpaceFreed { ref space } => Record::SpaceFreed { space: space.clone() },
            Self::TenantPolicy { tenant, requested, mode, below } => {
                Record::TenantPolicy { tenant: tenant.clone(), requested, mode, below }
            }
            Self::Leased { before, objects, is_last } => {
                Record::Leased { before, objects: objects.into(), is_last }
            }
        }
    }
}

impl Record {
    /// Returns the record with its texts and checksums borrowed.
    #[must_use]
    pub fn as_ref(&self) -> RecordRef<'_> {
        match *self {
            Self::Generations { next } => RecordRef::Generations { next },
            Self::Segment { ref spec, client, status, grace } => {
                RecordRef::Segment { spec, client, status, grace }
            }
            Self::SegmentGone { id } => RecordRef::SegmentGone { id },
            Self::Object(ref object) => RecordRef::Object(object.as_ref()),
            Self::Removed { ref key, generation } => {
                RecordRef::Removed { key: key.as_ref(), generation }
            }
            Self::SpaceKept { ref space, left } => {
                RecordRef::SpaceKept { space: space.clone(), left }
            }
            Self::SpaceFreed { ref space } => RecordRef::SpaceFreed { space: space.clone() },
            Self::TenantPolicy { ref tenant, requested, mode, below } => {
                RecordRef::TenantPolicy { tenant, requested, mode, below }
            }
            Self::Leased { before, ref objects, is_last } => {
                RecordRef::Leased { before, objects, is_last }
            }
        }
    }
}

impl<'a> From<&'a Record> for RecordRef<'a> {
    fn from(record: &'a Record) -> Self {
        record.as_ref()
    }
}

impl ObjectRecord {
    /// Returns the record with its texts and checksums borrowed.
    #[must_use]
    pub fn as_ref(&self) -> ObjectRecordRef<'_> {
        let Self { generation, owner, complete, file, .. } = *self;
        let Self { soft_pin, hard_pin, parent, idle, .. } = *self;
        ObjectRecordRef {
            key: self.key.as_ref(),
            generation,
            owner,
            complete,
            slices: self.slices.clone(),
            prefixes: &self.prefixes,
            replicas: self.replicas.clone(),
            file,
            local_disks: self.local_disks.clone(),
            reserved: self.reserved.clone(),
            soft_pin,
            hard_pin,
            group: self.group.as_deref(),
            parent,
            idle,
        }
    }
}

impl<'a> ObjectView<'a> {
    /// Space set apart for more replicas of it.
    pub(crate) fn reserved(self) -> Locations {
        let transfer = self.transfer.into_iter().flat_map(|t| t.targets.iter());
        let promotion = self.promotion.map(|promotion| &promotion.space);
        located(transfer.chain(promotion))
    }

    /// Returns what is kept of the object; how long ago it was used is known with the time.
    pub(crate) fn record(self, now: Option<Time>) -> ObjectRecordRef<'a> {
        let object = self.object;
        ObjectRecordRef {
            key: self.key,
            generation: object.generation,
            owner: self.owner,
            complete: self.is_complete(),
            slices: object.slices(),
            prefixes: object.prefixes(),
            replicas: located(object.replicas()),
            file: self.file(),
            local_disks: object.local_disk_ids(),
            reserved: self.reserved(),
            soft_pin: object.protection().soft_pin(),
            hard_pin: object.is_hard_pinned(),
            group: self.group(),
            parent: object.parent(),
            idle: now.map_or(Duration::ZERO, |now| now - object.protection().last_touched()),
        }
    }
}
