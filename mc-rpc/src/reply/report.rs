//! The master's totals.

use bytes::BytesMut;
use mc_meta::MasterReport;

use super::put_enum;
use crate::wire::{put_bytes, put_message, put_present_u64, put_u64};

fn put_totals<const N: usize>(out: &mut BytesMut, totals: [(u32, u64); N]) {
    for (number, value) in totals {
        put_u64(out, number, value);
    }
}

/// `ClusterReportResponse`.
pub(crate) fn write_report(out: &mut BytesMut, report: &MasterReport) {
    for segment in &report.segments {
        put_message(out, 2, |out| {
            put_bytes(out, 1, segment.spec.name.as_bytes());
            put_bytes(out, 2, &segment.spec.id.to_bytes());
            put_bytes(out, 3, &segment.client.to_bytes());
            put_bytes(out, 4, segment.spec.endpoint.as_str().as_bytes());
            put_u64(out, 5, segment.spec.size);
            put_u64(out, 6, segment.used);
            put_u64(out, 7, segment.largest_free);
            put_u64(out, 8, segment.allocations);
            put_enum(out, 9, segment.status as i32);
            put_u64(out, 10, segment.spec.base);
            put_u64(out, 11, segment.is_suspect.into());
        });
    }
    put_totals(
        out,
        [
            (3, report.objects),
            (4, report.processing),
            (5, report.soft_pinned),
            (6, report.used),
            (7, report.capacity),
            (8, report.clients),
            (16, report.evicted_objects),
            (17, report.evicted_bytes),
            (18, report.put_starts),
            (19, report.put_ends),
            (20, report.put_revokes),
            (21, report.put_start_no_room),
            (22, report.puts_discarded),
            (23, report.get_hits),
            (24, report.get_misses),
            (25, report.removed_objects),
            (26, report.expired_clients),
            (27, report.transfers),
            (28, report.drain_jobs),
            (29, report.tasks_pending),
            (30, report.tasks_processing),
            (31, report.tasks_finished),
            (32, report.key_bytes),
            (33, report.eviction_offers),
            (34, report.expired_objects),
            (35, report.disk_used),
            (37, report.disk_only_objects),
            (38, report.disk_processing),
            (39, report.disk_put_ends),
            (40, report.disk_no_room),
            (41, report.disk_evictions),
            (44, report.promotions_pending),
            (45, report.promotion_candidates),
            (48, report.exist_hits),
            (49, report.exist_misses),
            (50, report.put_start_retries),
        ],
    );
    if let Some(capacity) = report.disk_capacity {
        put_present_u64(out, 36, capacity);
    }
    let totals = &report.offload;
    let offload = [
        (1, totals.queued),
        (2, totals.refused),
        (3, totals.written),
        (4, totals.written_bytes),
        (5, totals.failed),
        (6, totals.given_up),
    ];
    put_message(out, 42, |out| put_totals(out, offload));
    let totals = &report.promotion;
    let promotion = [
        (1, totals.hits),
        (2, totals.cold),
        (3, totals.no_room),
        (4, totals.queue_full),
        (5, totals.dropped),
        (6, totals.queued),
        (7, totals.exhausted),
        (8, totals.promoted),
        (9, totals.promoted_bytes),
        (10, totals.failed),
        (11, totals.cancelled),
        (12, totals.expired),
    ];
    put_message(out, 43, |out| put_totals(out, promotion));
    let totals = &report.damage;
    let damage = [
        (1, totals.reports),
        (2, totals.dropped),
        (3, totals.denied),
        (4, totals.confirmed),
        (5, totals.removed),
    ];
    put_message(out, 46, |out| put_totals(out, damage));
    let totals = &report.suspicion;
    let suspicion = [
        (1, totals.reports),
        (2, totals.dropped),
        (3, totals.suspected),
        (4, totals.cleared),
        (5, totals.suspects),
        (6, totals.declared),
    ];
    put_message(out, 47, |out| put_totals(out, suspicion));
}
