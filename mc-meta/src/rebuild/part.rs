//! Part of a rebuild: some of the shards, and the records of their objects.

use core::cmp::Ordering;
use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::quality::FixedState;
use mc_types::{Generation, KeyRef, Time};
use smallvec::SmallVec;

use crate::eviction::common::CommonOrder;
use crate::object::group::Groups;
use crate::object::local_disk::LocalDisk;
use crate::object::objects::Objects;
use crate::object::spans::checkpoints;
use crate::object::{Object, PendingPut};
use crate::rebuild::leases::LeasedObjects;
use crate::rebuild::settled::{Before, Settled};
use crate::rebuild::space::{Claims, Fate, Many, Space};
use crate::rebuild::{Dropped, RebuildPart};
use crate::record::Location;
use crate::record::record_ref::{ObjectRecordRef, RecordRef};
use crate::shard::Shard;
use crate::side_tables::offload_queue::MAX_DISKS;
use crate::space::allocator::MemoryAllocator;
use crate::space::replica::Replicas;
use crate::space::segment::{MAX_SEGMENT_NAME_LEN, Purpose, SegmentSpec};
use crate::space::table::SegmentTable;
use crate::tenant::below::TierQuotas;
use crate::tenant::id::TenantId;
use crate::tenant::ledger::TenantSlot;
use crate::tenant::quota::QuotaMode;
use crate::vocabulary::hash::{HashedKey, KeyHasher};
use crate::vocabulary::kinds::FileState;
use crate::vocabulary::lock::{Mutex, RwLock, rank};
use crate::vocabulary::request::{MAX_GROUP_NAME_LEN, MAX_REPLICAS, MAX_SLICES, Slices};
use crate::vocabulary::slot::ObjectSlot;

/// Generations from here on are taken for damage: masters begin to count below the
/// middle of the range, and none lives to see its last quarter.
const END_OF_GENERATIONS: u64 = 3 << 62;

/// The time at which objects are taken to have been used while records are applied, if
/// nothing else is known; only the order of these times is used.
pub(crate) const RECENT: Time = Time::from_millis(1 << 62);

/// Records whose keys are looked up at once.
const BATCH: usize = 32;

/// A key with the number of its shard among those of a part.
type OwnKey<'k> = (HashedKey<'k>, usize);

/// A shard of the master that is to be.
pub(crate) type ShardLock = Mutex<Shard, { rank::SHARD }>;

/// The state that one part keeps of the records.
pub(crate) struct Part {
    /// One part alone counts what is wrong with records that every part is given.
    is_first: bool,
    /// The number of its first shard.
    pub(crate) first_shard: usize,
    /// How many it has.
    pub(crate) shards: usize,
    /// Where the replicas of each shard's objects are, under the objects' own slots:
    /// both are filled and emptied together. None once the objects have their space.
    pub(crate) claims: Vec<Objects<Claims>>,
    pub(crate) space: Space,
    /// The fate of each mounting, when the last record is applied.
    pub(crate) fates: Vec<Fate>,
    pub(crate) policies: BTreeMap<TenantId, (Option<u64>, QuotaMode, TierQuotas)>,
    /// The state that the first part alone keeps.
    pub(crate) leased: LeasedObjects,
    /// One more than the largest generation seen.
    pub(crate) next_generation: u64,
    pub(crate) applied: u64,
    pub(crate) dropped: Dropped,
}

/// The state that the parts share.
#[derive(Clone, Copy)]
pub(crate) struct Common<'a> {
    pub(crate) hasher: &'a KeyHasher,
    pub(crate) groups: &'a Mutex<Groups, { rank::GROUPS }>,
    pub(crate) order: &'a CommonOrder,
    pub(crate) segments: &'a RwLock<SegmentTable, { rank::SEGMENTS }>,
    pub(crate) memory: MemoryAllocator,
    /// Shards of all parts.
    pub(crate) shards: usize,
}

impl Part {
    pub(crate) fn new(first_shard: usize, shards: usize, hasher: FixedState) -> Self {
        Self {
            is_first: first_shard == 0,
            first_shard,
            shards,
            claims: (0..shards).map(|_| Objects::new()).collect(),
            space: Space::new(hasher),
            fates: Vec::new(),
            policies: BTreeMap::new(),
            leased: LeasedObjects::default(),
            next_generation: 0,
            applied: 0,
            dropped: Dropped::default(),
        }
    }

    /// Notes that generations below `next` were given out.
    fn see(&mut self, next: u64) -> bool {
        let is_possible = next <= END_OF_GENERATIONS;
        if is_possible {
            self.next_generation = self.next_generation.max(next);
        }
        is_possible
    }
}

impl RebuildPart<'_> {
    /// Applies a record that is given to every part; false when it cannot be true.
    fn apply_to_all(&mut self, record: &RecordRef<'_>) -> bool {
        let Self { part: Part { space, policies, .. }, settled, common, .. } = self;
        match *record {
            // The records of a life begin with it: what the one before has listed is over.
            RecordRef::Generations { next } => {
                self.part.leased.forget();
                return self.part.see(next.as_u64());
            }
            RecordRef::Leased { before, objects, is_last } => {
                if self.part.is_first {
                    self.part.leased.add(before, objects, is_last);
                }
            }
            RecordRef::Segment { spec, client, status, grace } if is_segment(spec) => {
                space.mount(spec, client, Purpose::recorded(status, grace));
                if let Some(settled) = settled {
                    settled.mount(space, &mut common.segments.write(), spec.id, common.memory);
                }
            }
            RecordRef::Segment { .. } => return false,
            RecordRef::SegmentGone { id } => {
                if let Some(settled) = settled {
                    settled.lose(&mut common.segments.write(), id);
                }
                space.lose(id);
            }
            RecordRef::SpaceKept { space: ref kept, left } => {
                for location in kept {
                    space.keep(location, left);
                    if let Some(settled) = settled {
                        settled.keep(space, location);
                    }
                }
            }
            RecordRef::SpaceFreed { space: ref freed } => {
                for location in freed {
                    space.free(location);
                    if let Some(settled) = settled {
                        settled.free(space, location);
                    }
                }
            }
            RecordRef::TenantPolicy {
                tenant, requested: None, below: TierQuotas::NONE, ..
            } => {
                policies.remove(tenant);
            }
            RecordRef::TenantPolicy { tenant, requested, mode, below } => {
                policies.insert(tenant.clone(), (requested, mode, below));
            }
            RecordRef::Object(_) | RecordRef::Removed { .. } => {}
        }
        true
    }

    /// Returns whether records of this key's object are this part's. The part ignores those of
    /// others, so a decoder need not decode more of them than the key.
    #[must_use]
    pub fn owns(&self, key: KeyRef<'_>) -> bool {
        self.own(key).is_some()
    }

    /// Returns whether the objects of this shard are this part's.
    #[must_use]
    pub fn owns_shard(&self, shard: usize) -> bool {
        let own = self.part.first_shard..self.part.first_shard + self.shards.len();
        own.contains(&shard)
    }

    /// Applies the next record, owned or borrowed.
    pub fn apply<'r>(&mut self, record: impl Into<RecordRef<'r>>) {
        let record = record.into();
        let key = record.key().map(|key| self.own(key));
        self.apply_hashed(&record, key);
    }

    /// Applies the next records. With ten million objects this takes half the time of applying
    /// them one by one, as the processor waits for the memory of several keys at once; 32 records
    /// are enough for that.
    pub fn apply_all(&mut self, records: &[RecordRef<'_>]) {
        for records in records.chunks(BATCH) {
            let keys: SmallVec<[_; BATCH]> =
                records.iter().map(|record| record.key().map(|key| self.own(key))).collect();
            let mut touched = 0;
            for &(key, number) in keys.iter().flatten().flatten() {
                touched ^= self.shards[number].get_mut().touch(key.hash);
            }
            // Nothing else needs what was read.
            core::hint::black_box(touched);
            for (record, key) in records.iter().zip(keys) {
                self.apply_hashed(record, key);
            }
        }
    }

    /// Applies a record, with the key that it is about, if any, when that is the part's own.
    fn apply_hashed(&mut self, record: &RecordRef<'_>, key: Option<Option<OwnKey<'_>>>) {
        self.part.applied += 1;
        match (record, key) {
            (RecordRef::Object(object), Some(Some(key))) => self.apply_object(object, key),
            (RecordRef::Removed { generation, .. }, Some(Some(key))) => {
                self.forget(key, *generation);
            }
            (_, Some(_)) => {}
            (record, None) => {
                let is_possible = self.apply_to_all(record);
                self.part.dropped.malformed += u64::from(!is_possible && self.part.is_first);
            }
        }
    }

    /// A key of this part with the number of its shard among the part's own.
    fn own<'k>(&self, key: KeyRef<'k>) -> Option<OwnKey<'k>> {
        let key = HashedKey { hash: self.common.hasher.hash(key), key };
        let number = key.shard(self.common.shards).checked_sub(self.part.first_shard)?;
        (number < self.shards.len()).then_some((key, number))
    }

    /// Forgets the object of this put.
    fn forget(&mut self, (key, number): OwnKey<'_>, generation: Generation) {
        if !self.part.see(generation.as_u64().saturating_add(1)) {
            self.part.dropped.malformed += 1;
        }
        let Self { part, shards, settled, .. } = self;
        let shard = shards[number].get_mut();
        let mut before = Before::new();
        for slot in shard.of_key(key).into_iter().flatten() {
            if shard.get(slot).generation == generation {
                part.take_out(shard, (number, slot), settled.as_deref_mut(), &mut before);
            }
        }
        if let Some(settled) = settled {
            settled.let_go(&part.space, before);
        }
    }

    fn apply_object(&mut self, record: &ObjectRecordRef<'_>, (key, number): OwnKey<'_>) {
        let Self { part, shards, common, settled } = self;
        if !part.see(record.generation.as_u64().saturating_add(1)) {
            part.dropped.malformed += 1;
            return;
        }
        let shard = shards[number].get_mut();
        let same_key = shard.of_key(key);
        let standing = |slot| Standing::of(shard.get(slot), record);
        let standings = same_key.map(|slot| slot.map(standing));
        if standings.contains(&Some(Standing::Later)) {
            return;
        }
        let (mut beside, mut before) = (None, Before::new());
        for (slot, standing) in same_key.into_iter().zip(standings) {
            match (slot, standing) {
                // Whatever else the record says, the key's value is not that any more.
                (Some(slot), Some(Standing::Earlier)) => {
                    part.take_out(shard, (number, slot), settled.as_deref_mut(), &mut before);
                }
                (Some(slot), Some(Standing::Beside)) => beside = Some(slot),
                _ => {}
            }
        }
        if !is_object(record) {
            part.dropped.malformed += 1;
            if let Some(settled) = settled {
                settled.let_go(&part.space, before);
            }
            return;
        }
        let mut is_contested = false;
        let mut place =
            |places: &[Location], label, settled: &mut Option<&mut Settled>| match settled {
                Some(settled) => settled.place(places, label, &mut before, &mut is_contested),
                None => Replicas::default(),
            };
        let replicas = place(&record.replicas, shard.next_label(), settled);
        let below = shard.below(record);
        let join = |name| {
            let shard = shard.config().number;
            crate::object::group::join(common.groups, name, record.generation, shard)
        };
        let begun = PendingPut {
            generation: record.generation,
            slices: record.slices.clone(),
            replicas,
            soft_pin: record.soft_pin,
            hard_pin: record.hard_pin,
            group: record.group.map(join),
            parent: record.parent,
            replaces: beside.filter(|_| !record.complete),
            file: below.file != FileState::None,
            // Who is charged is decided when it is known what for.
            tenant: TenantSlot::DEFAULT,
        };
        let used = part.used_at(record.idle);
        let slot = match beside.filter(|_| record.complete) {
            Some(replacement) => shard.enter_before(replacement, record.owner, begun, used),
            None => shard.enter(key, record.owner, begun, used),
        };
        shard.get_mut(slot).restore(record, below);
        let Some(settled) = settled else {
            part.note(number, slot, record);
            return;
        };
        let at = (number as u32, slot);
        let reserved = settled.place(&record.reserved, None, &mut before, &mut is_contested);
        if !reserved.is_empty() {
            settled.reserved.insert(at, reserved);
        }
        if is_contested {
            settled.contest(at, Many::of(&mut part.space, &record.replicas, &record.reserved));
        }
        if shard.charge(slot).is_err() || !record.idle.is_zero() {
            settled.needs_all();
        }
        if record.complete && shard.get(slot).has_memory() {
            common.order.enter(shard.admit(slot).as_slice());
        }
        settled.let_go(&part.space, before);
    }
}

/// Where the object of a record is below memory.
struct Below {
    file: FileState,
    disks: Vec<Arc<LocalDisk>>,
}

impl Shard {
    /// Takes room for the file of an object, and finds the disks that it is on.
    fn below(&self, record: &ObjectRecordRef<'_>) -> Below {
        let books = &self.config().books;
        let mut file = FileState::from_status(record.file);
        let len = record.slices.total_len();
        if file != FileState::None && !books.files.bytes.take_anyway(len) {
            file = FileState::None;
        }
        // All parts share the book.
        let disks = match books.local.config {
            Some(_) if !record.local_disks.is_empty() => {
                let mut book = books.local.book.lock();
                record.local_disks.iter().map(|id| Arc::clone(book.away(*id))).collect()
            }
            _ => Vec::new(),
        };
        Below { file, disks }
    }
}

impl Object {
    /// Makes an object that was entered the one of a record.
    fn restore(&mut self, record: &ObjectRecordRef<'_>, Below { file, disks }: Below) {
        // The tenant is known when all records are.
        self.set_file(file);
        self.set_file_charged(false);
        self.set_prefixes(record.prefixes.into());
        let len = self.len();
        disks.into_iter().for_each(|disk| self.note_local_disk(disk, len));
        if record.complete {
            self.complete_as_found();
        }
    }
}

impl Part {
    /// The time at which an object was used that has idled so long. Those that were used at the same moment keep
    /// the order of their records.
    fn used_at(&self, idle: Duration) -> Time {
        match u64::try_from(idle.as_millis()).unwrap_or(u64::MAX) {
            0 => Time::from_millis(RECENT.as_millis() + self.applied),
            idle => Time::from_millis(RECENT.as_millis().saturating_sub(idle)),
        }
    }

    /// Notes where a new object is.
    fn note(&mut self, number: usize, slot: ObjectSlot, record: &ObjectRecordRef<'_>) {
        let space = &mut self.space;
        let noted = match (record.replicas.as_slice(), record.reserved.as_slice()) {
            ([location], []) => Claims::one(space.place(location)),
            (replicas, reserved) => Claims::Many(Box::new(Many::of(space, replicas, reserved))),
        };
        let noted = self.claims[number].insert(noted);
        debug_assert_eq!(noted, slot, "both tables see the same insertions and removals");
    }

    /// Takes an object out; `before` is given the space that it had.
    fn take_out(
        &mut self,
        shard: &mut Shard,
        (number, slot): (usize, ObjectSlot),
        settled: Option<&mut Settled>,
        before: &mut Before,
    ) {
        match settled {
            Some(settled) => settled.take_out(shard, (number as u32, slot), before),
            None => {
                shard.detach(slot);
                self.claims[number].remove(slot);
            }
        }
    }
}

/// Where an object stands to a record of the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The object is older, or the same: the record takes its place.
    Earlier,
    /// One of the two is the value that can be read and the other, which is younger, is
    /// being written to replace it.
    Beside,
    /// The object is what the record has become since.
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
        [current, current.and_then(|slot| self.replacement(slot))]
    }
}

impl fmt::Debug for RebuildPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RebuildPart")
            .field("first_shard", &self.part.first_shard)
            .field("shards", &self.shards.len())
            .field("applied", &self.part.applied)
            .field("dropped", &self.part.dropped)
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
        && record.local_disks.len() <= MAX_DISKS
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
