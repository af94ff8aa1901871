//! Calls about tasks.

use bytes::BytesMut;
use mc_meta::TaskStatus;
use mc_types::{ClientId, TaskId};

use super::calls;
use crate::answer::{self, FetchedTasks, TaskReport};
use crate::request::{
    self, CreateCopyTaskRequest, CreateMoveTaskRequest, MarkTaskRequest, TenantKey,
};

calls! {
    /// Has a node that holds an object copy it to the segments named `targets`, between 1
    /// and [`MAX_REPLICAS`](mc_meta::MAX_REPLICAS).
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::CreateTaskError`]; or any other
    /// [`RpcError`].
    fn create_copy_task(&self, object: &TenantKey<'_>, targets: &[&str]) -> TaskId {
        CreateCopyTask,
        |out: &mut BytesMut| CreateCopyTaskRequest::write(out, object, targets),
        answer::read_task_id,
    }

    /// Has the node of the segment named `source` move an object's replica from there to
    /// the segment named `target`.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::CreateTaskError`]; or any other
    /// [`RpcError`].
    fn create_move_task(&self, object: &TenantKey<'_>, source: &str, target: &str) -> TaskId {
        CreateMoveTask,
        |out: &mut BytesMut| CreateMoveTaskRequest::write(out, object, source, target),
        answer::read_task_id,
    }

    /// What has become of a task.
    ///
    /// # Errors
    /// Refused with `TaskNotFound`, also when it is about another tenant's object and the
    /// caller is no node; or any other [`RpcError`].
    fn query_task(&self, id: TaskId) -> TaskReport {
        QueryTask,
        |out: &mut BytesMut| request::write_query_task(out, id),
        answer::read_task_report,
    }

    /// Up to `max` of the tasks that wait for `client`, which are its to work on from then
    /// on; 0 is as many as one call fetches,
    /// [`MAX_FETCHED_TASKS`](mc_meta::MAX_FETCHED_TASKS).
    ///
    /// # Errors
    /// Any [`RpcError`]. When the answer is lost the tasks fail when their time is up.
    fn fetch_tasks(&self, client: ClientId, max: usize) -> FetchedTasks {
        FetchTasks,
        |out: &mut BytesMut| request::write_fetch_tasks(out, client, max),
        answer::read_tasks,
    }

    /// Reports how a task went, success or failure, with words of which
    /// [`MAX_TASK_MESSAGE_LEN`](mc_meta::MAX_TASK_MESSAGE_LEN) bytes are kept. Says how it
    /// ended, which is something else than reported when it had ended before.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::TaskError`]; or any other
    /// [`RpcError`].
    fn mark_task_to_complete(&self, client: ClientId, id: TaskId, status: TaskStatus, outcome: &str) -> TaskStatus {
        MarkTaskToComplete,
        |out: &mut BytesMut| MarkTaskRequest::write(out, client, id, status, outcome),
        answer::read_task_status,
    }
}
