//! Calls of those who empty segments.

use bytes::BytesMut;
use mc_meta::JobStatus;
use mc_types::JobId;

use super::calls;
use crate::answer::{self, DrainJob, DrainJobs};
use crate::request::{self, CreateDrainJobRequest};

calls! {
    /// Begins to empty the segments of these names into those named `targets`, or into any
    /// when none is named, with up to `max_concurrency` moves under way at a time; 0 is
    /// [`DEFAULT_DRAIN_CONCURRENCY`](mc_meta::DEFAULT_DRAIN_CONCURRENCY). The nodes that
    /// contribute the segments do the moves as tasks.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::DrainError`]; or any other
    /// [`RpcError`].
    fn create_drain_job(&self, segments: &[&str], targets: &[&str], max_concurrency: usize) -> JobId {
        CreateDrainJob,
        |out: &mut BytesMut| CreateDrainJobRequest::write(out, segments, targets, max_concurrency),
        answer::read_job_id,
    }

    /// What has become of a drain job.
    ///
    /// # Errors
    /// Refused with `JobNotFound`; or any other [`RpcError`].
    fn query_drain_job(&self, id: JobId) -> DrainJob {
        QueryDrainJob,
        |out: &mut BytesMut| request::write_job(out, id),
        answer::read_drain_job,
    }

    /// The drain jobs that are known, those at work first.
    ///
    /// # Errors
    /// Any [`RpcError`].
    fn list_drain_jobs(&self) -> DrainJobs {
        ListDrainJobs,
        |_: &mut BytesMut| (),
        answer::read_drain_jobs,
    }

    /// Begins no more moves for a drain job. It is canceled when those are over that nodes
    /// have fetched; its segments take new objects again then.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::DrainError`]; or any other
    /// [`RpcError`].
    fn cancel_drain_job(&self, id: JobId) -> JobStatus {
        CancelDrainJob,
        |out: &mut BytesMut| request::write_job(out, id),
        answer::read_job_status,
    }

    /// Takes new objects into a segment again that was drained.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::DrainError`]; or any other
    /// [`RpcError`].
    fn reopen_segment(&self, name: &str) -> () {
        ReopenSegment,
        |out: &mut BytesMut| request::write_reopen(out, name),
        answer::read_done,
    }
}
