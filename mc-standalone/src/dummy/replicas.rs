//! Calls about where an object is, and tasks that bring it elsewhere.

use std::borrow::Cow;

use async_trait::async_trait;
use mc_rpc::{ObjectDescription, TaskReport};
use mc_store::{ReplicaTransfer, ReplicatedStore, StoreError};
use mc_types::{KeyRef, TaskId};

use super::DummyClient;
use crate::wire::{Call, Reply};

#[async_trait]
impl ReplicatedStore for DummyClient {
    async fn describe(&self, key: &str) -> Result<ObjectDescription, StoreError> {
        KeyRef::new(key)?;
        let object = match self.ask(&Call::Describe { key: Cow::Borrowed(key) }).await? {
            Reply::Described(object) => object.decoded(),
            _ => None,
        };
        object.ok_or_else(|| self.core.shared.wrong_answer().into())
    }

    async fn transfer(
        &self,
        key: &str,
        transfer: ReplicaTransfer<'_>,
    ) -> Result<TaskId, StoreError> {
        KeyRef::new(key)?;
        let key = Cow::Borrowed(key);
        let call = match transfer {
            ReplicaTransfer::Copy { targets } => {
                let targets = targets.iter().map(|target| Cow::Borrowed(*target)).collect();
                Call::Copy { key, targets }
            }
            ReplicaTransfer::Move { source, target } => {
                let (source, target) = (Cow::Borrowed(source), Cow::Borrowed(target));
                Call::Move { key, source, target }
            }
        };
        match self.ask(&call).await? {
            Reply::Task(id) => Ok(TaskId::from_bytes(id)),
            _ => Err(self.core.shared.wrong_answer().into()),
        }
    }

    async fn task(&self, id: TaskId) -> Result<TaskReport, StoreError> {
        let report = match self.ask(&Call::Task { id: id.to_bytes() }).await? {
            Reply::Reported(report) => report.decoded(),
            _ => None,
        };
        report.ok_or_else(|| self.core.shared.wrong_answer().into())
    }
}
