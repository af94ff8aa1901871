//! Puts and upserts: objects under keys that have none yet, or whatever their keys have.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use mc_meta::ReplicateConfig;
use mc_transport::{Digest, MemorySlice, Source};
use mc_types::{BoxFuture, Checksum, InfoTooLong, StoreEventInfo};

use super::{Client, ClientOperation};
use crate::error::PutError;

/// The treatment of a value that a key has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutMode {
    /// The existing value is kept; nothing is stored.
    Put,
    /// The existing value is replaced.
    Upsert,
}

/// The outcome of a put that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is stored and readable.
    Stored,
    /// An object with this key was there already. Nothing was changed: a key
    /// names one value.
    Existing,
    /// Another client is storing this key at this moment. It is not readable yet.
    Pending,
}

/// One object to put: its slices follow each other, and each has a checksum of
/// its own.
#[derive(Clone, Debug)]
pub struct Put<'a> {
    /// The object's key.
    pub key: &'a str,
    /// Its bytes, sent from where they are, without a copy. Of memory, the bytes are stored that it has
    /// when the put begins: its future's first poll takes their checksums. When they change before it
    /// has ended it fails with [`PutError::MemoryChanged`]. Not so of objects beyond 64 GiB: summing
    /// them takes too long.
    pub slices: Vec<Source>,
    /// The checksums of the slices at an earlier moment whose bytes are to be stored, one for each;
    /// `None` for bytes that do not change. Taken when the put begins, unless they are here.
    pub checksums: Option<Vec<Option<Checksum>>>,
    /// Goes into the event that reports the object as stored.
    pub event_info: Option<Arc<StoreEventInfo>>,
}

impl<'a> Put<'a> {
    /// An object of one slice.
    pub fn new(key: &'a str, value: impl Into<Source>) -> Self {
        Self::of_slices(key, vec![value.into()])
    }

    /// An object of several slices.
    pub fn of_slices(key: &'a str, slices: Vec<Source>) -> Self {
        Self { key, slices, checksums: None, event_info: None }
    }

    /// Describes the object to the subscribers of events. Puts of several keys may share one
    /// description.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use bytes::Bytes;
    /// use mc_store::{Put, ReplicateConfig, StoreEventInfo};
    /// let mut info = StoreEventInfo::default();
    /// info.model_name = "llama".into();
    /// info.block_size = 2;
    /// info.token_ids = vec![15_496, 995];
    /// let put = Put::new("block", Bytes::from("keys and values")).with_event_info(info);
    /// client.batch_put(vec![put], &ReplicateConfig::default()).await.remove(0)?;
    /// # Ok(()) });
    /// ```
    #[must_use]
    pub fn with_event_info(mut self, info: impl Into<Arc<StoreEventInfo>>) -> Self {
        self.event_info = Some(info.into());
        self
    }

    /// Takes the checksums of the slices that can change: their bytes are to be stored as they are
    /// now, also when the put begins later.
    #[must_use]
    pub fn of_this_moment(mut self) -> Self {
        self.checksums = Some(checksums_of(&self.slices));
        self
    }

    /// Checks the lengths of the event info.
    pub(crate) fn check_info(&self) -> Result<(), InfoTooLong> {
        self.event_info.as_ref().map_or(Ok(()), |info| info.check())
    }
}

/// The longest object that is summed at the call. One that is longer takes many seconds to sum, and
/// mostly fits nowhere, which only the master knows.
const LONGEST_SUMMED: u64 = 64 << 30;

/// The checksums of the slices that can change; empty when there are none of these, none of an object that is
/// too long for that.
pub(super) fn checksums_of(slices: &[Source]) -> Vec<Option<Checksum>> {
    if !slices.iter().any(|slice| matches!(slice, Source::Memory(_))) {
        return Vec::new();
    }
    let len: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
    let sum = |slice: &Source| match slice {
        Source::Memory(memory) if len <= LONGEST_SUMMED => {
            let mut digest = Digest::new();
            digest.update_memory(memory);
            Some(digest.finish())
        }
        _ => None,
    };
    slices.iter().map(sum).collect()
}

impl Client {
    /// As [`ObjectStore::put`](crate::ObjectStore::put).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::PutOutcome;
    /// assert_eq!(client.put("block", "keys and values").await?, PutOutcome::Stored);
    /// assert_eq!(client.put("block", "others").await?, PutOutcome::Existing);
    /// assert_eq!(client.get("block").await?, "keys and values");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`PutError`]; the object is not readable then.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>) -> Result<PutOutcome, PutError> {
        let put = Put::new(key, value.into());
        self.store_one(put, &ReplicateConfig::default(), PutMode::Put).await
    }

    /// As [`ObjectStore::put_with`](crate::ObjectStore::put_with).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::ReplicateConfig;
    /// let config = ReplicateConfig::default().prefer("node").soft_pin();
    /// client.put_with("system prompt", "used all the time", &config).await?;
    /// assert!(client.describe("system prompt").await?.soft_pinned);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_with(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, PutError> {
        self.store_one(Put::new(key, value.into()), config, PutMode::Put).await
    }

    /// As [`ObjectStore::put_from`](crate::ObjectStore::put_from).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::{Memory, ReplicateConfig};
    /// let memory = Memory::allocate(4096)?;
    /// memory.whole().copy_from(0, b"keys and values")?;
    /// let block = memory.slice(0, 15).ok_or("too long")?;
    /// client.put_from("block", &block, &ReplicateConfig::default()).await?;
    /// assert_eq!(client.get("block").await?, "keys and values");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_from(
        &self,
        key: &str,
        source: &MemorySlice,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, PutError> {
        self.store_one(Put::new(key, source.clone()), config, PutMode::Put).await
    }

    /// As [`ObjectStore::put_parts`](crate::ObjectStore::put_parts).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use bytes::Bytes;
    /// use mc_store::ReplicateConfig;
    /// let parts = vec![Bytes::from_static(b"key "), Bytes::from_static(b"value")];
    /// client.put_parts("block", parts, &ReplicateConfig::default()).await?;
    /// assert_eq!(&client.get("block").await?[..], b"key value");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_parts(
        &self,
        key: &str,
        parts: Vec<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, PutError> {
        let slices = parts.into_iter().map(Source::from).collect();
        self.store_one(Put::of_slices(key, slices), config, PutMode::Put).await
    }

    /// [`ObjectStore::batch_store`](crate::ObjectStore::batch_store) in [`PutMode::Put`].
    ///
    /// An object waits a bounded time for room ([`put_wait`](super::ClientBuilder::put_wait)) when
    /// all that could make room is being read. When a peer cannot be written to, the object is
    /// placed anew.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use bytes::Bytes;
    /// use mc_store::{Put, PutOutcome, ReplicateConfig};
    /// let puts = vec![Put::new("a", Bytes::from("1")), Put::new("b", Bytes::from("2"))];
    /// for outcome in client.batch_put(puts, &ReplicateConfig::default()).await {
    ///     assert_eq!(outcome?, PutOutcome::Stored);
    /// }
    /// # Ok(()) });
    /// ```
    pub async fn batch_put(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
    ) -> Vec<Result<PutOutcome, PutError>> {
        self.store_many(puts, config, PutMode::Put).await
    }

    /// As [`ObjectStore::upsert`](crate::ObjectStore::upsert).
    ///
    /// Only when there is no room for both values, and no client is reading the old one, is the new
    /// one written in its place: the key cannot be read then until that is done.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.upsert("state", "one").await?;
    /// client.upsert("state", "two").await?;
    /// assert_eq!(&client.get("state").await?[..], b"two");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`PutError`]; the old value is still there then, unless the new one was to be
    /// written in its place.
    pub async fn upsert(&self, key: &str, value: impl Into<Bytes>) -> Result<(), PutError> {
        self.upsert_with(key, value, &ReplicateConfig::default()).await
    }

    /// As [`ObjectStore::upsert_with`](crate::ObjectStore::upsert_with).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::ReplicateConfig;
    /// let config = ReplicateConfig::default().replicas(2);
    /// client.upsert_with("state", "one", &config).await?;
    /// client.upsert_with("state", "two", &config).await?;
    /// assert_eq!(client.get("state").await?, "two");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert).
    pub async fn upsert_with(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        config: &ReplicateConfig,
    ) -> Result<(), PutError> {
        self.store_one(Put::new(key, value.into()), config, PutMode::Upsert).await.map(drop)
    }

    /// [`upsert_with`](Self::upsert_with) of the bytes of `source`, which are sent as
    /// [`put_from`](Self::put_from) sends them.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::{Memory, ReplicateConfig};
    /// let memory = Memory::allocate(5)?;
    /// memory.whole().copy_from(0, b"state")?;
    /// client.upsert_from("key", &memory.whole(), &ReplicateConfig::default()).await?;
    /// assert_eq!(client.get("key").await?, "state");
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert).
    pub async fn upsert_from(
        &self,
        key: &str,
        source: &MemorySlice,
        config: &ReplicateConfig,
    ) -> Result<(), PutError> {
        self.store_one(Put::new(key, source.clone()), config, PutMode::Upsert).await.map(drop)
    }

    /// [`ObjectStore::batch_store`](crate::ObjectStore::batch_store) in [`PutMode::Upsert`]. Of a
    /// key that comes twice, the outcome of the last value is that of all.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use bytes::Bytes;
    /// use mc_store::{Put, ReplicateConfig};
    /// let block = |key, text: &'static str| Put::new(key, Bytes::from(text));
    /// let upserts = vec![block("a", "1"), block("b", "2"), block("a", "3")];
    /// for outcome in client.batch_upsert(upserts, &ReplicateConfig::default()).await {
    ///     outcome?;
    /// }
    /// assert_eq!(&client.get("a").await?[..], b"3");
    /// # Ok(()) });
    /// ```
    pub fn batch_upsert<'a>(
        &'a self,
        upserts: Vec<Put<'a>>,
        config: &'a ReplicateConfig,
    ) -> BoxFuture<'a, Vec<Result<(), PutError>>> {
        Box::pin(async move {
            let outcomes = self.store_many(upserts, config, PutMode::Upsert).await;
            outcomes.into_iter().map(|outcome| outcome.map(drop)).collect()
        })
    }

    pub(crate) async fn store_one(
        &self,
        put: Put<'_>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Result<PutOutcome, PutError> {
        let operation = match mode {
            PutMode::Put => ClientOperation::Put,
            PutMode::Upsert => ClientOperation::Upsert,
        };
        let outcomes = self.store(vec![put], config, mode, operation).await;
        outcomes.into_iter().next().expect("one outcome for each put")
    }

    pub(crate) async fn store_many(
        &self,
        mut puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Vec<Result<PutOutcome, PutError>> {
        if mode == PutMode::Put {
            return self.store(puts, config, mode, ClientOperation::BatchPut).await;
        }
        // A value that another of the same batch replaces is not sent at all.
        let keys: Vec<&str> = puts.iter().map(|put| put.key).collect();
        let last: HashMap<&str, usize> = keys.iter().copied().zip(0..).collect();
        let mut at = 0..;
        puts.retain(|put| at.next() == last.get(put.key).copied());
        let sent: Vec<&str> = puts.iter().map(|put| put.key).collect();
        let outcomes = self.store(puts, config, mode, ClientOperation::BatchUpsert).await;
        if sent.len() == keys.len() {
            return outcomes;
        }
        let by_key: HashMap<&str, _> = sent.into_iter().zip(outcomes).collect();
        keys.iter().map(|key| by_key[key].clone()).collect()
    }
}
