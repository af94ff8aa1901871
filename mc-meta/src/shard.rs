//! One shard: the objects whose keys hash to it, and the orders over them.
//!
//! Every change of an object's state and of the queue it is in happens here.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use mc_evict::{EvictionPolicy, Lru, Verdict};
use mc_lease::{DeadlineQueue, Protection, Terms};
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

/// An object under lease that was offered as a victim.
#[derive(Clone, Copy, Debug)]
struct Aside {
    slot: u32,
    generation: Generation,
    touched: Time,
}

/// What an eviction freed, and what stopped it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evicted {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// Objects set aside because they are leased.
    pub(crate) leased: u64,
}

impl std::ops::AddAssign for Evicted {
    fn add_assign(&mut self, more: Self) {
        self.objects += more.objects;
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.leased += more.leased;
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
    hasher: KeyHasher,
    index: HashTable<u32>,
    objects: Slab<Object>,
    main: Lru,
    pinned: Lru,
    aside: DeadlineQueue<Aside>,
    /// Unfinished puts, oldest first: generations only grow.
    open: BTreeMap<Generation, u32>,
    /// Space of puts that were given up; their writers may still be writing.
    discarded: DeadlineQueue<Replicas>,
    /// The next slot to look at for replicas in segments that are gone.
    sweep: Option<u32>,
}

impl Shard {
    pub(crate) fn new(hasher: KeyHasher) -> Self {
        Self {
            hasher,
            index: HashTable::new(),
            objects: Slab::new(),
            main: Lru::new(),
            pinned: Lru::new(),
            aside: DeadlineQueue::new(),
            open: BTreeMap::new(),
            discarded: DeadlineQueue::new(),
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
        !self.aside.is_empty()
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
        debug_assert!(matches!(object.state, State::Processing { .. }));
        let generation = object.generation;
        let slot = self.objects.insert(object);
        let (objects, hasher) = (&self.objects, &self.hasher);
        self.index.insert_unique(hash, slot, |&slot| {
            hasher.hash(objects.get(slot).expect("indexed slots are occupied").key.as_ref())
        });
        self.open.insert(generation, slot);
    }

    /// Makes an object readable.
    pub(crate) fn complete(&mut self, slot: u32, emit: Emit<'_>) {
        let object = self.objects.get_mut(slot).expect("slots come from this shard's own tables");
        debug_assert!(matches!(object.state, State::Processing { .. }));
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
    }

    /// Grants a lease and moves the object to the warm end of its order.
    pub(crate) fn access(&mut self, slot: u32, now: Time) {
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
    }

    fn enqueue(&mut self, slot: u32, queue: Queue) {
        self.get_mut(slot).queue = queue;
        match queue {
            Queue::Main => self.main.insert(slot),
            Queue::Pinned => self.pinned.insert(slot),
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
        self.discarded.push(release_at, object.replicas);
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
            Queue::Aside | Queue::None => {}
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
            if object.protection.is_leased(terms, emit.now) {
                object.queue = Queue::Aside;
                let touched = object.protection.last_touched();
                let entry = Aside { slot, generation: object.generation, touched };
                aside.push(object.protection.lease_end(terms), entry);
                outcome.leased += 1;
                return Verdict::SetAside;
            }
            object.queue = Queue::None;
            object.drop_dead_replicas();
            let replicas = object.replicas.len() as u64;
            planned = object.slices.total_len().saturating_mul(replicas).saturating_add(planned);
            victims.push(slot);
            Verdict::Evict
        });
        for slot in victims {
            let freed = self.remove(slot, Removal::Evicted, emit);
            outcome.bytes = outcome.bytes.saturating_add(freed);
            outcome.objects += u64::from(freed > 0);
        }
        outcome
    }

    /// Puts objects whose lease has ended back where victims are taken from, and
    /// soft-pinned ones whose pin has lapsed among the ordinary; at most `limit`.
    pub(crate) fn readmit_due(&mut self, terms: &Terms, now: Time, limit: usize) -> usize {
        let mut done = 0;
        while done < limit
            && let Some(entry) = self.aside.pop_due(now)
        {
            done += 1;
            self.readmit(entry, terms, now);
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
            self.main.readmit(slot);
            self.get_mut(slot).queue = Queue::Main;
        }
        done
    }

    fn readmit(&mut self, entry: Aside, terms: &Terms, now: Time) {
        let Some(object) = self.objects.get_mut(entry.slot) else { return };
        if object.generation != entry.generation || object.queue != Queue::Aside {
            return;
        }
        let touched = object.protection.last_touched();
        if object.protection.is_leased(terms, now) {
            self.aside.push(object.protection.lease_end(terms), Aside { touched, ..entry });
        } else if object.protection.is_soft_pinned(terms, now) {
            self.enqueue(entry.slot, Queue::Pinned);
        } else if touched == entry.touched {
            object.queue = Queue::Main;
            self.main.readmit(entry.slot);
        } else {
            // Used again while it was aside: it is as warm as anything is.
            self.enqueue(entry.slot, Queue::Main);
        }
    }

    /// Gives back the space of puts that were discarded long enough ago, and
    /// gives up puts begun before `begun_before`; says how many puts that was.
    pub(crate) fn reclaim_unfinished(&mut self, begun_before: Option<Time>, emit: Emit<'_>) -> u64 {
        while let Some(replicas) = self.discarded.pop_due(emit.now) {
            release_all(replicas);
        }
        let mut discarded = 0;
        while let Some((_, &slot)) = self.open.first_key_value() {
            let object = self.objects.get(slot).expect("open slots are occupied");
            match object.state {
                State::Processing { since } if begun_before.is_some_and(|at| since <= at) => {
                    self.remove(slot, Removal::Requested, emit);
                    discarded += 1;
                }
                _ => break,
            }
        }
        discarded
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
