//! The store's reports as data classes of `mc_store.reports`.

use std::time::Duration;

use mc_meta::{
    BufferStatus, EvictionBlocker, KeyEvent, KeyEventKind, LocalDiskReplica, Removal,
    ReplicaStatus, TaskKind, TransferKind,
};
use mc_rpc::{ObjectExplanation, SegmentReport};
use mc_store::{
    ClientMetrics, ClusterReport, DrainReport, MountedSegment, ObjectDescription, OperationMetrics,
    PathMetrics, ReplicaDescription, TaskReport,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyModule, PyTuple};

/// A report, which becomes an object of the Python data class that `reports!` names for its type.
#[derive(Debug)]
pub(super) struct Report<T>(pub(super) T);

macro_rules! reports {
    ($($type:ty = $class:literal, |$py:ident, $it:ident| { $($field:ident: $value:expr,)* })*) => {$(
        impl<'py> IntoPyObject<'py> for Report<$type> {
            type Target = PyAny;
            type Output = Bound<'py, PyAny>;
            type Error = PyErr;

            fn into_pyobject(self, $py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                let $it = self.0;
                let fields = PyDict::new($py);
                $(fields.set_item(stringify!($field), $value)?;)*
                class($py, $class)?.call((), Some(&fields))
            }
        }
    )*};
}

/// Returns the class of this name, or a function of it that makes one.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static REPORTS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let import = || PyModule::import(py, "mc_store.reports").map(Bound::unbind);
    let module = REPORTS.get_or_try_init(py, import)?.bind(py).as_any().clone();
    name.split('.').try_fold(module, |holder, part| holder.getattr(part))
}

/// Converts several reports to a tuple.
fn tuple<'py, T>(py: Python<'py>, all: Vec<T>) -> PyResult<Bound<'py, PyTuple>>
where
    Report<T>: IntoPyObject<'py>,
{
    PyTuple::new(py, all.into_iter().map(Report).collect::<Vec<_>>())
}

reports! {
    MountedSegment = "Segment", |py, it| {
        id: it.id.to_string(),
        name: &*it.name,
        size: it.size.as_u64(),
        medium: it.medium.as_str(),
        endpoint: it.endpoint.as_str(),
        leaves_in: it.leaves_in.map(|time| time.as_secs_f64()),
    }
    SegmentReport = "SegmentReport", |py, it| {
        name: &*it.name,
        id: it.id.to_string(),
        client: it.client.to_string(),
        endpoint: it.endpoint.as_str(),
        status: it.status.as_str(),
        is_suspect: it.is_suspect,
        size: it.size,
        used: it.used,
        largest_free: it.largest_free,
        allocations: it.allocations,
        medium: it.medium.as_str(),
    }
    ClusterReport = "ClusterReport._of", |py, it| {
        segments: tuple(py, it.segments)?,
        totals: {
            let totals = PyDict::new(py);
            for (total, value) in it.totals.values() {
                totals.set_item(total.name, value)?;
            }
            totals
        },
    }
    ReplicaDescription = "Replica", |py, it| {
        status: replica_status(it.status),
        buffer: buffer_status(it.buffer),
        segment_name: &*it.segment_name,
        segment_id: it.segment_id.to_string(),
        endpoint: it.endpoint.as_str(),
        offset: it.extent.offset(),
        size: it.extent.len(),
    }
    LocalDiskReplica = "LocalDisk", |py, it| {
        client: it.client.to_string(),
        endpoint: it.endpoint.as_str(),
    }
    ObjectDescription = "ObjectDescription", |py, it| {
        generation: it.generation.as_u64(),
        owner: it.owner.to_string(),
        size: it.slices.total_len(),
        slices: PyTuple::new(py, it.slices.as_slice().iter().map(|slice| slice.len))?,
        replicas: tuple(py, it.replicas)?,
        disk: it.file.map(replica_status),
        local_disks: tuple(py, it.local_disks)?,
        lease: it.lease.as_secs_f64(),
        soft_pinned: it.soft_pinned,
        idle: it.idle.as_secs_f64(),
    }
    EvictionBlocker = "KeptBy", |py, it| {
        reason: reason(it).0,
        seconds: reason(it).1.map(|time| time.as_secs_f64()),
    }
    KeyEvent = "Happening", |py, it| {
        ago: it.ago.as_secs_f64(),
        event: event(it.kind),
        generation: match it.kind {
            KeyEventKind::Removed { generation, .. } => Some(generation.as_u64()),
            _ => None,
        },
        code: match it.kind {
            KeyEventKind::Refused { code } => Some(code.code()),
            _ => None,
        },
    }
    ObjectExplanation = "Explanation", |py, it| {
        object: it.object.map(Report),
        kept_by: tuple(py, it.kept_by)?,
        history: tuple(py, it.history)?,
    }
    TaskReport = "Task", |py, it| {
        id: it.task.id.to_string(),
        kind: match it.task.kind {
            TaskKind::Copy { .. } => "copy",
            TaskKind::Move { .. } => "move",
        },
        key: it.task.key.as_str(),
        source: match &it.task.kind {
            TaskKind::Copy { source, .. } | TaskKind::Move { source, .. } => &**source,
        },
        targets: match &it.task.kind {
            TaskKind::Copy { targets, .. } => PyTuple::new(py, targets.iter().map(|name| &**name)),
            TaskKind::Move { target, .. } => PyTuple::new(py, [&**target]),
        }?,
        status: it.status.to_string(),
        client: it.client.to_string(),
        age: it.task.age.as_secs_f64(),
        unchanged: it.unchanged.as_secs_f64(),
        outcome: &*it.outcome,
    }
    DrainReport = "DrainReport", |py, it| {
        complete: it.complete,
        moved: it.moved,
        moved_bytes: it.moved_bytes,
        blocked: it.blocked,
        failed: it.failed,
        outcome: &*it.outcome,
    }
    OperationMetrics = "OperationMetrics", |py, it| {
        calls: it.calls(),
        objects: it.objects,
        bytes: it.bytes,
        abandoned: it.abandoned,
        failures: {
            let failures = PyDict::new(py);
            for (code, count) in &it.failures {
                failures.set_item(code.as_str(), count)?;
            }
            failures
        },
        seconds: it.latency.total().as_secs_f64(),
        p50: it.latency.quantile(0.5).map(|time| time.as_secs_f64()),
        p99: it.latency.quantile(0.99).map(|time| time.as_secs_f64()),
    }
    PathMetrics = "PathMetrics", |py, it| {
        read: it.read,
        written: it.written,
    }
    ClientMetrics = "Metrics", |py, it| {
        operations: {
            let operations = PyDict::new(py);
            for operation in it.operations {
                operations.set_item(operation.operation.as_str(), Report(operation))?;
            }
            operations
        },
        paths: {
            let paths = PyDict::new(py);
            for path in it.paths {
                paths.set_item(path.path.as_str(), Report(path))?;
            }
            paths
        },
        tasks_done: it.tasks_done,
        tasks_failed: it.tasks_failed,
        hot_cache_hits: it.hot_cache.0,
        hot_cache_misses: it.hot_cache.1,
    }
}

fn replica_status(status: ReplicaStatus) -> &'static str {
    match status {
        ReplicaStatus::Undefined => "undefined",
        ReplicaStatus::Initialized => "initialized",
        ReplicaStatus::Processing => "processing",
        ReplicaStatus::Complete => "complete",
        ReplicaStatus::Removed => "removed",
        ReplicaStatus::Failed => "failed",
    }
}

fn buffer_status(status: BufferStatus) -> &'static str {
    match status {
        BufferStatus::Init => "init",
        BufferStatus::Complete => "complete",
        BufferStatus::Failed => "failed",
        BufferStatus::Unregistered => "unregistered",
    }
}

/// Returns why an object is kept, and for how long; of an unfinished one, its age.
fn reason(kept_by: EvictionBlocker) -> (&'static str, Option<Duration>) {
    match kept_by {
        EvictionBlocker::Unfinished { age } => ("unfinished", Some(age)),
        EvictionBlocker::Lease { remaining } => ("lease", Some(remaining)),
        EvictionBlocker::SoftPin { remaining } => ("soft_pin", Some(remaining)),
        EvictionBlocker::HardPin => ("hard_pin", None),
        EvictionBlocker::Transfer { kind, remaining } => match kind {
            TransferKind::Copy => ("copy", Some(remaining)),
            TransferKind::Move => ("move", Some(remaining)),
        },
        EvictionBlocker::Group { remaining } => ("group", Some(remaining)),
        EvictionBlocker::Offload => ("offload", None),
        EvictionBlocker::NoRoomToGain => ("no_room_to_gain", None),
        _ => ("unknown", None),
    }
}

fn event(kind: KeyEventKind) -> &'static str {
    match kind {
        KeyEventKind::Removed { cause: Removal::Requested, .. } => "removed",
        KeyEventKind::Removed { cause: Removal::Evicted, .. } => "evicted",
        KeyEventKind::Removed { cause: Removal::SegmentLost, .. } => "segment_lost",
        KeyEventKind::Removed { cause: Removal::Replaced, .. } => "replaced",
        KeyEventKind::Removed { cause: Removal::DiskLost, .. } => "disk_lost",
        KeyEventKind::Removed { cause: Removal::Expired, .. } => "expired",
        KeyEventKind::Removed { cause: Removal::Damaged, .. } => "damaged",
        KeyEventKind::Refused { .. } => "refused",
        _ => "unknown",
    }
}
