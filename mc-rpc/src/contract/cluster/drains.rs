//! Drain jobs, and what the master reports of its segments.

use mc_meta::{JobStatus, SegmentStatus};
use mc_types::JobId;

use super::*;
use crate::calls::DrainJob;

#[test]
fn golden_create_drain_job() {
    let bytes = request_of(|client| client.create_drain_job(&["n1", "n2"], &["n3"], 300));
    assert_eq!(&bytes[..], b"\x0a\x02n1\x0a\x02n2\x12\x02n3\x18\xac\x02");
}

#[test]
fn a_drain_job_is_told_as_it_is() {
    let service = service();
    let client = Direct(&service);
    put(&service, &TenantId::DEFAULT, "k");
    let id = client.create_drain_job(&["node-1"], &["node-2"], 0).unwrap();
    service.master().tick(Still.now());

    let job = client.query_drain_job(id).unwrap();
    assert_eq!((&*job.segments[0], &*job.targets[0]), ("node-1", "node-2"));
    assert_eq!((job.id, job.status, job.max_concurrency), (id, JobStatus::Running, 4));
    assert_eq!((job.active, job.moved, &*job.outcome), (1, 0, ""));
    let list = client.list_drain_jobs().unwrap();
    assert_eq!((list.jobs, list.left_out), (vec![job], 0));

    let report = client.cluster_report().unwrap();
    assert_eq!((report.drain_jobs, report.tasks_pending, report.transfers), (1, 1, 0));
    let draining = report.segments.iter().find(|segment| &*segment.name == "node-1").unwrap();
    assert_eq!((draining.status, draining.base), (SegmentStatus::Draining, 4096));

    assert_eq!(client.cancel_drain_job(id).unwrap(), JobStatus::Canceled);
    let over = client.cancel_drain_job(id).unwrap_err();
    assert_eq!(over.code(), ErrorCode::UnavailableInCurrentStatus);
    assert!(over.to_string().starts_with("the job is over: it is canceled"), "{over}");
    client.reopen_segment("node-1").unwrap();
}

/// No number of the job is another one's, so that none takes another's place.
#[test]
fn a_drain_job_is_the_message() {
    let job = proto::DrainJob {
        job_id: vec![1; 16],
        status: proto::drain_job::Status::Failed as i32,
        segments: vec!["a".into(), "b".into()],
        targets: vec!["c".into()],
        max_concurrency: 5,
        age_ms: 6,
        unchanged_ms: 7,
        moved: 8,
        moved_bytes: 9,
        active: 10,
        blocked: 11,
        failed: 12,
        outcome: "full".into(),
    };
    let answer = proto::QueryDrainJobResponse { job: Some(job), ..Default::default() };
    let read = Direct(&answer).query_drain_job(JobId::from_u128(1)).unwrap();
    let expected = DrainJob {
        id: JobId::from_bytes([1; 16]),
        status: JobStatus::Failed,
        segments: vec!["a".into(), "b".into()],
        targets: vec!["c".into()],
        max_concurrency: 5,
        age: Duration::from_millis(6),
        unchanged: Duration::from_millis(7),
        moved: 8,
        moved_bytes: 9,
        active: 10,
        blocked: 11,
        failed: 12,
        outcome: "full".into(),
    };
    assert_eq!(read, expected);
}

/// Every number of the report is another one, so that none takes another's place.
#[test]
fn a_report_is_the_message() {
    let offload = proto::OffloadTotals {
        queued: 100,
        refused: 101,
        written: 102,
        written_bytes: 103,
        failed: 104,
        given_up: 105,
    };
    let promotion = proto::PromotionTotals {
        hits: 200,
        cold: 201,
        no_room: 202,
        queue_full: 203,
        dropped: 204,
        queued: 205,
        exhausted: 206,
        promoted: 207,
        promoted_bytes: 208,
        failed: 209,
        cancelled: 210,
        expired: 211,
    };
    let damage =
        proto::DamageTotals { reports: 1, dropped: 2, denied: 3, confirmed: 4, removed: 5 };
    let suspicion = proto::SuspicionTotals {
        reports: 1,
        dropped: 2,
        suspected: 3,
        cleared: 4,
        suspects: 5,
        declared: 6,
    };
    let message = proto::ClusterReportResponse {
        status_code: 0,
        segments: vec![],
        objects: 3,
        processing: 4,
        soft_pinned: 5,
        used: 6,
        capacity: 7,
        clients: 8,
        message: String::new(),
        evicted_objects: 16,
        evicted_bytes: 17,
        put_starts: 18,
        put_ends: 19,
        put_revokes: 20,
        put_start_no_room: 21,
        puts_discarded: 22,
        get_hits: 23,
        get_misses: 24,
        removed_objects: 25,
        expired_clients: 26,
        transfers: 27,
        drain_jobs: 28,
        tasks_pending: 29,
        tasks_processing: 30,
        tasks_finished: 31,
        key_bytes: 32,
        eviction_offers: 33,
        expired_objects: 34,
        disk_used: 35,
        disk_capacity: Some(36),
        disk_only_objects: 37,
        disk_processing: 38,
        disk_put_ends: 39,
        disk_no_room: 40,
        disk_evictions: 41,
        offload: Some(offload),
        promotion: Some(promotion),
        promotions_pending: 44,
        promotion_candidates: 45,
        damage: Some(damage),
        suspicion: Some(suspicion),
        exist_hits: 48,
        exist_misses: 49,
        put_start_retries: 50,
    };
    let read = Direct(&message).cluster_report().unwrap();
    // The master's own report, with those numbers.
    let mut report = mc_meta::MasterReport::default();
    report.objects = read.objects;
    report.processing = read.processing;
    report.soft_pinned = read.soft_pinned;
    report.used = read.used;
    report.capacity = read.capacity;
    report.clients = read.clients;
    report.evicted_objects = read.evicted_objects;
    report.evicted_bytes = read.evicted_bytes;
    report.put_starts = read.put_starts;
    report.put_ends = read.put_ends;
    report.put_revokes = read.put_revokes;
    report.put_start_no_room = read.put_start_no_room;
    report.puts_discarded = read.puts_discarded;
    report.get_hits = read.get_hits;
    report.get_misses = read.get_misses;
    report.removed_objects = read.removed_objects;
    report.expired_clients = read.expired_clients;
    report.transfers = read.transfers;
    report.drain_jobs = read.drain_jobs;
    report.tasks_pending = read.tasks_pending;
    report.tasks_processing = read.tasks_processing;
    report.tasks_finished = read.tasks_finished;
    report.key_bytes = read.key_bytes;
    report.eviction_offers = read.eviction_offers;
    report.expired_objects = read.expired_objects;
    report.disk_used = read.disk_used;
    report.disk_capacity = read.disk_capacity;
    report.disk_only_objects = read.disk_only_objects;
    report.disk_processing = read.disk_processing;
    report.disk_put_ends = read.disk_put_ends;
    report.disk_no_room = read.disk_no_room;
    report.disk_evictions = read.disk_evictions;
    report.offload = read.offload;
    report.promotion = read.promotion;
    report.promotions_pending = read.promotions_pending;
    report.promotion_candidates = read.promotion_candidates;
    report.damage = read.damage;
    report.suspicion = read.suspicion;
    report.exist_hits = read.exist_hits;
    report.exist_misses = read.exist_misses;
    report.put_start_retries = read.put_start_retries;
    assert_eq!(crate::calls::report_to_proto(&report), message);
}

#[test]
fn segments_tell_every_status() {
    for status in SegmentStatus::ALL {
        let report = proto::SegmentReport {
            segment_name: "n".into(),
            segment_id: vec![1; 16],
            client_id: me(),
            endpoint: "tcp://h:1".into(),
            status: status as i32,
            suspect: true,
            ..Default::default()
        };
        assert!(proto::segment_report::SegmentStatus::try_from(report.status).is_ok());
        let read = |report| {
            let segments = vec![report];
            let answer = proto::ClusterReportResponse { segments, ..Default::default() };
            Direct(&answer).cluster_report()
        };
        let known = read(report.clone()).unwrap();
        assert_eq!(known.segments[0].status, status);
        assert!(known.segments[0].is_suspect && !known.segments[0].is_usable());
        let odd = proto::SegmentReport { status: 7, ..report };
        assert!(is_malformed(&read(odd)));
    }
}

#[test]
fn bad_requests_about_drains_are_refused() {
    let service = service();
    let good =
        proto::CreateDrainJobRequest { segments: vec!["node-1".into()], ..Default::default() };
    for (request, code, words) in [
        (
            proto::CreateDrainJobRequest { segments: vec![], ..good.clone() },
            ErrorCode::InvalidParams,
            "0 segments",
        ),
        (
            proto::CreateDrainJobRequest { segments: vec!["n".into(); 1025], ..good.clone() },
            ErrorCode::InvalidParams,
            "segments has more than 1024 items",
        ),
        (
            proto::CreateDrainJobRequest { targets: vec!["n".into(); 1025], ..good.clone() },
            ErrorCode::InvalidParams,
            "targets has more than 1024 items",
        ),
        (
            proto::CreateDrainJobRequest { segments: vec!["n".repeat(257)], ..good.clone() },
            ErrorCode::InvalidParams,
            "segments has 257 bytes",
        ),
        (
            proto::CreateDrainJobRequest { max_concurrency: u32::MAX, ..good.clone() },
            ErrorCode::InvalidParams,
            "4294967295 moves",
        ),
        (
            proto::CreateDrainJobRequest { segments: vec!["x".into()], ..good.clone() },
            ErrorCode::SegmentNotFound,
            "\"x\"",
        ),
        (
            proto::CreateDrainJobRequest { targets: vec!["node-1".into()], ..good.clone() },
            ErrorCode::InvalidParams,
            "node-1",
        ),
    ] {
        let (found, message) = refused(&service, Method::CreateDrainJob, &request);
        assert_eq!(found, code, "{message}");
        assert!(message.contains(words), "{message}");
    }
    let unknown = proto::QueryDrainJobRequest { job_id: vec![1; 16] };
    for method in [Method::QueryDrainJob, Method::CancelDrainJob] {
        assert_eq!(refused(&service, method, &unknown).0, ErrorCode::JobNotFound);
        assert_eq!(refused(&service, method, &()).1, "job_id is missing");
    }
    let reopen = proto::ReopenSegmentRequest { segment_name: "x".into() };
    assert_eq!(refused(&service, Method::ReopenSegment, &reopen).0, ErrorCode::SegmentNotFound);
    let writer = Caller::new("writer", Role::Writer);
    let denied = call_as::<()>(&service, &writer, Method::CreateDrainJob, &good).unwrap_err();
    assert_eq!(denied.code, ErrorCode::PermissionDenied);
}

#[test]
fn jobs_that_do_not_fit_are_counted() {
    let service = service();
    let client = Direct(&service);
    let ids: Vec<JobId> = (0..3)
        .map(|_| {
            let id = client.create_drain_job(&["node-1"], &[], 1).unwrap();
            client.cancel_drain_job(id).unwrap();
            id
        })
        .collect();
    let one = proto::QueryDrainJobRequest { job_id: ids[0].to_bytes().into() };
    let one: proto::QueryDrainJobResponse = call(&service, Method::QueryDrainJob, &one).unwrap();
    let one = one.encoded_len();
    for (max_reply, told) in [(0, 0), (one + 8, 1), (2 * one + 8, 2), (1 << 16, 3)] {
        let list = Direct(&Limited(&service, max_reply)).list_drain_jobs().unwrap();
        assert_eq!((list.jobs.len(), list.left_out), (told, 3 - told as u32));
    }
}

#[test]
fn bad_answers_about_drains_are_refused() {
    let id = JobId::from_u128(1);
    let job = proto::DrainJob { job_id: vec![1; 16], ..Default::default() };
    let read = |job: proto::DrainJob| {
        let answer = proto::QueryDrainJobResponse { job: Some(job), ..Default::default() };
        Direct(&answer).query_drain_job(id)
    };
    assert_eq!(read(job.clone()).unwrap().status, JobStatus::Created);
    for bad in [
        proto::DrainJob { job_id: vec![1; 17], ..job.clone() },
        proto::DrainJob { status: 6, ..job.clone() },
        proto::DrainJob { segments: vec!["n".into(); 1025], ..job.clone() },
        proto::DrainJob { targets: vec!["n".repeat(257)], ..job.clone() },
    ] {
        assert!(is_malformed(&read(bad)));
    }
    let many = proto::ListDrainJobsResponse { jobs: vec![job; 321], ..Default::default() };
    assert!(is_malformed(&Direct(&many).list_drain_jobs()));
    assert!(is_malformed(&Direct(&()).query_drain_job(id)));
    assert!(is_malformed(&Direct(&()).create_drain_job(&[], &[], 0)));
}
