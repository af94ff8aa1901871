//! The thin client as an [`ObjectStore`]. Calls about keys move no bytes; those that do are in
//! `put.rs` and `get.rs`.

use std::borrow::Cow;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use mc_store::{GetInto, ObjectStore, Put, PutMode, PutOutcome, ReplicateConfig, Stat, StoreError};
use mc_transport::Memory;
use mc_types::{Generation, KeyError, KeyRef, ObjectKey};
use tokio::time::Instant;

use super::DummyClient;
use super::shared::Shared;
use crate::error::DummyError;
use crate::wire::{Call, Keys, MAX_OBJECTS, Reply};

#[async_trait]
impl ObjectStore for DummyClient {
    async fn batch_store(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        self.core.shared.store_all(puts, config, mode).await
    }

    async fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, StoreError>> {
        self.core.shared.read_whole(keys).await
    }

    async fn batch_get_at_most(&self, gets: &[(&str, u64)]) -> Vec<Result<Bytes, StoreError>> {
        self.core.shared.read_at_most(gets).await
    }

    async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        generation: Option<Generation>,
    ) -> Result<Bytes, StoreError> {
        self.core.shared.read_range(key, generation, range).await
    }

    async fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, StoreError>> {
        let shared = &self.core.shared;
        shared.read_into(&gets, shared.deadline()).await
    }

    async fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, StoreError> {
        self.flags(keys, false).await
    }

    async fn batch_probe(&self, keys: &[&str]) -> Result<Vec<bool>, StoreError> {
        self.flags(keys, true).await
    }

    async fn longest_prefix(&self, keys: &[&str]) -> Result<usize, StoreError> {
        check(keys)?;
        let asked = async {
            let mut found = 0;
            for keys in keys.chunks(MAX_OBJECTS) {
                let count = self.count(&Call::LongestPrefix(Keys::borrowed(keys))).await?;
                found += usize::try_from(count).unwrap_or(usize::MAX).min(keys.len());
                if count < keys.len() as u64 {
                    break;
                }
            }
            Ok(found)
        };
        self.core.shared.answer(asked).await
    }

    async fn batch_stat(&self, keys: &[&str]) -> Result<Vec<Result<Stat, StoreError>>, StoreError> {
        let shared = &self.core.shared;
        shared.answer(shared.stat(keys, shared.deadline())).await
    }

    async fn batch_remove(
        &self,
        keys: &[&str],
        force: bool,
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        check(keys)?;
        let mut outcomes = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_OBJECTS) {
            match self.ask(&Call::Remove { keys: Keys::borrowed(keys), force }).await? {
                Reply::Each(answers) if answers.len() == keys.len() => {
                    outcomes.extend(answers.into_iter().map(|answer| Ok(answer?)));
                }
                _ => return Err(self.core.shared.wrong_answer().into()),
            }
        }
        Ok(outcomes)
    }

    async fn batch_remove_generations(
        &self,
        objects: &[(&str, Generation)],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        let keys: Vec<&str> = objects.iter().map(|(key, _)| *key).collect();
        check(&keys)?;
        let mut outcomes = Vec::with_capacity(keys.len());
        for (keys, objects) in keys.chunks(MAX_OBJECTS).zip(objects.chunks(MAX_OBJECTS)) {
            let generations = objects.iter().map(|(_, generation)| generation.as_u64()).collect();
            let call = Call::RemoveGenerations { keys: Keys::borrowed(keys), generations };
            match self.ask(&call).await? {
                Reply::Each(answers) if answers.len() == keys.len() => {
                    outcomes.extend(answers.into_iter().map(|answer| Ok(answer?)));
                }
                _ => return Err(self.core.shared.wrong_answer().into()),
            }
        }
        Ok(outcomes)
    }

    async fn remove_all(&self, force: bool) -> Result<u64, StoreError> {
        self.count(&Call::RemoveAll { force }).await
    }

    async fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, StoreError> {
        self.count(&Call::RemoveByRegex { pattern: Cow::Borrowed(pattern), force }).await
    }

    async fn find(&self, pattern: &str, at_most: usize) -> Result<Vec<ObjectKey>, StoreError> {
        let mut found = Vec::new();
        let mut from = Some(0);
        while let Some(cursor) = from
            && found.len() < at_most
        {
            let limit = MAX_OBJECTS.min(at_most - found.len()) as u32; // at most MAX_OBJECTS
            let call = Call::Find { pattern: Cow::Borrowed(pattern), cursor, limit };
            let Reply::Keys { keys, next } = self.ask(&call).await? else {
                return Err(self.core.shared.wrong_answer().into());
            };
            for key in keys {
                found.push(ObjectKey::new(key)?);
            }
            from = next;
        }
        Ok(found)
    }

    fn allocate(&self, len: usize) -> Result<Memory, StoreError> {
        Ok(DummyClient::allocate(self, len)?)
    }

    fn can_register(&self, memory: &Memory) -> bool {
        let whole = memory.origin().map_or(memory, |part| part.memory());
        whole.shareable().is_some()
    }

    async fn register(&self, memory: &Memory) -> Result<(), StoreError> {
        Ok(DummyClient::register(self, memory).await?)
    }

    async fn unregister(&self, memory: &Memory) -> Result<(), StoreError> {
        Ok(DummyClient::unregister(self, memory).await?)
    }
}

impl DummyClient {
    /// Asks whether keys can be read; `probes` keeps nothing.
    async fn flags(&self, keys: &[&str], probes: bool) -> Result<Vec<bool>, StoreError> {
        check(keys)?;
        let asked = async {
            let mut flags = Vec::with_capacity(keys.len());
            for keys in keys.chunks(MAX_OBJECTS) {
                let named = Keys::borrowed(keys);
                let call = match probes {
                    false => Call::Exist(named),
                    true => Call::Probe(named),
                };
                match self.ask(&call).await? {
                    Reply::Flags(answers) if answers.len() == keys.len() => flags.extend(answers),
                    _ => return Err(self.core.shared.wrong_answer().into()),
                }
            }
            Ok(flags)
        };
        self.core.shared.answer(asked).await
    }

    async fn count(&self, call: &Call<'_>) -> Result<u64, StoreError> {
        match self.ask(call).await? {
            Reply::Count(count) => Ok(count),
            _ => Err(self.core.shared.wrong_answer().into()),
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
    ) -> Result<Vec<Result<Stat, StoreError>>, StoreError> {
        check(keys)?;
        let stat = |(len, number)| Stat::new(len, Generation::new(number));
        let mut stats = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MAX_OBJECTS) {
            let call = Call::Stat(Keys::borrowed(keys));
            match self.call(&call, Vec::new(), deadline).await? {
                Reply::Stats(answers) if answers.len() == keys.len() => {
                    stats.extend(answers.into_iter().map(|answer| Ok(answer.map(stat)?)));
                }
                _ => return Err(self.wrong_answer().into()),
            }
        }
        Ok(stats)
    }
}

fn check(keys: &[&str]) -> Result<(), KeyError> {
    keys.iter().try_for_each(|key| KeyRef::new(key).map(drop))
}
