//! The packs of a tier: which objects are in which, and which of these were removed.

mod ahead;

use core::ops::Range;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use ahead::{Chunks, Pack, Trail};

use crate::error::{Damage, TierError};
use crate::object::{ObjectBytes, ObjectId, StoredObject};
use crate::object_file::HeaderError;
use crate::pack_file::{Gathered, LEAST, PACK_FORMAT, PackIndex, PackedObject};
use crate::place::pack_place;

/// The first bytes of a pack that are read for its index: those of a thousand objects with short keys.
const FIRST: u64 = 128 << 10;

/// How often something begins anew because a pack was replaced meanwhile.
const ATTEMPTS: usize = 4;

/// Bytes of indices that are kept, and their number.
const KEPT: usize = 64 << 20;
const KEPT_PACKS: usize = 1 << 14;

/// Packs of which it is known how many objects they have.
const COUNTED: usize = 1 << 20;

/// Packs of which it is known that objects were removed. Of others it is found out by and by.
const MAX_PACKS: usize = 1 << 16;

/// Packs whose objects are moved together by one clean-up.
const REWRITTEN: usize = 16;

/// The tag that tells a pack from those that replace it.
pub(crate) type Tag = Option<Box<str>>;

/// The result of reading a pack.
pub(crate) enum Read {
    Missing,
    /// The pack does not have the tag any more.
    Changed,
    Part {
        /// Fewer than were asked for where the pack ends.
        bytes: Bytes,
        pack_len: u64,
        tag: Tag,
    },
}

/// Where packs are.
pub(crate) trait PackMedium {
    /// Reads a range of what is at `place`, and that of what has this tag, if there is one.
    fn read(&self, place: &str, range: Range<u64>, seen: Option<&Tag>) -> Result<Read, TierError>;

    /// Writes these bytes; with `is_new` only if there is nothing yet. Returns the tag of what was written.
    fn write(
        &self,
        place: &str,
        pieces: Vec<Bytes>,
        is_new: bool,
    ) -> Result<Option<Tag>, TierError>;

    /// Removes what is at `place`. Returns whether there was something.
    fn remove(&self, place: &str) -> Result<bool, TierError>;

    /// Changes these bytes of what is at `place` to 1, if it has this tag still. Returns whether that is so.
    fn mark(&self, place: &str, at: &[u64], tag: &Tag) -> Result<bool, TierError>;

    /// The place for messages.
    fn shown(&self, place: &str) -> PathBuf;
}

/// The knowledge that a process has of the packs of a tier.
#[derive(Debug, Default)]
pub(crate) struct Packs {
    state: Mutex<State>,
    chunks: Chunks,
    /// Indices that are being read, of which one reader is enough.
    reading: Mutex<HashMap<u64, Arc<Mutex<()>>>>,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<u64, Arc<Known>>,
    /// The runs of those, the oldest first.
    order: VecDeque<u64>,
    bytes: usize,
    /// The places in their runs of removed objects of packs that have others.
    removed: HashMap<u64, BTreeSet<u32>>,
    /// The lengths of packs, and how many objects were written to them.
    counts: HashMap<u64, (u64, usize)>,
}

#[derive(Debug)]
struct Known {
    index: PackIndex,
    tag: Tag,
    /// Since it was last passed over.
    is_used: AtomicBool,
    trail: Trail,
}

impl State {
    fn keep(&mut self, run: u64, known: &Arc<Known>) {
        self.forget(run);
        self.bytes += known.index.len();
        self.known.insert(run, Arc::clone(known));
        self.order.push_back(run);
        while self.order.len() > 1 && (self.bytes > KEPT || self.order.len() > KEPT_PACKS) {
            let Some(oldest) = self.order.pop_front() else { return };
            let Some(known) = self.known.get(&oldest) else { continue };
            if known.is_used.swap(false, Ordering::Relaxed) {
                self.order.push_back(oldest);
            } else {
                self.bytes -= known.index.len();
                self.known.remove(&oldest);
            }
        }
    }

    fn forget(&mut self, run: u64) {
        if let Some(known) = self.known.remove(&run) {
            self.bytes -= known.index.len();
            self.order.retain(|it| *it != run);
        }
    }

    fn is_removed(&self, run: u64, place: u32) -> bool {
        self.removed.get(&run).is_some_and(|removed| removed.contains(&place))
    }

    /// Objects of a pack that were removed.
    fn count_removed(&self, run: u64) -> usize {
        self.removed.get(&run).map_or(0, BTreeSet::len)
    }

    /// Notes what an index that was read says of removed objects. Others may have written the pack anew.
    fn learn(&mut self, run: u64, index: &PackIndex) {
        if let Some(removed) = self.removed.get_mut(&run) {
            removed.retain(|place| index.number_at(*place).is_some());
        }
        let removed = (0..index.count()).filter(|number| index.was_removed(*number));
        let removed: Vec<u32> = removed.map(|number| index.place_of(number)).collect();
        if !removed.is_empty() {
            self.remove(run, removed);
        }
    }

    fn remove(&mut self, run: u64, places: impl IntoIterator<Item = u32>) {
        self.removed.entry(run).or_default().extend(places);
        if self.removed.len() > MAX_PACKS
            && let Some(other) = self.removed.keys().find(|it| **it != run).copied()
        {
            self.removed.remove(&other);
            self.forget(other);
        }
    }
}

impl Known {
    /// The numbers of the objects at other places.
    fn left(&self, removed: &BTreeSet<u32>) -> impl Iterator<Item = usize> {
        (0..self.index.count()).filter(|number| !removed.contains(&self.index.place_of(*number)))
    }
}

/// An object that is there, and where.
struct ObjectInPack {
    packed: PackedObject,
    place: String,
    known: Arc<Known>,
}

impl Packs {
    /// The index of a run's pack; `None` when there is none.
    fn open(
        &self,
        medium: &impl PackMedium,
        run: u64,
        is_anew: bool,
    ) -> Result<Option<Arc<Known>>, TierError> {
        if is_anew {
            return self.read_index(medium, run);
        }
        if let Some(known) = self.known(run) {
            return Ok(Some(known));
        }
        let reading = Arc::clone(self.reading.lock().entry(run).or_default());
        let turn = reading.lock();
        let found = match self.known(run) {
            None => self.read_index(medium, run),
            known => Ok(known),
        };
        self.reading.lock().remove(&run);
        drop(turn);
        found
    }

    fn known(&self, run: u64) -> Option<Arc<Known>> {
        let known = Arc::clone(self.state.lock().known.get(&run)?);
        known.is_used.store(true, Ordering::Relaxed);
        Some(known)
    }

    fn read_index(
        &self,
        medium: &impl PackMedium,
        run: u64,
    ) -> Result<Option<Arc<Known>>, TierError> {
        let place = pack_place(run);
        let failure = |error| failure(medium, &place, error);
        for _ in 0..ATTEMPTS {
            let Read::Part { bytes: first, pack_len, tag } = medium.read(&place, 0..FIRST, None)?
            else {
                self.forget(run);
                return Ok(None);
            };
            let len = PackIndex::len_of(&first).map_err(failure)?;
            let bytes = match len <= first.len() {
                true => first.slice(..len),
                false => match medium.read(&place, 0..len as u64, Some(&tag))? {
                    Read::Part { bytes, .. } => bytes,
                    Read::Missing | Read::Changed => continue,
                },
            };
            // Without the rest of what was read.
            let bytes =
                if bytes.len() < first.len() { Bytes::copy_from_slice(&bytes) } else { bytes };
            let index = PackIndex::parse(bytes, run, pack_len).map_err(failure)?;
            return Ok(Some(self.learn(run, index, tag)));
        }
        Err(too_fast(medium, &place))
    }

    /// Notes the index of a pack.
    fn learn(&self, run: u64, index: PackIndex, tag: Tag) -> Arc<Known> {
        let (is_used, trail) = (AtomicBool::new(true), Trail::default());
        let known = Arc::new(Known { index, tag, is_used, trail });
        let mut state = self.state.lock();
        state.learn(run, &known.index);
        state.keep(run, &known);
        known
    }

    fn removed_of(&self, run: u64) -> BTreeSet<u32> {
        self.state.lock().removed.get(&run).cloned().unwrap_or_default()
    }

    fn forget(&self, run: u64) {
        let mut state = self.state.lock();
        state.forget(run);
        state.removed.remove(&run);
        state.counts.remove(&run);
    }

    /// Where an object is, if it is in a pack.
    fn find(
        &self,
        medium: &impl PackMedium,
        id: &ObjectId,
        is_anew: bool,
    ) -> Result<Option<ObjectInPack>, TierError> {
        let Some(run) = id.generation().run() else { return Ok(None) };
        let Some(known) = self.open(medium, run, is_anew)? else { return Ok(None) };
        let Some(number) = known.index.number_of(id) else { return Ok(None) };
        if self.state.lock().is_removed(run, id.generation().place_in_run()) {
            return Ok(None);
        }
        let place = pack_place(run);
        let packed = known.index.object(number).map_err(|error| failure(medium, &place, error))?;
        Ok(Some(ObjectInPack { packed, place, known }))
    }

    /// Where an object is, if it is known to be in a pack.
    pub(crate) fn place_if_known(&self, id: &ObjectId) -> Option<String> {
        let run = id.generation().run()?;
        let known = Arc::clone(self.state.lock().known.get(&run)?);
        known.index.number_of(id).map(|_| pack_place(run))
    }

    /// Returns the description of an object, without its bytes, if it is in a pack.
    pub(crate) fn stat(
        &self,
        medium: &impl PackMedium,
        id: &ObjectId,
    ) -> Result<Option<StoredObject>, TierError> {
        Ok(self.find(medium, id, false)?.map(|found| found.packed.object))
    }

    /// Returns an object that is in a pack; `None` when it is in none.
    pub(crate) fn get(
        &self,
        medium: &impl PackMedium,
        id: &ObjectId,
    ) -> Result<Option<ObjectBytes>, TierError> {
        let whole = |object: &StoredObject| Ok(((), 0..object.object_len()));
        let Some((found, (), bytes)) = self.read(medium, id, whole)? else { return Ok(None) };
        let object = whole_object(&found.packed.object, &bytes);
        object.map(Some).map_err(|damage| failure(medium, &found.place, damage.into()))
    }

    /// As [`get_range`](crate::Tier::get_range), of an object that is in a pack.
    pub(crate) fn get_range(
        &self,
        medium: &impl PackMedium,
        id: &ObjectId,
        range: &Range<u64>,
    ) -> Result<Option<Bytes>, TierError> {
        let slices = |object: &StoredObject| {
            let outside = || TierError::Range { range: range.clone(), len: object.object_len() };
            let cover = object.cover(range).ok_or_else(outside)?;
            let bytes = cover.bytes.clone();
            Ok((cover, bytes))
        };
        let Some((found, cover, bytes)) = self.read(medium, id, slices)? else { return Ok(None) };
        let verified = found.packed.object.verify(&cover, &bytes);
        verified.map_err(|damage| failure(medium, &found.place, damage.into()))?;
        Ok(Some(bytes.slice(cover.within(range))))
    }

    /// As [`get_unverified`](crate::Tier::get_unverified), of an object that is in a pack.
    pub(crate) fn get_unverified(
        &self,
        medium: &impl PackMedium,
        id: &ObjectId,
        range: &Range<u64>,
    ) -> Result<Option<Bytes>, TierError> {
        let part = |object: &StoredObject| match object.object_len() {
            len if range.is_empty() || range.end > len => {
                Err(TierError::Range { range: range.clone(), len })
            }
            _ => Ok(((), range.clone())),
        };
        Ok(self.read(medium, id, part)?.map(|(.., bytes)| bytes))
    }

    /// Reads what `wanted` says of an object that is in a pack, and returns it with that.
    fn read<W>(
        &self,
        medium: &impl PackMedium,
        id: &ObjectId,
        wanted: impl Fn(&StoredObject) -> Result<(W, Range<u64>), TierError>,
    ) -> Result<Option<(ObjectInPack, W, Bytes)>, TierError> {
        for attempt in 0..ATTEMPTS {
            let Some(found) = self.find(medium, id, attempt > 0)? else { return Ok(None) };
            let (what, range) = wanted(&found.packed.object)?;
            let within = found.packed.within(&range);
            let Known { index, tag, trail, .. } = &*found.known;
            let run = id.generation().run().unwrap_or_default();
            let pack = Pack { run, place: &found.place, len: index.pack_len(), tag, trail };
            match self.chunks.read(medium, &pack, within)? {
                Read::Part { bytes, .. } if bytes.len() as u64 == range.end - range.start => {
                    return Ok(Some((found, what, bytes)));
                }
                Read::Part { .. } | Read::Changed | Read::Missing => {}
            }
        }
        Err(too_fast(medium, &id.generation().run().map_or_else(String::new, pack_place)))
    }

    /// Writes the objects that can be packed together in packs. Returns those that are in none.
    pub(crate) fn put<'a>(
        &self,
        medium: &impl PackMedium,
        objects: &'a [(ObjectId, ObjectBytes)],
    ) -> Result<Vec<(&'a ObjectId, &'a ObjectBytes)>, TierError> {
        let (packs, alone) = Gathered::sort(objects);
        let mut alone: Vec<_> = alone.into_iter().map(|(id, object)| (id, object)).collect();
        for (run, pack) in packs {
            if pack.len() < LEAST {
                alone.extend(pack.objects());
                continue;
            }
            let (place, pieces) = (pack_place(run), pack.encode(run));
            let index = pieces[0].clone();
            let len = pieces.iter().map(|piece| piece.len() as u64).sum();
            let known = match medium.write(&place, pieces, true)? {
                Some(tag) => {
                    let index = PackIndex::parse(index, run, len);
                    self.learn(run, index.map_err(|error| failure(medium, &place, error))?, tag);
                    continue;
                }
                // The run has a pack already: by a put that was not known to have succeeded.
                None => self.open(medium, run, true)?,
            };
            let has = |id| known.as_ref().is_some_and(|it| it.index.number_of(id).is_some());
            alone.extend(pack.objects().filter(|(id, _)| !has(id)));
        }
        Ok(alone)
    }

    /// Removes those of the objects that are in packs. Returns for each whether it was there, or `None` for those
    /// that are in none.
    pub(crate) fn remove(
        &self,
        medium: &impl PackMedium,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<bool>>, TierError> {
        let mut outcomes = vec![None; ids.len()];
        let mut of_run: HashMap<u64, Vec<usize>> = HashMap::new();
        for (at, id) in ids.iter().enumerate() {
            if let Some(run) = id.generation().run() {
                of_run.entry(run).or_default().push(at);
            }
        }
        for (run, asked) in of_run {
            self.remove_of(medium, run, ids, &asked, &mut outcomes)?;
        }
        Ok(outcomes)
    }

    fn remove_of(
        &self,
        medium: &impl PackMedium,
        run: u64,
        ids: &[ObjectId],
        asked: &[usize],
        outcomes: &mut [Option<bool>],
    ) -> Result<(), TierError> {
        let place = pack_place(run);
        for attempt in 0..ATTEMPTS {
            let Some(known) = self.open(medium, run, attempt > 0)? else { return Ok(()) };
            let index = &known.index;
            let number = |at: &usize| Some((*at, index.number_of(&ids[*at])?));
            let numbers: Vec<(usize, usize)> = asked.iter().filter_map(number).collect();
            // An object may be named twice.
            let mut fresh: BTreeSet<usize> = numbers.iter().map(|(_, number)| *number).collect();
            let is_last = {
                let state = self.state.lock();
                fresh.retain(|number| !state.is_removed(run, index.place_of(*number)));
                state.count_removed(run) + fresh.len() == index.count()
            };
            if !fresh.is_empty() && !is_last {
                let at: Vec<u64> = fresh.iter().map(|number| index.removal(*number)).collect();
                if !medium.mark(&place, &at, &known.tag)? {
                    continue;
                }
            }
            let is_empty = {
                let mut state = self.state.lock();
                if !fresh.is_empty() {
                    state.remove(run, fresh.iter().map(|number| index.place_of(*number)));
                }
                // Others may have removed the rest meanwhile.
                !fresh.is_empty() && state.count_removed(run) == index.count()
            };
            if is_empty {
                medium.remove(&place)?;
                self.forget(run);
            }
            for (at, number) in numbers {
                outcomes[at] = Some(fresh.remove(&number));
            }
            return Ok(());
        }
        Err(too_fast(medium, &place))
    }

    /// Has an object read from elsewhere from now on, if it is known to be in a pack.
    pub(crate) fn is_replaced(
        &self,
        medium: &impl PackMedium,
        id: &ObjectId,
    ) -> Result<(), TierError> {
        let run = id.generation().run();
        if run.is_some_and(|run| self.state.lock().known.contains_key(&run)) {
            self.remove(medium, core::slice::from_ref(id))?;
        }
        Ok(())
    }

    /// The objects of a pack that were not removed, from this place in their run on, at most so many.
    /// Removes a pack that has no others.
    pub(crate) fn list(
        &self,
        medium: &impl PackMedium,
        run: u64,
        from: u32,
        most: usize,
    ) -> Result<Vec<StoredObject>, TierError> {
        // Others may have removed some.
        let is_anew = from == 0;
        let Some(known) = self.open(medium, run, is_anew)? else { return Ok(Vec::new()) };
        let removed = self.removed_of(run);
        if removed.len() == known.index.count() {
            medium.remove(&pack_place(run))?;
            self.forget(run);
        }
        let mut objects = Vec::new();
        for number in known.left(&removed) {
            let object = known.index.object(number);
            let object = object.map_err(|error| failure(medium, &pack_place(run), error))?.object;
            if object.id().generation().place_in_run() >= from {
                objects.push(object);
                if objects.len() == most {
                    break;
                }
            }
        }
        Ok(objects)
    }

    /// How many objects a pack of this length has that were not removed, as far as is known.
    pub(crate) fn count(
        &self,
        medium: &impl PackMedium,
        run: u64,
        pack_len: u64,
    ) -> Result<u64, TierError> {
        let known = self.state.lock().counts.get(&run).filter(|it| it.0 == pack_len).copied();
        let count = match known {
            Some((_, count)) => count,
            None => {
                let place = pack_place(run);
                let first = 0..PackIndex::LEN_KNOWN_AFTER as u64;
                let Read::Part { bytes, .. } = medium.read(&place, first, None)? else {
                    return Ok(0);
                };
                let count = PackIndex::count_of(&bytes);
                let count = count.map_err(|error| failure(medium, &place, error))?;
                let mut state = self.state.lock();
                if state.counts.len() >= COUNTED {
                    state.counts.clear();
                }
                state.counts.insert(run, (pack_len, count));
                count
            }
        };
        Ok(count.saturating_sub(self.state.lock().count_removed(run)) as u64)
    }

    /// Returns whether there is something to [clean up](Self::clean_up).
    pub(crate) fn wants_clean_up(&self) -> bool {
        let state = self.state.lock();
        let is_half = |(run, removed): (&u64, &BTreeSet<u32>)| {
            state.known.get(run).is_some_and(|known| removed.len() * 2 >= known.index.count())
        };
        state.removed.iter().any(is_half)
    }

    /// Forgets a pack that is not there any more.
    pub(crate) fn is_gone(&self, run: u64) {
        self.forget(run);
    }

    /// Writes packs anew of whose objects half were removed. Returns how many.
    pub(crate) fn clean_up(&self, medium: &impl PackMedium) -> Result<u64, TierError> {
        let runs: Vec<u64> = self.state.lock().removed.keys().copied().collect();
        let mut count = 0;
        for run in runs {
            if count as usize == REWRITTEN {
                break;
            }
            count += u64::from(self.rewrite(medium, run)?);
        }
        Ok(count)
    }

    fn rewrite(&self, medium: &impl PackMedium, run: u64) -> Result<bool, TierError> {
        let is_half = |known: &Known| self.removed_of(run).len() * 2 >= known.index.count();
        let Some(known) = self.open(medium, run, false)? else { return Ok(false) };
        if !is_half(&known) {
            return Ok(false);
        }
        // Others may have removed some, too.
        let Some(known) = self.open(medium, run, true)? else { return Ok(false) };
        let removed = self.removed_of(run);
        if !is_half(&known) {
            return Ok(false);
        }
        let place = pack_place(run);
        let mut objects = Vec::new();
        for number in known.left(&removed) {
            let packed =
                known.index.object(number).map_err(|error| failure(medium, &place, error))?;
            let whole = 0..packed.object.object_len();
            let read = medium.read(&place, packed.within(&whole), Some(&known.tag))?;
            let Read::Part { bytes, .. } = read else { return Ok(false) };
            // What is damaged is not to be lost with a word: a reader says so.
            let Ok(object) = whole_object(&packed.object, &bytes) else { return Ok(false) };
            objects.push((packed.object.id().clone(), object));
        }
        let (packs, _) = Gathered::sort(&objects);
        match packs.first() {
            Some((_, pack)) => medium.write(&place, pack.encode(run), false).map(drop)?,
            None => medium.remove(&place).map(drop)?,
        }
        let now = {
            let mut state = self.state.lock();
            state.forget(run);
            state.removed.remove(&run).unwrap_or_default()
        };
        // Removed while it was written.
        let late = now.difference(&removed).filter_map(|place| known.index.number_at(*place));
        let late = late.filter_map(|number| known.index.object(number).ok());
        let late: Vec<ObjectId> = late.map(|packed| packed.object.id().clone()).collect();
        if !late.is_empty() {
            self.remove(medium, &late)?;
        }
        Ok(true)
    }
}

/// An object of these bytes, which are compared with its checksums.
fn whole_object(object: &StoredObject, bytes: &Bytes) -> Result<ObjectBytes, Damage> {
    let cover = object.cover(&(0..object.object_len())).ok_or(Damage::Index)?;
    ObjectBytes::new(object.verify(&cover, bytes)?).map_err(Damage::Object)
}

fn failure(medium: &impl PackMedium, place: &str, error: HeaderError) -> TierError {
    let path = medium.shown(place);
    match error {
        HeaderError::Damaged(source) => TierError::Damaged { path, source },
        HeaderError::Newer { found } => TierError::Newer { path, found, known: PACK_FORMAT },
    }
}

fn too_fast(medium: &impl PackMedium, place: &str) -> TierError {
    let source = "others replace it faster than it can be read".into();
    TierError::Unavailable { action: "read", path: medium.shown(place), source }
}
