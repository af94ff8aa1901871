//! Upserts: objects that replace what their keys have.

use std::collections::HashSet;

use bytes::Bytes;
use mc_meta::ReplicateConfig;
use mc_transport::MemorySlice;

use super::store::Mode;
use super::{Client, ClientOperation, Put};
use crate::error::PutError;

impl Client {
    /// Stores `value` under `key`, whether the key has a value or not. The old value can
    /// be read until the new one takes its place; a reader gets either of them whole.
    ///
    /// Only when there is no room for both, and nobody is reading the old value, is the
    /// new one written in its place: the key cannot be read then until that is done. Of
    /// several upserts of a key at the same time the one that began last wins, and the
    /// others fail.
    ///
    /// ```
    /// # mc_store::doctest::with_client(|client| async move {
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

    /// Stores `value` under `key` as `config` says, whether the key has a value or not.
    ///
    /// ```
    /// # mc_store::doctest::with_client(|client| async move {
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
        self.upsert_one(Put::new(key, value.into()), config).await
    }

    /// Stores the bytes of `source` under `key`, sent straight from there, whether the key
    /// has a value or not. Whoever changes them during the call makes readers see a
    /// checksum that does not match.
    ///
    /// ```
    /// # mc_store::doctest::with_client(|client| async move {
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
        self.upsert_one(Put::new(key, source.clone()), config).await
    }

    async fn upsert_one(&self, put: Put<'_>, config: &ReplicateConfig) -> Result<(), PutError> {
        let outcomes = self.store(vec![put], config, Mode::Upsert, ClientOperation::Upsert).await;
        outcomes.into_iter().next().expect("one outcome for each upsert").map(|_| ())
    }

    /// Stores many objects, each on its own, whether their keys have values or not. The
    /// outcomes are in the order of the upserts. Of a key that comes twice the last value
    /// is stored, and its outcome is that of all.
    ///
    /// ```
    /// # mc_store::doctest::with_client(|client| async move {
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
    pub async fn batch_upsert(
        &self,
        upserts: Vec<Put<'_>>,
        config: &ReplicateConfig,
    ) -> Vec<Result<(), PutError>> {
        let keys: Vec<&str> = upserts.iter().map(|put| put.key).collect();
        let mut upserts: Vec<Option<Put<'_>>> = upserts.into_iter().map(Some).collect();
        // A value that another of the same batch replaces is not sent at all.
        let mut last = HashSet::with_capacity(keys.len());
        for at in (0..keys.len()).rev() {
            if !last.insert(keys[at]) {
                upserts[at] = None;
            }
        }
        let mut sent = Vec::with_capacity(last.len());
        let mut puts = Vec::with_capacity(last.len());
        for (key, put) in keys.iter().zip(upserts) {
            if let Some(put) = put {
                sent.push(*key);
                puts.push(put);
            }
        }
        let operation = ClientOperation::BatchUpsert;
        let outcomes = self.store(puts, config, Mode::Upsert, operation).await;
        let plain = outcomes.into_iter().map(|outcome| outcome.map(|_| ()));
        if sent.len() == keys.len() {
            return plain.collect();
        }
        let by_key: std::collections::HashMap<&str, Result<(), PutError>> =
            sent.into_iter().zip(plain).collect();
        keys.iter().map(|key| by_key[key].clone()).collect()
    }
}
