//! Answers about drain jobs.

use bytes::BytesMut;
use mc_meta::{DrainJobInfo, JobStatus};
use mc_types::{JobId, Time};

use super::{millis, put_enum};
use crate::wire::{put_bytes, put_item_bytes, put_message, put_u64};

/// Bytes kept for how many jobs are left out of a list.
const LEFT_OUT: usize = 8;

/// `CreateDrainJobResponse`.
pub(crate) fn write_job_id(out: &mut BytesMut, id: JobId) {
    put_bytes(out, 2, &id.to_bytes());
}

/// `QueryDrainJobResponse`, and one more job of `ListDrainJobsResponse`.
pub(crate) fn write_drain_job(out: &mut BytesMut, info: &DrainJobInfo, now: Time) {
    put_message(out, 2, |out| {
        put_bytes(out, 1, &info.id.to_bytes());
        put_enum(out, 2, info.status as i32);
        for name in &info.segments {
            put_item_bytes(out, 3, name.as_bytes());
        }
        for name in &info.targets {
            put_item_bytes(out, 4, name.as_bytes());
        }
        for (number, value) in [
            (5, info.max_concurrency as u64),
            (6, millis(now - info.created_at)),
            (7, millis(now - info.last_updated_at)),
            (8, info.moved),
            (9, info.moved_bytes),
            (10, info.active),
            (11, info.blocked),
            (12, info.failed),
        ] {
            put_u64(out, number, value);
        }
        put_bytes(out, 13, info.message.as_bytes());
    });
}

/// `ListDrainJobsResponse`, with as many of the jobs as fit.
pub(crate) fn write_drain_jobs(
    out: &mut BytesMut,
    jobs: &[DrainJobInfo],
    now: Time,
    max_reply: usize,
) {
    let end = out.len() + max_reply.saturating_sub(LEFT_OUT);
    let mut left_out = 0;
    for info in jobs {
        let start = out.len();
        write_drain_job(out, info, now);
        if out.len() > end {
            out.truncate(start);
            left_out += 1;
        }
    }
    put_u64(out, 3, left_out);
}

/// `CancelDrainJobResponse`.
pub(crate) fn write_job_status(out: &mut BytesMut, status: JobStatus) {
    put_enum(out, 2, status as i32);
}
