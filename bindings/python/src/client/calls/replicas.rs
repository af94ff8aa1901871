//! Calls about where objects are, and tasks that bring them elsewhere.

use mc_rpc::ObjectExplanation;
use mc_store::{CallError, ObjectDescription, ReplicaDescription, TaskId, TaskReport};
use mc_types::KeyRef;

use super::calls;
use crate::client::arguments::{Seconds, Texts};
use crate::client::failure::{About as _, Failure, Outcome};
use crate::client::reports::Report;

calls! {
    /// The copies that an object has in memory, in every state:
    /// :class:`~mc_store.reports.Replica`. Looking protects nothing from being taken away.
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

    /// Everything about one object: where it is, who put it, how long it is protected. Looking
    /// protects nothing.
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

    /// Why a key is as it is: what keeps its object, and what became of earlier ones. That
    /// there is none is no error.
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

    /// Takes back replicas of objects that this client itself has put: all of them, and so the
    /// objects, or only those in one segment. Passed over are objects that are not there or not
    /// this client's, that somebody may be reading, and that are being written, copied or moved.
    ///
    /// :param segment: The name of a segment.
    /// :returns: The keys that were cleared, in their order.
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

    /// Has a node that holds an object copy it to other segments. The node works on it by and
    /// by; :meth:`wait_for_task` waits for the end.
    ///
    /// :param targets: The names of the segments.
    /// :returns: The id of the task.
    /// :raises NotFound: when there is no such object, or no such segment.
    #[pyo3(signature = (key, targets))]
    fn copy_to(key: String, targets: Texts) -> String = |client| async move {
        Ok(client.copy_to(&key, &targets.refs()).await.about(&key)?.to_string())
    };

    /// Has the node of one segment move an object's replica to another segment; as
    /// :meth:`copy_to`.
    #[pyo3(signature = (key, source, target))]
    fn move_to(key: String, source: String, target: String) -> String = |client| async move {
        Ok(client.move_to(&key, &source, &target).await.about(&key)?.to_string())
    };

    /// What has become of a task, a :class:`~mc_store.reports.Task`.
    ///
    /// :raises NotFound: when there is no such task, or it was over for long.
    #[pyo3(signature = (task_id))]
    fn task(task_id: String) -> Report<TaskReport> = |client| async move {
        Ok(Report(client.task(id(&task_id)?).await?))
    };

    /// Waits until a task has succeeded or failed, and tells what became of it.
    ///
    /// :param timeout: Most seconds to wait.
    /// :returns: A :class:`~mc_store.reports.Task`, whose status is ``success`` or ``failed``.
    /// :raises Timeout: when it has not ended by then.
    /// :raises NotFound: when there is no such task, or it was over for long.
    #[pyo3(signature = (task_id, timeout))]
    fn wait_for_task(task_id: String, timeout: Seconds) -> Report<TaskReport> = move |client| async move {
        let report = client.wait_for_task(id(&task_id)?, timeout.0).await?;
        if !report.status.is_final() {
            return Err(Failure::timeout(format!(
                "the task {task_id} has not ended after {:?}; it goes on", timeout.0
            )));
        }
        Ok(Report(report))
    };
}

fn id(text: &str) -> Outcome<TaskId> {
    text.parse().map_err(|_| Failure::invalid(format!("{text:?} is no id of a task; it is a UUID")))
}
