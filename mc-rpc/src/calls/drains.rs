//! Drain jobs, which empty segments.

use core::time::Duration;

use mc_meta::{
    DEFAULT_DRAIN_CONCURRENCY, DrainJobInfo, JobStatus, MAX_DRAIN_JOBS, MAX_DRAIN_SEGMENTS,
    MAX_ENDED_DRAIN_JOBS,
};
use mc_types::{JobId, Time};

use super::{
    BadField, CallContext, at_most, calls, count, fit, id, message, millis, missing, reply,
    segment_name, segment_names, texts,
};
use crate::answer::read_done;
use crate::proto::{self, drain_job};
use crate::refusal::Refusal;

/// Most jobs that a master knows.
const MAX_JOBS: usize = MAX_DRAIN_JOBS + MAX_ENDED_DRAIN_JOBS;

/// Bytes kept for the number of jobs that are left out of a list.
const LEFT_OUT: usize = 8;

/// A drain job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainJob {
    /// Its identity.
    pub id: JobId,
    /// Its status.
    pub status: JobStatus,
    /// Names of the segments that it empties.
    pub segments: Vec<Box<str>>,
    /// Names of the segments that it moves to; empty for any.
    pub targets: Vec<Box<str>>,
    /// Most moves under way at a time.
    pub max_concurrency: u32,
    /// Time since it was created.
    pub age: Duration,
    /// Time since anything here last changed.
    pub unchanged: Duration,
    /// Objects moved so far.
    pub moved: u64,
    /// Bytes of those.
    pub moved_bytes: u64,
    /// Moves under way.
    pub active: u64,
    /// Objects that could not be moved when all were last looked at, and will be looked
    /// at again.
    pub blocked: u64,
    /// Objects that are not tried any more.
    pub failed: u64,
    /// The reason of a failure; empty without one.
    pub outcome: Box<str>,
}

/// The drain jobs that a master knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainJobs {
    /// The jobs, those at work first.
    pub jobs: Vec<DrainJob>,
    /// Jobs that did not fit into the answer.
    pub left_out: u32,
}

calls! {
    /// Begins to empty the segments of these names into those named `targets`, or into any
    /// when none is named, with up to `max_concurrency` moves under way at a time; 0 is
    /// [`DEFAULT_DRAIN_CONCURRENCY`](mc_meta::DEFAULT_DRAIN_CONCURRENCY). The nodes that
    /// contribute the segments do the moves as tasks.
    fn create_drain_job(&self, segments: &[&str], targets: &[&str], max_concurrency: usize) -> JobId {
        CreateDrainJob "Refused with the codes of [`mc_meta::DrainError`].",
        message(proto::CreateDrainJobRequest {
            segments: texts(segments),
            targets: texts(targets),
            max_concurrency: count(max_concurrency),
        }),
        reply(|answer: &proto::CreateDrainJobResponse| job_id(&answer.job_id)),
    }

    /// Returns the progress of a drain job.
    fn query_drain_job(&self, id: JobId) -> DrainJob {
        QueryDrainJob "Refused with `JobNotFound`.",
        message(proto::QueryDrainJobRequest { job_id: id.to_bytes().into() }),
        reply(|answer: &proto::QueryDrainJobResponse| DrainJob::from_proto(answer.job.as_ref().ok_or(missing("job"))?)),
    }

    /// Returns the drain jobs that the master knows, those at work first.
    fn list_drain_jobs(&self) -> DrainJobs {
        ListDrainJobs,
        message(proto::ListDrainJobsRequest {}),
        reply(|answer: &proto::ListDrainJobsResponse| {
            at_most(&answer.jobs, MAX_JOBS, "jobs")?;
            let jobs = answer.jobs.iter().map(DrainJob::from_proto);
            Ok(DrainJobs { jobs: jobs.collect::<Result<_, _>>()?, left_out: answer.left_out })
        }),
    }

    /// Begins no more moves for a drain job. It is canceled when those are over that nodes
    /// have fetched; its segments take new objects again then.
    fn cancel_drain_job(&self, id: JobId) -> JobStatus {
        CancelDrainJob "Refused with the codes of [`mc_meta::DrainError`].",
        message(proto::CancelDrainJobRequest { job_id: id.to_bytes().into() }),
        reply(|answer: &proto::CancelDrainJobResponse| job_status(answer.status)),
    }

    /// Takes new objects into a segment again that was drained.
    fn reopen_segment(&self, name: &str) -> () {
        ReopenSegment "Refused with the codes of [`mc_meta::DrainError`].",
        message(proto::ReopenSegmentRequest { segment_name: name.into() }),
        read_done,
    }
}

impl CallContext<'_> {
    pub(crate) fn create_drain_job(
        self,
        request: &proto::CreateDrainJobRequest,
    ) -> Result<proto::CreateDrainJobResponse, Refusal> {
        let segments: Vec<&str> = segment_names(&request.segments, MAX_DRAIN_SEGMENTS, "segments")?;
        let targets: Vec<&str> = segment_names(&request.targets, MAX_DRAIN_SEGMENTS, "targets")?;
        let max_concurrency = match request.max_concurrency as usize {
            0 => DEFAULT_DRAIN_CONCURRENCY,
            given => given,
        };
        let id = self.master.create_drain_job(self.now, &segments, &targets, max_concurrency)?;
        Ok(proto::CreateDrainJobResponse { job_id: id.to_bytes().into(), ..Default::default() })
    }

    pub(crate) fn query_drain_job(
        self,
        request: &proto::QueryDrainJobRequest,
    ) -> Result<proto::QueryDrainJobResponse, Refusal> {
        let info = self.master.query_drain_job(job_id(&request.job_id)?)?;
        Ok(proto::QueryDrainJobResponse {
            job: Some(to_proto(&info, self.now)),
            ..Default::default()
        })
    }

    pub(crate) fn list_drain_jobs(
        self,
        _: &proto::ListDrainJobsRequest,
    ) -> Result<proto::ListDrainJobsResponse, Refusal> {
        let known = self.master.list_drain_jobs();
        let room = self.max_reply.saturating_sub(LEFT_OUT);
        let jobs = fit(known.iter().map(|info| to_proto(info, self.now)), room);
        let left_out = count(known.len() - jobs.len());
        Ok(proto::ListDrainJobsResponse { jobs, left_out, ..Default::default() })
    }

    pub(crate) fn cancel_drain_job(
        self,
        request: &proto::CancelDrainJobRequest,
    ) -> Result<proto::CancelDrainJobResponse, Refusal> {
        let status = self.master.cancel_drain_job(self.now, job_id(&request.job_id)?)?;
        Ok(proto::CancelDrainJobResponse { status: status as i32, ..Default::default() })
    }

    pub(crate) fn reopen_segment(
        self,
        request: &proto::ReopenSegmentRequest,
    ) -> Result<(), Refusal> {
        let name = segment_name(&request.segment_name, "segment_name")?;
        Ok(self.master.reopen_segment(self.now, name)?)
    }
}

fn job_id(bytes: &[u8]) -> Result<JobId, BadField> {
    id(bytes, "job_id", JobId::from_bytes)
}

fn job_status(number: i32) -> Result<JobStatus, BadField> {
    match drain_job::Status::try_from(number) {
        Ok(drain_job::Status::Created) => Ok(JobStatus::Created),
        Ok(drain_job::Status::Planning) => Ok(JobStatus::Planning),
        Ok(drain_job::Status::Running) => Ok(JobStatus::Running),
        Ok(drain_job::Status::Succeeded) => Ok(JobStatus::Succeeded),
        Ok(drain_job::Status::Failed) => Ok(JobStatus::Failed),
        Ok(drain_job::Status::Canceled) => Ok(JobStatus::Canceled),
        Err(_) => Err(BadField::new("status", "is unknown")),
    }
}

/// A job as an answer at the time `now` describes it.
fn to_proto(info: &DrainJobInfo, now: Time) -> proto::DrainJob {
    proto::DrainJob {
        job_id: info.id.to_bytes().into(),
        status: info.status as i32,
        segments: info.segments.iter().map(|name| name.to_string()).collect(),
        targets: info.targets.iter().map(|name| name.to_string()).collect(),
        max_concurrency: count(info.max_concurrency),
        age_ms: millis(now - info.created_at),
        unchanged_ms: millis(now - info.last_updated_at),
        moved: info.moved,
        moved_bytes: info.moved_bytes,
        active: info.active,
        blocked: info.blocked,
        failed: info.failed,
        outcome: info.message.to_string(),
    }
}

impl DrainJob {
    fn from_proto(job: &proto::DrainJob) -> Result<Self, BadField> {
        Ok(Self {
            id: job_id(&job.job_id)?,
            status: job_status(job.status)?,
            segments: segment_names(&job.segments, MAX_DRAIN_SEGMENTS, "segments")?,
            targets: segment_names(&job.targets, MAX_DRAIN_SEGMENTS, "targets")?,
            max_concurrency: job.max_concurrency,
            age: Duration::from_millis(job.age_ms),
            unchanged: Duration::from_millis(job.unchanged_ms),
            moved: job.moved,
            moved_bytes: job.moved_bytes,
            active: job.active,
            blocked: job.blocked,
            failed: job.failed,
            outcome: job.outcome.as_str().into(),
        })
    }
}
