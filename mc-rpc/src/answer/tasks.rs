//! What the client hands out about tasks.

use core::time::Duration;

use mc_meta::{
    MAX_FETCHED_TASKS, MAX_REPLICAS, MAX_TASK_MESSAGE_LEN, TaskKind, TaskStatus, TenantId,
};
use mc_types::{ClientId, ObjectKey, TaskId};

use super::read::{Answer, Status, name, problem, sixteen};
use crate::error::MalformedReply;
use crate::proto::task;
use crate::request::{TenantKey, task_status};
use crate::wire::{Field, Fields};

/// Work that the master gives to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its identity, to report under.
    pub id: TaskId,
    /// What is to be done.
    pub kind: TaskKind,
    /// Whose object it is about.
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

/// What has become of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskReport {
    /// The task.
    pub task: Task,
    /// Where it is in its life.
    pub status: TaskStatus,
    /// Time since its status or its node last changed.
    pub unchanged: Duration,
    /// The client of the node that is to do it.
    pub client: ClientId,
    /// How it ended, in words; empty before.
    pub outcome: Box<str>,
}

/// Tasks that a client has fetched, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchedTasks {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// How often to try one again when a target has no room.
    pub max_retry_attempts: u32,
}

fn task_id(field: Field<'_>) -> Result<TaskId, MalformedReply> {
    sixteen(field.bytes()?, "task_id").map(TaskId::from_bytes)
}

/// The name of a tenant, which an answer always says.
pub(super) fn tenant(field: Field<'_>) -> Result<TenantId, MalformedReply> {
    TenantId::new(field.text()?).map_err(|_| problem("tenant_id", "is not a tenant's name"))
}

pub(super) fn object_key(field: Field<'_>) -> Result<ObjectKey, MalformedReply> {
    ObjectKey::new(field.text()?).map_err(|_| problem("key", "is not a key"))
}

fn status_of(field: Field<'_>) -> Result<TaskStatus, MalformedReply> {
    task_status(field.i32()?).ok_or(problem("status", "is unknown"))
}

/// `Task`.
fn read_task(message: &[u8]) -> Result<Task, MalformedReply> {
    let mut fields = Fields::new(message);
    let (mut id, mut key, mut whose, mut age) = (None, None, TenantId::DEFAULT, 0);
    let (mut kind, mut source, mut targets) = (0, Box::default(), Vec::new());
    while let Some(field) = fields.next()? {
        match field.number {
            1 => id = Some(task_id(field)?),
            2 => kind = field.i32()?,
            3 => key = Some(object_key(field)?),
            4 => whose = tenant(field)?,
            5 => source = name(field)?,
            6 if targets.len() == MAX_REPLICAS => {
                return Err(problem("targets", "has too many names"));
            }
            6 => targets.push(name(field)?),
            7 => age = field.u64()?,
            _ => {}
        }
    }
    let kind = match (task::Kind::try_from(kind), targets.len()) {
        (_, 0) => return Err(problem("targets", "is missing")),
        (Ok(task::Kind::Copy), _) => TaskKind::Copy { source, targets },
        (Ok(task::Kind::Move), 1) => {
            let target = targets.pop().unwrap_or_default();
            TaskKind::Move { source, target }
        }
        (Ok(task::Kind::Move), _) => return Err(problem("targets", "has too many names")),
        (Ok(task::Kind::Undefined) | Err(_), _) => return Err(problem("kind", "is unknown")),
    };
    Ok(Task {
        id: id.ok_or(problem("task_id", "is missing"))?,
        kind,
        tenant: whose,
        key: key.ok_or(problem("key", "is missing"))?,
        age: Duration::from_millis(age),
    })
}

/// `CreateCopyTaskResponse` and `CreateMoveTaskResponse`.
pub(crate) fn read_task_id(message: &[u8]) -> Answer<TaskId> {
    let (mut fields, mut status, mut id) = (Fields::new(message), Status::default(), None);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => id = Some(task_id(field)?),
            _ => status.read(field)?,
        }
    }
    status.or(|| id.ok_or(problem("task_id", "is missing")))
}

/// `QueryTaskResponse`.
pub(crate) fn read_task_report(message: &[u8]) -> Answer<TaskReport> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let (mut task, mut state, mut unchanged) = (None, None, 0);
    let (mut client, mut outcome) = (None, "");
    while let Some(field) = fields.next()? {
        match field.number {
            2 => task = Some(read_task(field.bytes()?)?),
            3 => state = Some(status_of(field)?),
            4 => unchanged = field.u64()?,
            5 => client = Some(ClientId::from_bytes(sixteen(field.bytes()?, "client_id")?)),
            6 => outcome = field.text()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| {
        if outcome.len() > MAX_TASK_MESSAGE_LEN {
            return Err(problem("outcome", "is too long"));
        }
        Ok(TaskReport {
            task: task.ok_or(problem("task", "is missing"))?,
            status: state.ok_or(problem("status", "is missing"))?,
            unchanged: Duration::from_millis(unchanged),
            client: client.ok_or(problem("client_id", "is missing"))?,
            outcome: outcome.into(),
        })
    })
}

/// `FetchTasksResponse`.
pub(crate) fn read_tasks(message: &[u8]) -> Answer<FetchedTasks> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let mut fetched = FetchedTasks::default();
    while let Some(field) = fields.next()? {
        match field.number {
            2 if fetched.tasks.len() == MAX_FETCHED_TASKS => {
                return Err(problem("tasks", "has too many tasks"));
            }
            2 => fetched.tasks.push(read_task(field.bytes()?)?),
            3 => fetched.max_retry_attempts = field.u32()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| Ok(fetched))
}

/// `MarkTaskToCompleteResponse`.
pub(crate) fn read_task_status(message: &[u8]) -> Answer<TaskStatus> {
    let (mut fields, mut status, mut ended) = (Fields::new(message), Status::default(), None);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => ended = Some(status_of(field)?),
            _ => status.read(field)?,
        }
    }
    status.or(|| ended.ok_or(problem("status", "is missing")))
}
