//! Answers about tasks.

use bytes::BytesMut;
use mc_meta::{
    MAX_REPLICAS, MAX_SEGMENT_NAME_LEN, MAX_TENANT_LEN, TaskAssignment, TaskInfo, TaskKind,
    TaskStatus, unscoped,
};
use mc_types::{MAX_KEY_LEN, ObjectKey, TaskId, Time};

use super::{millis, put_enum};
use crate::proto::task;
use crate::request::task_status_number;
use crate::wire::{put_bytes, put_item_bytes, put_message, put_u64};

/// Most bytes that one task takes: its key, its tenant, the names of its segments, and
/// what is of a fixed length.
pub(crate) const TASK_CEILING: usize =
    MAX_KEY_LEN + MAX_TENANT_LEN + (1 + MAX_REPLICAS) * (MAX_SEGMENT_NAME_LEN + 3) + 64;

/// The object's key as its tenant knows it, and the tenant's name.
pub(super) fn put_object(out: &mut BytesMut, [key, tenant]: [u32; 2], stored: &ObjectKey) {
    let (tenant_id, text) = unscoped(stored.as_ref());
    put_bytes(out, key, text.as_bytes());
    put_bytes(out, tenant, tenant_id.as_bytes());
}

fn put_task(
    out: &mut BytesMut,
    (id, kind, key): (TaskId, &TaskKind, &ObjectKey),
    created_at: Time,
    now: Time,
) {
    put_message(out, 2, |out| {
        put_bytes(out, 1, &id.to_bytes());
        put_object(out, [3, 4], key);
        put_bytes(out, 5, kind.source().as_bytes());
        match kind {
            TaskKind::Copy { targets, .. } => {
                put_enum(out, 2, task::Kind::Copy.into());
                for name in targets {
                    put_item_bytes(out, 6, name.as_bytes());
                }
            }
            TaskKind::Move { target, .. } => {
                put_enum(out, 2, task::Kind::Move.into());
                put_item_bytes(out, 6, target.as_bytes());
            }
        }
        put_u64(out, 7, millis(now - created_at));
    });
}

/// `CreateCopyTaskResponse` and `CreateMoveTaskResponse`.
pub(crate) fn write_task_id(out: &mut BytesMut, id: TaskId) {
    put_bytes(out, 2, &id.to_bytes());
}

/// `QueryTaskResponse`.
pub(crate) fn write_task_info(out: &mut BytesMut, info: &TaskInfo, now: Time) {
    put_task(out, (info.id, &info.kind, &info.key), info.created_at, now);
    write_task_status(out, 3, info.status);
    put_u64(out, 4, millis(now - info.last_updated_at));
    put_bytes(out, 5, &info.assigned_client.to_bytes());
    put_bytes(out, 6, info.message.as_bytes());
}

/// `FetchTasksResponse`.
pub(crate) fn write_tasks(out: &mut BytesMut, tasks: &[TaskAssignment], now: Time) {
    for task in tasks {
        put_task(out, (task.id, &task.kind, &task.key), task.created_at, now);
    }
    if let Some(task) = tasks.first() {
        put_u64(out, 3, task.max_retry_attempts.into());
    }
}

/// `MarkTaskToCompleteResponse` with the number 2.
pub(crate) fn write_task_status(out: &mut BytesMut, number: u32, status: TaskStatus) {
    put_enum(out, number, task_status_number(status));
}
