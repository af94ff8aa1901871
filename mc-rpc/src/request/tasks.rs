//! The requests about tasks.

use bytes::BytesMut;
use mc_meta::{MAX_FETCHED_TASKS, MAX_TASK_MESSAGE_LEN, TaskStatus};
use mc_types::{ClientId, TaskId};

use super::tenant_key::TenantKeyParts;
use super::transfers::{push_target, write_targets};
use super::{TenantKey, client, no_client, segment_name, sixteen};
use crate::error::Refusal;
use crate::proto::task;
use crate::wire::{Field, Fields, put_bytes, put_u64};

fn task_id(field: Field<'_>) -> Result<TaskId, Refusal> {
    sixteen(field.bytes()?, "task_id").map(TaskId::from_bytes)
}

fn no_task() -> Refusal {
    Refusal::invalid("task_id is missing")
}

/// `CreateCopyTaskRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CreateCopyTaskRequest<'a> {
    pub(crate) object: TenantKey<'a>,
    pub(crate) targets: Vec<&'a str>,
}

impl<'a> CreateCopyTaskRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut object) = (Fields::new(payload), TenantKeyParts::default());
        let mut targets = Vec::new();
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => push_target(field, &mut targets)?,
                3 => object.tenant(field)?,
                _ => {}
            }
        }
        Ok(Self { object: object.finish()?, targets })
    }

    pub(crate) fn write(out: &mut BytesMut, object: &TenantKey<'_>, targets: &[&str]) {
        object.write(out, 3);
        write_targets(out, 2, targets);
    }
}

/// `CreateMoveTaskRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CreateMoveTaskRequest<'a> {
    pub(crate) object: TenantKey<'a>,
    pub(crate) source: &'a str,
    pub(crate) target: &'a str,
}

impl<'a> CreateMoveTaskRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let (mut fields, mut object) = (Fields::new(payload), TenantKeyParts::default());
        let (mut source, mut target) = ("", "");
        while let Some(field) = fields.next()? {
            match field.number {
                1 => object.key(field)?,
                2 => source = segment_name(field, "source")?,
                3 => target = segment_name(field, "target")?,
                4 => object.tenant(field)?,
                _ => {}
            }
        }
        Ok(Self { object: object.finish()?, source, target })
    }

    pub(crate) fn write(out: &mut BytesMut, object: &TenantKey<'_>, source: &str, target: &str) {
        object.write(out, 4);
        put_bytes(out, 2, source.as_bytes());
        put_bytes(out, 3, target.as_bytes());
    }
}

/// `QueryTaskRequest`.
pub(crate) fn parse_query_task(payload: &[u8]) -> Result<TaskId, Refusal> {
    let (mut fields, mut id) = (Fields::new(payload), None);
    while let Some(field) = fields.next()? {
        if field.number == 1 {
            id = Some(task_id(field)?);
        }
    }
    id.ok_or_else(no_task)
}

pub(crate) fn write_query_task(out: &mut BytesMut, id: TaskId) {
    put_bytes(out, 1, &id.to_bytes());
}

/// `FetchTasksRequest`.
pub(crate) fn parse_fetch_tasks(payload: &[u8]) -> Result<(ClientId, usize), Refusal> {
    let (mut fields, mut who, mut max) = (Fields::new(payload), None, 0);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => who = Some(client(field)?),
            2 => max = field.u32()?,
            _ => {}
        }
    }
    let max = match max as usize {
        0 => MAX_FETCHED_TASKS,
        max => max.min(MAX_FETCHED_TASKS),
    };
    Ok((who.ok_or_else(no_client)?, max))
}

pub(crate) fn write_fetch_tasks(out: &mut BytesMut, client: ClientId, max: usize) {
    put_bytes(out, 1, &client.to_bytes());
    put_u64(out, 2, u32::try_from(max).unwrap_or(u32::MAX).into());
}

/// `MarkTaskToCompleteRequest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MarkTaskRequest<'a> {
    pub(crate) client: ClientId,
    pub(crate) id: TaskId,
    pub(crate) status: TaskStatus,
    pub(crate) outcome: &'a str,
}

impl<'a> MarkTaskRequest<'a> {
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, Refusal> {
        let mut fields = Fields::new(payload);
        let (mut who, mut id, mut status, mut outcome) = (None, None, 0, "");
        while let Some(field) = fields.next()? {
            match field.number {
                1 => who = Some(client(field)?),
                2 => id = Some(task_id(field)?),
                3 => status = field.i32()?,
                4 => outcome = field.text()?,
                _ => {}
            }
        }
        let status = task_status(status).ok_or_else(|| {
            Refusal::invalid(format!("status is {status}; a task ends as SUCCESS or FAILED"))
        })?;
        let (client, id) = (who.ok_or_else(no_client)?, id.ok_or_else(no_task)?);
        Ok(Self { client, id, status, outcome })
    }

    pub(crate) fn write(
        out: &mut BytesMut,
        client: ClientId,
        id: TaskId,
        status: TaskStatus,
        outcome: &str,
    ) {
        put_bytes(out, 1, &client.to_bytes());
        put_bytes(out, 2, &id.to_bytes());
        put_u64(out, 3, task_status_number(status) as u64); // none is negative
        // The master keeps no more, so no more is sent.
        let mut kept = (0..=outcome.len().min(MAX_TASK_MESSAGE_LEN)).rev();
        let kept = kept.find(|&at| outcome.is_char_boundary(at)).unwrap_or(0);
        put_bytes(out, 4, &outcome.as_bytes()[..kept]);
    }
}

/// The status with this number in the `.proto`.
pub(crate) fn task_status(number: i32) -> Option<TaskStatus> {
    match task::Status::try_from(number) {
        Ok(task::Status::Pending) => Some(TaskStatus::Pending),
        Ok(task::Status::Processing) => Some(TaskStatus::Processing),
        Ok(task::Status::Success) => Some(TaskStatus::Success),
        Ok(task::Status::Failed) => Some(TaskStatus::Failed),
        Ok(task::Status::Unknown) | Err(_) => None,
    }
}

pub(crate) const fn task_status_number(status: TaskStatus) -> i32 {
    match status {
        TaskStatus::Pending => task::Status::Pending as i32,
        TaskStatus::Processing => task::Status::Processing as i32,
        TaskStatus::Success => task::Status::Success as i32,
        TaskStatus::Failed => task::Status::Failed as i32,
    }
}
