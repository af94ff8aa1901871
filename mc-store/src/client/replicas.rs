//! Calls about where an object is, and tasks that bring it elsewhere.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use mc_rpc::{ObjectDescription, Refusal, ReplicaDescription, RpcError, TaskReport};
use mc_tier::DirectoryTier;
use mc_types::{BoxFuture, Generation, KeyRef, ObjectKey, TaskId};
use tokio::time::Instant;

use super::Client;
use super::keys::checked;
use crate::error::CallError;

/// Objects asked about at a time; there is no call about many.
const AT_A_TIME: usize = 128;

/// The first pause between questions about a task; each is half as long again as the one
/// before.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

impl Client {
    /// The replicas that an object has in memory, in every state. Looking protects nothing.
    /// What it has on disks, [`describe`](Self::describe) says as well.
    ///
    /// # Errors
    /// [`CallError`] when there is no such object or the master cannot be asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// let replicas = client.replicas("a").await?;
    /// assert_eq!(&*replicas[0].segment_name, "node");
    /// # Ok(()) });
    /// ```
    pub fn replicas<'a>(
        &'a self,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Vec<ReplicaDescription>, CallError>> {
        Box::pin(async move { Ok(self.describe(key).await?.replicas) })
    }

    /// As [`ReplicatedStore::batch_describe`](crate::ReplicatedStore::batch_describe). Costs the
    /// master one short call for each key.
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be asked;
    /// within, why nothing is known of an object.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// let objects = client.batch_describe(&["a", "b"]).await?;
    /// assert_eq!(objects[0].as_ref().unwrap().replicas.len(), 1);
    /// assert!(objects[1].is_err());
    /// # Ok(()) });
    /// ```
    pub fn batch_describe<'a>(
        &'a self,
        keys: &'a [&'a str],
    ) -> BoxFuture<'a, Result<Vec<Result<ObjectDescription, Refusal>>, CallError>> {
        Box::pin(async move {
            let master = self.core.link.request()?;
            let keys = checked(keys)?;
            let ask = |at: usize| {
                let key = keys[at];
                async move {
                    match master.describe(key).await {
                        Ok(object) => Ok(Ok(object)),
                        Err(RpcError::Refused(refusal)) => Ok(Err(refusal)),
                        Err(error) => Err(CallError::Rpc(error)),
                    }
                }
            };
            let mut answers = stream::iter(0..keys.len()).map(ask).buffered(AT_A_TIME);
            let mut objects = Vec::with_capacity(keys.len());
            while let Some(answer) = answers.next().await {
                objects.push(answer?);
            }
            Ok(objects)
        })
    }

    /// The path of the file that an object has on the shared tier, or would have; `None` when the cluster has no
    /// directory for files, or the key is none. Of a file that objects share it is known to the clients that have
    /// written or read it; to others it is the path that the object would have alone.
    #[must_use]
    pub fn file_path(&self, key: &str, generation: Generation) -> Option<PathBuf> {
        let shared = self.core.tiers.shared.as_ref()?;
        let directory = shared.directory()?;
        let id = self.core.tiers.file_id(shared, KeyRef::new(key).ok()?, generation).ok()?;
        let id = self.core.tiers.sealing.stored_id(id);
        let opened = shared.opened_directory();
        Some(opened.map_or_else(|| DirectoryTier::path_in(directory, &id), |it| it.path_of(&id)))
    }

    /// Returns whether the client has a shared tier, on which objects may get files.
    #[must_use]
    pub fn keeps_files(&self) -> bool {
        self.core.tiers.shared.is_some()
    }

    /// Takes back replicas of those of `keys` that this client itself has put: all of them,
    /// and so the object, or with a segment's name only the one there. Says which keys were
    /// cleared, in their order. Passed over are objects that are not there or not this
    /// client's, that are under lease or being written, copied or moved, and that have no
    /// replica in the segment.
    ///
    /// # Errors
    /// [`CallError`] when one of the keys is not one or the master cannot be asked.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// client.put("a", "bytes").await?;
    /// let cleared = client.clear_replicas(&["a", "b"], Some("node")).await?;
    /// assert_eq!(cleared.iter().map(|key| key.as_str()).collect::<Vec<_>>(), ["a"]);
    /// assert!(!client.exist("a").await?);
    /// # Ok(()) });
    /// ```
    pub fn clear_replicas<'a>(
        &'a self,
        keys: &'a [&'a str],
        segment_name: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Vec<ObjectKey>, CallError>> {
        Box::pin(async move {
            let id = self.core.link.id;
            let keys = checked(keys)?;
            self.in_parts(&keys, |master, part| master.batch_replica_clear(id, part, segment_name))
                .await
        })
    }

    /// Has a node that holds an object copy it to the segments named `targets`, between 1
    /// and [`MAX_REPLICAS`](mc_meta::MAX_REPLICAS). The node works on it by and by:
    /// [`wait_for_task`](Self::wait_for_task) waits for the end.
    ///
    /// # Errors
    /// [`CallError`]; its code says what is not there, or why it cannot be copied now.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::ErrorCode;
    /// client.put("a", "bytes").await?;
    /// let refused = client.copy_to("a", &["elsewhere"]).await.unwrap_err();
    /// assert_eq!(refused.code(), ErrorCode::SegmentNotFound);
    /// # Ok(()) });
    /// ```
    pub fn copy_to<'a>(
        &'a self,
        key: &'a str,
        targets: &'a [&'a str],
    ) -> BoxFuture<'a, Result<TaskId, CallError>> {
        Box::pin(async move {
            let master = self.core.link.request()?;
            Ok(master.create_copy_task(&KeyRef::new(key)?.into(), targets).await?)
        })
    }

    /// Has the node of the segment named `source` move an object's replica from there to
    /// the segment named `target`; as [`copy_to`](Self::copy_to).
    ///
    /// # Errors
    /// As [`copy_to`](Self::copy_to).
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::ErrorCode;
    /// client.put("a", "bytes").await?;
    /// let refused = client.move_to("a", "node", "elsewhere").await.unwrap_err();
    /// assert_eq!(refused.code(), ErrorCode::SegmentNotFound);
    /// # Ok(()) });
    /// ```
    pub fn move_to<'a>(
        &'a self,
        key: &'a str,
        source: &'a str,
        target: &'a str,
    ) -> BoxFuture<'a, Result<TaskId, CallError>> {
        Box::pin(async move {
            let master = self.core.link.request()?;
            Ok(master.create_move_task(&KeyRef::new(key)?.into(), source, target).await?)
        })
    }

    /// As [`ReplicatedStore::task`](crate::ReplicatedStore::task).
    ///
    /// # Errors
    /// [`CallError`]; its code is `TaskNotFound` when there is no such task, or it was over
    /// for long.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use mc_store::{ErrorCode, TaskId};
    /// let unknown = client.task(TaskId::from_u128(7)).await.unwrap_err();
    /// assert_eq!(unknown.code(), ErrorCode::TaskNotFound);
    /// # Ok(()) });
    /// ```
    pub fn task<'a>(&'a self, id: TaskId) -> BoxFuture<'a, Result<TaskReport, CallError>> {
        Box::pin(async move { Ok(self.core.link.request()?.query_task(id).await?) })
    }

    /// As [`ReplicatedStore::wait_for_task`](crate::ReplicatedStore::wait_for_task).
    ///
    /// # Errors
    /// As [`task`](Self::task). A failure that may pass is tried again while patience
    /// lasts.
    ///
    /// ```
    /// # mc_cluster_testkit::with_client(|client| async move {
    /// use std::time::Duration;
    /// use mc_store::{ErrorCode, TaskId};
    /// let unknown = client.wait_for_task(TaskId::from_u128(7), Duration::from_secs(10)).await;
    /// assert_eq!(unknown.unwrap_err().code(), ErrorCode::TaskNotFound);
    /// # Ok(()) });
    /// ```
    pub fn wait_for_task<'a>(
        &'a self,
        id: TaskId,
        patience: Duration,
    ) -> BoxFuture<'a, Result<TaskReport, CallError>> {
        Box::pin(async move {
            wait_until_final(patience, CallError::is_retryable, || self.task(id)).await
        })
    }
}

/// Asks about a task, ever less often, until it is over, an answer is an error that will not pass,
/// or `patience` is over.
pub(crate) async fn wait_until_final<E, A>(
    patience: Duration,
    is_retryable: impl Fn(&E) -> bool,
    mut ask: impl FnMut() -> A,
) -> Result<TaskReport, E>
where
    A: Future<Output = Result<TaskReport, E>>,
{
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        let answer = ask().await;
        let over = match &answer {
            Ok(report) => report.status.is_final(),
            Err(error) => !is_retryable(error),
        };
        let left = patience.saturating_sub(begun.elapsed());
        if over || left.is_zero() {
            return answer;
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = pause.mul_f32(1.5).min(LONGEST_PAUSE);
    }
}
