//! The member of a cluster as an [`ObjectStore`].

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use mc_meta::ReplicateConfig;
use mc_rpc::{ObjectDescription, TaskReport};
use mc_transport::MemorySlice;
use mc_types::{Generation, ObjectKey, TaskId};

use super::{ObjectStore, ReplicaTransfer, ReplicatedStore, StoreError};
use crate::client::{Client, GetInto, MakeMemory, Put, PutMode, PutOutcome, Stat};

/// Calls about one object are the client's own, which count as such in its metrics.
#[async_trait]
impl ObjectStore for Client {
    async fn store(
        &self,
        put: Put<'_>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Result<PutOutcome, StoreError> {
        Ok(self.store_one(put, config, mode).await?)
    }

    async fn batch_store(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        each(self.store_many(puts, config, mode).await)
    }

    async fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        Ok(Client::get(self, key).await?)
    }

    async fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, StoreError>> {
        each(Client::batch_get(self, keys).await)
    }

    async fn get_made(&self, key: &str, make: &MakeMemory<'_>) -> Result<Bytes, StoreError> {
        Ok(Client::get_made(self, key, make).await?)
    }

    async fn batch_get_made(
        &self,
        keys: &[&str],
        make: &MakeMemory<'_>,
    ) -> Vec<Result<Bytes, StoreError>> {
        each(Client::batch_get_made(self, keys, make).await)
    }

    async fn get_and_remove(&self, key: &str) -> Result<Bytes, StoreError> {
        Ok(Client::get_and_remove(self, key).await?)
    }

    async fn batch_get_and_remove(&self, keys: &[&str]) -> Vec<Result<Bytes, StoreError>> {
        each(Client::batch_get_and_remove(self, keys).await)
    }

    async fn batch_get_at_most(&self, gets: &[(&str, u64)]) -> Vec<Result<Bytes, StoreError>> {
        each(self.get_at_most(gets).await)
    }

    async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        generation: Option<Generation>,
    ) -> Result<Bytes, StoreError> {
        Ok(self.read_range(key, range, generation).await?)
    }

    async fn get_into(&self, key: &str, target: &MemorySlice) -> Result<u64, StoreError> {
        Ok(Client::get_into(self, key, target).await?)
    }

    async fn get_range_into(
        &self,
        key: &str,
        offset: u64,
        target: &MemorySlice,
    ) -> Result<u64, StoreError> {
        Ok(Client::get_range_into(self, key, offset, target).await?)
    }

    async fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, StoreError>> {
        each(Client::batch_get_into(self, gets).await)
    }

    async fn exist(&self, key: &str) -> Result<bool, StoreError> {
        Ok(Client::exist(self, key).await?)
    }

    async fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, StoreError> {
        Ok(Client::batch_exist(self, keys).await?)
    }

    async fn probe(&self, key: &str) -> Result<bool, StoreError> {
        Ok(Client::probe(self, key).await?)
    }

    async fn batch_probe(&self, keys: &[&str]) -> Result<Vec<bool>, StoreError> {
        Ok(Client::batch_probe(self, keys).await?)
    }

    async fn longest_prefix(&self, keys: &[&str]) -> Result<usize, StoreError> {
        Ok(Client::longest_prefix(self, keys).await?)
    }

    async fn stat(&self, key: &str) -> Result<Stat, StoreError> {
        Ok(Client::stat(self, key).await?)
    }

    async fn batch_stat(&self, keys: &[&str]) -> Result<Vec<Result<Stat, StoreError>>, StoreError> {
        Ok(each(Client::batch_stat(self, keys).await?))
    }

    async fn remove(&self, key: &str, force: bool) -> Result<(), StoreError> {
        Ok(Client::remove(self, key, force).await?)
    }

    async fn batch_remove(
        &self,
        keys: &[&str],
        force: bool,
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        Ok(each(Client::batch_remove(self, keys, force).await?))
    }

    async fn batch_remove_generations(
        &self,
        objects: &[(&str, Generation)],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        Ok(each(Client::batch_remove_generations(self, objects).await?))
    }

    async fn remove_all(&self, force: bool) -> Result<u64, StoreError> {
        Ok(Client::remove_all(self, force).await?)
    }

    async fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, StoreError> {
        Ok(Client::remove_by_regex(self, pattern, force).await?)
    }

    async fn find(&self, pattern: &str, at_most: usize) -> Result<Vec<ObjectKey>, StoreError> {
        Ok(Client::find(self, pattern, at_most).await?)
    }
}

#[async_trait]
impl ReplicatedStore for Client {
    async fn describe(&self, key: &str) -> Result<ObjectDescription, StoreError> {
        Ok(Client::describe(self, key).await?)
    }

    async fn batch_describe(
        &self,
        keys: &[&str],
    ) -> Result<Vec<Result<ObjectDescription, StoreError>>, StoreError> {
        Ok(each(Client::batch_describe(self, keys).await?))
    }

    async fn transfer(
        &self,
        key: &str,
        transfer: ReplicaTransfer<'_>,
    ) -> Result<TaskId, StoreError> {
        Ok(match transfer {
            ReplicaTransfer::Copy { targets } => self.copy_to(key, targets).await?,
            ReplicaTransfer::Move { source, target } => self.move_to(key, source, target).await?,
        })
    }

    async fn task(&self, id: TaskId) -> Result<TaskReport, StoreError> {
        Ok(Client::task(self, id).await?)
    }
}

fn each<T, E: Into<StoreError>>(outcomes: Vec<Result<T, E>>) -> Vec<Result<T, StoreError>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(Into::into)).collect()
}
