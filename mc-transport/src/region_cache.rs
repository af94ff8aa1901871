//! Regions kept for the next time.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use mc_types::ByteSize;
use parking_lot::{Condvar, Mutex};

use crate::access::Access;
use crate::memory::Memory;
use crate::region::Region;

/// Registrations of memory that is registered again and again, as the buffers of
/// an inference engine are. With a network card that does transfers itself, a
/// registration pins every page and takes up to seconds; with other transports it
/// is cheap, and this is not worth its while.
///
/// A cached region keeps its key open to peers and its memory allocated, until it
/// is [forgotten](Self::forget) or has to make room: the one used least recently
/// goes first. Regions that were handed out live on for as long as their callers
/// keep them.
///
/// ```
/// use mc_transport::{Access, MemFabric, Memory, RegionCache, Transport};
/// let transport = MemFabric::new().transport("node")?;
/// let cache = RegionCache::new(1000);
/// let buffer = Memory::allocate(4096)?;
/// let register = |memory: &Memory, access| transport.register(memory, access);
/// let first = cache.region(&buffer, Access::Read, register)?;
/// let second = cache.region(&buffer, Access::Read, register)?;
/// assert_eq!(first.key(), second.key(), "it was registered once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RegionCache {
    capacity: usize,
    max_bytes: u64,
    state: Mutex<State>,
    /// A registration ended, or was forgotten while it ran.
    changed: Condvar,
}

/// Which registration: the address of the block, which nothing else has while its
/// memory lives, and what peers may do.
type Key = (usize, Access);

#[derive(Default)]
struct State {
    entries: HashMap<Key, Entry>,
    /// The keys of all that is ready, the least recently used first.
    order: BTreeMap<u64, Key>,
    /// Bytes of all that is ready.
    bytes: u64,
    /// The last number given to a registration or a use.
    clock: u64,
}

enum Entry {
    /// The registration with this number runs now.
    Pending { number: u64 },
    /// Last used at `used`. `memory` is kept, too, so that the key's address stays
    /// its own even if the region is one of other memory.
    Ready { memory: Memory, region: Arc<Region>, used: u64 },
}

impl RegionCache {
    /// A cache of at most `capacity` regions; with none, everything is registered
    /// anew.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let state = Mutex::new(State::default());
        Self { capacity, max_bytes: u64::MAX, state, changed: Condvar::new() }
    }

    /// The same with at most `bytes` of memory in all its regions together. Memory
    /// that is larger by itself is registered anew each time. Memory that is
    /// cached for several accesses counts once for each.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: ByteSize) -> Self {
        self.max_bytes = bytes.as_u64();
        self
    }

    /// The region that `memory` has for exactly this `access`, made by `register`
    /// when there is none. Callers that want the same at the same time wait, their
    /// threads blocked, for the one that registers; when that fails, the next one
    /// tries.
    ///
    /// `register` runs without any lock held. It must not ask this cache for the
    /// same memory and access, which would wait for itself for ever.
    ///
    /// # Errors
    /// The error of `register`; nothing is cached then.
    pub fn region<E>(
        &self,
        memory: &Memory,
        access: Access,
        register: impl FnOnce(&Memory, Access) -> Result<Region, E>,
    ) -> Result<Arc<Region>, E> {
        if self.capacity == 0 || memory.len() as u64 > self.max_bytes {
            return register(memory, access).map(Arc::new);
        }
        let key = (memory.id(), access);
        let number = {
            let mut state = self.state.lock();
            loop {
                if let Some(region) = state.use_ready(key) {
                    return Ok(region);
                }
                if !state.entries.contains_key(&key) {
                    break;
                }
                self.changed.wait(&mut state);
            }
            let number = state.tick();
            state.entries.insert(key, Entry::Pending { number });
            number
        };
        // Also when `register` panics, waiting tasks get their turn.
        let pending = PendingGuard { cache: self, key, number };
        let region = Arc::new(register(memory, access)?);
        pending.finish(memory, &region);
        Ok(region)
    }

    /// Drops whatever is cached of `memory`, and does not cache what is being
    /// registered of it now. Code that frees memory that a card has pinned calls
    /// this first.
    pub fn forget(&self, memory: &Memory) {
        let mut forgotten = Vec::new();
        {
            let mut state = self.state.lock();
            for access in [Access::Read, Access::Write, Access::ReadWrite] {
                forgotten.extend(state.remove((memory.id(), access)));
            }
        }
        self.changed.notify_all();
        // Dropped after the lock: withdrawing a key runs code of the transport.
        drop(forgotten);
    }

    /// Drops everything.
    pub fn clear(&self) {
        let State { entries, .. } = {
            let mut state = self.state.lock();
            let clock = state.clock;
            std::mem::replace(&mut *state, State { clock, ..State::default() })
        };
        self.changed.notify_all();
        drop(entries);
    }

    /// Regions cached now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.lock().order.len()
    }

    /// Returns whether no region is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of all cached regions together.
    #[must_use]
    pub fn bytes(&self) -> ByteSize {
        ByteSize::bytes(self.state.lock().bytes)
    }
}

impl fmt::Debug for RegionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionCache")
            .field("len", &self.len())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The region of `key`, now the most recently used one.
    fn use_ready(&mut self, key: Key) -> Option<Arc<Region>> {
        let now = self.clock + 1;
        let Some(Entry::Ready { region, used, .. }) = self.entries.get_mut(&key) else {
            return None;
        };
        let region = Arc::clone(region);
        self.order.remove(&std::mem::replace(used, now));
        self.order.insert(now, key);
        self.clock = now;
        Some(region)
    }

    fn insert(&mut self, key: Key, memory: Memory, region: Arc<Region>) {
        let used = self.tick();
        self.bytes += memory.len() as u64;
        self.order.insert(used, key);
        self.entries.insert(key, Entry::Ready { memory, region, used });
    }

    fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        if let Entry::Ready { memory, used, .. } = &entry {
            self.bytes -= memory.len() as u64;
            self.order.remove(used);
        }
        Some(entry)
    }
}

/// A registration that runs; dropping it lets others try.
struct PendingGuard<'a> {
    cache: &'a RegionCache,
    key: Key,
    number: u64,
}

impl PendingGuard<'_> {
    /// Caches `region`, unless its memory was forgotten meanwhile.
    fn finish(self, memory: &Memory, region: &Arc<Region>) {
        let cache = self.cache;
        let mut evicted = Vec::new();
        {
            let mut state = cache.state.lock();
            if !self.is_current(&state) {
                return;
            }
            state.insert(self.key, memory.clone(), Arc::clone(region));
            while state.order.len() > cache.capacity || state.bytes > cache.max_bytes {
                let Some((_, &oldest)) = state.order.first_key_value() else { break };
                evicted.extend(state.remove(oldest));
            }
        }
        // The guard wakes the waiters; what made room is dropped after the lock,
        // since withdrawing a key runs code of the transport.
        drop(self);
        drop(evicted);
    }

    fn is_current(&self, state: &State) -> bool {
        matches!(
            state.entries.get(&self.key),
            Some(Entry::Pending { number }) if *number == self.number
        )
    }
}

impl Drop for PendingGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.state.lock();
        if self.is_current(&state) {
            state.entries.remove(&self.key);
        }
        drop(state);
        self.cache.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use proptest::prelude::*;

    use super::*;
    use crate::region::RegionTable;

    fn never(_: &Memory, _: Access) -> Result<Region, Infallible> {
        panic!("it is cached")
    }

    #[test]
    fn a_cached_region_is_open_until_it_makes_room() {
        let (table, cache) = (RegionTable::new(), RegionCache::new(2));
        let memories: Vec<Memory> = (1..=3).map(|len| Memory::allocate(len).unwrap()).collect();
        let get = |index: usize| {
            cache.region(&memories[index], Access::Read, |memory, access| {
                table.register(memory, access)
            })
        };
        let held = get(0).unwrap();
        get(1).unwrap();
        assert_eq!(cache.region(&memories[0], Access::Read, never).unwrap().key(), held.key());
        get(2).unwrap();
        assert_eq!((cache.len(), table.len()), (2, 2), "the second one made room");
        assert_eq!(cache.bytes(), ByteSize::bytes(1 + 3));
        cache.forget(&memories[0]);
        assert_eq!((cache.len(), table.len()), (1, 2), "who holds a region keeps it");
        drop(held);
        assert_eq!(table.len(), 1);
        cache.clear();
        assert_eq!((cache.len(), table.len(), cache.bytes().as_u64()), (0, 0, 0));
    }

    #[test]
    fn accesses_are_never_confused() {
        let (table, cache) = (RegionTable::new(), RegionCache::new(10));
        let memory = Memory::allocate(8).unwrap();
        let accesses = [Access::ReadWrite, Access::Read, Access::Write];
        let keys = accesses.map(|wanted| {
            let region = cache.region(&memory, wanted, |memory, access| {
                assert_eq!(access, wanted);
                table.register(memory, access)
            });
            region.unwrap().key()
        });
        assert!(table.admit(keys[1], 0, 8, Access::Write, None).is_err());
        assert!(table.admit(keys[2], 0, 8, Access::Read, None).is_err());
        for (access, key) in accesses.into_iter().zip(keys) {
            assert_eq!(cache.region(&memory, access, never).unwrap().key(), key);
        }
        cache.forget(&memory);
        assert!(table.is_empty());
    }

    #[test]
    fn concurrent_callers_register_once() {
        let (table, cache) = (RegionTable::new(), RegionCache::new(1));
        let memory = Memory::allocate(8).unwrap();
        let (registrations, start) = (AtomicUsize::new(0), Barrier::new(8));
        let mut keys: Vec<_> = thread::scope(|scope| {
            let call = || {
                start.wait();
                let region = cache.region(&memory, Access::Read, |memory, access| {
                    registrations.fetch_add(1, Ordering::Relaxed);
                    table.register(memory, access)
                });
                region.unwrap().key()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(call)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        keys.dedup();
        assert_eq!((registrations.into_inner(), keys.len()), (1, 1));
    }

    /// Two callers of which the first ends with `first`, once the second is about
    /// to ask or waits already; what the second one got.
    fn second_after(first: impl FnOnce(&RegionCache) + Send) -> usize {
        let (table, cache) = (RegionTable::new(), RegionCache::new(1));
        let memory = Memory::allocate(8).unwrap();
        let started = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    cache.region(&memory, Access::Read, |_, _| {
                        started.wait();
                        first(&cache);
                        Err::<Region, _>("refused")
                    })
                }));
                assert!(outcome.is_err() || outcome.is_ok_and(|region| region.is_err()));
            });
            started.wait();
            let region = cache
                .region(&memory, Access::Read, |memory, access| table.register(memory, access));
            region.unwrap();
        });
        cache.len()
    }

    #[test]
    fn a_failure_passes_the_turn_on() {
        assert_eq!(second_after(|_| {}), 1);
    }

    #[test]
    fn a_panic_passes_the_turn_on() {
        assert_eq!(second_after(|_| std::panic::panic_any("on purpose")), 1);
    }

    #[test]
    fn what_is_forgotten_while_it_registers_is_not_cached() {
        let (table, cache) = (RegionTable::new(), RegionCache::new(1));
        let memory = Memory::allocate(8).unwrap();
        let forget: [fn(&RegionCache, &Memory); 2] =
            [RegionCache::forget, |cache, _| RegionCache::clear(cache)];
        for forget in forget {
            let region = cache.region(&memory, Access::Read, |memory, access| {
                forget(&cache, memory);
                // No task waits for what was forgotten.
                let fresh = cache
                    .region(memory, Access::Read, |memory, access| table.register(memory, access));
                assert!(fresh.is_ok());
                table.register(memory, access)
            });
            assert_eq!((cache.len(), table.len()), (1, 2), "the later one is cached");
            drop(region.unwrap());
            assert_eq!((cache.len(), table.len()), (1, 1));
            cache.clear();
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Get(usize, Access),
        Forget(usize),
        Clear,
        Fail(usize, Access),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let access = || prop::sample::select(vec![Access::Read, Access::Write, Access::ReadWrite]);
        let step = prop_oneof![
            20 => (0usize..6, access()).prop_map(|(index, access)| Step::Get(index, access)),
            4 => (0usize..6, access()).prop_map(|(index, access)| Step::Fail(index, access)),
            3 => (0usize..6).prop_map(Step::Forget),
            1 => Just(Step::Clear),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Beside a list in the order of use.
        #[test]
        fn the_cache_is_a_list_in_the_order_of_use(
            steps in steps(), capacity in 0usize..6, max_bytes in prop::option::of(0u64..120)
        ) {
            let table = RegionTable::new();
            let mut cache = RegionCache::new(capacity);
            let limit = max_bytes.unwrap_or(u64::MAX);
            if let Some(bytes) = max_bytes {
                cache = cache.with_max_bytes(ByteSize::bytes(bytes));
            }
            let memories: Vec<Memory> =
                (0..6).map(|index| Memory::allocate(index * 10).unwrap()).collect();
            let mut model: Vec<(usize, Access)> = Vec::new();
            let bytes = |model: &[(usize, Access)]| -> u64 {
                model.iter().map(|(index, _)| memories[*index].len() as u64).sum()
            };
            for step in steps {
                match step {
                    Step::Get(index, access) => {
                        let mut registered = false;
                        cache.region(&memories[index], access, |memory, access| {
                            registered = true;
                            table.register(memory, access)
                        }).unwrap();
                        let known = model.iter().position(|entry| *entry == (index, access));
                        prop_assert_eq!(registered, known.is_none());
                        known.map(|known| model.remove(known));
                        if capacity > 0 && memories[index].len() as u64 <= limit {
                            model.push((index, access));
                        }
                        while model.len() > capacity || bytes(&model) > limit {
                            model.remove(0);
                        }
                    }
                    Step::Fail(index, access) => {
                        let known = model.iter().position(|entry| *entry == (index, access));
                        let result = cache.region(&memories[index], access, |_, _| Err(()));
                        prop_assert_eq!(result.is_ok(), known.is_some());
                        if let Some(known) = known {
                            let entry = model.remove(known);
                            model.push(entry);
                        }
                    }
                    Step::Forget(index) => {
                        cache.forget(&memories[index]);
                        model.retain(|(other, _)| *other != index);
                    }
                    Step::Clear => {
                        cache.clear();
                        model.clear();
                    }
                }
                prop_assert_eq!((cache.len(), table.len()), (model.len(), model.len()));
                prop_assert_eq!(cache.bytes().as_u64(), bytes(&model));
            }
        }
    }
}
