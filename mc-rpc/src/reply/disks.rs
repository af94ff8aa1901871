//! Answers about the clients' own disks, and about what comes back from disks.

use core::slice;

use bytes::BytesMut;
use mc_meta::{DiskJob, LocalDiskInfo, MAX_TENANT_LEN, PromotionGrant};
use mc_types::{MAX_ENDPOINT_LEN, MAX_KEY_LEN};

use super::tasks::put_object;
use super::{Names, Signer, millis, put_placements};
use crate::wire::{put_bytes, put_fixed64, put_message, put_u64};

/// Most bytes that one job takes: its key, its tenant, two numbers, and their tags.
pub(crate) const DISK_JOB_CEILING: usize = MAX_KEY_LEN + MAX_TENANT_LEN + 40;

/// Most bytes that one disk takes: its client, its endpoint, six numbers, and their tags.
const DISK_CEILING: usize = MAX_ENDPOINT_LEN + 100;

/// One more job of `OffloadHeartbeatResponse` or `PromotionHeartbeatResponse`.
pub(crate) fn write_disk_job(out: &mut BytesMut, job: &DiskJob) {
    put_message(out, 2, |out| {
        put_object(out, [1, 2], &job.key);
        put_u64(out, 3, job.generation.as_u64());
        put_u64(out, 4, job.len);
    });
}

/// `ListLocalDisksResponse`: up to `limit` disks, fewer when no more fit.
pub(crate) fn write_local_disks(
    out: &mut BytesMut,
    disks: &[LocalDiskInfo],
    limit: usize,
    max_reply: usize,
) {
    let fit = max_reply.saturating_sub(2) / DISK_CEILING;
    let page = &disks[..disks.len().min(limit).min(fit)];
    for disk in page {
        put_message(out, 2, |out| {
            put_bytes(out, 1, &disk.client.to_bytes());
            put_bytes(out, 2, disk.endpoint.as_str().as_bytes());
            put_u64(out, 3, disk.objects);
            put_u64(out, 4, disk.usage.enabled.into());
            put_u64(out, 5, disk.usage.used);
            put_u64(out, 6, disk.usage.capacity);
            put_u64(out, 7, disk.usage.queued as u64);
            put_u64(out, 8, disk.usage.writing as u64);
        });
    }
    put_u64(out, 3, u64::from(page.len() < disks.len()));
}

/// `PromotionAllocStartResponse`.
pub(crate) fn write_promotion(out: &mut BytesMut, grant: &PromotionGrant, signer: Signer) {
    let (placements, terms) = (slice::from_ref(&grant.placement), signer.writing(grant.time_left));
    put_placements(out, 2, placements, terms, |_| Names::Inline);
    put_u64(out, 3, millis(grant.time_left));
    put_u64(out, 4, grant.handle.id.as_u64());
    put_fixed64(out, 5, grant.handle.token.as_u64());
}
