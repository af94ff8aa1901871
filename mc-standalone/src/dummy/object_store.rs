//! The dummy client as an [`ObjectStore`].

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use mc_rpc::{ObjectDescription, TaskReport};
use mc_store::{
    GetInto, ObjectStore, Put, PutMode, PutOutcome, ReplicaTransfer, ReplicateConfig,
    ReplicatedStore, Stat, StoreError,
};
use mc_transport::Memory;
use mc_types::{Generation, ObjectKey, TaskId};

use super::DummyClient;
use crate::error::DummyError;

#[async_trait]
impl ObjectStore for DummyClient {
    async fn batch_store(
        &self,
        puts: Vec<Put<'_>>,
        config: &ReplicateConfig,
        mode: PutMode,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        each(self.core.shared.store_all(puts, config, mode).await)
    }

    async fn batch_get(&self, keys: &[&str]) -> Vec<Result<Bytes, StoreError>> {
        each(DummyClient::batch_get(self, keys).await)
    }

    async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        generation: Option<Generation>,
    ) -> Result<Bytes, StoreError> {
        Ok(self.core.shared.read_range(key, generation, range).await?)
    }

    async fn batch_get_into(&self, gets: Vec<GetInto<'_>>) -> Vec<Result<u64, StoreError>> {
        each(DummyClient::batch_get_into(self, gets).await)
    }

    async fn batch_exist(&self, keys: &[&str]) -> Result<Vec<bool>, StoreError> {
        Ok(DummyClient::batch_exist(self, keys).await?)
    }

    async fn longest_prefix(&self, keys: &[&str]) -> Result<usize, StoreError> {
        Ok(DummyClient::longest_prefix(self, keys).await?)
    }

    async fn batch_stat(&self, keys: &[&str]) -> Result<Vec<Result<Stat, StoreError>>, StoreError> {
        Ok(each(DummyClient::batch_stat(self, keys).await?))
    }

    async fn batch_remove(
        &self,
        keys: &[&str],
        force: bool,
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        Ok(each(DummyClient::batch_remove(self, keys, force).await?))
    }

    async fn remove_all(&self, force: bool) -> Result<u64, StoreError> {
        Ok(DummyClient::remove_all(self, force).await?)
    }

    async fn remove_by_regex(&self, pattern: &str, force: bool) -> Result<u64, StoreError> {
        Ok(DummyClient::remove_by_regex(self, pattern, force).await?)
    }

    async fn find(&self, pattern: &str, at_most: usize) -> Result<Vec<ObjectKey>, StoreError> {
        Ok(DummyClient::find(self, pattern, at_most).await?)
    }

    fn allocate(&self, len: usize) -> Result<Memory, StoreError> {
        Ok(DummyClient::allocate(self, len)?)
    }

    fn can_register(&self, memory: &Memory) -> bool {
        memory.shareable().is_some()
    }

    async fn register(&self, memory: &Memory) -> Result<(), StoreError> {
        Ok(DummyClient::register(self, memory).await?)
    }

    async fn unregister(&self, memory: &Memory) -> Result<(), StoreError> {
        Ok(DummyClient::unregister(self, memory).await?)
    }
}

#[async_trait]
impl ReplicatedStore for DummyClient {
    async fn describe(&self, key: &str) -> Result<ObjectDescription, StoreError> {
        Ok(DummyClient::describe(self, key).await?)
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
        Ok(DummyClient::task(self, id).await?)
    }
}

fn each<T>(outcomes: Vec<Result<T, DummyError>>) -> Vec<Result<T, StoreError>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(StoreError::from)).collect()
}

impl From<DummyError> for StoreError {
    fn from(error: DummyError) -> Self {
        match error {
            DummyError::Key(error) => error.into(),
            DummyError::NotFound => Self::NotFound,
            DummyError::BufferTooSmall { needed, given } => Self::BufferTooSmall { needed, given },
            DummyError::Replaced => Self::Replaced,
            error => Self::failed(error.code(), error.is_retryable(), error),
        }
    }
}
