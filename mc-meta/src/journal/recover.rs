//! A master rebuilt from records, after a restart or by a standby.
//!
//! Records are applied to the tables of the master that is to be, so that no list of
//! them is kept; only where replicas are is noted beside the objects. When the last is
//! applied, the space of each segment is divided anew around what lies in it.

mod finish;
mod space;

use core::cmp::Ordering;
use core::fmt;
use std::collections::BTreeMap;

use mc_alloc::RestoreError;
use mc_ticket::GrantSecret;
use mc_types::{Generation, KeyRef, SegmentId, Time};

use self::space::{Claims, Many, Space};
use crate::command::{MAX_GROUP_NAME_LEN, MAX_REPLICAS, MAX_SLICES, Slices};
use crate::config::{ConfigError, MasterConfig};
use crate::journal::record_ref::{ObjectRecordRef, RecordRef};
use crate::master::Master;
use crate::object::replica::Replicas;
use crate::object::slot::ObjectSlot;
use crate::object::spans::checkpoints;
use crate::object::{Object, PendingPut};
use crate::shard::Shard;
use crate::shard::hash::HashedKey;
use crate::shard::objects::Objects;
use crate::space::segment::{MAX_SEGMENT_NAME_LEN, SegmentSpec};
use crate::tenant::id::TenantId;
use crate::tenant::ledger::TenantSlot;
use crate::tier::kinds::FileState;

/// Generations from here on are taken for damage: masters begin to count below the
/// middle of the range, and none lives to see its last quarter.
const END_OF_GENERATIONS: u64 = 3 << 62;

/// Generations that are passed over: the records of the last puts before a restart may
/// be lost, and no writer may take another's put for its own.
const GAP: u64 = 1 << 32;

/// The time at which objects are taken to have been used while records are applied, if
/// nothing else is known; only the order of these times is used.
const RECENT: Time = Time::from_millis(1 << 62);

/// Makes a master of [`Record`]s, applied one after the other: those of an
/// [export](Master::export), then those of all effects since it began; or those of all
/// effects since the master was new.
///
/// The master that comes out knows every object that the records know, under these
/// rules:
///
/// * Its segments are suspended: their clients may have gone meanwhile. One whose client
///   [mounts it again](Master::mount_segment) is back with all that it holds; those of
///   clients that do not come back within
///   [`client_return_timeout`](MasterConfig::client_return_timeout), or
///   [`client_ttl`](MasterConfig::client_ttl) if that is longer, are given up.
/// * Every object counts as read just now, since the former master may have granted a
///   lease right before its end. The order in which they were last used is kept as far
///   as it is known: reads are not recorded.
/// * Puts that were unfinished are unfinished, and count as just begun; their writers can
///   end and revoke them if the [secret](Self::with_secret) is the former master's.
/// * Space that was kept from others is still kept, for as long as it was to be. So is
///   space that was reserved for something unfinished other than a put, for the time
///   after which a put's space is released: no client can finish that any more.
/// * Files on the shared tier are there, those being written still are, and count
///   against its capacity even when that is less now. Without such a tier in the settings
///   there are none. What clients have on their own disks they say when they come back.
/// * Tenants have their quotas, and are charged for what is there of theirs, but not for
///   space that is only kept.
/// * Generations go on above the largest one seen.
///
/// Records may be damaged or contradict each other. None of them is fatal: what cannot
/// be true is left out and [counted](RebuildReport::dropped). Where two objects claim
/// the same bytes, the one that was put later keeps them.
///
/// Takes O(1) time for each record and O(n log n) at the end, and at most a third more
/// memory than the master that comes out, apart from a few bytes for every segment that
/// was ever mounted.
pub struct Rebuild {
    master: Master,
    /// Where the replicas of each shard's objects are, under the objects' own slots:
    /// both are filled and emptied together.
    claims: Vec<Objects<Claims>>,
    space: Space,
    policies: BTreeMap<TenantId, u64>,
    /// One more than the largest generation seen.
    next_generation: u64,
    applied: u64,
    dropped: Dropped,
}

/// The outcome of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RebuildReport {
    /// Segments, all of them suspended.
    pub segments: u64,
    /// Objects, unfinished ones included.
    pub objects: u64,
    /// Objects whose put is unfinished.
    pub unfinished: u64,
    /// Bytes that belong to no object and are kept for a while.
    pub kept_bytes: u64,
    /// Objects that had lost their last segment before the records end.
    pub lost: u64,
    /// Records that were left out because they cannot be true.
    pub dropped: Dropped,
}

/// Records, or objects made of them, that were left out, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dropped {
    /// Records that say what no master says: no slices, empty ones, lengths that
    /// overflow or differ from those of the replicas, generations or names out of range.
    pub malformed: u64,
    /// Objects that lie in segments of which nothing is known.
    pub unknown_segment: u64,
    /// Objects with a replica where the segment has no such space.
    pub out_of_range: u64,
    /// Objects with a replica in space that belongs to a later one.
    pub overlapping: u64,
    /// Segments whose name a later one has.
    pub namesakes: u64,
}

impl Dropped {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let Self { malformed, unknown_segment, out_of_range, overlapping, namesakes } = *self;
        malformed + unknown_segment + out_of_range + overlapping + namesakes
    }
}

/// Why no master comes out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RebuildError {
    /// The space of a segment cannot be divided as it was.
    #[error("segment {segment} cannot be divided as it was: {source}")]
    Segment {
        /// The segment.
        segment: SegmentId,
        /// Why.
        source: RestoreError,
    },
}

impl Rebuild {
    /// Nothing yet. The settings may differ from those of the former master, but for the
    /// memory allocator: what another one placed is out of range mostly. `seed` is that
    /// of [`Master::new`]; with the former master's the eviction policy finds again which
    /// object continues which.
    ///
    /// # Errors
    /// [`ConfigError`] when the settings make no sense.
    pub fn new(config: MasterConfig, seed: u64) -> Result<Self, ConfigError> {
        let master = Master::new(config, seed)?;
        let claims = master.shards().iter().map(|_| Objects::new()).collect();
        Ok(Self {
            space: Space::default(),
            policies: BTreeMap::new(),
            next_generation: 0,
            applied: 0,
            dropped: Dropped::default(),
            claims,
            master,
        })
    }

    /// Derives the tokens of puts from this secret, as [`Master::with_secret`]: with the
    /// former master's, the writers of unfinished puts can still end them.
    #[must_use]
    pub fn with_secret(mut self, secret: GrantSecret) -> Self {
        self.master = self.master.with_secret(secret);
        self
    }

    /// Applies the next record, owned or borrowed.
    pub fn apply<'r>(&mut self, record: impl Into<RecordRef<'r>>) {
        self.applied += 1;
        match record.into() {
            RecordRef::Generations { next } => self.see(next.as_u64()),
            RecordRef::Segment { spec, client, .. } if is_segment(spec) => {
                self.space.mount(spec, client);
            }
            RecordRef::Segment { .. } => self.dropped.malformed += 1,
            RecordRef::SegmentGone { id } => self.space.lose(id),
            RecordRef::Object(object) => self.apply_object(&object),
            RecordRef::Removed { key, generation } => {
                self.see(generation.as_u64().saturating_add(1));
                self.forget(key, generation);
            }
            RecordRef::SpaceKept { space, left } => {
                for location in &space {
                    self.space.keep(location, left);
                }
            }
            RecordRef::TenantPolicy { tenant, requested: Some(bytes) } => {
                self.policies.insert(tenant.clone(), bytes);
            }
            RecordRef::TenantPolicy { tenant, requested: None } => {
                self.policies.remove(tenant);
            }
            RecordRef::SpaceFreed { space } => {
                for location in &space {
                    self.space.free(location);
                }
            }
        }
    }

    /// Notes that generations below `next` were given out.
    fn see(&mut self, next: u64) {
        if next > END_OF_GENERATIONS {
            self.dropped.malformed += 1;
        } else {
            self.next_generation = self.next_generation.max(next);
        }
    }

    /// Forgets the object of this put.
    fn forget(&mut self, key: KeyRef<'_>, generation: Generation) {
        let key = self.master.hashed(key);
        let number = key.shard(self.claims.len());
        let mut shard = self.master.shards()[number].lock();
        for slot in shard.of_key(key).into_iter().flatten() {
            if shard.object(slot).is_some_and(|object| object.generation == generation) {
                shard.detach(slot);
                self.claims[number].remove(slot);
            }
        }
    }

    fn apply_object(&mut self, record: &ObjectRecordRef<'_>) {
        if record.generation.as_u64() >= END_OF_GENERATIONS {
            self.dropped.malformed += 1;
            return;
        }
        self.see(record.generation.as_u64() + 1);
        let key = self.master.hashed(record.key);
        let number = key.shard(self.claims.len());
        let mut shard = self.master.shards()[number].lock();
        let same_key = shard.of_key(key);
        let standing = |slot| shard.object(slot).map(|object| Standing::of(object, record));
        let [current, pending] = same_key.map(|slot| slot.and_then(standing));
        if [current, pending].contains(&Some(Standing::Later)) {
            return;
        }
        let mut beside = None;
        for (slot, standing) in same_key.into_iter().zip([current, pending]) {
            match (slot, standing) {
                // Whatever else the record says, the key's value is not that any more.
                (Some(slot), Some(Standing::Earlier)) => {
                    shard.detach(slot);
                    self.claims[number].remove(slot);
                }
                (Some(slot), Some(Standing::Beside)) => beside = Some(slot),
                _ => {}
            }
        }
        if !is_object(record) {
            self.dropped.malformed += 1;
            return;
        }
        let mut file = FileState::from_status(record.disk);
        let len = record.slices.total_len();
        if file != FileState::None && !shard.config().files.take_anyway(len) {
            file = FileState::None;
        }
        let begun = PendingPut {
            generation: record.generation,
            slices: record.slices.clone(),
            replicas: Replicas::default(),
            soft_pin: record.soft_pin,
            hard_pin: record.hard_pin,
            group: record
                .group
                .map(|name| self.master.join_group(name, record.generation, shard.config().number)),
            parent: record.parent,
            replaces: beside.filter(|_| !record.complete),
            file: file != FileState::None,
            // Who is charged is decided when it is known what for.
            tenant: TenantSlot::DEFAULT,
        };
        // What was used at the same moment keeps the order of its records.
        let used = match u64::try_from(record.idle.as_millis()).unwrap_or(u64::MAX) {
            0 => Time::from_millis(RECENT.as_millis() + self.applied),
            idle => Time::from_millis(RECENT.as_millis().saturating_sub(idle)),
        };
        let slot = match beside.filter(|_| record.complete) {
            Some(replacement) => shard.enter_before(replacement, record.owner, begun, used),
            None => shard.enter(key, record.owner, begun, used),
        };
        let object = shard.get_mut(slot);
        object.set_file(file);
        object.set_prefixes(record.prefixes.into());
        if record.complete {
            object.complete_as_found();
        }
        let space = &mut self.space;
        let claims = match (record.replicas.as_slice(), record.reserved.as_slice()) {
            ([location], []) => Claims::one(space.place(location)),
            (replicas, reserved) => Claims::Many(Box::new(Many {
                replicas: replicas.iter().map(|at| space.place(at)).collect(),
                reserved: reserved.iter().map(|at| (space.place(at), at.extent.len())).collect(),
            })),
        };
        let noted = self.claims[number].insert(claims);
        debug_assert_eq!(noted, slot, "both tables see the same insertions and removals");
    }
}

/// Where an object stands to a record of the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is older, or the same: the record takes its place.
    Earlier,
    /// One of the two is the value that can be read and the other, which is younger, is
    /// being written to replace it.
    Beside,
    /// It is what became of the record since.
    Later,
}

impl Standing {
    fn of(object: &Object, record: &ObjectRecordRef<'_>) -> Self {
        let complete = object.is_complete();
        match object.generation.cmp(&record.generation) {
            Ordering::Less if complete && !record.complete => Self::Beside,
            Ordering::Greater if !complete && record.complete => Self::Beside,
            Ordering::Equal if complete && !record.complete => Self::Later,
            Ordering::Less | Ordering::Equal => Self::Earlier,
            Ordering::Greater => Self::Later,
        }
    }
}

impl Shard {
    /// The slots of the objects of a key: the one that the key leads to, and the one
    /// that is being written to replace it.
    fn of_key(&self, key: HashedKey<'_>) -> [Option<ObjectSlot>; 2] {
        let current = self.find(key);
        [current, current.and_then(|slot| self.object(slot)?.replacement())]
    }
}

impl fmt::Debug for Rebuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rebuild")
            .field("applied", &self.applied)
            .field("dropped", &self.dropped)
            .finish_non_exhaustive()
    }
}

fn is_segment(spec: &SegmentSpec) -> bool {
    (1..=MAX_SEGMENT_NAME_LEN).contains(&spec.name.len()) && spec.size > 0
}

fn is_object(record: &ObjectRecordRef<'_>) -> bool {
    let Some(len) = length(&record.slices) else { return false };
    let prefixes = record.prefixes.len() as u64;
    if prefixes != 0 && prefixes != checkpoints(&record.slices) {
        return false;
    }
    record.replicas.len() <= MAX_REPLICAS
        && record.replicas.iter().all(|replica| replica.extent.len() == len)
        && record.reserved.len() <= 2 * MAX_REPLICAS
        && record.group.as_ref().is_none_or(|g| (1..=MAX_GROUP_NAME_LEN).contains(&g.len()))
}

/// The length of an object, if it can have these slices.
fn length(slices: &Slices) -> Option<u64> {
    let slices = slices.as_slice();
    let possible = (1..=MAX_SLICES).contains(&slices.len());
    let total = slices.iter().filter(|_| possible).try_fold(0u64, |sum, slice| {
        if slice.len == 0 { None } else { sum.checked_add(slice.len) }
    });
    total.filter(|total| (1..=i64::MAX as u64).contains(total))
}
