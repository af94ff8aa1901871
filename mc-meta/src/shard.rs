//! One shard: the objects whose keys hash to it, and the orders over them.
//!
//! Every change of an object's state and of the queue it is in happens here.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap};

use hashbrown::HashTable;
use mc_evict::{EvictionPolicy, Item, Lru, Verdict};
use mc_lease::{Protection, Terms};
use mc_types::{Generation, Time};

use crate::effect::{Effect, EffectSink, Removal};
use crate::hash::{HashedKey, KeyHasher};
use crate::object::{Object, Queue, Replicas, State, release_all};
use crate::slab::Slab;

/// Reports changes, if somebody listens.
#[derive(Clone, Copy)]
pub(crate) struct Emit<'a> {
    pub(crate) now: Time,
    pub(crate) sink: Option<&'a dyn EffectSink>,
}

impl Emit<'_> {
    pub(crate) fn effect(self, effect: &Effect<'_>) {
        if let Some(sink) = self.sink {
            sink.emit(self.now, effect);
        }
    }

    fn removed(self, object: &Object, cause: Removal) {
        if object.state == State::Complete {
            self.effect(&Effect::Removed {
                key: object.key.as_ref(),
                generation: object.generation,
                cause,
            });
        }
    }
}

/// An object under lease that was offered as a victim; ordered by when the lease
/// ends. Nobody takes it back when the object goes: it then names no object that
/// is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Aside {
    lease_end: Time,
    generation: Generation,
    slot: u32,
}

/// What an eviction freed, and what stopped it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evicted {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// Objects set aside because they are leased.
    pub(crate) leased: u64,
    /// Whether there was more to look at than one eviction may.
    pub(crate) cut_short: bool,
}

/// What has happened in a shard since the master began. Counted under the shard's
/// lock, so that threads do not contend for the counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) evicted_objects: u64,
    pub(crate) evicted_bytes: u64,
    pub(crate) eviction_offers: u64,
    pub(crate) put_starts: u64,
    pub(crate) put_ends: u64,
    pub(crate) put_revokes: u64,
    pub(crate) puts_discarded: u64,
    pub(crate) get_hits: u64,
    pub(crate) get_misses: u64,
    pub(crate) removed_objects: u64,
}

impl std::ops::AddAssign for Evicted {
    fn add_assign(&mut self, more: Self) {
        self.objects += more.objects;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.leased += more.leased;
        self.cut_short |= more.cut_short;
    }
}

/// Which objects an eviction may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Ordinary,
    SoftPinned,
}

/// Offers after which one eviction call lets go of the shard, so that commands
/// waiting for its lock wait microseconds.
const MAX_OFFERS: u64 = 256;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) totals: Totals,
    hasher: KeyHasher,
    index: HashTable<u32>,
    objects: Slab<Object>,
    main: Lru,
    pinned: Lru,
    aside: BinaryHeap<Reverse<Aside>>,
    /// Objects in [`Queue::Aside`].
    aside_len: usize,
    /// Unfinished puts, oldest first: generations only grow.
    open: BTreeMap<Generation, u32>,
    /// Space of puts that were given up; their writers may still be writing.
    discarded: BTreeMap<(Time, Generation), Replicas>,
    /// The next slot to look at for replicas in segments that are gone.
    sweep: Option<u32>,
}

impl Shard {
    pub(crate) fn new(hasher: KeyHasher) -> Self {
        Self {
            totals: Totals::default(),
            hasher,
            index: HashTable::new(),
            objects: Slab::new(),
            main: Lru::new(),
            pinned: Lru::new(),
            aside: BinaryHeap::new(),
            aside_len: 0,
            open: BTreeMap::new(),
            discarded: BTreeMap::new(),
            sweep: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn open_puts(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn soft_pinned(&self) -> usize {
        self.pinned.len()
    }

    /// Whether objects under lease are waiting to become victims again.
    pub(crate) fn has_aside(&self) -> bool {
        self.aside_len > 0
    }

    pub(crate) fn object(&self, slot: u32) -> Option<&Object> {
        self.objects.get(slot)
    }

    pub(crate) fn end(&self) -> u32 {
        self.objects.end()
    }

    pub(crate) fn find(&self, key: HashedKey<'_>) -> Option<u32> {
        let objects = &self.objects;
        self.index
            .find(key.hash, |&slot| {
                objects.get(slot).is_some_and(|object| object.key.as_str() == key.key.as_str())
            })
            .copied()
    }

    /// The object with this key and at least one replica in a live segment. One
    /// that has lost its last segment is forgotten here.
    pub(crate) fn find_live(
        &mut self,
        key: HashedKey<'_>,
        emit: Emit<'_>,
    ) -> Option<(u32, &mut Object)> {
        let slot = self.find(key)?;
        if !self.get_mut(slot).drop_dead_replicas() {
            self.remove(slot, Removal::SegmentLost, emit);
            return None;
        }
        Some((slot, self.get_mut(slot)))
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Object {
        self.objects.get_mut(slot).expect("slots come from this shard's own tables")
    }

    /// Adds an object whose put begins.
    pub(crate) fn begin(&mut self, hash: u64, object: Object) {
        debug_assert!(object.state == State::Processing);
        let generation = object.generation;
        let slot = self.objects.insert(object);
        let (objects, hasher) = (&self.objects, &self.hasher);
        self.index.insert_unique(hash, slot, |&slot| {
            hasher.hash(objects.get(slot).expect("indexed slots are occupied").key.as_ref())
        });
        self.open.insert(generation, slot);
        self.totals.put_starts += 1;
    }

    /// Makes an object readable.
    pub(crate) fn complete(&mut self, slot: u32, emit: Emit<'_>) {
        let object = self.objects.get_mut(slot).expect("slots come from this shard's own tables");
        debug_assert!(object.state == State::Processing);
        let soft_pin = object.protection.wants_soft_pin();
        object.state = State::Complete;
        object.protection = Protection::committed(emit.now, soft_pin);
        self.open.remove(&object.generation);
        emit.effect(&Effect::Stored {
            key: object.key.as_ref(),
            generation: object.generation,
            len: object.slices.total_len(),
        });
        self.enqueue(slot, if soft_pin { Queue::Pinned } else { Queue::Main });
        self.totals.put_ends += 1;
    }

    /// Grants a lease and moves the object to the warm end of its order.
    pub(crate) fn access(&mut self, slot: u32, now: Time) -> &Object {
        let object = self.objects.get_mut(slot).expect("slots come from this shard's own tables");
        object.protection.access(now);
        match object.queue {
            Queue::Main if object.protection.wants_soft_pin() => {
                self.main.remove(slot);
                self.enqueue(slot, Queue::Pinned);
            }
            Queue::Main => self.main.access(slot),
            Queue::Pinned => self.pinned.access(slot),
            Queue::Aside | Queue::None => {}
        }
        self.get_mut(slot)
    }

    fn enqueue(&mut self, slot: u32, queue: Queue) {
        self.get_mut(slot).queue = queue;
        match queue {
            Queue::Main => self.main.insert(slot, Item::UNKNOWN),
            Queue::Pinned => self.pinned.insert(slot, Item::UNKNOWN),
            Queue::Aside | Queue::None => {}
        }
    }

    /// Takes an object out of every table and gives its space back; says how
    /// many bytes that was. None are given back, and the cause is another one,
    /// when its segments are gone.
    pub(crate) fn remove(&mut self, slot: u32, cause: Removal, emit: Emit<'_>) -> u64 {
        let mut object = self.detach(slot);
        let live = object.drop_dead_replicas();
        emit.removed(&object, if live { cause } else { Removal::SegmentLost });
        release_all(object.replicas)
    }

    /// Takes an unfinished put out of every table and keeps its space until
    /// `release_at`, because its writer may still be writing.
    pub(crate) fn discard(&mut self, slot: u32, release_at: Time) {
        let object = self.detach(slot);
        self.discarded.insert((release_at, object.generation), object.replicas);
        self.totals.puts_discarded += 1;
    }

    fn detach(&mut self, slot: u32) -> Object {
        let object = self.objects.remove(slot).expect("slots come from this shard's own tables");
        let hash = self.hasher.hash(object.key.as_ref());
        match self.index.find_entry(hash, |&indexed| indexed == slot) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => debug_assert!(false, "every object is indexed"),
        }
        match object.queue {
            Queue::Main => self.main.remove(slot),
            Queue::Pinned => self.pinned.remove(slot),
            Queue::Aside => self.aside_len -= 1,
            Queue::None => {}
        }
        if object.state != State::Complete {
            self.open.remove(&object.generation);
        }
        object
    }

    /// When the object that this class would lose first was last used.
    pub(crate) fn coldest(&self, class: Class) -> Option<Time> {
        let slot = match class {
            Class::Ordinary => self.main.coldest(),
            Class::SoftPinned => self.pinned.coldest(),
        }?;
        self.objects.get(slot).map(|object| object.protection.last_touched())
    }

    /// Evicts objects of `class` until `bytes` are freed, none is left or enough
    /// have been looked at for one time.
    pub(crate) fn evict(
        &mut self,
        class: Class,
        bytes: u64,
        terms: &Terms,
        emit: Emit<'_>,
    ) -> Evicted {
        let mut outcome = Evicted::default();
        let mut offers = 0;
        let mut planned = 0u64;
        let mut victims = smallvec::SmallVec::<[u32; 16]>::new();
        let objects = &mut self.objects;
        let aside = &mut self.aside;
        let policy = match class {
            Class::Ordinary => &mut self.main,
            Class::SoftPinned => &mut self.pinned,
        };
        policy.evict(&mut |slot| {
            if planned >= bytes || offers == MAX_OFFERS {
                return Verdict::Stop;
            }
            offers += 1;
            let object = objects.get_mut(slot).expect("queued slots are occupied");
            // Whoever reads from a segment that is gone needs no protection any more.
            let live = object.drop_dead_replicas();
            if live && object.protection.is_leased(terms, emit.now) {
                object.queue = Queue::Aside;
                let lease_end = object.protection.lease_end(terms);
                aside.push(Reverse(Aside { lease_end, generation: object.generation, slot }));
                outcome.leased += 1;
                return Verdict::SetAside;
            }
            object.queue = Queue::None;
            let replicas = object.replicas.len() as u64;
            planned = object.slices.total_len().saturating_mul(replicas).saturating_add(planned);
            victims.push(slot);
            Verdict::Evict
        });
        self.aside_len += outcome.leased as usize;
        for slot in victims {
            let freed = self.remove(slot, Removal::Evicted, emit);
            outcome.bytes = outcome.bytes.saturating_add(freed);
            outcome.objects += u64::from(freed > 0);
        }
        let totals = &mut self.totals;
        totals.evicted_objects += outcome.objects;
        totals.evicted_bytes = totals.evicted_bytes.saturating_add(outcome.bytes);
        totals.eviction_offers += offers;
        outcome
    }

    /// Puts objects whose lease has ended back where victims are taken from, and
    /// soft-pinned ones whose pin has lapsed among the ordinary; at most `limit`.
    pub(crate) fn readmit_due(&mut self, terms: &Terms, now: Time, limit: usize) -> usize {
        let mut done = 0;
        while done < limit
            && let Some(&Reverse(entry)) = self.aside.peek()
            && entry.lease_end <= now
        {
            done += 1;
            self.aside.pop();
            self.readmit(entry, terms, now);
        }
        // Give memory back after a burst, without shrinking at every pop.
        if self.aside.capacity() > 1024 && self.aside.len() * 4 < self.aside.capacity() {
            self.aside.shrink_to(self.aside.len() * 2);
        }
        while done < limit
            && let Some(slot) = self.pinned.coldest()
        {
            let object = self.objects.get(slot).expect("queued slots are occupied");
            if object.protection.is_soft_pinned(terms, now) {
                break;
            }
            done += 1;
            self.pinned.remove(slot);
            self.main.readmit(slot, Item::UNKNOWN);
            self.get_mut(slot).queue = Queue::Main;
        }
        done
    }

    fn readmit(&mut self, entry: Aside, terms: &Terms, now: Time) {
        let Some(object) = self.objects.get_mut(entry.slot) else { return };
        if object.generation != entry.generation || object.queue != Queue::Aside {
            return;
        }
        if object.protection.is_leased(terms, now) {
            let lease_end = object.protection.lease_end(terms);
            self.aside.push(Reverse(Aside { lease_end, ..entry }));
            return;
        }
        // At the warm end, as if used when the lease ended: objects that come back
        // one after the other keep their order that way, and none is further from
        // its place than a lease lasts.
        self.aside_len -= 1;
        let pinned = object.protection.is_soft_pinned(terms, now);
        self.enqueue(entry.slot, if pinned { Queue::Pinned } else { Queue::Main });
    }

    /// Gives back the space of discarded puts that is due, and gives up puts that
    /// are as old as `timeout`; at most `limit` of both. Says how many.
    pub(crate) fn reclaim_unfinished(
        &mut self,
        timeout: Duration,
        limit: usize,
        emit: Emit<'_>,
    ) -> usize {
        let mut reclaimed = 0;
        while reclaimed < limit
            && let Some(entry) = self.discarded.first_entry()
            && entry.key().0 <= emit.now
        {
            release_all(entry.remove());
            reclaimed += 1;
        }
        while reclaimed < limit
            && let Some((_, &slot)) = self.open.first_key_value()
            && self.get_mut(slot).begun_at().is_some_and(|begun| begun + timeout <= emit.now)
        {
            // One that lost its segments was not given up for its age.
            let freed = self.remove(slot, Removal::Requested, emit);
            self.totals.puts_discarded += u64::from(freed > 0);
            reclaimed += 1;
        }
        reclaimed
    }

    /// When the space of the oldest unfinished put is due, if there is one.
    pub(crate) fn next_release(&self, timeout: Duration) -> Option<Time> {
        let discarded = self.discarded.first_key_value().map(|((due, _), _)| *due);
        let open = self.open.first_key_value().and_then(|(_, &slot)| {
            let object = self.objects.get(slot).expect("open slots are occupied");
            object.begun_at().map(|begun| begun + timeout)
        });
        discarded.into_iter().chain(open).min()
    }

    /// Asks [`sweep_step`](Self::sweep_step) to look at every object again.
    pub(crate) fn start_sweep(&mut self) {
        self.sweep = Some(0);
    }

    /// Looks at up to `limit` slots for objects that lost their segments; true
    /// when more are to be looked at.
    pub(crate) fn sweep_step(&mut self, limit: u32, emit: Emit<'_>) -> bool {
        let Some(from) = self.sweep else { return false };
        let to = from.saturating_add(limit).min(self.objects.end());
        for slot in from..to {
            let dead =
                self.objects.get_mut(slot).is_some_and(|object| !object.drop_dead_replicas());
            if dead {
                self.remove(slot, Removal::SegmentLost, emit);
            }
        }
        self.sweep = (to < self.objects.end()).then_some(to);
        self.sweep.is_some()
    }
}
