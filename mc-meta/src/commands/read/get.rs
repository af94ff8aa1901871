//! Reads: replica lists, existence, prefixes.

use mc_types::{Generation, KeyRef, Time};

use crate::commands::error::GetError;
use crate::commands::reply::{RangedList, ReplicaList};
use crate::effect::emit::Emit;
use crate::eviction::common::Note;
use crate::master::Master;
use crate::object::Access;
use crate::object::spans::spans;
use crate::shard::Shard;
use crate::side_tables::readers::ReadProgress;
use crate::vocabulary::hash::HashedKey;
use crate::vocabulary::request::RangeRead;
use crate::vocabulary::slot::ObjectSlot;

/// Keys that are looked up while a shard stays locked.
const MAX_HELD: usize = 256;

/// Slots of a shard from which on what a call needs is fetched for many keys at a time.
const FETCHED: u32 = 1024;

/// A key of a list: its shard, and where it is in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    shard: u32,
    at: u32,
}

/// The keys of a list, those of a shard together and in the order of the list.
fn by_shard(keys: &[HashedKey<'_>], shards: usize) -> Vec<Place> {
    let place = |(at, key): (usize, &HashedKey<'_>)| Place {
        shard: key.shard(shards) as u32,
        at: at as u32,
    };
    let places = keys.iter().enumerate().map(place);
    if keys.len() < shards {
        let mut order: Vec<Place> = places.collect();
        order.sort_unstable();
        return order;
    }
    // Counted, because each has its shard's number at hand.
    let mut next = vec![0_u32; shards + 1];
    places.clone().for_each(|place| next[place.shard as usize + 1] += 1);
    for shard in 1..shards {
        next[shard] += next[shard - 1];
    }
    let mut order = vec![Place::default(); keys.len()];
    for place in places {
        let next = &mut next[place.shard as usize];
        order[*next as usize] = place;
        *next += 1;
    }
    order
}

impl Master {
    /// The readable replicas of an object, under a lease: until it ends the
    /// object is neither evicted nor removed without force. What is on a disk may go all
    /// the same, when the owner of the disk deletes it. Where the settings say so
    /// ([`ttl_after_get`](crate::MasterConfig::ttl_after_get)), the first such read begins
    /// the object's end; its memory stays for the time of the read all the same.
    ///
    /// # Errors
    /// [`GetError`] when there is no object, its put is not finished, or every client
    /// that holds it is silent.
    pub fn get_replica_list(&self, now: Time, key: KeyRef<'_>) -> Result<ReplicaList, GetError> {
        self.reading(now, None).get_replica_list(key)
    }

    /// [`get_replica_list`](Self::get_replica_list) for each of `keys`, in their order.
    pub fn batch_get_replica_list(
        &self,
        now: Time,
        keys: &[KeyRef<'_>],
    ) -> Vec<Result<ReplicaList, GetError>> {
        self.reading(now, None).batch_get_replica_list(keys)
    }

    /// [`get_replica_list`](Self::get_replica_list) for each of `reads`, in their order,
    /// with a span for each range that verifies it. Ranges end with the object; one that
    /// has no byte of it has no span.
    pub fn batch_get_ranges(
        &self,
        now: Time,
        reads: &[RangeRead<'_>],
    ) -> Vec<Result<RangedList, GetError>> {
        self.reading(now, None).batch_get_ranges(reads)
    }

    /// Reads of a client that says what it has begun and what is over; what it has `said` includes
    /// the calls that follow. Of one that says nothing each read is taken to last for the whole time
    /// of a [lease](ReplicaList::lease), so that space which is removed by force or replaced is
    /// kept as long.
    #[must_use]
    pub fn reading(&self, now: Time, said: Option<&ReadProgress>) -> Reading<'_> {
        let tells = said.is_some_and(|said| self.readers.begin(now, said));
        Reading { master: self, now, access: Access::Reads { tells } }
    }

    /// A client says which of its reads are over.
    pub fn note_reads(&self, said: &ReadProgress) {
        self.readers.note(said);
    }
}

/// [Reads](Master::reading) of one client.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    pub(crate) master: &'a Master,
    pub(crate) now: Time,
    pub(crate) access: Access,
}

impl Reading<'_> {
    /// As [`Master::get_replica_list`].
    ///
    /// # Errors
    /// As there.
    pub fn get_replica_list(&self, key: KeyRef<'_>) -> Result<ReplicaList, GetError> {
        let Self { master, now, .. } = *self;
        let key = master.hashed(key);
        let mut shard = master.shard_of(key);
        let found = shard.find_live(key, master.emit(now)).map(|(slot, _)| slot);
        self.get_in(&mut shard, found)
    }

    /// As [`Master::batch_get_replica_list`].
    pub fn batch_get_replica_list(
        &self,
        keys: &[KeyRef<'_>],
    ) -> Vec<Result<ReplicaList, GetError>> {
        self.master.look_up(self.now, keys, |key| *key, |shard, found, _| self.get_in(shard, found))
    }

    /// As [`Master::batch_get_ranges`].
    pub fn batch_get_ranges(&self, reads: &[RangeRead<'_>]) -> Vec<Result<RangedList, GetError>> {
        self.master.look_up(
            self.now,
            reads,
            |read| read.key,
            |shard, found, read| {
                let list = self.get_in(shard, found)?;
                let object = found.and_then(|slot| shard.object(slot));
                let prefixes = object.map_or(&[][..], |object| object.prefixes());
                let spans = spans(&list.slices, prefixes, read.ranges);
                Ok(RangedList { list, spans })
            },
        )
    }

    fn get_in(
        &self,
        shard: &mut Shard,
        found: Option<ObjectSlot>,
    ) -> Result<ReplicaList, GetError> {
        let Self { master, now, access } = *self;
        let list = shard.read_found(found, access, now);
        if let (Some(slot), Ok(list)) = (found, &list)
            && list.placements.is_empty()
        {
            shard.used_below(slot);
            if master.local.promotes {
                master.count_tier_hit(now, shard, slot, list);
            }
        }
        if list.is_ok()
            && let Some(due) = found.and_then(|slot| shard.was_read(slot, now))
        {
            master.release_not_before(due);
        }
        list
    }
}

impl Master {
    /// Returns whether an object can be read. A yes grants a lease, so that a read that
    /// follows finds it.
    pub fn exist(&self, now: Time, key: KeyRef<'_>) -> bool {
        let key = self.hashed(key);
        let mut shard = self.shard_of(key);
        let found = shard.find_live(key, self.emit(now)).map(|(slot, _)| slot);
        shard.exist(found, now)
    }

    /// [`exist`](Self::exist) for each of `keys`, in their order.
    pub fn batch_exist(&self, now: Time, keys: &[KeyRef<'_>]) -> Vec<bool> {
        self.look_up(now, keys, |key| *key, |shard, found, _| shard.exist(found, now))
    }

    /// Returns whether an object can be read. A yes grants no lease, and does not count as a use of
    /// the object: it may be evicted or removed before a read that follows.
    pub fn probe(&self, now: Time, key: KeyRef<'_>) -> bool {
        let key = self.hashed(key);
        let mut shard = self.shard_of(key);
        let found = shard.find_live(key, self.emit(now)).map(|(slot, _)| slot);
        shard.probe(found)
    }

    /// [`probe`](Self::probe) for each of `keys`, in their order.
    pub fn batch_probe(&self, now: Time, keys: &[KeyRef<'_>]) -> Vec<bool> {
        self.look_up(now, keys, |key| *key, |shard, found, _| shard.probe(found))
    }

    /// Asks `each` about every item, given the shard of its key and its object's slot there,
    /// and gives the answers in the order of the items.
    ///
    /// Each shard is locked once, and all of its keys are looked for before the first
    /// object is looked at: the processor then waits for many places in memory at a time.
    ///
    /// Lists of keys are mostly those of the blocks of a prompt, in which each is of no use without
    /// those before it. So the last access of a list is applied first: that key is used less lately than
    /// those that it needs, and evicted before them.
    fn look_up<'k, I, T>(
        &self,
        now: Time,
        items: &'k [I],
        key_of: impl Fn(&'k I) -> KeyRef<'k>,
        mut each: impl FnMut(&mut Shard, Option<ObjectSlot>, &I) -> T,
    ) -> Vec<T> {
        let emit = self.emit(now);
        let hashed: Vec<HashedKey<'_>> =
            items.iter().map(|item| self.hashed(key_of(item))).collect();
        let order = by_shard(&hashed, self.shards().len());
        let mut answers: Vec<Option<T>> = items.iter().map(|_| None).collect();
        let mut used: Vec<Option<Note>> = vec![None; items.len()];
        let mut found = Vec::new();
        for run in order.chunk_by(|a, b| a.shard == b.shard).flat_map(|run| run.chunks(MAX_HELD)) {
            let mut shard = self.shards()[run[0].shard as usize].lock();
            shard.collect_notes(true);
            found.clear();
            touch(&shard, run.iter().map(|place| hashed[place.at as usize].hash));
            for Place { at, .. } in run {
                let key = hashed[*at as usize];
                self.see_key(key);
                found.push(shard.find_generation(key));
            }
            for (Place { at, .. }, found) in run.iter().zip(&found) {
                let at = *at as usize;
                let slot = found.and_then(|found| shard.live_still(hashed[at], found, emit));
                answers[at] = Some(each(&mut shard, slot, &items[at]));
                used[at] = shard.take_note();
            }
            shard.collect_notes(false);
        }
        let used: Vec<Note> = used.into_iter().rev().flatten().collect();
        self.order.access(&used);
        answers.into_iter().map(|answer| answer.expect("each key is in one run")).collect()
    }

    /// How many of the leading keys can be read. Looks no further than the first
    /// that cannot, and grants no lease. Ordinary objects that are found count as used, in the order
    /// from the last to the first: it is the blocks of a prompt that are looked for like this.
    pub fn longest_prefix<'a>(
        &self,
        now: Time,
        keys: impl IntoIterator<Item = KeyRef<'a>>,
    ) -> usize {
        let emit = self.emit(now);
        let mut used = Vec::new();
        let readable = |key: &KeyRef<'a>| {
            let key = self.hashed(*key);
            let mut shard = self.shard_of(key);
            let found = shard.find_live(key, emit).filter(|(_, object)| object.is_readable());
            let slot = found.map(|(slot, _)| slot);
            used.extend(slot.and_then(|slot| shard.count_as_used(slot)));
            shard.totals_mut().asked(slot.is_some())
        };
        let found = keys.into_iter().take_while(readable).count();
        used.reverse();
        self.order.access(&used);
        found
    }
}

/// Has the processor fetch what the looks for these keys need, for all of them at a time. The records of few objects
/// are in its caches.
fn touch(shard: &Shard, hashes: impl Iterator<Item = u64> + Clone) {
    if shard.end() < FETCHED {
        return;
    }
    let buckets = hashes.clone().fold(0, |touched, hash| touched ^ shard.touch(hash));
    // They are there when it is known what they lead to; nothing needs what was read.
    let found = hashes.fold(buckets, |touched, hash| touched ^ shard.touch_found(hash));
    core::hint::black_box(found);
}

impl Shard {
    /// Where the object with this key is, and which one it is.
    fn find_generation(&self, key: HashedKey<'_>) -> Option<(ObjectSlot, Generation)> {
        let slot = self.find(key)?;
        Some((slot, self.object(slot)?.generation))
    }

    /// [`find_live`](Self::find_live) for an object that was found a moment ago. Taking
    /// out what has nothing left may have put another one in its slot.
    fn live_still(
        &mut self,
        key: HashedKey<'_>,
        (slot, generation): (ObjectSlot, Generation),
        emit: Emit<'_>,
    ) -> Option<ObjectSlot> {
        let same = self.object(slot).is_some_and(|object| object.generation == generation);
        if same && self.is_live(slot, emit) {
            return Some(slot);
        }
        self.find_live(key, emit).map(|(slot, _)| slot)
    }

    fn read_found(
        &mut self,
        found: Option<ObjectSlot>,
        access: Access,
        now: Time,
    ) -> Result<ReplicaList, GetError> {
        let list = match found {
            Some(slot) if self.get_mut(slot).is_readable() => {
                self.read(slot, access, now).ok_or(GetError::NotFound)
            }
            Some(_) => Err(GetError::NotReady),
            None => Err(GetError::NotFound),
        };
        self.totals_mut().get_misses += u64::from(list.is_err());
        list
    }

    fn exist(&mut self, found: Option<ObjectSlot>, now: Time) -> bool {
        let exists = found.is_some_and(|slot| {
            self.get_mut(slot).is_readable() && self.access(slot, Access::Asks, now)
        });
        self.totals_mut().asked(exists)
    }

    fn probe(&mut self, found: Option<ObjectSlot>) -> bool {
        let exists = found.is_some_and(|slot| self.get_mut(slot).is_readable());
        self.totals_mut().asked(exists)
    }

    /// Returns the places of an object that can be read, under a lease; `None` if its group was
    /// condemned a moment ago.
    pub(crate) fn read(
        &mut self,
        slot: ObjectSlot,
        access: Access,
        now: Time,
    ) -> Option<ReplicaList> {
        if !self.access(slot, access, now) {
            return None;
        }
        self.totals_mut().get_hits += 1;
        let lease = self.config().terms.read();
        let object = self.object(slot)?;
        let placements = object.placements();
        let suspects = placements.iter().rev().take_while(|at| at.segment.is_suspect()).count();
        Some(ReplicaList {
            generation: object.generation,
            slices: object.slices(),
            placements,
            suspects,
            file: object.shared_file(),
            local_disks: object.local_disk_placements(),
            lease,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::hash::KeyHasher;

    #[test]
    fn keys_of_a_shard_are_together_and_in_their_order() {
        let texts: Vec<String> = (0..1_000).map(|number| format!("key-{number}")).collect();
        let hasher = KeyHasher::new(7);
        let keys: Vec<HashedKey<'_>> = texts
            .iter()
            .map(|text| {
                let key = KeyRef::new(text).unwrap();
                HashedKey { hash: hasher.hash(key), key }
            })
            .collect();
        // Fewer keys than shards, as many, and more.
        for (len, shards) in
            [(0, 1), (1, 1), (63, 64), (64, 64), (65, 64), (1_000, 7), (1_000, 65_536)]
        {
            let order = by_shard(&keys[..len], shards);
            let mut sorted: Vec<(u32, u32)> =
                (0..len).map(|at| (keys[at].shard(shards) as u32, at as u32)).collect();
            sorted.sort_unstable();
            let order: Vec<(u32, u32)> =
                order.iter().map(|place| (place.shard, place.at)).collect();
            assert_eq!(order, sorted, "{len} keys in {shards} shards");
        }
    }
}
