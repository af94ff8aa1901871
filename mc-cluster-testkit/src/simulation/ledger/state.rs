//! The state of a ledger, and how effects change it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use mc_ha::Position;
use mc_meta::{
    Effect, Location, ObjectView, Placement, Record, Removal, ReplicaPlace, SegmentSpec,
    SegmentStatus,
};
use mc_types::{Endpoint, Extent, Generation, RemoteKey, SegmentId, Sequence};

use super::changes::{Changes, What};
use crate::simulation::clock::virtual_time;

/// The put or transfer that a range of a segment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The put that the range was granted to.
    pub generation: Generation,
    /// The range holds no object any more, and is not granted yet: a client may still use it.
    pub is_kept: bool,
}

/// One life of a master: from its start or its election to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life(pub(super) u64);

#[derive(Default)]
pub(super) struct State {
    /// Sinks that were given out.
    pub(super) sinks: u64,
    /// The master that is followed.
    pub(super) life: Life,
    /// Leases that were given before are forgotten.
    pub(super) leases_since: Duration,
    /// The last changes.
    pub(super) changes: Changes,
    /// The effect that is followed now.
    pub(super) at: Position,
    /// Acknowledged changes that new masters did not know of, and were allowed to.
    pub(super) undone: u64,
    /// Objects that are there again and may have lost their bytes, by key, and when they went.
    pub(super) spoiled: BTreeMap<String, (Generation, Option<Duration>)>,
    /// Objects and puts that are back, though their space was granted to others meanwhile, who may still
    /// write there.
    pub(super) overwritten: BTreeSet<Generation>,
    /// When the last effect was.
    pub(super) changed: Duration,
    pub(super) segments: BTreeMap<SegmentId, Segment>,
    pub(super) by_key: HashMap<RemoteKey, SegmentId>,
    /// The ranges of each put, by segment and offset, those that are kept included.
    pub(super) ranges_of: BTreeMap<Generation, Vec<(SegmentId, u64)>>,
    /// The objects that can be read, by key.
    pub(super) readable: BTreeMap<String, Readable>,
    /// Removals that were called and have not removed anything yet, by key.
    pub(super) removals: BTreeMap<String, u64>,
    /// Any number of removals was called.
    pub(super) removes_all: bool,
    /// Disks may have lost what was written to them.
    pub(super) disks_are_damaged: bool,
    /// The file system of objects' files may return other bytes than were written.
    pub(super) files_are_damaged: bool,
    /// When the last object of each key was stored.
    pub(super) last_stored: BTreeMap<String, Duration>,
    /// The put whose object was last removed on request, by key, and when.
    pub(super) last_removed: BTreeMap<String, (Generation, Duration)>,
    /// Objects whose removal was acknowledged, and when that was called.
    pub(super) gone: BTreeMap<String, (Generation, Duration)>,
    /// The names of segments that their clients may give up.
    pub(super) leaving: BTreeSet<String>,
    pub(super) lost: Option<Lost>,
    pub(super) violations: Vec<String>,
}

/// The segments that puts have lost all their memory with.
pub(super) type LostWith = BTreeMap<Generation, Vec<SegmentId>>;

/// The ranges of a segment that have an owner, by offset.
pub(super) type Ranges = BTreeMap<u64, Range>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) end: u64,
    pub(super) owner: Owner,
    /// When the range became a replica that can be read.
    pub(super) readable_since: Option<Duration>,
}

#[derive(Default)]
pub(super) struct Segment {
    pub(super) ranges: Ranges,
    /// Ranges without an owner that readers may still read: start, end and until when.
    pub(super) leased: Vec<(u64, u64, Duration)>,
    /// The last status in the master's effects.
    pub(super) status: Option<SegmentStatus>,
    pub(super) name: Box<str>,
    /// Its client may have given it up.
    pub(super) may_go: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Readable {
    pub(super) generation: Generation,
    pub(super) stored: Duration,
    /// When the key's value before it was stored.
    pub(super) stored_before: Duration,
    /// Whether the object was in a file or on a disk when the master began to lead.
    pub(super) has_files: bool,
    /// When the put was called whose client was told that it is stored.
    pub(super) acknowledged: Option<Duration>,
    /// The last call that protected it, at its begin.
    pub(super) protected_at: Duration,
    /// Until then no one may evict it, or remove it without force.
    pub(super) protected_until: Duration,
    /// The last call that read it, at its begin.
    pub(super) read_at: Duration,
    /// Until then its memory is given to no other object.
    pub(super) read_until: Duration,
}

/// The master's clock may be this much faster than the ledger's, over a lease.
pub(super) const SLACK: Duration = Duration::from_millis(5);

/// The prefix of keys that are put with a hard pin.
pub(super) const PINNED: &str = "pinned-";

/// The ranges that share a byte with `start..end`.
pub(super) fn overlapping(
    ranges: &Ranges,
    start: u64,
    end: u64,
) -> impl Iterator<Item = (u64, Range)> {
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
            has_files: false,
            acknowledged: None,
            protected_at: Duration::ZERO,
            protected_until: Duration::ZERO,
            read_at: Duration::ZERO,
            read_until: Duration::ZERO,
        }
    }
}

impl State {
    /// Begins with the state of these records. Returns the objects that there were before, and the segments
    /// that some of them went with and the master had not looked at yet.
    pub(super) fn begin_with<'a>(
        &mut self,
        records: impl IntoIterator<Item = &'a Record>,
    ) -> (BTreeMap<String, Readable>, LostWith) {
        let old = std::mem::take(&mut self.readable);
        let lost = old.values().map(|it| (it.generation, self.lost_with(it.generation)));
        let lost = lost.filter(|(_, segments)| !segments.is_empty()).collect();
        let known = std::mem::take(&mut self.segments);
        self.by_key.clear();
        self.ranges_of.clear();
        for record in records {
            match record {
                Record::Segment { spec, .. } => {
                    let segment = self.add(spec);
                    // Until its client is back, which is told.
                    segment.status = Some(SegmentStatus::Suspended);
                    segment.may_go |= known.get(&spec.id).is_some_and(|it| it.may_go);
                }
                Record::Object(object) => {
                    let owner = Owner { generation: object.generation, is_kept: false };
                    for place in object.replicas.iter().chain(&object.reserved) {
                        self.begin_with_range(place, owner);
                    }
                    if object.complete {
                        let mut readable = Readable::new(object.generation, virtual_time());
                        readable.has_files =
                            object.file.is_some() || !object.local_disks.is_empty();
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
        (old, lost)
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

    pub(super) fn violates(&mut self, what: impl fmt::Display) {
        self.violations.push(format!("{:?}: {what}", virtual_time()));
    }

    pub(super) fn owner(&self, key: RemoteKey, extent: Extent) -> Option<Owner> {
        let ranges = &self.segments.get(self.by_key.get(&key)?)?.ranges;
        let (_, range) = ranges.range(..=extent.offset()).next_back()?;
        (extent.end() <= range.end).then_some(range.owner)
    }

    /// Returns whether a put has a replica in a segment that is there.
    pub(super) fn has_place(&self, put: Generation) -> bool {
        let mut ranges = self.ranges_of.get(&put).into_iter().flatten();
        ranges.any(|(segment, start)| {
            let range = self.segments.get(segment).and_then(|it| it.ranges.get(start));
            range.is_some_and(|range| range.readable_since.is_some())
        })
    }

    /// Returns the segments that a put has lost all its memory with; none when it has some, or never had any.
    /// The master's effect on the put itself may come later.
    pub(super) fn lost_with(&self, put: Generation) -> Vec<SegmentId> {
        let owner = Owner { generation: put, is_kept: false };
        let is_here = |(segment, start): &(SegmentId, u64)| {
            let range = self.segments.get(segment).and_then(|it| it.ranges.get(start));
            range.is_some_and(|range| range.owner == owner)
        };
        let ranges = self.ranges_of.get(&put).map(Vec::as_slice).unwrap_or_default();
        if ranges.iter().any(is_here) {
            return Vec::new();
        }
        let is_gone = |(segment, _): &&(SegmentId, u64)| !self.segments.contains_key(segment);
        ranges.iter().filter(is_gone).map(|(segment, _)| *segment).collect()
    }

    fn note(&mut self, what: What) {
        self.changes.note(self.at, virtual_time(), what);
    }

    pub(super) fn follow(&mut self, sequence: Sequence, effect: &Effect<'_>) {
        (self.changed, self.at) = (virtual_time(), self.changes.position(sequence));
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
            Effect::Damaged { place: ReplicaPlace::File, .. } if self.files_are_damaged => {}
            Effect::Damaged { key, generation, .. } if self.was_spoiled(key.as_str(), *generation) => {}
            Effect::Damaged { key, generation, place, .. } => self.violates(format_args!(
                "{key} ({generation:?}) has other bytes than were put at {place:?}, as their owner found"
            )),
            Effect::SegmentMounted { segment } => {
                self.add(segment.spec());
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

    fn add(&mut self, spec: &SegmentSpec) -> &mut Segment {
        self.by_key.insert(spec.remote_key, spec.id);
        let may_go = self.leaving.contains(&*spec.name);
        let segment = Segment { name: spec.name.clone(), may_go, ..Segment::default() };
        let mine = self.segments.entry(spec.id).or_default();
        *mine = segment;
        mine
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
        self.note(What::Claimed { segment, start, end, generation });
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
    /// may still read the places that they were given.
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
                && since < object.read_at
                && now < object.read_until
            {
                segment.leased.push((*start, range.end, object.read_until));
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
        self.note(What::Stored { key: key.clone() });
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
        let is_requested = cause == Removal::Requested && !self.removes_all;
        let lost_with = self.lost_with(generation);
        self.note(What::Removed { key: key.to_owned(), was, is_requested, lost_with });
        if let Some((spoiled, gone)) = self.spoiled.get_mut(key)
            && *spoiled == generation
        {
            gone.get_or_insert(now);
        }
        if is_requested {
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
        self.note(What::SegmentGone { segment: spec.id });
        let is_well = |it: &Segment| it.status.is_none_or(|it| it == SegmentStatus::Ok);
        if gone.is_some_and(|it| is_well(&it) && !it.may_go) {
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
pub(super) struct Lost {
    pub(super) name: Box<str>,
    pub(super) endpoint: Endpoint,
    pub(super) violation: String,
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
