//! Tasks: the copies and moves that the master has nodes make.

use core::time::Duration;

use mc_meta::{
    MAX_FETCHED_TASKS, MAX_REPLICAS, MAX_SEGMENT_NAME_LEN, MAX_TASK_MESSAGE_LEN, MAX_TENANT_LEN,
    TaskAssignment, TaskError, TaskInfo, TaskKind, TaskStatus, TenantId, unscoped,
};
use mc_types::{ClientId, KeyRef, MAX_KEY_LEN, ObjectKey, TaskId, Time};

use super::{
    BadField, CallContext, at_most, calls, client_id, count, fit, id, message, millis, missing,
    next_after, object_key, optional_id, reply, segment_name, segment_names, tenant, tenant_name,
    texts,
};
use crate::caller::Role;
use crate::proto::{self, task};
use crate::refusal::Refusal;
use crate::request::TenantKey;

/// Most bytes that one task takes: its key, its tenant, the names of its segments, and
/// what is of a fixed length.
const TASK_CEILING: usize =
    MAX_KEY_LEN + MAX_TENANT_LEN + (1 + MAX_REPLICAS) * (MAX_SEGMENT_NAME_LEN + 3) + 64;

/// Bytes kept for whether more tasks follow.
const MORE: usize = 2;

/// Work that the master gives to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its identity, to report under.
    pub id: TaskId,
    /// Its work.
    pub kind: TaskKind,
    /// The tenant of its object.
    pub tenant: TenantId,
    /// The object's key, as its tenant knows it.
    pub key: ObjectKey,
    /// Time since the task was created.
    pub age: Duration,
}

impl Task {
    /// The object that it is about, as the calls name it that do the work.
    #[must_use]
    pub fn object(&self) -> TenantKey<'_> {
        TenantKey::of(&self.tenant, self.key.as_ref())
    }
}

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskReport {
    /// The task.
    pub task: Task,
    /// Its status.
    pub status: TaskStatus,
    /// Time since its status or its node last changed.
    pub unchanged: Duration,
    /// The client of the node that is to do it.
    pub client: ClientId,
    /// The reason of its end; empty before.
    pub outcome: Box<str>,
}

/// A page of the tasks that a master knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// The tasks, in the order of their ids.
    pub tasks: Vec<TaskReport>,
    /// Where the next page begins, if there is one.
    pub next_after: Option<TaskId>,
}

/// Tasks that a client has fetched, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchedTasks {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// How often to try one again when a target has no room.
    pub max_retry_attempts: u32,
}

calls! {
    /// Has a node that holds an object copy it to the segments named `targets`, between 1
    /// and [`MAX_REPLICAS`](mc_meta::MAX_REPLICAS).
    fn create_copy_task(&self, object: &TenantKey<'_>, targets: &[&str]) -> TaskId {
        CreateCopyTask "Refused with the codes of [`mc_meta::CreateTaskError`].",
        message(proto::CreateCopyTaskRequest {
            key: object.key.as_str().into(),
            targets: texts(targets),
            tenant_id: tenant_name(object),
        }),
        reply(|answer: &proto::CreateCopyTaskResponse| task_id(&answer.task_id)),
    }

    /// Has the node of the segment named `source` move an object's replica from there to
    /// the segment named `target`.
    fn create_move_task(&self, object: &TenantKey<'_>, source: &str, target: &str) -> TaskId {
        CreateMoveTask "Refused with the codes of [`mc_meta::CreateTaskError`].",
        message(proto::CreateMoveTaskRequest {
            key: object.key.as_str().into(),
            source: source.into(),
            target: target.into(),
            tenant_id: tenant_name(object),
        }),
        reply(|answer: &proto::CreateMoveTaskResponse| task_id(&answer.task_id)),
    }

    /// Returns the progress of a task.
    fn query_task(&self, id: TaskId) -> TaskReport {
        QueryTask
            "Refused with `TaskNotFound`, also when it is about another tenant's object and the \
             caller is no node.",
        message(proto::QueryTaskRequest { task_id: id.to_bytes().into() }),
        reply(TaskReport::from_proto),
    }

    /// Returns up to `limit` of the tasks that the master knows, in the order of their ids, from the first
    /// one after `after` on; 0 is as many as one answer has. They are those that wait, those at work, and the
    /// last ones that ended.
    fn list_tasks(&self, after: Option<TaskId>, limit: usize) -> Tasks {
        ListTasks "Refused with `NotSupported` by masters that do not know the call.",
        message(proto::ListTasksRequest {
            after: after.map(|id| id.to_bytes().into()).unwrap_or_default(),
            limit: count(limit),
        }),
        reply(Tasks::from_proto),
    }

    /// Returns up to `max` of the tasks that wait for `client`, which are its to work on from
    /// then on; 0 is as many as one call fetches,
    /// [`MAX_FETCHED_TASKS`](mc_meta::MAX_FETCHED_TASKS).
    fn fetch_tasks(&self, client: ClientId, max: usize) -> FetchedTasks {
        FetchTasks "When the answer is lost the tasks fail when their time is up.",
        message(proto::FetchTasksRequest {
            client_id: client.to_bytes().into(),
            max_tasks: count(max),
        }),
        reply(|answer: &proto::FetchTasksResponse| {
            at_most(&answer.tasks, MAX_FETCHED_TASKS, "tasks")?;
            let tasks = answer.tasks.iter().map(Task::from_proto).collect::<Result<_, _>>()?;
            Ok(FetchedTasks { tasks, max_retry_attempts: answer.max_retry_attempts })
        }),
    }

    /// Reports how a task went, success or failure, with words of which
    /// [`MAX_TASK_MESSAGE_LEN`](mc_meta::MAX_TASK_MESSAGE_LEN) bytes are kept. Returns how it
    /// ended, which is something else than reported when it had ended before.
    fn mark_task_to_complete(&self, client: ClientId, id: TaskId, status: TaskStatus, outcome: &str) -> TaskStatus {
        MarkTaskToComplete "Refused with the codes of [`mc_meta::TaskError`].",
        message(proto::MarkTaskToCompleteRequest {
            client_id: client.to_bytes().into(),
            task_id: id.to_bytes().into(),
            status: status_number(status),
            // The master keeps no more, so no more is sent.
            outcome: kept(outcome).into(),
        }),
        reply(|answer: &proto::MarkTaskToCompleteResponse| task_status(answer.status)),
    }
}

impl CallContext<'_> {
    pub(crate) fn create_copy_task(
        self,
        request: &proto::CreateCopyTaskRequest,
    ) -> Result<proto::CreateCopyTaskResponse, Refusal> {
        let key = self.stored(&request.key, &request.tenant_id)?;
        let targets: Vec<&str> = segment_names(&request.targets, MAX_REPLICAS, "targets")?;
        let id = self.master.create_copy_task(self.now, key.as_ref(), &targets)?;
        Ok(proto::CreateCopyTaskResponse { task_id: id.to_bytes().into(), ..Default::default() })
    }

    pub(crate) fn create_move_task(
        self,
        request: &proto::CreateMoveTaskRequest,
    ) -> Result<proto::CreateMoveTaskResponse, Refusal> {
        let key = self.stored(&request.key, &request.tenant_id)?;
        let source = segment_name(&request.source, "source")?;
        let target = segment_name(&request.target, "target")?;
        let id = self.master.create_move_task(self.now, key.as_ref(), source, target)?;
        Ok(proto::CreateMoveTaskResponse { task_id: id.to_bytes().into(), ..Default::default() })
    }

    pub(crate) fn query_task(
        self,
        request: &proto::QueryTaskRequest,
    ) -> Result<proto::QueryTaskResponse, Refusal> {
        let info = self.master.query_task(task_id(&request.task_id)?)?;
        // A caller that may not know of it learns no more than of one that never was.
        if self.role < Role::Node && !self.owns(info.key.as_ref()) {
            return Err(TaskError::NotFound.into());
        }
        Ok(report_to_proto(&info, self.now))
    }

    pub(crate) fn list_tasks(
        self,
        request: &proto::ListTasksRequest,
    ) -> Result<proto::ListTasksResponse, Refusal> {
        let after = optional_id(&request.after, "after", TaskId::from_bytes)?;
        let limit = match request.limit as usize {
            0 => MAX_FETCHED_TASKS,
            limit => limit.min(MAX_FETCHED_TASKS),
        };
        // One more shows whether there is one.
        let known = self.master.list_tasks(after, limit + 1);
        let page = known.iter().take(limit).map(|info| report_to_proto(info, self.now));
        let tasks = fit(page, self.max_reply.saturating_sub(MORE));
        let more = tasks.len() < known.len();
        Ok(proto::ListTasksResponse { tasks, more, ..Default::default() })
    }

    pub(crate) fn fetch_tasks(
        self,
        request: &proto::FetchTasksRequest,
    ) -> Result<proto::FetchTasksResponse, Refusal> {
        let client = client_id(&request.client_id)?;
        let max = self.jobs_to_hand_out(request.max_tasks, MAX_FETCHED_TASKS, TASK_CEILING);
        let tasks = self.master.fetch_tasks(self.now, client, max);
        let task_to_proto = |task: &TaskAssignment| {
            to_proto(task.id, &task.kind, &task.key, self.now - task.created_at)
        };
        Ok(proto::FetchTasksResponse {
            tasks: tasks.iter().map(task_to_proto).collect(),
            max_retry_attempts: tasks.first().map_or(0, |task| task.max_retry_attempts),
            ..Default::default()
        })
    }

    pub(crate) fn mark_task_to_complete(
        self,
        request: &proto::MarkTaskToCompleteRequest,
    ) -> Result<proto::MarkTaskToCompleteResponse, Refusal> {
        let (client, id) = (client_id(&request.client_id)?, task_id(&request.task_id)?);
        let status = task_status(request.status).map_err(|_| {
            let number = request.status;
            Refusal::invalid(format!("status is {number}; a task ends as SUCCESS or FAILED"))
        })?;
        let (master, now, outcome) = (self.master, self.now, &*request.outcome);
        let ended = master.mark_task_to_complete(now, client, id, status, outcome)?;
        let status = status_number(ended);
        Ok(proto::MarkTaskToCompleteResponse { status, ..Default::default() })
    }

    /// Returns whether a stored key is one of the caller's tenant.
    fn owns(&self, stored: KeyRef<'_>) -> bool {
        let own = KeyRef::new(unscoped(stored).1).ok().and_then(|key| self.scoped(key).ok());
        own.is_some_and(|own| own.as_ref() == stored)
    }
}

/// The beginning of a text that the master keeps.
fn kept(text: &str) -> &str {
    let ends = (0..=text.len().min(MAX_TASK_MESSAGE_LEN)).rev();
    &text[..ends.into_iter().find(|&end| text.is_char_boundary(end)).unwrap_or(0)]
}

fn task_id(bytes: &[u8]) -> Result<TaskId, BadField> {
    id(bytes, "task_id", TaskId::from_bytes)
}

fn task_status(number: i32) -> Result<TaskStatus, BadField> {
    match task::Status::try_from(number) {
        Ok(task::Status::Pending) => Ok(TaskStatus::Pending),
        Ok(task::Status::Processing) => Ok(TaskStatus::Processing),
        Ok(task::Status::Success) => Ok(TaskStatus::Success),
        Ok(task::Status::Failed) => Ok(TaskStatus::Failed),
        Ok(task::Status::Unknown) | Err(_) => Err(BadField::new("status", "is unknown")),
    }
}

const fn status_number(status: TaskStatus) -> i32 {
    match status {
        TaskStatus::Pending => task::Status::Pending as i32,
        TaskStatus::Processing => task::Status::Processing as i32,
        TaskStatus::Success => task::Status::Success as i32,
        TaskStatus::Failed => task::Status::Failed as i32,
    }
}

/// A task and its state at the time `now`.
fn report_to_proto(info: &TaskInfo, now: Time) -> proto::QueryTaskResponse {
    proto::QueryTaskResponse {
        task: Some(to_proto(info.id, &info.kind, &info.key, now - info.created_at)),
        status: status_number(info.status),
        unchanged_ms: millis(now - info.last_updated_at),
        client_id: info.assigned_client.to_bytes().into(),
        outcome: info.message.to_string(),
        ..Default::default()
    }
}

/// A task as an answer describes it.
fn to_proto(id: TaskId, kind: &TaskKind, stored: &ObjectKey, age: Duration) -> proto::Task {
    let (tenant, key) = unscoped(stored.as_ref());
    let number = match kind {
        TaskKind::Copy { .. } => task::Kind::Copy,
        TaskKind::Move { .. } => task::Kind::Move,
    };
    proto::Task {
        task_id: id.to_bytes().into(),
        kind: number.into(),
        key: key.into(),
        tenant_id: tenant.to_string(),
        source: kind.source().into(),
        targets: kind.targets().iter().map(|name| name.to_string()).collect(),
        age_ms: millis(age),
    }
}

impl Task {
    fn from_proto(task: &proto::Task) -> Result<Self, BadField> {
        let source = segment_name(&task.source, "source")?.into();
        let mut targets: Vec<Box<str>> = segment_names(&task.targets, MAX_REPLICAS, "targets")?;
        let kind = match (task.kind(), targets.len()) {
            (_, 0) => return Err(missing("targets")),
            (task::Kind::Copy, _) => TaskKind::Copy { source, targets },
            (task::Kind::Move, 1) => {
                TaskKind::Move { source, target: targets.pop().unwrap_or_default() }
            }
            (task::Kind::Move, _) => return Err(BadField::new("targets", "has too many names")),
            (task::Kind::Undefined, _) => return Err(BadField::new("kind", "is unknown")),
        };
        Ok(Self {
            id: task_id(&task.task_id)?,
            kind,
            tenant: tenant(&task.tenant_id)?,
            key: object_key(&task.key)?,
            age: Duration::from_millis(task.age_ms),
        })
    }
}

impl TaskReport {
    fn from_proto(answer: &proto::QueryTaskResponse) -> Result<Self, BadField> {
        if answer.outcome.len() > MAX_TASK_MESSAGE_LEN {
            return Err(BadField::new("outcome", "is too long"));
        }
        Ok(Self {
            task: Task::from_proto(answer.task.as_ref().ok_or(missing("task"))?)?,
            status: task_status(answer.status)?,
            unchanged: Duration::from_millis(answer.unchanged_ms),
            client: client_id(&answer.client_id)?,
            outcome: answer.outcome.as_str().into(),
        })
    }
}

impl Tasks {
    fn from_proto(answer: &proto::ListTasksResponse) -> Result<Self, BadField> {
        at_most(&answer.tasks, MAX_FETCHED_TASKS, "tasks")?;
        let tasks: Vec<_> =
            answer.tasks.iter().map(TaskReport::from_proto).collect::<Result<_, _>>()?;
        let next_after = next_after(&tasks, answer.more, |report| report.task.id, "tasks")?;
        Ok(Self { tasks, next_after })
    }
}
