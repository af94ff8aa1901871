//! Requests of the right form that ask for too much, or for what makes no sense.

use mc_rpc::MAX_FAILURES;

use super::*;

fn texts(text: &str, count: usize) -> Vec<String> {
    vec![text.into(); count]
}

#[track_caller]
fn assert_refused(method: Method, request: &impl Message, code: ErrorCode, words: &str) {
    let service = service();
    put(&service, &TenantId::DEFAULT, "k");
    let refusal = call::<()>(&service, method, request).unwrap_err();
    assert_eq!(refusal.code, code, "{method}: {refusal}");
    assert!(refusal.message.contains(words), "{method}: {refusal}");
}

#[track_caller]
fn assert_invalid(method: Method, request: &impl Message, words: &str) {
    assert_refused(method, request, ErrorCode::InvalidParams, words);
}

#[test]
fn bad_requests_about_segments_and_replicas() {
    let nameless =
        proto::GracefulUnmountSegmentRequest { client_id: me(), grace_ms: 1, ..Default::default() };
    let words = "neither segment_id nor segment_name is given";
    assert_invalid(Method::GracefulUnmountSegment, &nameless, words);
    let client_ids = vec![me(); 65_537];
    let many = proto::BatchQueryIpRequest { client_ids };
    assert_invalid(Method::BatchQueryIp, &many, "client_ids has more than 65536 items");
    let many = proto::BatchReplicaClearRequest {
        object_keys: texts("k", 65_537),
        client_id: me(),
        segment_name: String::new(),
    };
    assert_invalid(Method::BatchReplicaClear, &many, "object_keys has more than 65536 items");
    let list = proto::ListKeysRequest { limit: 8193, ..Default::default() };
    assert_invalid(Method::ListKeys, &list, "limit is 8193; the most is 8192");
}

#[test]
fn segments_of_an_unknown_medium() {
    for medium in [3, 256, -1] {
        let mount = proto::MountSegmentRequest {
            size: 1 << 20,
            segment_name: "n".into(),
            segment_id: vec![9; 16],
            client_id: me(),
            endpoint: "tcp://h:1".into(),
            remote_key: vec![9; 16],
            medium,
            ..Default::default()
        };
        assert_invalid(Method::MountSegment, &mount, &format!("medium is {medium}"));
    }
}

#[test]
fn bad_requests_about_transfers() {
    let copy = || proto::CopyStartRequest {
        key: "k".into(),
        client_id: me(),
        source: "node-1".into(),
        targets: texts("node-2", 1),
        tenant_id: String::new(),
    };
    let many = proto::CopyStartRequest { targets: texts("t", 33), ..copy() };
    assert_invalid(Method::CopyStart, &many, "targets has more than 32 items");
    let none = proto::CopyStartRequest { targets: vec![], ..copy() };
    assert_invalid(Method::CopyStart, &none, "0 targets");
    let task = proto::CreateCopyTaskRequest { key: "k".into(), ..Default::default() };
    assert_invalid(Method::CreateCopyTask, &task, "0 targets");
    assert_invalid(Method::MoveStart, &none, "target is missing");
    let tenant_id = "no tenant".into();
    let nobodys = proto::CopyStartRequest { tenant_id, ..copy() };
    assert_invalid(Method::CopyStart, &nobodys, "tenant_id is not a tenant's name: ");
    let elsewhere = proto::CopyStartRequest { source: "node-9".into(), ..copy() };
    assert_refused(Method::CopyStart, &elsewhere, ErrorCode::SegmentNotFound, "node-9");
    let finish = proto::CopyEndRequest { key: "k".into(), client_id: me(), ..Default::default() };
    for method in [Method::CopyEnd, Method::CopyRevoke, Method::MoveEnd, Method::MoveRevoke] {
        assert_invalid(method, &finish, "transfer is missing; it says which one is meant");
    }
    let promoted = proto::NotifyPromotionSuccessRequest {
        key: "k".into(),
        client_id: me(),
        ..Default::default()
    };
    assert_invalid(Method::NotifyPromotionSuccess, &promoted, "transfer is missing");

    for (status, code, words) in [
        (5, ErrorCode::InvalidParams, "status is 5; a task ends as SUCCESS or FAILED"),
        (3, ErrorCode::TaskNotFound, ""),
    ] {
        let task_id = vec![9; 16];
        let outcome = String::new();
        let mark = proto::MarkTaskToCompleteRequest { client_id: me(), task_id, status, outcome };
        assert_refused(Method::MarkTaskToComplete, &mark, code, words);
    }
}

#[test]
fn bad_requests_about_drains() {
    let good = || proto::CreateDrainJobRequest {
        segments: texts("node-1", 1),
        targets: vec![],
        max_concurrency: 0,
    };
    for (request, words) in [
        (proto::CreateDrainJobRequest { segments: vec![], ..good() }, "0 segments"),
        (
            proto::CreateDrainJobRequest { segments: texts("n", 1025), ..good() },
            "segments has more than 1024 items",
        ),
        (
            proto::CreateDrainJobRequest { targets: texts("n", 1025), ..good() },
            "targets has more than 1024 items",
        ),
        (proto::CreateDrainJobRequest { max_concurrency: u32::MAX, ..good() }, "4294967295 moves"),
        (proto::CreateDrainJobRequest { targets: texts("node-1", 1), ..good() }, "node-1"),
    ] {
        assert_invalid(Method::CreateDrainJob, &request, words);
    }
    let unknown = proto::CreateDrainJobRequest { segments: texts("x", 1), ..good() };
    assert_refused(Method::CreateDrainJob, &unknown, ErrorCode::SegmentNotFound, "\"x\"");
    let job = proto::QueryDrainJobRequest { job_id: vec![1; 16] };
    for method in [Method::QueryDrainJob, Method::CancelDrainJob] {
        assert_refused(method, &job, ErrorCode::JobNotFound, "");
    }
}

#[test]
fn bad_requests_about_quotas() {
    let set = |tenant_id: &str, requested| proto::SetTenantQuotaRequest {
        tenant_id: tenant_id.into(),
        requested,
        ..Default::default()
    };
    for (request, words) in [
        (set("", 1), "tenant_id is missing"),
        (set("a b", 1), "tenant_id is not a tenant's name: "),
        (set("..", 1), "tenant_id is not a tenant's name: "),
        (set("a", 0), "a quota of 0 bytes"),
        (set("a", u64::MAX), "a quota of 18446744073709551615 bytes"),
    ] {
        assert_invalid(Method::SetTenantQuota, &request, words);
    }
    let replace = |names: Vec<String>| {
        let quota = |tenant_id| proto::TenantQuota { tenant_id, requested: 1 };
        proto::ReplaceTenantQuotasRequest { quotas: names.into_iter().map(quota).collect() }
    };
    let words = "quotas names the tenant a twice";
    assert_invalid(Method::ReplaceTenantQuotas, &replace(texts("a", 2)), words);
    let many = (0..=65_536).map(|number| format!("t{number}")).collect();
    let words = "quotas has more than 65536 items";
    assert_invalid(Method::ReplaceTenantQuotas, &replace(many), words);
    let list = proto::ListTenantQuotasRequest { after: String::new(), limit: 8193 };
    assert_invalid(Method::ListTenantQuotas, &list, "limit is 8193; the most is 8192");
    let get = proto::GetTenantQuotaRequest { tenant_id: "nobody".into() };
    assert_refused(Method::GetTenantQuota, &get, ErrorCode::TenantNotRegistered, "");
}

#[test]
fn bad_requests_about_disks() {
    let kind = proto::EvictDiskReplicaRequest {
        key: "k".into(),
        client_id: me(),
        kind: 3,
        ..Default::default()
    };
    assert_invalid(Method::EvictDiskReplica, &kind, "kind is 3; name DISK or LOCAL_DISK");
    let memory = proto::EvictDiskReplicaRequest { kind: 0, ..kind };
    assert_invalid(Method::EvictDiskReplica, &memory, "");
    let list = proto::ListLocalDisksRequest { after: vec![], limit: 8193 };
    assert_invalid(Method::ListLocalDisks, &list, "limit is 8193; the most is 8192");
    let start = proto::PromotionAllocStartRequest {
        key: "k".into(),
        client_id: me(),
        preferred_segments: texts("n", 33),
        ..Default::default()
    };
    let words = "preferred_segments has more than 32 items";
    assert_invalid(Method::PromotionAllocStart, &start, words);
    let outcomes = vec![proto::OffloadOutcome::default(); 65_537];
    let many = proto::NotifyOffloadRequest { client_id: me(), outcomes };
    assert_invalid(Method::NotifyOffload, &many, "outcomes has more than 65536 items");
    let found = vec![proto::FoundOnDisk::default(); 65_537];
    let many = proto::ReportLocalDiskRequest { client_id: me(), found, is_last: true };
    assert_invalid(Method::ReportLocalDisk, &many, "found has more than 65536 items");
    let many = proto::ReportFilesRequest { client_id: me(), found: many.found };
    assert_invalid(Method::ReportFiles, &many, "found has more than 65536 items");
    let outcomes = vec![proto::FileOutcome::default(); 65_537];
    let many = proto::BatchDiskPutEndRequest { client_id: me(), outcomes };
    assert_invalid(Method::BatchDiskPutEnd, &many, "outcomes has more than 65536 items");
    let keyless = proto::MountLocalDiskRequest { remote_key: vec![], ..mount() };
    assert_invalid(Method::MountLocalDisk, &keyless, "remote_key is missing");
    let items = vec![proto::EvictDiskItem::default(); 65_537];
    let many = proto::BatchEvictDiskReplicaRequest { client_id: me(), kind: 1, items };
    assert_invalid(Method::BatchEvictDiskReplica, &many, "items has more than 65536 items");
}

#[test]
fn bad_reports_of_failures() {
    let failure = || proto::Failure {
        key: "k".into(),
        kind: proto::failure::Kind::Damaged.into(),
        segment_id: vec![7; 16],
        offset: 1,
        length: 1,
        ..Default::default()
    };
    let report = |failures| proto::ReportFailuresRequest { client_id: me(), failures };
    let beyond = proto::Failure { offset: u64::MAX, ..failure() };
    assert_invalid(Method::ReportFailures, &report(vec![beyond]), "beyond the last byte");
    let many = vec![failure(); MAX_FAILURES + 1];
    assert_invalid(Method::ReportFailures, &report(many), "failures has more than 256 items");
    let kind = proto::failure::Kind::Unreachable.into();
    let nothing = proto::Failure { kind, ..Default::default() };
    assert_invalid(Method::ReportFailures, &report(vec![nothing]), "segment_id is missing");
    // One of a kind that this master does not know is passed over.
    let mut failures = vec![failure(); MAX_FAILURES - 1];
    failures.push(proto::Failure { kind: 77, ..failure() });
    let told: proto::ReportFailuresResponse =
        call(&service(), Method::ReportFailures, &report(failures)).unwrap();
    assert_eq!((told.noted, told.stale, told.limited), (0, MAX_FAILURES as u64, 0));
}

#[test]
fn what_a_master_does_not_have_is_refused() {
    let service =
        MasterService::new(Arc::new(Master::new(MasterConfig::default(), 5).unwrap()), Still);
    let quota =
        proto::SetTenantQuotaRequest { tenant_id: "a".into(), requested: 1, ..Default::default() };
    for method in [
        Method::SetTenantQuota,
        Method::DeleteTenantQuota,
        Method::GetTenantQuota,
        Method::ReplaceTenantQuotas,
        Method::ListTenantQuotas,
    ] {
        let code = match method {
            Method::ReplaceTenantQuotas | Method::ListTenantQuotas => {
                refused(&service, method, &())
            }
            _ => refused(&service, method, &quota),
        };
        assert_eq!(code, ErrorCode::UnavailableInCurrentMode, "{method}");
    }
    let unsupported = mc_meta::LocalDiskError::Unsupported.code();
    assert_eq!(refused(&service, Method::MountLocalDisk, &mount()), unsupported);
    let unmount = proto::UnmountLocalDiskRequest { client_id: me(), keep: true };
    assert_eq!(refused(&service, Method::UnmountLocalDisk, &unmount), unsupported);
    let with_disks = super::service();
    for method in [Method::OffloadHeartbeat, Method::ReportSsdCapacity] {
        let ask = proto::PollRemoveAllRequest { client_id: me() };
        assert_eq!(refused(&with_disks, method, &ask), ErrorCode::SegmentNotFound, "{method}");
    }
}

#[test]
fn a_segment_is_attached_again_as_it_was_or_not_at_all() {
    let service = service();
    let spec = segment(2);
    let known = || proto::ReMountSegmentRequest {
        buffer: spec.base,
        size: spec.size,
        segment_name: spec.name.to_string(),
        segment_id: spec.id.to_bytes().to_vec(),
        client_id: me(),
        endpoint: spec.endpoint.to_string(),
        remote_key: spec.remote_key.to_bytes().to_vec(),
        ..Default::default()
    };
    let _: proto::ReMountSegmentResponse =
        call(&service, Method::ReMountSegment, &known()).unwrap();
    for other in [
        proto::ReMountSegmentRequest { client_id: vec![9; 16], ..known() },
        proto::ReMountSegmentRequest { segment_id: vec![9; 16], ..known() },
        proto::ReMountSegmentRequest { remote_key: vec![9; 16], ..known() },
        proto::ReMountSegmentRequest { ticket_key: vec![9; 16], ..known() },
        proto::ReMountSegmentRequest { buffer: 0, ..known() },
    ] {
        let code = refused(&service, Method::ReMountSegment, &other);
        assert_eq!(code, ErrorCode::SegmentNotFound);
    }
}

#[test]
fn a_segment_that_is_named_leaves_when_its_time_has_passed() {
    let service = service();
    let leaving = |name: &str, grace_ms| proto::GracefulUnmountSegmentRequest {
        segment_name: name.into(),
        segment_id: vec![],
        client_id: me(),
        grace_ms,
    };
    let ask = |method, name, grace_ms| call::<()>(&service, method, &leaving(name, grace_ms));
    let segments = |seconds| {
        let now = NOW + std::time::Duration::from_secs(seconds);
        service.master().ping(now, ME);
        service.master().tick(now);
        service.master().report().segments.len()
    };
    for _ in 0..2 {
        ask(Method::GracefulUnmountSegment, "node-1", 3000).unwrap();
    }
    // However long it is, time does not run over.
    ask(Method::GracefulUnmountSegment, "node-2", u64::MAX).unwrap();
    assert_eq!((segments(2), segments(3)), (3, 2));
    ask(Method::UnmountSegment, "node-3", 0).unwrap();
    assert_eq!(segments(3), 1);
    for method in [Method::GracefulUnmountSegment, Method::UnmountSegment] {
        assert_eq!(ask(method, "node-1", 1).unwrap_err().code, ErrorCode::SegmentNotFound);
    }
    let other = ClientId::from_u128(9).to_bytes().to_vec();
    let stranger =
        proto::GracefulUnmountSegmentRequest { client_id: other, ..leaving("node-2", 1) };
    let code = refused(&service, Method::GracefulUnmountSegment, &stranger);
    assert_eq!(code, ErrorCode::IllegalClient);
}

#[test]
fn patterns_that_are_none_or_cost_too_much() {
    let long = "x".repeat(4097);
    let nested = "(".repeat(3000);
    for bad in ["(", "(?=a)", r"(a)\1", &long, "(?:.{1,200}){1,200}", &nested] {
        let key_regex = || bad.to_owned();
        let get =
            proto::GetReplicaListByRegexRequest { key_regex: key_regex(), cursor: 0, limit: 0 };
        assert_invalid(Method::GetReplicaListByRegex, &get, "");
        let remove = proto::RemoveByRegexRequest { key_regex: key_regex(), force: true };
        assert_invalid(Method::RemoveByRegex, &remove, "");
    }
    let every = proto::RemoveByRegexRequest { key_regex: String::new(), force: true };
    assert_invalid(Method::RemoveByRegex, &every, "RemoveAll removes every object");
}
