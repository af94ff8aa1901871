//! Tasks: copies and moves of objects, which nodes carry out.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mc_meta::TaskKind;
use mc_store::{ErrorCode, ReplicaTransfer, TaskId, TaskReport};
use pyo3::prelude::*;

use super::Store;
use super::arguments::{Size, Texts};
use super::enumerations::{TaskStatus, TaskType};
use super::uuid::{Halves, halves, whole};
use crate::error::{Failure, OK};

/// The state of a task.
#[pyclass(frozen, get_all, module = "mc_store.mooncake.store")]
#[derive(Debug)]
pub(crate) struct QueryTaskResponse {
    /// The task's id, as create_copy_task or create_move_task returned it.
    id: Halves,
    /// The task's kind.
    r#type: TaskType,
    /// The task's status.
    status: TaskStatus,
    /// The time of creation, in milliseconds since 1970 by this host's clock.
    created_at_ms_epoch: i64,
    /// The time of the last change of its status, likewise.
    last_updated_at_ms_epoch: i64,
    /// The id of the client that carries the task out.
    assigned_client: Halves,
    /// The outcome as text; empty until the task ends.
    message: String,
}

#[pymethods]
impl QueryTaskResponse {
    fn __repr__(&self) -> String {
        format!("<QueryTaskResponse {:?} {:?} {:?}>", self.r#type, self.status, self.message)
    }
}

#[pymethods]
impl Store {
    /// create_copy_task(self, key: str, targets: list[str]) -> tuple[tuple[int, int], int]
    ///
    /// Creates a task for a node that holds an object to copy it to the target segments. Returns
    /// the task's id and 0, or (0, 0) and a negative number.
    fn create_copy_task(
        &self,
        py: Python<'_>,
        key: &str,
        targets: Texts,
    ) -> PyResult<(Halves, i32)> {
        self.create_task(py, key, ReplicaTransfer::Copy { targets: &targets.as_strs() })
    }

    /// create_move_task(self, key: str, source: str, target: str) -> tuple[tuple[int, int], int]
    ///
    /// Creates a task for the source segment's node to move an object to the target segment.
    /// Returns the task's id and 0, or (0, 0) and a negative number.
    fn create_move_task(
        &self,
        py: Python<'_>,
        key: &str,
        source: &str,
        target: &str,
    ) -> PyResult<(Halves, i32)> {
        self.create_task(py, key, ReplicaTransfer::Move { source, target })
    }

    /// query_task(self, task_id: tuple[int, int]) -> tuple[QueryTaskResponse | None, int]
    ///
    /// Returns the state of a task, and 0; or None and a negative number: -1400 when the task is
    /// unknown, another number when the query fails.
    fn query_task(
        &self,
        py: Python<'_>,
        task_id: (Size, Size),
    ) -> PyResult<(Option<QueryTaskResponse>, i32)> {
        let (Size(high), Size(low)) = task_id;
        let id = TaskId::from_u128(whole((high as u64, low as u64)));
        Ok(match self.with(py, |session| session.backend.wait(|store| store.task(id)))? {
            Ok(report) => (Some(response(id, report)), OK),
            Err(failure) => (None, failure.code()),
        })
    }
}

impl Store {
    fn create_task(
        &self,
        py: Python<'_>,
        key: &str,
        transfer: ReplicaTransfer<'_>,
    ) -> PyResult<(Halves, i32)> {
        let created =
            self.with(py, |session| session.backend.wait(|store| store.transfer(key, transfer)))?;
        Ok(match created {
            Ok(id) => (halves(id.as_u128()), OK),
            // Mooncake's number for the name of a segment that there is not, here.
            Err(failure) if failure == Failure::of(ErrorCode::SegmentNotFound) => {
                ((0, 0), Failure::INVALID_PARAMS.code())
            }
            Err(failure) => ((0, 0), failure.code()),
        })
    }
}

fn response(id: TaskId, report: TaskReport) -> QueryTaskResponse {
    let TaskReport { task, status, unchanged, client, outcome } = report;
    let now = SystemTime::now();
    let epoch_ms = |ago: Duration| {
        let at = now.checked_sub(ago).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        at.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    };
    QueryTaskResponse {
        id: halves(id.as_u128()),
        r#type: match task.kind {
            TaskKind::Copy { .. } => TaskType::REPLICA_COPY,
            TaskKind::Move { .. } => TaskType::REPLICA_MOVE,
        },
        status: status.into(),
        created_at_ms_epoch: epoch_ms(task.age),
        last_updated_at_ms_epoch: epoch_ms(unchanged),
        assigned_client: halves(client.as_u128()),
        message: outcome.into(),
    }
}
