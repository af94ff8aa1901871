//! Puts: objects under keys that have none yet.

use bytes::Bytes;
use mc_meta::ReplicateConfig;
use mc_transport::{MemorySlice, Source};

use super::store::Mode;
use super::{Client, ClientOperation};
use crate::error::PutError;

/// What became of a put that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is stored and readable.
    Stored,
    /// An object with this key was there already. Nothing was changed: a key
    /// names one value.
    Existing,
    /// Somebody else is storing this key at this moment. It is not readable yet.
    Pending,
}

/// One object to put: its slices follow each other, and each has a checksum of
/// its own.
#[derive(Clone, Debug)]
pub struct Put<'a> {
    /// The object's key.
    pub key: &'a str,
    /// Its bytes. They are sent from where they are, without a copy.
    pub slices: Vec<Source>,
}

impl<'a> Put<'a> {
    /// An object of one slice.
    pub fn new(key: &'a str, value: impl Into<Source>) -> Self {
        Self { key, slices: vec![value.into()] }
    }
}

impl Client {
    /// Stores `value` under `key`, in one replica. A key that is there already
    /// keeps its value.
    ///
    /// ```
    /// # mc_store::doctest::with_client(|client| async move {
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
        self.put_one(put, &ReplicateConfig::default()).await
    }

    /// Stores `value` under `key` as `config` says.
    ///
    /// ```
    /// # mc_store::doctest::with_client(|client| async move {
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
        self.put_one(Put::new(key, value.into()), config).await
    }

    /// Stores the bytes of `source` under `key`, sent straight from there.
    /// Whoever changes them during the call makes readers see a checksum that
    /// does not match.
    ///
    /// ```
    /// # mc_store::doctest::with_client(|client| async move {
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
        self.put_one(Put::new(key, source.clone()), config).await
    }

    /// Stores `parts`, one after the other, as the value of `key`. Each is a slice of the
    /// object with a checksum of its own, sent from where it is; parts without bytes are
    /// left out.
    ///
    /// ```
    /// # mc_store::doctest::with_client(|client| async move {
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
        self.put_one(Put { key, slices }, config).await
    }

    async fn put_one(
        &self,
        put: Put<'_>,
        config: &ReplicateConfig,
    ) -> Result<PutOutcome, PutError> {
        let outcomes = self.store(vec![put], config, Mode::Put, ClientOperation::Put).await;
        outcomes.into_iter().next().expect("one outcome for each put")
    }

    /// Stores many objects, each on its own: one that fails hinders no other.
    /// The outcomes are in the order of the puts.
    ///
    /// An object waits a bounded time for room
    /// ([`put_wait`](super::ClientBuilder::put_wait)) when all that could make
    /// room is being read. When a peer cannot be written to, the object is
    /// placed anew. Of a key that comes twice one value is stored.
    ///
    /// ```
    /// # mc_store::doctest::with_client(|client| async move {
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
        self.store(puts, config, Mode::Put, ClientOperation::BatchPut).await
    }
}
