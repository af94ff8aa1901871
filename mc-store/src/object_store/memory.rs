//! A store in the memory of its process, for tests of applications.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use mc_meta::{InvalidPut, MAX_REPLICAS, MAX_SLICES, Pattern, ReplicateConfig};
use mc_rpc::Refusal;
use mc_transport::Source;
use mc_types::{ErrorCode, Generation, KeyError, ObjectKey};
use parking_lot::Mutex;

use super::{ObjectStore, StoreError};
use crate::client::{GetInto, Put, PutMode, PutOutcome, Stat};
use crate::error::GetError;

/// An [`ObjectStore`] in the memory of this process, without a network and without a master: for
/// the tests of applications.
///
/// Values are immutable, calls are atomic, and errors are those of a cluster. It keeps every object
/// until it is removed: nothing is evicted, nothing has a lease, and what a [`ReplicateConfig`]
/// says about places and pins changes nothing. It publishes no events. Clones share one store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mc_store::StoreError> {
/// use mc_store::{MemoryStore, ObjectStore, PutOutcome, StoreError};
/// let store = MemoryStore::new();
/// assert_eq!(store.put("block", "keys and values".into()).await?, PutOutcome::Stored);
/// assert_eq!(store.put("block", "others".into()).await?, PutOutcome::Existing);
/// assert_eq!(store.get("block").await?, "keys and values");
/// store.remove("block", false).await?;
/// assert!(matches!(store.get("block").await, Err(StoreError::NotFound)));
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore {
    objects: Arc<Mutex<Objects>>,
}

#[derive(Default)]
struct Objects {
    by_key: BTreeMap<ObjectKey, Object>,
    /// The generation of the last put.
    last: u64,
}

#[derive(Clone)]
struct Object {
    value: Bytes,
    generation: Generation,
}

impl MemoryStore {
    /// A store without objects.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.lock().by_key.len()
    }

    /// Returns whether there is no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn remove_where(&self, mut goes: impl FnMut(&ObjectKey) -> bool) -> u64 {
        let by_key = &mut self.objects.lock().by_key;
        let before = by_key.len();
        by_key.retain(|key, _| !goes(key));
        (before - by_key.len()) as u64
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("objects", &self.len()).finish()
    }
}

impl Objects {
    fn store(&mut self, key: ObjectKey, value: Bytes, mode: PutMode) -> PutOutcome {
        if mode == PutMode::Put && self.by_key.contains_key(&key) {
            return PutOutcome::Existing;
        }
        self.last += 1;
        let generation = Generation::new(self.last);
        self.by_key.insert(key, Object { value, generation });
        PutOutcome::Stored
    }

    fn find(&self, key: &str) -> Result<&Object, StoreError> {
        self.by_key.get(&ObjectKey::new(key)?).ok_or(StoreError::NotFound)
    }

    /// Some bytes of a value, or all.
    fn read(
        &self,
        key: &str,
        range: Option<&Range<u64>>,
        generation: Option<Generation>,
    ) -> Result<Bytes, StoreError> {
        let object = self.find(key)?;
        if generation.is_some_and(|wanted| wanted != object.generation) {
            return Err(StoreError::Replaced);
        }
        let len = object.value.len() as u64;
        match range.map(|range| (range.start, range.end)) {
            None => Ok(object.value.clone()),
            Some((start, end)) if start > len || start > end => {
                Err(GetError::OutOfRange { start, end, len }.into())
            }
            // Both are at most the value's length.
            Some((start, end)) => Ok(object.value.slice(start as usize..end.min(len) as usize)),
        }
    }
}

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn batch_store(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let mut objects = self.objects.lock();
        let store = |put: Put<'_>| {
            let key = ObjectKey::new(put.key)?;
            put.check_info()?;
            Ok(objects.store(key, value(put.slices, config)?, mode))
        };
        puts.into_iter().map(store).collect()
    }

    async fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, StoreError>> {
        let objects = self.objects.lock();
        keys.iter().map(|key| objects.read(key, None, None)).collect()
    }

    async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        generation: Option<Generation>,
    ) -> Result<Bytes, StoreError> {
        self.objects.lock().read(key, Some(&range), generation)
    }

    async fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, StoreError>> {
        let objects = self.objects.lock();
        let read = |get: &GetInto<'_>| objects.read(get.key, get.range.as_ref(), get.generation);
        let values: Vec<Result<Bytes, StoreError>> = gets.iter().map(read).collect();
        drop(objects);
        values.into_iter().zip(gets).map(|(value, get)| scatter(&value?, &get)).collect()
    }

    async fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, StoreError> {
        let keys = checked(keys)?;
        let objects = self.objects.lock();
        Ok(keys.iter().map(|key| objects.by_key.contains_key(key)).collect())
    }

    async fn batch_probe(&self, keys: &[&str]) -> Result<Vec<bool>, StoreError> {
        self.batch_exist(keys).await
    }

    async fn longest_prefix(&self, keys: &[&str]) -> Result<usize, StoreError> {
        let keys = checked(keys)?;
        let objects = self.objects.lock();
        Ok(keys.iter().take_while(|key| objects.by_key.contains_key(*key)).count())
    }

    async fn batch_stat(&self, keys: &[&str]) -> Result<Vec<Result<Stat, StoreError>>, StoreError> {
        checked(keys)?;
        let objects = self.objects.lock();
        let stat = |key: &&str| {
            let Object { value, generation } = objects.find(key)?;
            Ok(Stat::new(value.len() as u64, *generation))
        };
        Ok(keys.iter().map(stat).collect())
    }

    async fn batch_remove(
        &self,
        keys: &[&str],
        _force: bool,
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let keys = checked(keys)?;
        let by_key = &mut self.objects.lock().by_key;
        let remove = |key| by_key.remove(key).map(drop).ok_or(StoreError::NotFound);
        Ok(keys.iter().map(remove).collect())
    }

    async fn batch_remove_generations(
        &self,
        named: &[(&str, Generation)],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let keys = checked(&named.iter().map(|(key, _)| *key).collect::<Vec<_>>())?;
        let by_key = &mut self.objects.lock().by_key;
        let remove = |(key, &(_, generation)): (&ObjectKey, &(&str, Generation))| {
            match by_key.get(key).ok_or(StoreError::NotFound)? {
                object if object.generation == generation => _ = by_key.remove(key),
                _ => return Err(StoreError::Replaced),
            }
            Ok(())
        };
        Ok(keys.iter().zip(named).map(remove).collect())
    }

    async fn remove_all(&self, _force: bool) -> Result<u64, StoreError> {
        Ok(self.remove_where(|_| true))
    }

    async fn remove_by_regex(&self, pattern: &str, _force: bool) -> Result<u64, StoreError> {
        if pattern.is_empty() {
            return Err(invalid("the pattern is empty and would match every key"));
        }
        let pattern = Pattern::new(pattern).map_err(invalid)?;
        Ok(self.remove_where(|key| pattern.is_match(key.as_str())))
    }

    async fn find(&self, pattern: &str, at_most: usize) -> Result<Vec<ObjectKey>, StoreError> {
        let pattern = Pattern::new(pattern).map_err(invalid)?;
        let objects = self.objects.lock();
        let found = objects.by_key.keys().filter(|key| pattern.is_match(key.as_str()));
        Ok(found.take(at_most).cloned().collect())
    }
}

/// The bytes of a put that a master would accept.
fn value(slices: Vec<Source>, config: &ReplicateConfig) -> Result<Bytes, StoreError> {
    let mut slices: Vec<Source> = slices.into_iter().filter(|slice| !slice.is_empty()).collect();
    let why = match slices.len() {
        0 => Some(InvalidPut::EmptySlice),
        count if count > MAX_SLICES => Some(InvalidPut::TooManySlices { count }),
        _ if config.replica_num > MAX_REPLICAS as u32 => {
            Some(InvalidPut::ReplicaCount { replica_num: config.replica_num })
        }
        _ => None,
    };
    if let Some(why) = why {
        return Err(invalid(why));
    }
    let bytes = |slice| match slice {
        Source::Bytes(bytes) => bytes,
        Source::Memory(slice) => slice.to_vec().into(),
    };
    if slices.len() == 1 {
        return Ok(bytes(slices.remove(0)));
    }
    let mut value = BytesMut::new();
    slices.into_iter().for_each(|slice| value.extend_from_slice(&bytes(slice)));
    Ok(value.freeze())
}

/// Copies `value` to where it is wanted.
fn scatter(value: &[u8], get: &GetInto<'_>) -> Result<u64, StoreError> {
    let (needed, given) = (value.len(), get.into.iter().map(|piece| piece.len()).sum::<usize>());
    if given < needed {
        return Err(StoreError::BufferTooSmall { needed: needed as u64, given: given as u64 });
    }
    let mut rest = value;
    for piece in &get.into {
        let (now, later) = rest.split_at(rest.len().min(piece.len()));
        piece.copy_from(0, now).map_err(|_| GetError::TargetReadOnly)?; // it is long enough
        rest = later;
    }
    Ok(needed as u64)
}

fn checked(keys: &[&str]) -> Result<Vec<ObjectKey>, KeyError> {
    keys.iter().map(|key| ObjectKey::new(*key)).collect()
}

fn invalid(why: impl fmt::Display) -> StoreError {
    Refusal::new(ErrorCode::InvalidParams, why.to_string()).into()
}
