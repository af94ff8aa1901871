//! Values that this client gets again and again, kept in its own memory.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use mc_evict::{EvictionPolicy, FrequencySketch, Handle, Item, PolicyKind, Verdict};
use mc_meta::Slices;
use mc_transport::{BufferPool, MemoryError, MemorySlice};
use mc_types::{ByteSize, Generation};
use parking_lot::Mutex;

use super::checksums::match_checksums;

/// Most values evicted to make room for one.
const MAX_VICTIMS: usize = 64;

/// Counters of each row of the sketch, which takes 64 KiB.
const COUNTERS: usize = 1 << 14;
/// Lookups after which keys count half of what they did.
const TOUCHES: usize = 1 << 18;

/// Settings of the cache of a client's own; see
/// [`ClientBuilder::hot_cache`](super::ClientBuilder::hot_cache).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HotCacheConfig {
    /// Memory for values. None switches the cache off.
    pub capacity: ByteSize,
    /// Longer values are not kept. Default 16 MiB.
    pub max_object: ByteSize,
    /// How often a key must have been asked for lately before its value is kept. Default
    /// 2; with 0 or 1 every value is.
    pub admission: u32,
    /// Which values make room for others. Default [`PolicyKind::Lru`].
    pub policy: PolicyKind,
}

impl HotCacheConfig {
    /// A cache of this size, with the defaults otherwise.
    #[must_use]
    pub const fn new(capacity: ByteSize) -> Self {
        Self { capacity, max_object: ByteSize::mib(16), admission: 2, policy: PolicyKind::Lru }
    }
}

impl Default for HotCacheConfig {
    /// No cache.
    fn default() -> Self {
        Self::new(ByteSize::bytes(0))
    }
}

/// The cache. What it holds of a key is used only when the master has just named the very
/// put that it was read from, so it is never stale.
pub(super) struct HotCache {
    config: HotCacheConfig,
    pool: BufferPool,
    hasher: RandomState,
    state: Mutex<State>,
    hits: AtomicU64,
    misses: AtomicU64,
}

struct State {
    by_key: HashMap<Box<str>, Handle>,
    entries: Vec<Option<Entry>>,
    free: Vec<Handle>,
    policy: Box<dyn EvictionPolicy>,
    frequencies: FrequencySketch<COUNTERS>,
}

struct Entry {
    key: Box<str>,
    generation: Generation,
    slices: Slices,
    value: Bytes,
}

impl HotCache {
    /// A cache; `None` when it was given no memory.
    ///
    /// # Errors
    /// When the system has no such memory.
    pub(super) fn new(config: HotCacheConfig) -> Result<Option<Self>, MemoryError> {
        let capacity = usize::try_from(config.capacity.as_u64()).unwrap_or(usize::MAX);
        if capacity == 0 {
            return Ok(None);
        }
        let pool = BufferPool::new(capacity)?;
        let state = State {
            by_key: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            policy: config.policy.build(),
            frequencies: FrequencySketch::halved_after(TOUCHES),
        };
        Ok(Some(Self {
            config,
            pool,
            hasher: RandomState::new(),
            state: Mutex::new(state),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }))
    }

    /// The value of `key`, if it is the one that this put stored. Counts that the key was
    /// asked for.
    pub(super) fn get(&self, key: &str, generation: Generation, slices: &Slices) -> Option<Bytes> {
        let hash = self.hasher.hash_one(key);
        let mut state = self.state.lock();
        state.frequencies.touch(hash);
        let found = state.by_key.get(key).copied();
        let value = found.and_then(|handle| {
            let entry = state.entries[handle as usize].as_ref().expect("a key that is held");
            if entry.generation == generation && entry.slices == *slices {
                let value = entry.value.clone();
                state.policy.access(handle);
                return Some(value);
            }
            state.policy.remove(handle);
            state.forget(handle);
            None
        });
        drop(state);
        let counter = if value.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        value
    }

    /// Keeps a copy of a value that was read whole, if its key is asked for often enough and
    /// there is room. The copy is verified: other bytes may have come to where the value was
    /// read to since. Values without checksums are not kept.
    pub(super) fn offer(
        &self,
        key: &str,
        generation: Generation,
        slices: &Slices,
        pieces: &[MemorySlice],
    ) {
        let len = slices.total_len();
        let is_summed = slices.as_slice().iter().all(|slice| slice.checksum.is_some());
        if len == 0 || len > self.config.max_object.as_u64() || !is_summed {
            return;
        }
        let hash = self.hasher.hash_one(key);
        if u32::from(self.state.lock().frequencies.count(hash)) < self.config.admission {
            return;
        }
        let Some(value) = self.copy(slices, pieces, len as usize) else { return };
        let entry = Entry { key: key.into(), generation, slices: slices.clone(), value };
        self.state.lock().insert(entry, hash);
    }

    /// How often a value was found here, and how often not.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }

    /// A verified copy in memory of the cache; `None` when there is no room, or the bytes are
    /// not those of the value.
    fn copy(&self, slices: &Slices, pieces: &[MemorySlice], len: usize) -> Option<Bytes> {
        let memory = self.pool.take(len).or_else(|| {
            // Space comes back when the last reader of a victim is done, so one may not
            // be enough, and none may be.
            (0..MAX_VICTIMS).find_map(|_| {
                let victim = self.state.lock().evict()?;
                drop(victim);
                self.pool.take(len)
            })
        })?;
        let mut at = 0;
        for piece in pieces {
            piece.copy_to_slice(&memory.slice(at, piece.len())?).ok()?;
            at += piece.len();
        }
        let sums = slices.as_slice().iter().map(|slice| (slice.len, slice.checksum));
        if !match_checksums(&[memory.slice(0, len)?], sums) {
            return None;
        }
        memory.try_into_bytes(len).ok()
    }
}

impl State {
    fn insert(&mut self, entry: Entry, hash: u64) {
        if let Some(old) = self.by_key.get(&entry.key).copied() {
            self.policy.remove(old);
            self.forget(old);
        }
        let handle = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            Handle::try_from(self.entries.len() - 1).expect("fewer values than bytes in 4 GiB")
        });
        self.by_key.insert(entry.key.clone(), handle);
        self.entries[handle as usize] = Some(entry);
        self.policy.insert(handle, Item::new(hash));
    }

    fn evict(&mut self) -> Option<Entry> {
        let mut victim = None;
        self.policy.evict(&mut |handle| {
            if victim.is_some() {
                return Verdict::Stop;
            }
            victim = Some(handle);
            Verdict::Evict
        });
        self.forget(victim?)
    }

    /// Forgets an entry that the policy does not hold any more.
    fn forget(&mut self, handle: Handle) -> Option<Entry> {
        let entry = self.entries[handle as usize].take()?;
        self.by_key.remove(&entry.key);
        self.free.push(handle);
        Some(entry)
    }
}

impl fmt::Debug for HotCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HotCache")
            .field("config", &self.config)
            .field("used", &self.pool.used())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_meta::Slice;
    use mc_transport::Memory;

    fn slices(text: &[u8]) -> Slices {
        let checksum = Some(mc_transport::checksum(text));
        Slices::One(Slice { len: text.len() as u64, checksum })
    }

    fn generation(number: u64) -> Generation {
        Generation::new(number)
    }

    fn pieces(text: &[u8]) -> Vec<MemorySlice> {
        let memory = Memory::allocate(text.len()).unwrap();
        memory.whole().copy_from(0, text).unwrap();
        let half = text.len() / 2;
        vec![memory.slice(0, half).unwrap(), memory.slice(half, text.len() - half).unwrap()]
    }

    /// Asks for `key` and, as a client would, offers what it then read.
    fn ask(cache: &HotCache, key: &str, of: u64, text: &[u8]) -> Option<Bytes> {
        let found = cache.get(key, generation(of), &slices(text));
        if found.is_none() {
            cache.offer(key, generation(of), &slices(text), &pieces(text));
        }
        found
    }

    fn cache(capacity: u64) -> HotCache {
        HotCache::new(HotCacheConfig::new(ByteSize::bytes(capacity))).unwrap().unwrap()
    }

    #[test]
    fn what_is_asked_for_twice_is_kept() {
        let cache = cache(1 << 20);
        assert_eq!(ask(&cache, "key", 1, b"value"), None);
        assert_eq!(ask(&cache, "key", 1, b"value"), None, "once is not often");
        assert_eq!(ask(&cache, "key", 1, b"value").unwrap(), "value");
        assert_eq!(cache.counts(), (1, 2));
    }

    #[test]
    fn another_put_of_the_key_is_another_value() {
        let cache = cache(1 << 20);
        for _ in 0..2 {
            ask(&cache, "key", 1, b"old");
        }
        assert_eq!(ask(&cache, "key", 1, b"old").unwrap(), "old");
        assert_eq!(ask(&cache, "key", 2, b"new"), None);
        assert_eq!(ask(&cache, "key", 2, b"new").unwrap(), "new");
        assert_eq!(ask(&cache, "key", 1, b"old"), None, "a put that is gone");
        assert_eq!(cache.state.lock().by_key.len(), 1);
    }

    #[test]
    fn what_is_kept_is_what_was_put() {
        let config = HotCacheConfig { admission: 0, ..HotCacheConfig::new(ByteSize::mib(1)) };
        let cache = HotCache::new(config).unwrap().unwrap();
        let offer = |slices: &Slices| {
            cache.offer("key", generation(1), slices, &pieces(b"other"));
            cache.get("key", generation(1), slices)
        };
        assert_eq!(offer(&slices(b"value")), None);
        let unknown = Slices::One(Slice { len: 5, checksum: None });
        assert_eq!(offer(&unknown), None, "nothing tells whether it is the value");
        assert_eq!(offer(&slices(b"other")).unwrap(), "other");
    }

    #[test]
    fn it_never_grows_beyond_its_memory() {
        let cache = cache(64 << 10);
        let mut kept = Vec::new();
        for n in 0..1000_u32 {
            let (key, value) = (format!("key/{n}"), vec![n as u8; 1000]);
            for _ in 0..3 {
                if let Some(found) = ask(&cache, &key, n.into(), &value) {
                    assert!(found == value, "{key}");
                    // Readers keep what they got, whatever becomes of the cache's own.
                    if n % 50 == 0 {
                        kept.push((found, value.clone()));
                    }
                }
            }
            assert!(cache.pool.used() <= 64 << 10);
        }
        assert!(!kept.is_empty() && kept.iter().all(|(found, value)| found == value));
        let state = cache.state.lock();
        assert!(state.by_key.len() <= 64 && state.policy.len() == state.by_key.len());
        assert!(state.entries.len() <= 65, "places are used again");
    }

    #[test]
    fn the_long_and_the_empty_stay_out() {
        let config = HotCacheConfig {
            max_object: ByteSize::bytes(10),
            admission: 0,
            ..HotCacheConfig::new(ByteSize::mib(1))
        };
        let cache = HotCache::new(config).unwrap().unwrap();
        for (text, stays) in [(&b"0123456789"[..], true), (b"0123456789a", false), (b"", false)] {
            ask(&cache, "key", 1, text);
            assert_eq!(ask(&cache, "key", 1, text).is_some(), stays, "{}", text.len());
        }
        assert!(HotCache::new(HotCacheConfig::default()).unwrap().is_none());
    }
}
