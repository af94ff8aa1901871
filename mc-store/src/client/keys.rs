//! Calls about keys, which move no bytes.

use mc_rpc::{ClusterReport, ObjectDescription, Refusal};
use mc_types::{KeyError, KeyRef};

use super::{Client, ClientOperation};
use crate::error::CallError;

impl Client {
    /// Whether `key` can be read. A yes keeps the object from being taken away
    /// for the length of a lease.
    ///
    /// # Errors
    /// [`CallError`] when the key is not one or the master cannot be asked.
    pub async fn exist(&self, key: &str) -> Result<bool, CallError> {
        let timed = self.core.metrics.start(ClientOperation::Exist);
        timed.answered(async { Ok(self.core.master.exist(KeyRef::new(key)?).await?) }.await)
    }

    /// Whether each key can be read, as [`exist`](Self::exist) says; in the order
    /// of the keys.
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be
    /// asked.
    pub async fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, CallError> {
        let timed = self.core.metrics.start(ClientOperation::BatchExist);
        let outcome = async {
            let answers = self.core.master.batch_exist(&checked(keys)?).await?;
            let unrefused = answers.into_iter().collect::<Result<Vec<bool>, Refusal>>();
            Ok(unrefused.map_err(mc_rpc::RpcError::Refused)?)
        };
        timed.answered_all(keys.len(), outcome.await)
    }

    /// How many of the leading keys can be read: how much of a prompt need not be
    /// computed. Protects nothing from being taken away.
    ///
    /// # Errors
    /// As [`batch_exist`](Self::batch_exist).
    pub async fn longest_prefix(&self, keys: &[&str]) -> Result<usize, CallError> {
        let timed = self.core.metrics.start(ClientOperation::LongestPrefix);
        let outcome = async { Ok(self.core.master.longest_prefix(&checked(keys)?).await?) };
        timed.answered_all(keys.len(), outcome.await)
    }

    /// Removes an object. `force` disregards that somebody may be reading it.
    ///
    /// # Errors
    /// [`CallError`]; its code tells a missing object from a leased one.
    pub async fn remove(&self, key: &str, force: bool) -> Result<(), CallError> {
        let timed = self.core.metrics.start(ClientOperation::Remove);
        timed.answered(async { Ok(self.core.master.remove(KeyRef::new(key)?, force).await?) }.await)
    }

    /// Removes many objects, each on its own; in the order of the keys.
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be
    /// asked; within, what became of each key.
    pub async fn batch_remove(
        &self,
        keys: &[&str],
        force: bool,
    ) -> Result<Vec<Result<(), Refusal>>, CallError> {
        let timed = self.core.metrics.start(ClientOperation::BatchRemove);
        let outcome: Result<Vec<_>, CallError> =
            async { Ok(self.core.master.batch_remove(&checked(keys)?, force).await?) }.await;
        match &outcome {
            Ok(keys) => timed.ended(keys.iter().map(|key| match key {
                Ok(()) => Ok(0),
                Err(refusal) => Err(refusal.code),
            })),
            Err(error) => timed.ended(keys.iter().map(|_| Err(error.code()))),
        }
        outcome
    }

    /// Removes every object but unfinished ones and, unless forced, those that
    /// somebody may be reading; says how many.
    ///
    /// # Errors
    /// [`CallError`] when the master cannot be asked.
    pub async fn remove_all(&self, force: bool) -> Result<u64, CallError> {
        let timed = self.core.metrics.start(ClientOperation::RemoveAll);
        timed.answered(async { Ok(self.core.master.remove_all(force).await?) }.await)
    }

    /// Everything about one object: where it is, who put it, how long it is
    /// protected. Looking protects nothing.
    ///
    /// # Errors
    /// [`CallError`] when there is no such object or the master cannot be asked.
    pub async fn describe(&self, key: &str) -> Result<ObjectDescription, CallError> {
        Ok(self.core.master.describe(KeyRef::new(key)?).await?)
    }

    /// The cluster's totals and segments.
    ///
    /// # Errors
    /// [`CallError`] when the master cannot be asked.
    pub async fn cluster_report(&self) -> Result<ClusterReport, CallError> {
        Ok(self.core.master.cluster_report().await?)
    }
}

fn checked<'a>(keys: &[&'a str]) -> Result<Vec<KeyRef<'a>>, KeyError> {
    keys.iter().map(|key| KeyRef::new(key)).collect()
}
