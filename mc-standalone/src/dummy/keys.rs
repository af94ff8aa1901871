//! Calls about keys, which move no bytes.

use std::borrow::Cow;

use mc_store::Stat;
use mc_types::{Generation, KeyRef, ObjectKey};
use tokio::time::Instant;

use super::DummyClient;
use super::shared::Shared;
use crate::error::DummyError;
use crate::wire::{Call, Keys, MAX_OBJECTS, Reply};

impl DummyClient {
    /// As [`ObjectStore::exist`](mc_store::ObjectStore::exist).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn exist(&self, key: &str) -> Result<bool, DummyError> {
        Ok(self.batch_exist(&[key]).await?[0])
    }

    /// As [`ObjectStore::batch_exist`](mc_store::ObjectStore::batch_exist).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, DummyError> {
        check(keys)?;
        let mut flags = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_OBJECTS) {
            match self.ask(&Call::Exist(Keys::borrowed(keys))).await? {
                Reply::Flags(answers) if answers.len() == keys.len() => flags.extend(answers),
                _ => return Err(self.core.shared.wrong_answer()),
            }
        }
        Ok(flags)
    }

    /// As [`ObjectStore::longest_prefix`](mc_store::ObjectStore::longest_prefix).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn longest_prefix(&self, keys: &[&str]) -> Result<usize, DummyError> {
        check(keys)?;
        let mut found = 0;
        for keys in keys.chunks(MAX_OBJECTS) {
            let count = self.count(&Call::LongestPrefix(Keys::borrowed(keys))).await?;
            found += usize::try_from(count).unwrap_or(usize::MAX).min(keys.len());
            if count < keys.len() as u64 {
                break;
            }
        }
        Ok(found)
    }

    /// As [`ObjectStore::remove`](mc_store::ObjectStore::remove).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn remove(&self, key: &str, force: bool) -> Result<(), DummyError> {
        let mut outcomes = self.batch_remove(&[key], force).await?;
        outcomes.pop().expect("one outcome for each key")
    }

    /// As [`ObjectStore::batch_remove`](mc_store::ObjectStore::batch_remove).
    ///
    /// # Errors
    /// [`DummyError`]; within, what became of each key.
    pub async fn batch_remove(
        &self,
        keys: &[&str],
        force: bool,
    ) -> Result<Vec<Result<(), DummyError>>, DummyError> {
        check(keys)?;
        let mut outcomes = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_OBJECTS) {
            match self.ask(&Call::Remove { keys: Keys::borrowed(keys), force }).await? {
                Reply::Each(answers) if answers.len() == keys.len() => {
                    outcomes.extend(answers.into_iter().map(|answer| Ok(answer?)));
                }
                _ => return Err(self.core.shared.wrong_answer()),
            }
        }
        Ok(outcomes)
    }

    /// As [`ObjectStore::remove_all`](mc_store::ObjectStore::remove_all).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn remove_all(&self, force: bool) -> Result<u64, DummyError> {
        self.count(&Call::RemoveAll { force }).await
    }

    /// As [`ObjectStore::size`](mc_store::ObjectStore::size).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn size(&self, key: &str) -> Result<u64, DummyError> {
        Ok(self.stat(key).await?.len)
    }

    /// [`size`](Self::size) of many values, each on its own; in the order of the keys.
    ///
    /// # Errors
    /// [`DummyError`]; within, what became of each key.
    pub async fn batch_size(
        &self,
        keys: &[&str],
    ) -> Result<Vec<Result<u64, DummyError>>, DummyError> {
        let stats = self.batch_stat(keys).await?.into_iter();
        Ok(stats.map(|stat| stat.map(|stat| stat.len)).collect())
    }

    /// As [`ObjectStore::stat`](mc_store::ObjectStore::stat).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn stat(&self, key: &str) -> Result<Stat, DummyError> {
        self.batch_stat(&[key]).await?.pop().expect("one answer for each key")
    }

    /// As [`ObjectStore::batch_stat`](mc_store::ObjectStore::batch_stat).
    ///
    /// # Errors
    /// [`DummyError`]; within, what became of each key.
    pub async fn batch_stat(
        &self,
        keys: &[&str],
    ) -> Result<Vec<Result<Stat, DummyError>>, DummyError> {
        let shared = &self.core.shared;
        shared.stat(keys, shared.deadline()).await
    }

    /// As [`ObjectStore::find`](mc_store::ObjectStore::find).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn find(&self, pattern: &str, at_most: usize) -> Result<Vec<ObjectKey>, DummyError> {
        let mut found = Vec::new();
        let mut from = Some(0);
        while let Some(cursor) = from
            && found.len() < at_most
        {
            let limit = MAX_OBJECTS.min(at_most - found.len()) as u32; // at most MAX_OBJECTS
            let call = Call::Find { pattern: Cow::Borrowed(pattern), cursor, limit };
            let Reply::Keys { keys, next } = self.ask(&call).await? else {
                return Err(self.core.shared.wrong_answer());
            };
            for key in keys {
                found.push(ObjectKey::new(key)?);
            }
            from = next;
        }
        Ok(found)
    }

    /// As [`ObjectStore::remove_by_regex`](mc_store::ObjectStore::remove_by_regex).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, DummyError> {
        let pattern = Cow::Borrowed(pattern);
        self.count(&Call::RemoveByRegex { pattern, force }).await
    }

    async fn count(&self, call: &Call<'_>) -> Result<u64, DummyError> {
        match self.ask(call).await? {
            Reply::Count(count) => Ok(count),
            _ => Err(self.core.shared.wrong_answer()),
        }
    }

    /// Makes a call that names no memory.
    pub(super) async fn ask(&self, call: &Call<'_>) -> Result<Reply, DummyError> {
        let shared = &self.core.shared;
        shared.call(call, Vec::new(), shared.deadline()).await
    }
}

impl Shared {
    pub(super) async fn stat(
        &self,
        keys: &[&str],
        deadline: Instant,
    ) -> Result<Vec<Result<Stat, DummyError>>, DummyError> {
        check(keys)?;
        let stat = |(len, number)| Stat::new(len, Generation::new(number));
        let mut stats = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_OBJECTS) {
            let call = Call::Stat(Keys::borrowed(keys));
            match self.call(&call, Vec::new(), deadline).await? {
                Reply::Stats(answers) if answers.len() == keys.len() => {
                    stats.extend(answers.into_iter().map(|answer| Ok(answer.map(stat)?)));
                }
                _ => return Err(self.wrong_answer()),
            }
        }
        Ok(stats)
    }
}

pub(super) fn check(keys: &[&str]) -> Result<(), DummyError> {
    for key in keys {
        KeyRef::new(key)?;
    }
    Ok(())
}
