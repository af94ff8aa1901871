//! Calls about where an object is, and tasks that bring it elsewhere.

use std::borrow::Cow;
use std::time::Duration;

use mc_rpc::{ObjectDescription, ReplicaDescription, TaskReport};
use mc_types::TaskId;
use tokio::time::Instant;

use super::DummyClient;
use super::keys::check;
use crate::error::DummyError;
use crate::wire::{Call, Reply};

/// The first pause between questions about a task; each is half as long again as the one
/// before.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

impl DummyClient {
    /// As [`ReplicatedStore::describe`](mc_store::ReplicatedStore::describe).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn describe(&self, key: &str) -> Result<ObjectDescription, DummyError> {
        check(&[key])?;
        match self.ask(&Call::Describe { key: Cow::Borrowed(key) }).await? {
            Reply::Described(object) => {
                object.decoded().ok_or_else(|| self.core.shared.wrong_answer())
            }
            _ => Err(self.core.shared.wrong_answer()),
        }
    }

    /// The replicas of an object in memory, in every state.
    ///
    /// # Errors
    /// As [`describe`](Self::describe).
    pub async fn replicas(&self, key: &str) -> Result<Vec<ReplicaDescription>, DummyError> {
        Ok(self.describe(key).await?.replicas)
    }

    /// Has a node that holds an object copy it to the segments named `targets`. The node
    /// works on it by and by: [`wait_for_task`](Self::wait_for_task) waits for the end.
    ///
    /// # Errors
    /// [`DummyError`] when there is no such object or segment, or the real client cannot
    /// be asked.
    pub async fn copy_to(&self, key: &str, targets: &[&str]) -> Result<TaskId, DummyError> {
        check(&[key])?;
        let targets = targets.iter().map(|target| Cow::Borrowed(*target)).collect();
        self.begin(&Call::Copy { key: Cow::Borrowed(key), targets }).await
    }

    /// Has the node of the segment named `source` move an object to the one named `target`.
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    pub async fn move_to(
        &self,
        key: &str,
        source: &str,
        target: &str,
    ) -> Result<TaskId, DummyError> {
        check(&[key])?;
        let (source, target) = (Cow::Borrowed(source), Cow::Borrowed(target));
        self.begin(&Call::Move { key: Cow::Borrowed(key), source, target }).await
    }

    /// As [`ReplicatedStore::task`](mc_store::ReplicatedStore::task).
    ///
    /// # Errors
    /// [`DummyError`].
    pub async fn task(&self, id: TaskId) -> Result<TaskReport, DummyError> {
        match self.ask(&Call::Task { id: id.to_bytes() }).await? {
            Reply::Reported(report) => {
                report.decoded().ok_or_else(|| self.core.shared.wrong_answer())
            }
            _ => Err(self.core.shared.wrong_answer()),
        }
    }

    /// Waits until a task is over, for as long as `patience`, and says where it is then.
    ///
    /// # Errors
    /// As [`task`](Self::task), after `patience` when it is one that may go away.
    pub async fn wait_for_task(
        &self,
        id: TaskId,
        patience: Duration,
    ) -> Result<TaskReport, DummyError> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            let answer = self.task(id).await;
            let over = match &answer {
                Ok(report) => report.status.is_final(),
                Err(error) => !error.is_retryable(),
            };
            let left = patience.saturating_sub(begun.elapsed());
            if over || left.is_zero() {
                return answer;
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = pause.mul_f32(1.5).min(LONGEST_PAUSE);
        }
    }

    async fn begin(&self, call: &Call<'_>) -> Result<TaskId, DummyError> {
        match self.ask(call).await? {
            Reply::Task(id) => Ok(TaskId::from_bytes(id)),
            _ => Err(self.core.shared.wrong_answer()),
        }
    }
}
