//! The calls that applications make, whatever carries them.

mod client;
mod error;
mod memory;

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use mc_meta::ReplicateConfig;
use mc_rpc::{ObjectDescription, TaskReport};
use mc_transport::{Memory, MemorySlice, Source};
use mc_types::{Generation, ObjectKey, TaskId};

pub use error::{StoreError, StoreFailure};
pub use memory::MemoryStore;

use crate::client::{GetInto, MakeMemory, Put, PutMode, PutOutcome, Stat, wait_until_final};

/// A store of immutable values, each under a key.
///
/// An application that is written against this trait runs with a [`Client`](crate::Client) of the
/// cluster, with a client that another process serves (`mc_standalone::DummyClient`), and, in its
/// tests, with a [`MemoryStore`]. [`blocking::Store`](crate::blocking::Store) is its form for
/// threads without an async runtime. The feature `conformance` has the suite that an
/// implementation must pass.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mc_store::StoreError> {
/// use mc_store::{MemoryStore, ObjectStore, PutOutcome};
///
/// async fn compute_once(store: &dyn ObjectStore) -> Result<(), mc_store::StoreError> {
///     if !store.exist("prompt-17/block-0").await? {
///         store.put("prompt-17/block-0", "keys and values".into()).await?;
///     }
///     Ok(())
/// }
///
/// let store = MemoryStore::new();
/// compute_once(&store).await?;
/// assert_eq!(store.get("prompt-17/block-0").await?, "keys and values");
/// assert_eq!(store.put("prompt-17/block-0", "others".into()).await?, PutOutcome::Existing);
/// # Ok(()) }
/// ```
///
/// # Batches
/// A batch costs about as much as one call. Its outcomes are in the order of its requests, and a
/// request that fails hinders no other.
///
/// # Memory
/// Calls that name [`Memory`] move bytes straight from there or into it. Some stores reach only
/// memory that they know: that of [`allocate`](Self::allocate), and what was given to
/// [`register`](Self::register).
///
/// # Leases
/// In a cluster an object that was read, or found by [`exist`](Self::exist) or
/// [`stat`](Self::stat), is kept for the length of a lease, and is removed in that time by force
/// only. A [`MemoryStore`] has no leases.
///
/// # Cancellation
/// Dropping a future abandons the call. A put that has not been made readable yet stores nothing, and
/// what it reads from its memory later is not stored; a removal may be carried out all the same. A read
/// leaves its memory alone from then on; exceptions are named by the store.
#[async_trait]
pub trait ObjectStore: Send + Sync {
    /// Stores one object: a key that has a value keeps it or gets the new one, as `mode` says.
    /// Of several upserts of a key at the same time the one that began last wins, and the others
    /// may fail.
    ///
    /// # Errors
    /// [`StoreError`]; a new object is not readable then, unless the answer was lost. An old value
    /// is still there, unless there was no room for both and the new one was to be written in its
    /// place.
    async fn store(
        &self,
        put: Put<'_>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Result<PutOutcome, StoreError> {
        only(self.batch_store(vec![put], config, mode).await)
    }

    /// [`store`](Self::store) of many objects. Of a key that comes twice one value is stored; in
    /// [`PutMode::Upsert`] the last one.
    async fn batch_store(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Vec<Result<PutOutcome, StoreError>>;

    /// Stores `value` under `key`, in one replica. A key that has a value keeps it.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    async fn put(&self, key: &str, value: Bytes) -> Result<PutOutcome, StoreError> {
        self.put_with(key, value, &ReplicateConfig::default()).await
    }

    /// [`put`](Self::put) as `config` says.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    async fn put_with(
        &self,
        key: &str,
        value: Bytes,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, StoreError> {
        self.store(Put::new(key, value), config, PutMode::Put).await
    }

    /// [`put_with`](Self::put_with) of the bytes of `source`, sent straight from there. What is stored
    /// are the bytes of the call; changing them before it ends makes it fail.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    async fn put_from(
        &self,
        key: &str,
        source: &MemorySlice,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, StoreError> {
        self.store(Put::new(key, source.clone()), config, PutMode::Put).await
    }

    /// [`put_with`](Self::put_with) of `parts`, one after the other. Each is a slice of the object
    /// with a checksum of its own; parts without bytes are left out.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    async fn put_parts(
        &self,
        key: &str,
        parts: Vec<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, StoreError> {
        let slices = parts.into_iter().map(Source::from).collect();
        self.store(Put::of_slices(key, slices), config, PutMode::Put).await
    }

    /// Stores `value` under `key`, in one replica, whether the key has a value or not. A reader
    /// gets the old value or the new one.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    async fn upsert(&self, key: &str, value: Bytes) -> Result<(), StoreError> {
        self.upsert_with(key, value, &ReplicateConfig::default()).await
    }

    /// [`upsert`](Self::upsert) as `config` says.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    async fn upsert_with(
        &self,
        key: &str,
        value: Bytes,
        config: &ReplicateConfig,
    ) -> Result<(), StoreError> {
        self.store(Put::new(key, value), config, PutMode::Upsert).await.map(drop)
    }

    /// Returns the value of `key`, whole.
    ///
    /// # Errors
    /// [`StoreError`]; [`NotFound`](StoreError::NotFound) when there is no such object.
    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        only(self.batch_get(&[key]).await)
    }

    /// [`get`](Self::get) of many keys. A key that is named twice has one value.
    async fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, StoreError>>;

    /// [`get`](Self::get) as [`batch_get_made`](Self::batch_get_made) reads.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    async fn get_made(&self, key: &str, make: &MakeMemory<'_>) -> Result<Bytes, StoreError> {
        let _ = make;
        self.get(key).await
    }

    /// [`batch_get`](Self::batch_get) into memory that `make` makes when the length of a value is known, for
    /// callers whose values have to be in objects of their own: they are spared a copy. A value
    /// has other memory where `make` makes none of its length, and where its bytes are at hand already, in a
    /// cache for instance. The caller knows it by its address.
    async fn batch_get_made(
        &self,
        keys: &[&str],
        make: &MakeMemory<'_>,
    ) -> Vec<Result<Bytes, StoreError>> {
        let _ = make;
        self.batch_get(keys).await
    }

    /// Returns the value of `key`, whole, and removes it: of several callers, one gets the value and
    /// the others [`NotFound`](StoreError::NotFound). The value is removed when it has been read
    /// and found to be whole, also while others may be reading it, and its memory is free as soon
    /// as no client reads it. A caller that fails before leaves it to the others.
    ///
    /// It is given out at most once: when the removal was asked for and its answer was lost, the call
    /// fails, and the value may be gone.
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`remove_generation`](Self::remove_generation).
    async fn get_and_remove(&self, key: &str) -> Result<Bytes, StoreError> {
        only(self.batch_get_and_remove(&[key]).await)
    }

    /// [`get_and_remove`](Self::get_and_remove) of many keys. Of a key that is named twice one place
    /// has the value.
    async fn batch_get_and_remove(&self, keys: &[&str]) -> Vec<Result<Bytes, StoreError>> {
        let mut values = Vec::with_capacity(keys.len());
        for key in keys {
            values.push(take(self, key).await);
        }
        values
    }

    /// [`batch_get`](Self::batch_get) of values that have at most the number of bytes beside the key,
    /// for callers that have room for no more. A longer value is not read.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`BufferTooSmall`](StoreError::BufferTooSmall) for a longer value.
    async fn batch_get_at_most(&self, gets: &[(&str, u64)]) -> Vec<Result<Bytes, StoreError>> {
        let keys: Vec<&str> = gets.iter().map(|(key, _)| *key).collect();
        let stats = match self.batch_stat(&keys).await {
            Ok(stats) => stats,
            Err(error) => return gets.iter().map(|_| Err(error.clone())).collect(),
        };
        let fits = |(stat, &(_, given)): (Result<Stat, StoreError>, &(&str, u64))| match stat?.len {
            needed if needed > given => Err(StoreError::BufferTooSmall { needed, given }),
            _ => Ok(()),
        };
        let fit: Vec<Result<(), StoreError>> = stats.into_iter().zip(gets).map(fits).collect();
        let read: Vec<&str> =
            keys.iter().zip(&fit).filter(|(_, fit)| fit.is_ok()).map(|(key, _)| *key).collect();
        let mut values = self.batch_get(&read).await.into_iter().zip(read);
        let value = |(fit, &(_, given)): (Result<(), StoreError>, &(&str, u64))| {
            fit?;
            let (value, _) = values.next().expect("one value for each key");
            match value? {
                // Replaced meanwhile.
                value if value.len() as u64 > given => {
                    Err(StoreError::BufferTooSmall { needed: value.len() as u64, given })
                }
                value => Ok(value),
            }
        };
        fit.into_iter().zip(gets).map(value).collect()
    }

    /// Returns the bytes `range` of `key`'s value, fewer when the value ends before. With a
    /// `generation`, as [`stat`](Self::stat) tells it, only of that put: ranges that several calls
    /// read are of one value then.
    ///
    /// # Errors
    /// As [`get`](Self::get); the code is `InvalidParams` when the range begins behind the value's
    /// end or ends before it begins, and [`Replaced`](StoreError::Replaced) says that the key has
    /// the value of another put now.
    async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        generation: Option<Generation>,
    ) -> Result<Bytes, StoreError>;

    /// Reads the value of `key` straight into `target` and returns its length. The rest of
    /// `target` is untouched.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`BufferTooSmall`](StoreError::BufferTooSmall); the content of
    /// `target` is then undefined.
    async fn get_into(&self, key: &str, target: &MemorySlice) -> Result<u64, StoreError> {
        only(self.batch_get_into(vec![GetInto::new(key, target.clone())]).await)
    }

    /// Fills `target` with the bytes of `key`'s value from `offset` on and returns how many there
    /// are: fewer than `target` has, when the value ends before.
    ///
    /// # Errors
    /// As [`get_range`](Self::get_range); the content of `target` is then undefined.
    async fn get_range_into(
        &self,
        key: &str,
        offset: u64,
        target: &MemorySlice,
    ) -> Result<u64, StoreError> {
        let range = offset..offset.saturating_add(target.len() as u64);
        only(self.batch_get_into(vec![GetInto::new(key, target.clone()).range(range)]).await)
    }

    /// Reads many objects, or parts of them, into memory of the caller and returns how many bytes
    /// were read of each. Targets must not overlap.
    ///
    /// All parts of one key are of one put, also when the key is replaced meanwhile. For parts
    /// that several calls read, [`GetInto::generation`] names the put.
    async fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, StoreError>>;

    /// Returns whether `key` can be read. A yes keeps the object for the length of a lease.
    ///
    /// # Errors
    /// [`StoreError`] when the key is invalid or the store cannot say.
    async fn exist(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.batch_exist(&[key]).await?[0])
    }

    /// [`exist`](Self::exist) of many keys.
    ///
    /// # Errors
    /// [`StoreError`] when one of the keys is invalid or the store cannot say.
    async fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, StoreError>;

    /// Returns whether `key` can be read. Keeps nothing: the object has no lease, and the question
    /// does not count as a use of it, so that it may be evicted or removed before it is read.
    ///
    /// # Errors
    /// As [`exist`](Self::exist).
    async fn probe(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.batch_probe(&[key]).await?[0])
    }

    /// [`probe`](Self::probe) of many keys.
    ///
    /// # Errors
    /// As [`batch_exist`](Self::batch_exist).
    async fn batch_probe(&self, keys: &[&str]) -> Result<Vec<bool>, StoreError>;

    /// Returns how many of the leading keys can be read: how much of a prompt need not be
    /// computed. What is found counts as used; nothing is protected from being removed.
    ///
    /// # Errors
    /// As [`batch_exist`](Self::batch_exist).
    async fn longest_prefix(&self, keys: &[&str]) -> Result<usize, StoreError>;

    /// Returns the length of a value in bytes.
    ///
    /// # Errors
    /// As [`stat`](Self::stat).
    async fn size(&self, key: &str) -> Result<u64, StoreError> {
        Ok(self.stat(key).await?.len)
    }

    /// Returns how many bytes the object has, and which put it came from. Keeps it for the length
    /// of a lease, as [`exist`](Self::exist) does; another put may replace it all the same.
    ///
    /// # Errors
    /// [`StoreError`]; [`NotFound`](StoreError::NotFound) when there is no such object.
    async fn stat(&self, key: &str) -> Result<Stat, StoreError> {
        only(self.batch_stat(&[key]).await?)
    }

    /// [`stat`](Self::stat) of many objects.
    ///
    /// # Errors
    /// [`StoreError`] when one of the keys is invalid or the store cannot be asked; within, why
    /// nothing is known of an object.
    async fn batch_stat(&self, keys: &[&str]) -> Result<Vec<Result<Stat, StoreError>>, StoreError>;

    /// Removes an object. `force` disregards leases.
    ///
    /// # Errors
    /// [`StoreError`]; [`NotFound`](StoreError::NotFound) when there is no such object, and the
    /// code `ObjectHasLease` while a client may be reading it.
    async fn remove(&self, key: &str, force: bool) -> Result<(), StoreError> {
        only(self.batch_remove(&[key], force).await?)
    }

    /// [`remove`](Self::remove) of many objects.
    ///
    /// # Errors
    /// [`StoreError`] when one of the keys is invalid or the store cannot be asked, possibly with
    /// some of the objects removed; within, what became of each key.
    async fn batch_remove(
        &self,
        keys: &[&str],
        force: bool,
    ) -> Result<Vec<Result<(), StoreError>>, StoreError>;

    /// Removes the object that the put `generation` has stored, as [`stat`](Self::stat) tells it, and
    /// no other of its key. Disregards leases. Of several callers that name one put, one succeeds.
    ///
    /// # Errors
    /// [`StoreError`]; [`NotFound`](StoreError::NotFound) when there is no such object, and
    /// [`Replaced`](StoreError::Replaced) when the key has the object of another put.
    async fn remove_generation(&self, key: &str, generation: Generation) -> Result<(), StoreError> {
        only(self.batch_remove_generations(&[(key, generation)]).await?)
    }

    /// [`remove_generation`](Self::remove_generation) of many objects.
    ///
    /// # Errors
    /// As [`batch_remove`](Self::batch_remove).
    async fn batch_remove_generations(
        &self,
        objects: &[(&str, Generation)],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError>;

    /// Removes every object but unfinished ones and, unless forced, those under lease; returns how
    /// many.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be asked.
    async fn remove_all(&self, force: bool) -> Result<u64, StoreError>;

    /// [`remove_all`](Self::remove_all) of the objects whose keys `pattern` matches.
    ///
    /// # Errors
    /// As [`find`](Self::find); the empty pattern, which would match everything, is refused as
    /// well.
    async fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, StoreError>;

    /// Returns the keys of up to `at_most` objects that can be read and whose keys the regular
    /// expression `pattern` matches, in no order. It matches anywhere in a key unless it is
    /// anchored with `^` and `$`; [`mc_meta::Pattern`] describes it.
    ///
    /// # Errors
    /// [`StoreError`]; its code is `InvalidParams` when the pattern is malformed or would cost too
    /// much.
    async fn find(&self, pattern: &str, at_most: usize) -> Result<Vec<ObjectKey>, StoreError>;

    /// Returns memory of `len` bytes that calls can name. Its content is undefined.
    ///
    /// # Errors
    /// [`StoreError`] when there is no such room.
    fn allocate(&self, len: usize) -> Result<Memory, StoreError> {
        error::allocate(len)
    }

    /// Returns whether [`register`](Self::register) can make `memory` known to the store. Bytes of
    /// other memory are copied by the caller.
    fn can_register(&self, _memory: &Memory) -> bool {
        true
    }

    /// Makes `memory` known, so that calls can name it. Memory that is known already stays so.
    ///
    /// # Errors
    /// [`StoreError`]; the memory is not known then.
    async fn register(&self, _memory: &Memory) -> Result<(), StoreError> {
        Ok(())
    }

    /// The opposite of [`register`](Self::register). Calls that name the memory already go on to
    /// their ends.
    ///
    /// # Errors
    /// [`StoreError`] when it was not registered, for a store that has to know.
    async fn unregister(&self, _memory: &Memory) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A store whose objects have replicas in named segments, as those of a cluster.
#[async_trait]
pub trait ReplicatedStore: ObjectStore {
    /// Returns everything about one object: where it is, who put it, how long it is protected.
    /// Looking protects nothing.
    ///
    /// # Errors
    /// [`StoreError`] when there is no such object or the store cannot say.
    async fn describe(&self, key: &str) -> Result<ObjectDescription, StoreError>;

    /// [`describe`](Self::describe) of many objects.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot be asked; within, why nothing is known of an object.
    async fn batch_describe(
        &self,
        keys: &[&str],
    ) -> Result<Vec<Result<ObjectDescription, StoreError>>, StoreError> {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push(self.describe(key).await);
        }
        Ok(found)
    }

    /// Has a node that holds an object copy it to the segments named `targets`, or move the replica
    /// in the segment `source` to the segment `target`. The node works on it later;
    /// [`wait_for_task`](Self::wait_for_task) waits for the end.
    ///
    /// # Errors
    /// [`StoreError`]; its code says what is not there, or why it cannot be copied now.
    async fn transfer(
        &self,
        key: &str,
        transfer: ReplicaTransfer<'_>,
    ) -> Result<TaskId, StoreError>;

    /// Returns what has become of a task.
    ///
    /// # Errors
    /// [`StoreError`]; its code is `TaskNotFound` when there is no such task (any more).
    async fn task(&self, id: TaskId) -> Result<TaskReport, StoreError>;

    /// Asks about a task, ever less often, until it has succeeded or failed or `patience` is over,
    /// and returns what became of it: with patience that is over, its
    /// [status](TaskReport::status) is not [final](mc_meta::TaskStatus::is_final). Asks at least
    /// once.
    ///
    /// # Errors
    /// As [`task`](Self::task). A failure that may pass is tried again while patience lasts.
    async fn wait_for_task(
        &self,
        id: TaskId,
        patience: Duration,
    ) -> Result<TaskReport, StoreError> {
        wait_until_final(patience, StoreError::is_retryable, || self.task(id)).await
    }
}

/// How a replica gets to another segment; see [`ReplicatedStore::transfer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaTransfer<'a> {
    /// There are more replicas afterwards.
    Copy {
        /// Names of segments, between 1 and [`MAX_REPLICAS`](mc_meta::MAX_REPLICAS).
        targets: &'a [&'a str],
    },
    /// There are as many as before.
    Move {
        /// The name of the segment that has the replica.
        source: &'a str,
        /// The name of the segment that gets it.
        target: &'a str,
    },
}

/// How often [`take`] reads again what another put has replaced before it was removed.
const ATTEMPTS: u32 = 3;

/// Reads a value and removes what was read.
async fn take<S: ObjectStore + ?Sized>(store: &S, key: &str) -> Result<Bytes, StoreError> {
    for _ in 0..ATTEMPTS {
        let Stat { len, generation } = store.stat(key).await?;
        let value = match store.get_range(key, 0..len, Some(generation)).await {
            Err(StoreError::Replaced) => continue,
            value => value?,
        };
        match store.remove_generation(key, generation).await {
            Err(StoreError::Replaced) => {}
            removed => return removed.map(|()| value),
        }
    }
    Err(StoreError::Replaced)
}

/// The outcome of a batch of one request.
fn only<T>(outcomes: Vec<Result<T, StoreError>>) -> Result<T, StoreError> {
    outcomes.into_iter().next().expect("one outcome for each request")
}
