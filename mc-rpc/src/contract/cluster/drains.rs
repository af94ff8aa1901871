//! Drain jobs, and what the master reports of its segments.

use mc_meta::{JobStatus, SegmentStatus};
use mc_types::JobId;

use super::*;
use crate::request::{self, CreateDrainJobRequest};

#[test]
fn golden_create_drain_job() {
    let bytes = written(|out| CreateDrainJobRequest::write(out, &["n1", "n2"], &["n3"], 300));
    assert_eq!(&bytes[..], b"\x0a\x02n1\x0a\x02n2\x12\x02n3\x18\xac\x02");
}

#[test]
fn requests_of_drains_are_the_messages() {
    let bytes = written(|out| CreateDrainJobRequest::write(out, &["a", "b"], &["c"], 7));
    let message = proto::CreateDrainJobRequest {
        segments: vec!["a".into(), "b".into()],
        targets: vec!["c".into()],
        max_concurrency: 7,
    };
    assert_eq!(proto::CreateDrainJobRequest::decode(&bytes[..]).unwrap(), message);
    let bytes = message.encode_to_vec();
    let parsed = CreateDrainJobRequest::parse(&bytes).unwrap();
    assert_eq!((parsed.segments, parsed.targets), (vec!["a", "b"], vec!["c"]));
    assert_eq!(parsed.max_concurrency, 7);
    assert_eq!(CreateDrainJobRequest::parse(&[]).unwrap().max_concurrency, 4);

    let id = JobId::from_u128(9);
    let bytes = written(|out| request::write_job(out, id));
    let message = proto::QueryDrainJobRequest { job_id: id.to_bytes().to_vec() };
    assert_eq!(proto::QueryDrainJobRequest::decode(&bytes[..]).unwrap(), message);
    let message = proto::CancelDrainJobRequest { job_id: id.to_bytes().to_vec() };
    assert_eq!(proto::CancelDrainJobRequest::decode(&bytes[..]).unwrap(), message);
    assert_eq!(request::parse_job(&bytes), Ok(id));

    let bytes = written(|out| request::write_reopen(out, "node-1"));
    let message = proto::ReopenSegmentRequest { segment_name: "node-1".into() };
    assert_eq!(proto::ReopenSegmentRequest::decode(&bytes[..]).unwrap(), message);
    assert_eq!(request::parse_reopen(&bytes), Ok("node-1"));
}

#[test]
fn a_drain_job_is_the_message() {
    let service = service();
    put(&service, &TenantId::DEFAULT, "k");
    let create = proto::CreateDrainJobRequest {
        segments: vec!["node-1".into()],
        targets: vec!["node-2".into()],
        max_concurrency: 0,
    };
    let created: proto::CreateDrainJobResponse =
        call(&service, Method::CreateDrainJob, &create).unwrap();
    let id = answer::read_job_id(&created.encode_to_vec()).unwrap().unwrap();
    assert_eq!(id.to_bytes()[..], created.job_id);
    service.master().tick(Still.now());

    let query = proto::QueryDrainJobRequest { job_id: created.job_id.clone() };
    let told: proto::QueryDrainJobResponse = call(&service, Method::QueryDrainJob, &query).unwrap();
    let job = told.job.clone().unwrap();
    assert_eq!((&job.segments, &job.targets), (&create.segments, &create.targets));
    assert_eq!((job.status(), job.max_concurrency), (proto::drain_job::Status::Running, 4));
    assert_eq!((job.active, job.moved, &*job.outcome), (1, 0, ""));
    let read = answer::read_drain_job(&told.encode_to_vec()).unwrap().unwrap();
    assert_eq!((read.id, read.status, read.active), (id, JobStatus::Running, 1));
    assert_eq!((&*read.segments[0], &*read.targets[0]), ("node-1", "node-2"));

    let list: proto::ListDrainJobsResponse =
        call(&service, Method::ListDrainJobs, &proto::ListDrainJobsRequest {}).unwrap();
    assert_eq!((list.jobs.as_slice(), list.left_out), (&[job][..], 0));
    let listed = answer::read_drain_jobs(&list.encode_to_vec()).unwrap().unwrap();
    assert_eq!((listed.jobs, listed.left_out), (vec![read], 0));

    let report: proto::ClusterReportResponse =
        call(&service, Method::ClusterReport, &proto::ClusterReportRequest {}).unwrap();
    assert_eq!((report.drain_jobs, report.tasks_pending, report.transfers), (1, 1, 0));
    let read = answer::read_report(&report.encode_to_vec()).unwrap().unwrap();
    let draining = read.segments.iter().find(|segment| &*segment.name == "node-1").unwrap();
    assert_eq!((draining.status, draining.base), (SegmentStatus::Draining, 4096));

    let cancel = proto::CancelDrainJobRequest { job_id: created.job_id };
    let ended: proto::CancelDrainJobResponse =
        call(&service, Method::CancelDrainJob, &cancel).unwrap();
    assert_eq!(ended.status(), proto::drain_job::Status::Canceled);
    let read = answer::read_job_status(&ended.encode_to_vec()).unwrap().unwrap();
    assert_eq!(read, JobStatus::Canceled);
    let over = refused(&service, Method::CancelDrainJob, &cancel);
    assert_eq!(
        over,
        (ErrorCode::UnavailableInCurrentStatus, "the job is over: it is canceled".into())
    );
    let reopen = proto::ReopenSegmentRequest { segment_name: "node-1".into() };
    let _: proto::ReopenSegmentResponse = call(&service, Method::ReopenSegment, &reopen).unwrap();
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
    let read = answer::read_report(&message.encode_to_vec()).unwrap().unwrap();
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
    let bytes = written(|out| crate::reply::write_report(out, &report));
    assert_eq!(proto::ClusterReportResponse::decode(&bytes[..]).unwrap(), message);
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
        let told = |report| {
            let segments = vec![report];
            proto::ClusterReportResponse { segments, ..Default::default() }.encode_to_vec()
        };
        let read = answer::read_report(&told(report.clone())).unwrap().unwrap();
        assert_eq!(read.segments[0].status, status);
        assert!(read.segments[0].is_suspect && !read.segments[0].is_usable());
        let odd = proto::SegmentReport { status: 7, ..report };
        assert!(answer::read_report(&told(odd)).is_err());
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
            "segments has more than 1024 names",
        ),
        (
            proto::CreateDrainJobRequest { targets: vec!["n".into(); 1025], ..good.clone() },
            ErrorCode::InvalidParams,
            "targets has more than 1024 names",
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
    let name = "node-1";
    for _ in 0..3 {
        let id = service.master().create_drain_job(Still.now(), &[name], &[], 1).unwrap();
        service.master().cancel_drain_job(Still.now(), id).unwrap();
    }
    let jobs = service.master().list_drain_jobs();
    let one = written(|out| crate::reply::write_drain_job(out, &jobs[0], Still.now())).len();
    for (max_reply, told) in [(0, 0), (one + 8, 1), (2 * one + 8, 2), (1 << 16, 3)] {
        let bytes =
            written(|out| crate::reply::write_drain_jobs(out, &jobs, Still.now(), max_reply));
        let list = answer::read_drain_jobs(&bytes).unwrap().unwrap();
        assert_eq!((list.jobs.len(), list.left_out), (told, 3 - told as u32));
        assert!(told == 0 || bytes.len() <= max_reply);
    }
}

#[test]
fn bad_answers_about_drains_are_refused() {
    let job = proto::DrainJob { job_id: vec![1; 16], ..Default::default() };
    let read = |job: proto::DrainJob| {
        let answer = proto::QueryDrainJobResponse { job: Some(job), ..Default::default() };
        answer::read_drain_job(&answer.encode_to_vec())
    };
    assert_eq!(read(job.clone()).unwrap().unwrap().status, JobStatus::Created);
    for bad in [
        proto::DrainJob { job_id: vec![1; 17], ..job.clone() },
        proto::DrainJob { status: 6, ..job.clone() },
        proto::DrainJob { segments: vec!["n".into(); 1025], ..job.clone() },
        proto::DrainJob { targets: vec!["n".repeat(257)], ..job.clone() },
    ] {
        assert!(read(bad).is_err());
    }
    let many = proto::ListDrainJobsResponse { jobs: vec![job; 321], ..Default::default() };
    assert!(answer::read_drain_jobs(&many.encode_to_vec()).is_err());
    assert!(answer::read_drain_job(&[]).is_err());
    assert!(answer::read_job_id(&[]).is_err());
}
