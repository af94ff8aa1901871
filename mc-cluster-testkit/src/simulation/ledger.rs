//! Who owns each byte of each segment, as the master's effects tell it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mc_meta::{
    Effect, EffectSink, Location, ObjectRecord, ObjectView, Placement, Record, Removal,
    ReplicaPlace, SegmentStatus,
};
use mc_types::{Endpoint, Extent, Generation, RemoteKey, SegmentId, Sequence, Time};

use super::clock::virtual_time;
use super::summary;

/// What a range of a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The put that the range was granted to.
    pub generation: Generation,
    /// The range holds no object any more, and is not granted yet: a client may still use it.
    pub is_kept: bool,
}

/// A mirror of the master's state that is made of its effects, and that checks them:
///
/// * no range of a segment has two owners;
/// * no write lands in a range that has another owner than when the write was submitted;
/// * no object is evicted, or removed without force, while a reader was told that it would stay;
/// * no range of a removed object is granted again while a reader was told that it would stay;
/// * no pinned object is evicted;
/// * no replica has other bytes than were put;
/// * at most one object of a key can be read;
/// * no key loses more objects to removals than removals were called;
/// * no segment goes whose client neither was silent nor gave it up.
///
/// A violation is kept, with the virtual time at which it was found.
pub struct Ledger {
    state: Mutex<State>,
    /// Receives a line for each effect.
    log: Option<Log>,
}

type Log = Box<dyn Fn(fmt::Arguments<'_>) + Send + Sync>;

#[derive(Default)]
struct State {
    /// Sinks that were given out.
    sinks: u64,
    /// The master that is followed.
    life: Life,
    /// Leases that were given before are forgotten.
    leases_since: Duration,
    /// When the last effect was.
    changed: Duration,
    segments: BTreeMap<SegmentId, Segment>,
    by_key: HashMap<RemoteKey, SegmentId>,
    /// The ranges of each put, by segment and offset, those that are kept included.
    ranges_of: BTreeMap<Generation, Vec<(SegmentId, u64)>>,
    /// The objects that can be read, by key.
    readable: BTreeMap<String, Readable>,
    /// Removals that were called and have not removed anything yet, by key.
    removals: BTreeMap<String, u64>,
    /// Any number of removals was called.
    removes_all: bool,
    /// Disks may have lost what was written to them.
    disks_are_damaged: bool,
    /// When the last object of each key was stored.
    last_stored: BTreeMap<String, Duration>,
    /// The put whose object was last removed on request, by key, and when.
    last_removed: BTreeMap<String, (Generation, Duration)>,
    /// Objects whose removal was acknowledged.
    gone: BTreeMap<String, Generation>,
    /// The names of segments that their clients may give up.
    leaving: BTreeSet<String>,
    lost: Option<Lost>,
    violations: Vec<String>,
}

/// The ranges of a segment that have an owner, by offset.
type Ranges = BTreeMap<u64, Range>;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Range {
    end: u64,
    owner: Owner,
    /// When the range became a replica that can be read.
    readable_since: Option<Duration>,
}

#[derive(Default)]
struct Segment {
    ranges: Ranges,
    /// Ranges without an owner that readers may still read: start, end and until when.
    leased: Vec<(u64, u64, Duration)>,
    /// The last status that the master told of.
    status: Option<SegmentStatus>,
}

#[derive(Clone, Copy)]
struct Readable {
    generation: Generation,
    stored: Duration,
    /// When the key's value before it was stored.
    stored_before: Duration,
    /// A client was told that it is stored.
    is_acknowledged: bool,
    /// The last call that protected it, at its begin.
    protected_at: Duration,
    /// Until then no one may evict it, or remove it without force.
    protected_until: Duration,
}

/// The master's clock may be this much faster than the ledger's, over a lease.
const SLACK: Duration = Duration::from_millis(5);

/// The prefix of keys that are put with a hard pin.
const PINNED: &str = "pinned-";

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Mutex::default(), log: None }
    }

    /// Writes a line for each effect.
    #[must_use]
    pub fn with_log(self, log: impl Fn(fmt::Arguments<'_>) + Send + Sync + 'static) -> Self {
        Self { log: Some(Box::new(log)), ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a sink for a master. The ledger follows its effects once it [leads](Self::leads).
    #[must_use]
    pub fn sink(self: &Arc<Self>) -> LedgerSink {
        let mut state = self.state();
        state.sinks += 1;
        LedgerSink { ledger: Arc::clone(self), life: Life(state.sinks) }
    }

    /// Follows the master with the sink of this life from now on, which begins with the state that
    /// `records` describe. What was acknowledged must be there when its journal `is_kept`.
    pub fn leads<'a>(
        &self,
        life: Life,
        is_kept: bool,
        records: impl IntoIterator<Item = &'a Record>,
    ) {
        let mut state = self.state();
        (state.life, state.changed) = (life, virtual_time());
        let old = state.begin_with(records);
        if is_kept {
            state.check_kept(&old);
        } else {
            state.leases_since = virtual_time();
        }
    }

    /// Learns that a put or upsert of this key was acknowledged that was called at `begin`.
    pub fn acknowledged(&self, key: &str, begin: Duration) {
        if let Some(readable) = self.state().readable.get_mut(key) {
            // With another value stored meanwhile it is not known which one was acknowledged.
            readable.is_acknowledged = begin < readable.stored && readable.stored_before < begin;
        }
    }

    /// Takes the violations that were found.
    #[must_use]
    pub fn take_violations(&self) -> Vec<String> {
        let mut state = self.state();
        let lost = state.lost.take().map(|lost| lost.violation);
        std::mem::take(&mut state.violations).into_iter().chain(lost).collect()
    }

    /// Returns whether a violation was found.
    #[must_use]
    pub fn has_violations(&self) -> bool {
        !self.state().violations.is_empty()
    }

    /// Returns the owner of this range, of the region that `key` opens; `None` when no object has
    /// all of it.
    #[must_use]
    pub fn owner(&self, key: RemoteKey, extent: Extent) -> Option<Owner> {
        self.state().owner(key, extent)
    }

    /// Learns that bytes were written to this range which was `before`'s when they were sent.
    pub fn written(&self, key: RemoteKey, extent: Extent, before: Option<Owner>) {
        let mut state = self.state();
        let Some(segment) = state.by_key.get(&key).copied() else { return };
        let Some(ranges) = state.segments.get(&segment).map(|segment| &segment.ranges) else {
            return;
        };
        let is_foreign = |range: &Range| {
            let is_its_own = |before: Owner| before.generation == range.owner.generation;
            // Space is kept for late writes.
            !range.owner.is_kept && !before.is_some_and(is_its_own)
        };
        let foreign =
            overlapping(ranges, extent.offset(), extent.end()).find(|(_, range)| is_foreign(range));
        if let Some((offset, Range { end, owner, .. })) = foreign {
            let sent = before.map(|before| before.generation);
            state.violates(format_args!(
                "a write to {}..{} of segment {segment} that was sent as part of {sent:?} landed \
                 in {offset}..{end} of {owner:?}",
                extent.offset(),
                extent.end()
            ));
        }
    }

    /// Learns that a client was told at `begin` or later that the key's object stays for `lease`.
    pub fn protect(&self, key: &str, begin: Duration, lease: Duration) {
        let mut state = self.state();
        if let Some(readable) = state.readable.get_mut(key).filter(|it| it.stored < begin) {
            readable.protected_at = readable.protected_at.max(begin);
            readable.protected_until = readable.protected_until.max(begin + lease);
        }
    }

    /// Learns that a client is about to call a removal of this key. Returns the put that is protected
    /// against it unless it is forced, and until when.
    #[must_use]
    pub fn removes(&self, key: &str) -> Option<(Generation, Duration)> {
        let mut state = self.state();
        *state.removals.entry(key.to_owned()).or_default() += 1;
        state.readable.get(key).map(|it| (it.generation, it.protected_until))
    }

    /// Learns that a removal was acknowledged that was called at `begin`, when `protected` was
    /// protected against removals without force.
    pub fn removed(
        &self,
        key: &str,
        begin: Duration,
        force: bool,
        protected: Option<(Generation, Duration)>,
    ) {
        let mut state = self.state();
        let removed = state.last_removed.get(key).copied();
        let Some((generation, _)) = removed.filter(|(_, at)| *at >= begin) else { return };
        state.gone.insert(key.to_owned(), generation);
        let Some((protected, until)) = protected else { return };
        let is_known = state.leases_since <= begin;
        if !force && is_known && until > virtual_time() + SLACK && protected == generation {
            state.violates(format_args!(
                "{key} ({generation:?}) was removed without force, and is leased until {until:?}"
            ));
        }
    }

    /// Learns that all objects may be removed from now on.
    pub fn removes_all(&self) {
        self.state().removes_all = true;
    }

    /// Learns that a disk may have lost some of what was written to it.
    pub fn damages_disk(&self) {
        self.state().disks_are_damaged = true;
    }

    /// Returns whether a disk may have lost some of what was written to it.
    #[must_use]
    pub fn has_damaged_disks(&self) -> bool {
        self.state().disks_are_damaged
    }

    /// Learns that the client of the segment with this name may give it up from now on.
    pub fn leaves(&self, segment: &str) {
        self.state().leaving.insert(segment.to_owned());
    }

    /// Compares the master's objects with those that its effects told of.
    pub fn compare<'a>(&self, objects: impl IntoIterator<Item = &'a ObjectRecord>) {
        let state = &mut *self.state();
        let mut readable = BTreeSet::new();
        for object in objects {
            let (key, generation) = (object.key.as_str(), object.generation);
            if object.complete {
                readable.insert(key);
                if state.readable.get(key).is_none_or(|it| it.generation != generation) {
                    state.violates(format_args!("no effect told of {key} {generation:?}"));
                }
            }
            let owner = Owner { generation, is_kept: false };
            for Location { segment, extent } in &object.replicas {
                let ranges = state.segments.get(segment).map(|segment| &segment.ranges);
                let Some(ranges) = ranges else {
                    state.violates(format_args!(
                        "{key} {generation:?} is in segment {segment}, which is gone"
                    ));
                    continue;
                };
                let range = ranges.get(&extent.offset());
                if range.map(|it| (it.end, it.owner)) != Some((extent.end(), owner)) {
                    state.violates(format_args!(
                        "{key} {generation:?} is at {extent:?} of segment {segment}, and no \
                         effect told so"
                    ));
                }
            }
        }
        // The master may not have looked yet at what was in a segment that went a moment ago.
        let is_unlisted = |(key, it): &(&String, &Readable)| {
            !readable.contains(key.as_str()) && state.has_place(it.generation)
        };
        let unlisted = state.readable.iter().find(is_unlisted);
        if let Some((key, Readable { generation, .. })) = unlisted {
            let (key, generation) = (key.clone(), *generation);
            state
                .violates(format_args!("effects told of {key} {generation:?}, which is not there"));
        }
    }

    /// Compares the keys that a subscriber of events knows with the objects that can be read, if nothing
    /// has changed for a second. Objects whose nodes are away may be missing.
    pub fn compare_known<'a>(&self, known: impl IntoIterator<Item = &'a str>) {
        let state = &mut *self.state();
        if virtual_time() < state.changed + Duration::from_secs(1) {
            return;
        }
        let known: BTreeSet<&str> = known.into_iter().collect();
        let mut wrong = Vec::new();
        for key in &known {
            if !state.readable.contains_key(*key) {
                wrong.push(format!("a subscriber knows {key}, which is gone"));
            }
        }
        let is_here = |(id, start): &(SegmentId, u64)| {
            state.segments.get(id).is_some_and(|it| {
                it.status.is_none_or(|status| status == SegmentStatus::Ok)
                    && it.ranges.get(start).is_some_and(|range| range.readable_since.is_some())
            })
        };
        for (key, readable) in &state.readable {
            let ranges = state.ranges_of.get(&readable.generation);
            if !known.contains(key.as_str()) && ranges.is_some_and(|all| all.iter().any(is_here)) {
                wrong.push(format!("no subscriber was told of {key}"));
            }
        }
        wrong.into_iter().for_each(|wrong| state.violates(wrong));
    }

    /// Returns the ranges of a segment that belong to puts.
    #[must_use]
    pub fn ranges(&self, segment: SegmentId) -> Vec<(u64, u64, Owner)> {
        let state = self.state();
        let ranges = state.segments.get(&segment).map(|segment| &segment.ranges);
        let range = |(start, range): (&u64, &Range)| (*start, range.end, range.owner);
        ranges.into_iter().flatten().map(range).collect()
    }
}

/// One life of a master: from its start or its election to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life(u64);

/// Passes the effects of a master on to its [`Ledger`].
#[derive(Debug)]
pub struct LedgerSink {
    ledger: Arc<Ledger>,
    life: Life,
}

impl LedgerSink {
    /// The master's life.
    #[must_use]
    pub fn life(&self) -> Life {
        self.life
    }
}

impl EffectSink for LedgerSink {
    fn emit(&self, _: Sequence, _: Time, effect: &Effect<'_>) {
        let mut state = self.ledger.state();
        if state.life != self.life {
            return;
        }
        if let Some(log) = &self.ledger.log {
            log(format_args!("{}", summary::Summary(effect)));
        }
        state.follow(effect);
    }
}

/// The ranges that share a byte with `start..end`.
fn overlapping(ranges: &Ranges, start: u64, end: u64) -> impl Iterator<Item = (u64, Range)> {
    let before = ranges.range(..start).next_back().map(|(offset, _)| *offset);
    ranges
        .range(before.unwrap_or(start)..end.max(start))
        .filter(move |(_, range)| range.end > start)
        .map(|(offset, range)| (*offset, *range))
}

impl Readable {
    fn new(generation: Generation, stored: Duration) -> Self {
        Self {
            generation,
            stored,
            stored_before: Duration::ZERO,
            is_acknowledged: false,
            protected_at: Duration::ZERO,
            protected_until: Duration::ZERO,
        }
    }
}

impl State {
    /// Begins with the state of these records. Returns the objects that there were before.
    fn begin_with<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> BTreeMap<String, Readable> {
        let old = std::mem::take(&mut self.readable);
        self.segments.clear();
        self.by_key.clear();
        self.ranges_of.clear();
        for record in records {
            match record {
                Record::Segment { spec, status, .. } => {
                    self.by_key.insert(spec.remote_key, spec.id);
                    let segment = Segment { status: Some(*status), ..Segment::default() };
                    self.segments.insert(spec.id, segment);
                }
                Record::Object(object) => {
                    let owner = Owner { generation: object.generation, is_kept: false };
                    for place in object.replicas.iter().chain(&object.reserved) {
                        self.begin_with_range(place, owner);
                    }
                    if object.complete {
                        let readable = Readable::new(object.generation, virtual_time());
                        self.readable.insert(object.key.as_str().to_owned(), readable);
                    }
                }
                Record::SpaceKept { space, .. } => {
                    let owner = Owner { generation: Generation::new(0), is_kept: true };
                    space.iter().for_each(|place| self.begin_with_range(place, owner));
                }
                _ => {}
            }
        }
        old
    }

    fn begin_with_range(&mut self, place: &Location, owner: Owner) {
        let (start, end) = (place.extent.offset(), place.extent.end());
        let Some(segment) = self.segments.get_mut(&place.segment) else { return };
        let other = overlapping(&segment.ranges, start, end).next();
        segment.ranges.insert(start, Range { end, owner, readable_since: None });
        self.ranges_of.entry(owner.generation).or_default().push((place.segment, start));
        if let Some((offset, other)) = other {
            self.violates(format_args!(
                "a new master has {start}..{end} of segment {} as {owner:?} and {offset}..{} as {:?}",
                place.segment, other.end, other.owner
            ));
        }
    }

    /// Checks that what was acknowledged by the last master is there in the next one.
    fn check_kept(&mut self, old: &BTreeMap<String, Readable>) {
        for (key, was) in old.iter().filter(|(_, was)| was.is_acknowledged) {
            if self.readable.get(key).is_none_or(|it| it.generation < was.generation) {
                let generation = was.generation;
                self.violates(format_args!(
                    "{key} ({generation:?}) was acknowledged, and a new master does not know it"
                ));
            }
        }
        for (key, generation) in std::mem::take(&mut self.gone) {
            if self.readable.get(&key).is_some_and(|it| it.generation == generation) {
                self.violates(format_args!(
                    "{key} ({generation:?}) was removed, and a new master has it again"
                ));
            }
        }
    }

    fn violates(&mut self, what: impl fmt::Display) {
        self.violations.push(format!("{:?}: {what}", virtual_time()));
    }

    fn owner(&self, key: RemoteKey, extent: Extent) -> Option<Owner> {
        let ranges = &self.segments.get(self.by_key.get(&key)?)?.ranges;
        let (_, range) = ranges.range(..=extent.offset()).next_back()?;
        (extent.end() <= range.end).then_some(range.owner)
    }

    /// Returns whether a put has a replica in a segment that is there.
    fn has_place(&self, put: Generation) -> bool {
        let mut ranges = self.ranges_of.get(&put).into_iter().flatten();
        ranges.any(|(segment, start)| {
            let range = self.segments.get(segment).and_then(|it| it.ranges.get(start));
            range.is_some_and(|range| range.readable_since.is_some())
        })
    }

    fn follow(&mut self, effect: &Effect<'_>) {
        self.changed = virtual_time();
        if let Some(lost) = self.lost.take()
            && !lost.is_replaced_by(effect)
        {
            self.violations.push(lost.violation);
        }
        match effect {
            Effect::Began { object } => self.claim_all(object),
            Effect::Stored { object, .. } => {
                self.claim_all(object);
                self.store(object);
                self.make_readable(object);
            }
            Effect::Transferring { object } | Effect::Changed { object, .. } => {
                self.claim_all(object);
                let protected = self.readable.get(object.key().as_str()).copied();
                let protected = protected.filter(|it| it.generation == object.generation());
                self.release_others(object.generation(), &places(object), protected);
                if object.is_complete() {
                    self.make_readable(object);
                }
            }
            Effect::SpaceKept { space, .. } => {
                for place in space.placements() {
                    self.keep(&place);
                }
            }
            Effect::SpaceFreed { space } => {
                for place in space.placements() {
                    self.free(&place);
                }
            }
            Effect::Abandoned { generation, .. } => {
                self.release_others(*generation, &[], None);
            }
            Effect::Removed { key, generation, cause, .. } => {
                let was = self.remove(key.as_str(), *generation, *cause);
                self.release_others(*generation, &[], was);
            }
            Effect::Damaged { place: ReplicaPlace::LocalDisk(_), .. } if self.disks_are_damaged => {}
            Effect::Damaged { key, generation, place, .. } => self.violates(format_args!(
                "{key} ({generation:?}) has other bytes than were put at {place:?}, as their owner found"
            )),
            Effect::SegmentMounted { segment } => {
                let spec = segment.spec();
                self.by_key.insert(spec.remote_key, spec.id);
                self.segments.insert(spec.id, Segment::default());
                self.leaving.remove(&*spec.name);
            }
            Effect::SegmentChanged { segment, status } => {
                if let Some(mine) = self.segments.get_mut(&segment.spec().id) {
                    mine.status = Some(*status);
                }
            }
            Effect::SegmentGone { segment } => self.lose_segment(segment),
            _ => {}
        }
    }

    fn claim_all(&mut self, object: &ObjectView<'_>) {
        for place in places(object) {
            self.claim(&place, object.generation());
        }
    }

    fn claim(&mut self, place: &Placement, generation: Generation) {
        let (segment, start, end) =
            (place.segment.spec().id, place.extent.offset(), place.extent.end());
        let Some(mine) = self.segments.get_mut(&segment) else { return };
        let owner = Owner { generation, is_kept: false };
        if mine.ranges.get(&start).is_some_and(|it| it.end == end && it.owner == owner) {
            return;
        }
        let now = virtual_time();
        mine.leased.retain(|(.., until)| *until > now + SLACK);
        let leased = mine.leased.iter().find(|(at, to, _)| *at < end && start < *to).copied();
        let other = overlapping(&mine.ranges, start, end).next();
        mine.ranges.insert(start, Range { end, owner, readable_since: None });
        self.ranges_of.entry(generation).or_default().push((segment, start));
        if let Some((at, to, until)) = leased {
            self.violates(format_args!(
                "{start}..{end} of segment {segment} is given to {generation:?} while readers of \
                 {at}..{to} have a lease until {until:?}"
            ));
        }
        if let Some((offset, Range { end: other_end, owner: other, .. })) = other {
            self.violates(format_args!(
                "{start}..{end} of segment {segment} is given to {generation:?} while \
                 {offset}..{other_end} is {other:?}"
            ));
        }
    }

    fn range(&mut self, place: &Placement) -> Option<&mut Range> {
        let segment = self.segments.get_mut(&place.segment.spec().id)?;
        segment.ranges.get_mut(&place.extent.offset())
    }

    /// Notes since when the replicas of an object can be read.
    fn make_readable(&mut self, object: &ObjectView<'_>) {
        for place in object.placements() {
            if let Some(range) = self.range(&place) {
                range.readable_since.get_or_insert_with(virtual_time);
            }
        }
    }

    fn keep(&mut self, place: &Placement) {
        if let Some(range) = self.range(place) {
            range.owner.is_kept = true;
        }
    }

    fn free(&mut self, place: &Placement) {
        let (id, start) = (place.segment.spec().id, place.extent.offset());
        let segment = self.segments.get_mut(&id);
        let removed = segment.and_then(|it| it.ranges.remove(&start));
        let Some(Range { owner: Owner { generation, .. }, .. }) = removed else { return };
        if let Some(ranges) = self.ranges_of.get_mut(&generation) {
            ranges.retain(|range| *range != (id, start));
            if ranges.is_empty() {
                self.ranges_of.remove(&generation);
            }
        }
    }

    /// Releases what this put has besides `places`, and besides what is kept. Readers of `object`
    /// may still read what they were told of.
    fn release_others(
        &mut self,
        generation: Generation,
        places: &[Placement],
        object: Option<Readable>,
    ) {
        let Some(mut ranges) = self.ranges_of.remove(&generation) else { return };
        let owner = Owner { generation, is_kept: false };
        let now = virtual_time();
        ranges.retain(|(id, start)| {
            let is_of_object = |place: &Placement| {
                place.segment.spec().id == *id && place.extent.offset() == *start
            };
            let Some(segment) = self.segments.get_mut(id) else { return false };
            let Some(range) = segment.ranges.get(start).copied() else { return false };
            if range.owner != owner || places.iter().any(is_of_object) {
                return range.owner.generation == generation;
            }
            segment.ranges.remove(start);
            if let (Some(object), Some(since)) = (object, range.readable_since)
                && since < object.protected_at
                && now < object.protected_until
            {
                segment.leased.push((*start, range.end, object.protected_until));
            }
            false
        });
        if !ranges.is_empty() {
            self.ranges_of.insert(generation, ranges);
        }
    }

    fn store(&mut self, object: &ObjectView<'_>) {
        let key = object.key().to_string();
        let (generation, stored) = (object.generation(), virtual_time());
        let stored_before = self.last_stored.insert(key.clone(), stored).unwrap_or_default();
        let new = Readable { stored_before, ..Readable::new(generation, stored) };
        if let Some(old) = self.readable.insert(key.clone(), new) {
            let old = old.generation;
            self.violates(format_args!(
                "{key} is stored as {generation:?} and was not removed as {old:?}"
            ));
        }
    }

    /// Notes that an object is gone. Returns what it was.
    fn remove(&mut self, key: &str, generation: Generation, cause: Removal) -> Option<Readable> {
        let now = virtual_time();
        let was = self.readable.get(key).copied().filter(|it| it.generation == generation)?;
        self.readable.remove(key);
        if cause == Removal::Requested && !self.removes_all {
            self.last_removed.insert(key.to_owned(), (generation, now));
            let calls = self.removals.get_mut(key).filter(|calls| **calls > 0);
            match calls {
                Some(calls) => *calls -= 1,
                None => self.violates(format_args!(
                    "{key} ({generation:?}) was removed, and no call is left that may have done so"
                )),
            }
        }
        if cause == Removal::Evicted && key.starts_with(PINNED) {
            self.violates(format_args!("{key} is pinned and was evicted"));
        }
        if cause == Removal::Evicted && now + SLACK < was.protected_until {
            let until = was.protected_until;
            self.violates(format_args!(
                "{key} ({generation:?}) was evicted, and is leased until {until:?}"
            ));
        }
        Some(was)
    }

    fn lose_segment(&mut self, segment: &mc_meta::Segment) {
        let spec = segment.spec();
        let gone = self.segments.remove(&spec.id);
        self.by_key.retain(|_, id| *id != spec.id);
        let was_well = gone.is_some_and(|it| it.status.is_none_or(|it| it == SegmentStatus::Ok));
        if was_well && !self.leaving.contains(&*spec.name) {
            let what = "is gone; its client is well and has not given it up";
            self.lost = Some(Lost {
                name: spec.name.clone(),
                endpoint: spec.endpoint.clone(),
                violation: format!("{:?}: segment {} {what}", virtual_time(), spec.name),
            });
        }
    }
}

/// A segment that is gone without a reason, unless the next effect has one.
struct Lost {
    name: Box<str>,
    endpoint: Endpoint,
    violation: String,
}

impl Lost {
    /// Returns whether its client has mounted it anew: it takes a mount without an answer for one
    /// that failed.
    fn is_replaced_by(&self, effect: &Effect<'_>) -> bool {
        let Effect::SegmentMounted { segment } = effect else { return false };
        segment.spec().name == self.name && segment.spec().endpoint == self.endpoint
    }
}

/// The places of an object's replicas, and those that are set apart for it.
pub(super) fn places(object: &ObjectView<'_>) -> Vec<Placement> {
    let targets = object.transfer().map(|transfer| transfer.targets).unwrap_or_default();
    object.placements().into_iter().chain(targets).collect()
}
