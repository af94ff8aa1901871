//! What the client hands out about drain jobs.

use core::time::Duration;

use mc_meta::{JobStatus, MAX_DRAIN_JOBS, MAX_DRAIN_SEGMENTS, MAX_ENDED_DRAIN_JOBS};
use mc_types::JobId;

use super::read::{Answer, Status, name, problem, sixteen};
use crate::error::MalformedReply;
use crate::proto::drain_job;
use crate::wire::{Field, Fields};

/// Most jobs that a master knows.
const MAX_JOBS: usize = MAX_DRAIN_JOBS + MAX_ENDED_DRAIN_JOBS;

/// A drain job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainJob {
    /// Its identity.
    pub id: JobId,
    /// Where it is in its life.
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
    /// What there is to say, in words; empty when all went well.
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

fn job_id(field: Field<'_>) -> Result<JobId, MalformedReply> {
    sixteen(field.bytes()?, "job_id").map(JobId::from_bytes)
}

fn job_status(number: i32) -> Result<JobStatus, MalformedReply> {
    match drain_job::Status::try_from(number) {
        Ok(drain_job::Status::Created) => Ok(JobStatus::Created),
        Ok(drain_job::Status::Planning) => Ok(JobStatus::Planning),
        Ok(drain_job::Status::Running) => Ok(JobStatus::Running),
        Ok(drain_job::Status::Succeeded) => Ok(JobStatus::Succeeded),
        Ok(drain_job::Status::Failed) => Ok(JobStatus::Failed),
        Ok(drain_job::Status::Canceled) => Ok(JobStatus::Canceled),
        Err(_) => Err(problem("status", "is unknown")),
    }
}

fn push_name(
    field: Field<'_>,
    what: &'static str,
    names: &mut Vec<Box<str>>,
) -> Result<(), MalformedReply> {
    if names.len() == MAX_DRAIN_SEGMENTS {
        return Err(problem(what, "has too many names"));
    }
    names.push(name(field)?);
    Ok(())
}

/// `DrainJob`.
fn read_job(message: &[u8]) -> Result<DrainJob, MalformedReply> {
    let (mut fields, mut id, mut status) = (Fields::new(message), None, 0);
    let (mut segments, mut targets) = (Vec::new(), Vec::new());
    let (mut max_concurrency, mut outcome) = (0, "");
    let [mut age, mut unchanged, mut moved, mut moved_bytes] = [0; 4];
    let [mut active, mut blocked, mut failed] = [0; 3];
    while let Some(field) = fields.next()? {
        match field.number {
            1 => id = Some(job_id(field)?),
            2 => status = field.i32()?,
            3 => push_name(field, "segments", &mut segments)?,
            4 => push_name(field, "targets", &mut targets)?,
            5 => max_concurrency = field.u32()?,
            6 => age = field.u64()?,
            7 => unchanged = field.u64()?,
            8 => moved = field.u64()?,
            9 => moved_bytes = field.u64()?,
            10 => active = field.u64()?,
            11 => blocked = field.u64()?,
            12 => failed = field.u64()?,
            13 => outcome = field.text()?,
            _ => {}
        }
    }
    Ok(DrainJob {
        id: id.ok_or(problem("job_id", "is missing"))?,
        status: job_status(status)?,
        segments,
        targets,
        max_concurrency,
        age: Duration::from_millis(age),
        unchanged: Duration::from_millis(unchanged),
        moved,
        moved_bytes,
        active,
        blocked,
        failed,
        outcome: outcome.into(),
    })
}

/// `CreateDrainJobResponse`.
pub(crate) fn read_job_id(message: &[u8]) -> Answer<JobId> {
    let (mut fields, mut status, mut id) = (Fields::new(message), Status::default(), None);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => id = Some(job_id(field)?),
            _ => status.read(field)?,
        }
    }
    status.or(|| id.ok_or(problem("job_id", "is missing")))
}

/// `QueryDrainJobResponse`.
pub(crate) fn read_drain_job(message: &[u8]) -> Answer<DrainJob> {
    let (mut fields, mut status, mut job) = (Fields::new(message), Status::default(), None);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => job = Some(read_job(field.bytes()?)?),
            _ => status.read(field)?,
        }
    }
    status.or(|| job.ok_or(problem("job", "is missing")))
}

/// `ListDrainJobsResponse`.
pub(crate) fn read_drain_jobs(message: &[u8]) -> Answer<DrainJobs> {
    let (mut fields, mut status) = (Fields::new(message), Status::default());
    let mut list = DrainJobs::default();
    while let Some(field) = fields.next()? {
        match field.number {
            2 if list.jobs.len() == MAX_JOBS => return Err(problem("jobs", "has too many jobs")),
            2 => list.jobs.push(read_job(field.bytes()?)?),
            3 => list.left_out = field.u32()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| Ok(list))
}

/// `CancelDrainJobResponse`.
pub(crate) fn read_job_status(message: &[u8]) -> Answer<JobStatus> {
    let (mut fields, mut status, mut number) = (Fields::new(message), Status::default(), 0);
    while let Some(field) = fields.next()? {
        match field.number {
            2 => number = field.i32()?,
            _ => status.read(field)?,
        }
    }
    status.or(|| job_status(number))
}
