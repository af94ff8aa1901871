//! Calls about replicas, and tasks that copy and move them.

use mc_rpc::ObjectExplanation;
use mc_store::{CallError, ObjectDescription, ReplicaDescription, TaskReport};
use mc_types::KeyRef;

use super::calls;
use crate::client::arguments::{Seconds, Texts, id};
use crate::client::failure::{About as _, Failure};
use crate::client::reports::Report;

calls! {
    /// Returns an object's replicas in memory, in every state:
    /// :class:`~mc_store.reports.Replica`. Grants no lease.
    ///
    /// :raises NotFound: when there is no such object.
    #[pyo3(signature = (key))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> [replica.status for replica in store.replicas("a")]
        /// ['complete']
    }
    fn replicas(key: String) -> Vec<Report<ReplicaDescription>> = |client| async move {
        let replicas = client.replicas(&key).await.about(&key)?;
        Ok(replicas.into_iter().map(Report).collect())
    };

    /// Describes an object: its replicas, its owner, its protection. Grants no lease.
    ///
    /// :returns: An :class:`~mc_store.reports.ObjectDescription`.
    /// :raises NotFound: when there is no such object.
    #[pyo3(signature = (key))]
    example {
        ///
        /// >>> store.put("a", b"value", soft_pin=True)
        /// True
        /// >>> a = store.describe("a")
        /// >>> a.size, a.soft_pinned, a.owner == store.id
        /// (5, True, True)
    }
    fn describe(key: String) -> Report<ObjectDescription> = |client| async move {
        client.describe(&key).await.map(Report).about(&key)
    };

    /// Explains the state of a key: what protects its object from eviction, and what happened to
    /// earlier objects of the key. The key need not have an object.
    ///
    /// :returns: An :class:`~mc_store.reports.Explanation`.
    #[pyo3(signature = (key))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.remove("a")
        /// >>> why = store.explain("a")
        /// >>> why.object is None, why.history[0].event
        /// (True, 'removed')
    }
    fn explain(key: String) -> Report<ObjectExplanation> = |client| async move {
        let named = KeyRef::new(&key).map_err(CallError::from).about(&key)?;
        let explanation = client.master().explain(named).await;
        explanation.map(Report).map_err(CallError::from).about(&key)
    };

    /// Removes replicas of objects that this client has put: all replicas, and so the objects, or
    /// only those in one segment. Skips objects that do not exist, belong to another client, are
    /// protected by a lease, or are being written, copied or moved.
    ///
    /// :param segment: The name of a segment.
    /// :returns: The keys of the cleared objects, in order.
    #[pyo3(signature = (keys, segment=None))]
    example {
        ///
        /// >>> store["a"] = b"1"
        /// >>> store.clear_replicas(["a", "b"])
        /// ['a']
    }
    fn clear_replicas(keys: Texts, segment: Option<String>) -> Vec<String> = |client| async move {
        let cleared = client.clear_replicas(&keys.refs(), segment.as_deref()).await?;
        Ok(cleared.iter().map(ToString::to_string).collect())
    };

    /// Creates a task for a node that holds an object to copy the object to other segments.
    /// :meth:`wait_for_task` waits for the end of the task.
    ///
    /// :param targets: The names of the segments.
    /// :returns: The id of the task.
    /// :raises NotFound: when there is no such object, or no such segment.
    #[pyo3(signature = (key, targets))]
    fn copy_to(key: String, targets: Texts) -> String = |client| async move {
        Ok(client.copy_to(&key, &targets.refs()).await.about(&key)?.to_string())
    };

    /// Creates a task for the node of the source segment to move an object's replica to the target
    /// segment; otherwise as :meth:`copy_to`.
    #[pyo3(signature = (key, source, target))]
    fn move_to(key: String, source: String, target: String) -> String = |client| async move {
        Ok(client.move_to(&key, &source, &target).await.about(&key)?.to_string())
    };

    /// Returns the state of a task as a :class:`~mc_store.reports.Task`.
    ///
    /// :raises NotFound: when there is no such task, or it ended long ago.
    #[pyo3(signature = (task_id))]
    fn task(task_id: String) -> Report<TaskReport> = |client| async move {
        Ok(Report(client.task(id(&task_id, "task")?).await?))
    };

    /// Waits until a task has succeeded or failed.
    ///
    /// :param timeout: The maximum number of seconds to wait.
    /// :returns: A :class:`~mc_store.reports.Task`, whose status is ``success`` or ``failed``.
    /// :raises Timeout: when the task has not ended by then; it continues.
    /// :raises NotFound: when there is no such task, or it ended long ago.
    #[pyo3(signature = (task_id, timeout))]
    fn wait_for_task(task_id: String, timeout: Seconds) -> Report<TaskReport> = move |client| async move {
        let report = client.wait_for_task(id(&task_id, "task")?, timeout.0).await?;
        if !report.status.is_final() {
            return Err(Failure::timeout(format!(
                "task {task_id} has not ended after {:?}; it goes on", timeout.0
            )));
        }
        Ok(Report(report))
    };
}
