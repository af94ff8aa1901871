//! Requests that are changed in every field: none is taken for another, and none panics the
//! master.

use mc_rpc::{Caller, Method};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use super::*;

/// A good request of each call, with a value in each field.
fn requests() -> Vec<(Method, Vec<u8>)> {
    #[allow(clippy::needless_pass_by_value, reason = "the table reads better")]
    fn entry(method: Method, request: impl Message) -> (Method, Vec<u8>) {
        (method, request.encode_to_vec())
    }
    let (key, id, tenant_id) = (|| "k".to_owned(), || vec![7; 16], || "blue".to_owned());
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mount = proto::MountSegmentRequest {
        buffer: 4096,
        size: 1 << 20,
        segment_name: "node-9".into(),
        segment_id: id(),
        client_id: me(),
        endpoint: "tcp://h:1".into(),
        remote_key: id(),
        ticket_key: id(),
        other_endpoints: vec!["quic://h:1".into()],
        medium: 1,
    };
    let unmount = proto::GracefulUnmountSegmentRequest {
        segment_name: "node-1".into(),
        segment_id: id(),
        client_id: me(),
        grace_ms: 5,
    };
    let copy = proto::CopyStartRequest {
        key: key(),
        client_id: me(),
        source: "node-1".into(),
        targets: names(&["node-2"]),
        tenant_id: tenant_id(),
    };
    let finish = proto::CopyRevokeRequest {
        key: key(),
        client_id: me(),
        transfer: Some(1),
        tenant_id: tenant_id(),
        transfer_token: 2,
        late_writes: true,
    };
    let copy_task = proto::CreateCopyTaskRequest {
        key: key(),
        targets: names(&["node-2"]),
        tenant_id: tenant_id(),
    };
    let move_task = proto::CreateMoveTaskRequest {
        key: key(),
        source: "node-1".into(),
        target: "node-2".into(),
        tenant_id: tenant_id(),
    };
    let mark = proto::MarkTaskToCompleteRequest {
        client_id: me(),
        task_id: id(),
        status: proto::task::Status::Success.into(),
        outcome: String::new(),
    };
    let drain = proto::CreateDrainJobRequest {
        segments: names(&["node-1"]),
        targets: names(&["node-2"]),
        max_concurrency: 3,
    };
    let quotas = vec![proto::TenantQuota { tenant_id: tenant_id(), requested: 5 }];
    let evict = proto::EvictDiskReplicaRequest {
        key: key(),
        client_id: me(),
        generation: Some(3),
        kind: 1,
        tenant_id: tenant_id(),
    };
    let file = proto::FileOutcome { key: key(), generation: 300, put_token: 4, written: true };
    let found = proto::FoundOnDisk {
        key: key(),
        tenant_id: tenant_id(),
        generation: 3,
        slices: vec![proto::Slice { length: 4, checksum: Some(5) }],
        offset: 6,
    };
    let written = proto::OffloadOutcome {
        key: key(),
        tenant_id: tenant_id(),
        generation: 3,
        written: true,
        too_long: false,
        offset: 6,
    };
    let promotion = proto::PromotionAllocStartRequest {
        key: key(),
        client_id: me(),
        generation: 3,
        length: 4,
        preferred_segments: names(&["node-1"]),
        tenant_id: tenant_id(),
    };
    let promoted = proto::NotifyPromotionFailureRequest {
        key: key(),
        client_id: me(),
        generation: 3,
        tenant_id: tenant_id(),
        transfer: Some(4),
        transfer_token: 5,
        late_writes: true,
    };
    let damaged = proto::Failure {
        kind: proto::failure::Kind::Damaged.into(),
        key: key(),
        tenant_id: tenant_id(),
        generation: 3,
        segment_id: id(),
        offset: 5,
        length: 6,
        disk_client_id: id(),
    };
    let clear = proto::BatchReplicaClearRequest {
        object_keys: vec![],
        client_id: me(),
        segment_name: "node-1".into(),
    };
    vec![
        entry(Method::MountSegment, mount.clone()),
        entry(Method::ReMountSegment, mount),
        entry(Method::UnmountSegment, unmount.clone()),
        entry(Method::GracefulUnmountSegment, unmount),
        entry(Method::BatchQueryIp, proto::BatchQueryIpRequest { client_ids: vec![me(), id()] }),
        entry(Method::DescribeObject, proto::DescribeObjectRequest { key: key() }),
        entry(Method::ExplainObject, proto::ExplainObjectRequest { key: key() }),
        entry(
            Method::PinObject,
            proto::PinObjectRequest { key: key(), soft_pin_ttl_ms: Some(9), unpin: false },
        ),
        entry(Method::HandOver, proto::HandOverRequest { member_id: "m2".into() }),
        entry(Method::ListKeys, proto::ListKeysRequest { prefix: "p".into(), cursor: 0, limit: 5 }),
        entry(Method::BatchReplicaClear, clear),
        entry(
            Method::BatchRemoveGeneration,
            proto::BatchRemoveGenerationRequest {
                items: vec![proto::RemoveGenerationItem { key: key(), generation: 3 }],
            },
        ),
        entry(
            Method::GetReplicaListByRegex,
            proto::GetReplicaListByRegexRequest { key_regex: "^k".into(), cursor: 0, limit: 5 },
        ),
        entry(
            Method::RemoveByRegex,
            proto::RemoveByRegexRequest { key_regex: "^x".into(), force: true },
        ),
        entry(Method::CopyStart, copy.clone()),
        entry(Method::MoveStart, copy),
        entry(Method::CopyEnd, finish.clone()),
        entry(Method::CopyRevoke, finish.clone()),
        entry(Method::MoveEnd, finish.clone()),
        entry(Method::MoveRevoke, finish),
        entry(Method::CreateCopyTask, copy_task),
        entry(Method::CreateMoveTask, move_task),
        entry(Method::QueryTask, proto::QueryTaskRequest { task_id: id() }),
        entry(Method::ListTasks, proto::ListTasksRequest { after: id(), limit: 3 }),
        entry(Method::FetchTasks, proto::FetchTasksRequest { client_id: me(), max_tasks: 3 }),
        entry(Method::MarkTaskToComplete, mark),
        entry(Method::CreateDrainJob, drain),
        entry(Method::QueryDrainJob, proto::QueryDrainJobRequest { job_id: id() }),
        entry(Method::CancelDrainJob, proto::CancelDrainJobRequest { job_id: id() }),
        entry(Method::ReopenSegment, proto::ReopenSegmentRequest { segment_name: "node-1".into() }),
        entry(
            Method::SetTenantQuota,
            proto::SetTenantQuotaRequest {
                tenant_id: tenant_id(),
                requested: 1 << 20,
                refuse: true,
                disks: Some(1 << 30),
                files: Some(1 << 40),
            },
        ),
        entry(Method::ReplaceTenantQuotas, proto::ReplaceTenantQuotasRequest { quotas }),
        entry(
            Method::DeleteTenantQuota,
            proto::DeleteTenantQuotaRequest { tenant_id: tenant_id() },
        ),
        entry(Method::GetTenantQuota, proto::GetTenantQuotaRequest { tenant_id: tenant_id() }),
        entry(
            Method::ListTenantQuotas,
            proto::ListTenantQuotasRequest { after: tenant_id(), limit: 5 },
        ),
        entry(Method::EvictDiskReplica, evict),
        entry(
            Method::MountLocalDisk,
            proto::MountLocalDiskRequest {
                client_id: me(),
                endpoint: "tcp://h:1".into(),
                enabled: true,
                disk_id: id(),
                remote_key: id(),
                ticket_key: id(),
            },
        ),
        entry(
            Method::UnmountLocalDisk,
            proto::UnmountLocalDiskRequest { client_id: me(), keep: true },
        ),
        entry(
            Method::OffloadHeartbeat,
            proto::OffloadHeartbeatRequest { client_id: me(), enabled: true, max_jobs: 3 },
        ),
        entry(
            Method::NotifyOffload,
            proto::NotifyOffloadRequest { client_id: me(), outcomes: vec![written] },
        ),
        entry(
            Method::ReportLocalDisk,
            proto::ReportLocalDiskRequest {
                client_id: me(),
                found: vec![found.clone()],
                is_last: true,
            },
        ),
        entry(
            Method::ReportSsdCapacity,
            proto::ReportSsdCapacityRequest { client_id: me(), capacity: 5 },
        ),
        entry(
            Method::FetchDiskDeletions,
            proto::FetchDiskDeletionsRequest { client_id: me(), max_objects: 7 },
        ),
        entry(Method::PollRemoveAll, proto::PollRemoveAllRequest { client_id: me() }),
        entry(
            Method::BatchDiskPutEnd,
            proto::BatchDiskPutEndRequest { client_id: me(), outcomes: vec![file] },
        ),
        entry(
            Method::FetchFileJobs,
            proto::FetchFileJobsRequest {
                client_id: me(),
                is_compared: true,
                is_full: true,
                max_jobs: 7,
                is_whole: true,
                tells_deleted: true,
                has_deleted: true,
                is_vain: true,
                is_busy: true,
                storage_id: me(),
            },
        ),
        entry(
            Method::ReportFiles,
            proto::ReportFilesRequest { client_id: me(), found: vec![found] },
        ),
        entry(Method::ListLocalDisks, proto::ListLocalDisksRequest { after: me(), limit: 5 }),
        entry(Method::PromotionHeartbeat, proto::PromotionHeartbeatRequest { client_id: me() }),
        entry(Method::PromotionAllocStart, promotion),
        entry(Method::NotifyPromotionSuccess, promoted.clone()),
        entry(Method::NotifyPromotionFailure, promoted),
        entry(
            Method::ReportFailures,
            proto::ReportFailuresRequest { client_id: me(), failures: vec![damaged] },
        ),
    ]
}

/// Where the value of each field of bytes or text is: its tag's place, its start and its end.
fn texts(message: &[u8]) -> Vec<(usize, usize, usize)> {
    let (mut rest, mut found) = (message, Vec::new());
    while !rest.is_empty() {
        let tag = message.len() - rest.len();
        let (_, wire_type) = decode_key(&mut rest).unwrap();
        match wire_type {
            WireType::Varint => drop(decode_varint(&mut rest).unwrap()),
            WireType::SixtyFourBit => rest = &rest[8..],
            WireType::LengthDelimited => {
                let len = decode_varint(&mut rest).unwrap() as usize;
                let start = message.len() - rest.len();
                found.push((tag, start, start + len));
                rest = &rest[len..];
            }
            other => panic!("no request has {other:?}"),
        }
    }
    found
}

/// The message with `value` in place of the field's own.
fn with(message: &[u8], (tag, start, end): (usize, usize, usize), value: &[u8]) -> Vec<u8> {
    let (number, _) = decode_key(&mut &message[tag..start]).unwrap();
    let mut changed = message[..tag].to_vec();
    encode_key(number, WireType::LengthDelimited, &mut changed);
    encode_varint(value.len() as u64, &mut changed);
    [&changed, value, &message[end..]].concat()
}

/// Returns the answer of a master with an object and a disk.
fn ask(
    service: &MasterService<Still>,
    method: Method,
    payload: &[u8],
) -> Result<BytesMut, Refusal> {
    answer(service, &Caller::ANYBODY, (method, payload, 1 << 20))
}

fn service_with_object() -> MasterService<Still> {
    let service = service();
    put(&service, &tenant("blue"), "k");
    mount_disk(&service);
    service
}

fn is_invalid(answer: &Result<BytesMut, Refusal>) -> bool {
    let code = answer.as_ref().map_err(|refusal| refusal.code);
    matches!(code, Err(ErrorCode::InvalidParams | ErrorCode::InvalidKey))
}

#[test]
fn a_request_with_any_field_of_the_wrong_form_is_refused() {
    for (method, message) in requests() {
        let service = service_with_object();
        let good = ask(&service, method, &message);
        assert!(!is_invalid(&good), "{method}: {good:?}");
        for field in texts(&message) {
            let is_id = field.2 - field.1 == 16;
            for len in [15, 17] {
                let told = ask(&service, method, &with(&message, field, &vec![7; len]));
                let expected = format!("has {len} bytes, not 16");
                let is_told =
                    told.as_ref().is_err_and(|refusal| refusal.message.contains(&expected));
                assert_eq!(is_told, is_id, "{method}: {told:?}");
            }
            // Neither a key, nor a name, nor a message.
            for bad in [&b"w".repeat(5000)[..], b"\xff\xfe"] {
                let told = ask(&service, method, &with(&message, field, bad));
                assert!(is_invalid(&told), "{method}: {told:?}");
            }
        }
    }
}

#[test]
fn a_request_that_is_cut_off_inside_a_field_is_refused() {
    for (method, message) in requests() {
        let service = service_with_object();
        for (_, start, end) in texts(&message) {
            for len in start..end {
                let told = ask(&service, method, &message[..len]);
                assert!(is_invalid(&told), "{method}: {told:?}");
            }
        }
    }
}

#[test]
fn a_request_with_nothing_in_it_is_refused_where_something_is_missing() {
    let whole = [
        Method::ListKeys,
        Method::ClusterReport,
        Method::GetC2cConfig,
        Method::GetStorageConfig,
        Method::HaStatus,
        Method::HandOver,
        Method::Connections,
        Method::History,
        Method::RemoveAll,
        Method::BatchQueryIp,
        Method::ListDrainJobs,
        Method::ListTasks,
        Method::ReplaceTenantQuotas,
        Method::ListTenantQuotas,
        Method::ListLocalDisks,
        Method::LongestPrefix,
        Method::GetReplicaListByRegex,
        Method::BatchGetReplicaList,
        Method::BatchExistKey,
        Method::BatchRemove,
        Method::BatchRemoveGeneration,
        Method::BatchRenewLease,
        // No segment has no name.
        Method::ReopenSegment,
    ];
    let service = service_with_object();
    for &method in Method::ALL {
        let told = ask(&service, method, b"");
        assert_eq!(is_invalid(&told), !whole.contains(&method), "{method}: {told:?}");
    }
}
