//! Copies, moves, and tasks.

use core::time::Duration;

use mc_meta::{LateWrites, TaskKind, TaskStatus, TransferHandle};
use mc_ticket::PutToken;
use mc_types::{TaskId, TransferId};

use super::*;
use crate::request::TenantKey;

#[test]
fn golden_create_copy_task() {
    let object = TenantKey::of(&tenant("blue"), key("k"));
    let bytes = request_of(|client| client.create_copy_task(&object, &["n2", "n3"]));
    assert_eq!(&bytes[..], b"\x0a\x01k\x12\x02n2\x12\x02n3\x1a\x04blue");
}

#[test]
fn golden_copy_start() {
    let bytes = request_of(|client| client.copy_start(ME, &key("k").into(), "n1", &["n2", "n3"]));
    assert_eq!(
        &bytes[..],
        b"\x0a\x01k\
          \x12\x10\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\
          \x1a\x02n1\x22\x02n2\x22\x02n3"
    );
}

/// A copy's message reads and writes a move's.
#[test]
fn requests_of_transfers_are_the_messages() {
    for (object, tenant_id) in
        [(TenantKey::from(key("k")), ""), (TenantKey::of(&tenant("blue"), key("k")), "blue")]
    {
        let start = |targets: &[&str]| proto::CopyStartRequest {
            key: "k".into(),
            client_id: me(),
            source: "node-1".into(),
            targets: targets.iter().copied().map(String::from).collect(),
            tenant_id: tenant_id.into(),
        };
        let sent = message_of(|client| client.copy_start(ME, &object, "node-1", &["a", "b"]));
        assert_eq!(start(&["a", "b"]), sent);
        let message = proto::MoveStartRequest {
            key: "k".into(),
            client_id: me(),
            source: "node-1".into(),
            target: "a".into(),
            tenant_id: tenant_id.into(),
        };
        let sent = request_of(|client| client.move_start(ME, &object, "node-1", "a"));
        assert_eq!(proto::MoveStartRequest::decode(&sent[..]).unwrap(), message);
        assert_eq!(
            proto::CopyStartRequest::decode(&message.encode_to_vec()[..]).unwrap(),
            start(&["a"])
        );

        for (id, token, late) in
            [(0, 1, LateWrites::Impossible), (u64::MAX, u64::MAX, LateWrites::Possible)]
        {
            let handle =
                TransferHandle { id: TransferId::new(id), token: PutToken::from_u64(token) };
            let revoke = proto::CopyRevokeRequest {
                key: "k".into(),
                client_id: me(),
                transfer: Some(id),
                tenant_id: tenant_id.into(),
                transfer_token: token,
                late_writes: late == LateWrites::Possible,
            };
            let sent = message_of(|client| client.copy_revoke(ME, &object, handle, late));
            assert_eq!(revoke, sent);
            let bytes = request_of(|client| client.move_revoke(ME, &object, handle, late));
            let again = proto::MoveRevokeRequest::decode(&bytes[..]).unwrap();
            assert_eq!(again.encode_to_vec(), revoke.encode_to_vec());
            let end = proto::CopyRevokeRequest { late_writes: false, ..revoke };
            for bytes in [
                request_of(|client| client.copy_end(ME, &object, handle)),
                request_of(|client| client.move_end(ME, &object, handle)),
            ] {
                let copy = proto::CopyEndRequest::decode(&bytes[..]).unwrap().encode_to_vec();
                let moved = proto::MoveEndRequest::decode(&bytes[..]).unwrap().encode_to_vec();
                assert_eq!((copy, moved), (end.encode_to_vec(), end.encode_to_vec()));
            }
        }

        let message = proto::CreateCopyTaskRequest {
            key: "k".into(),
            targets: vec!["a".into()],
            tenant_id: tenant_id.into(),
        };
        assert_eq!(message, message_of(|client| client.create_copy_task(&object, &["a"])));
        let message = proto::CreateMoveTaskRequest {
            key: "k".into(),
            source: "a".into(),
            target: "b".into(),
            tenant_id: tenant_id.into(),
        };
        assert_eq!(message, message_of(|client| client.create_move_task(&object, "a", "b")));
    }
}

#[test]
fn requests_about_tasks_are_the_messages() {
    let id = TaskId::from_u128(7);
    let message = proto::QueryTaskRequest { task_id: id.to_bytes().to_vec() };
    assert_eq!(message, message_of(|client| client.query_task(id)));
    let message = proto::FetchTasksRequest { client_id: me(), max_tasks: u32::MAX };
    assert_eq!(message, message_of(|client| client.fetch_tasks(ME, usize::MAX)));

    let mark = |status, outcome: &str| -> proto::MarkTaskToCompleteRequest {
        message_of(|client| client.mark_task_to_complete(ME, id, status, outcome))
    };
    let statuses =
        [TaskStatus::Pending, TaskStatus::Processing, TaskStatus::Success, TaskStatus::Failed];
    for (number, status) in (1..).zip(statuses) {
        let message = proto::MarkTaskToCompleteRequest {
            client_id: me(),
            task_id: id.to_bytes().to_vec(),
            status: number,
            outcome: "why".into(),
        };
        assert_eq!(message, mark(status, "why"));
    }
    // No more is sent than is kept, and no character is cut in two.
    let long = "é".repeat(1000);
    assert_eq!(mark(TaskStatus::Failed, &long).outcome.len(), 1024);
    assert_eq!(mark(TaskStatus::Failed, &format!("x{long}")).outcome.len(), 1023);
}

fn copy(tenant_id: &str) -> proto::CopyStartRequest {
    proto::CopyStartRequest {
        key: "k".into(),
        client_id: me(),
        source: "node-1".into(),
        targets: vec!["node-2".into(), "node-3".into()],
        tenant_id: tenant_id.into(),
    }
}

#[test]
fn a_copy_and_a_move_are_the_messages() {
    let service = service();
    let generation = put(&service, &TenantId::DEFAULT, "k").as_u64();
    let grant: proto::CopyStartResponse = call(&service, Method::CopyStart, &copy("")).unwrap();
    assert_eq!(grant.generation, generation);
    let lengths: Vec<u64> = grant.slices.iter().map(|slice| slice.length).collect();
    assert_eq!(lengths, [100, 200]);
    let source = &grant.source.as_ref().unwrap();
    assert_eq!(source.status(), proto::replica_info::ReplicaStatus::Complete);
    let handle = &source.handles[0];
    assert_eq!((&*handle.segment_name, handle.size), ("node-1", 300));
    assert_eq!((&handle.remote_key[..], handle.segment_index), (&[1; 16][..], 0));
    let targets: Vec<&str> =
        grant.targets.iter().map(|target| &*target.handles[0].segment_name).collect();
    assert_eq!(targets, ["node-2", "node-3"]);
    for target in &grant.targets {
        assert_eq!(target.status(), proto::replica_info::ReplicaStatus::Processing);
    }
    let read = answer::read_transfer(&grant.encode_to_vec()).unwrap().unwrap();
    assert_eq!(read.handle.id.as_u64(), grant.transfer);
    assert_eq!(read.handle.token.as_u64(), grant.transfer_token);
    assert_eq!(read.time_left, Duration::from_millis(grant.grant_ttl_ms));
    assert_eq!(read.time_left, service.master().config().put_start_release_timeout);
    assert_eq!((&*read.source.segment.name, read.targets.len()), ("node-1", 2));
    let finish = proto::CopyEndRequest {
        key: "k".into(),
        client_id: me(),
        transfer: Some(grant.transfer),
        tenant_id: String::new(),
        transfer_token: grant.transfer_token,
    };
    for stranger in [
        proto::CopyEndRequest { transfer_token: grant.transfer_token ^ 1, ..finish.clone() },
        proto::CopyEndRequest { transfer_token: 0, ..finish.clone() },
    ] {
        assert_eq!(refused(&service, Method::CopyEnd, &stranger).0, ErrorCode::IllegalClient);
        assert_eq!(refused(&service, Method::CopyRevoke, &stranger).0, ErrorCode::IllegalClient);
    }
    let unnamed = proto::CopyEndRequest { transfer: None, ..finish.clone() };
    assert_eq!(refused(&service, Method::CopyEnd, &unnamed).0, ErrorCode::InvalidParams);
    let other = proto::CopyEndRequest { transfer: Some(grant.transfer + 1), ..finish.clone() };
    // The token is that of one copy alone.
    assert_eq!(refused(&service, Method::CopyEnd, &other).0, ErrorCode::IllegalClient);
    assert_eq!(refused(&service, Method::MoveEnd, &finish).0, ErrorCode::InvalidParams);
    let _: proto::CopyEndResponse = call(&service, Method::CopyEnd, &finish).unwrap();
    assert_eq!(refused(&service, Method::CopyEnd, &finish).0, ErrorCode::ObjectNoReplicationTask);

    // A move to where a replica is has nothing to write.
    let start = proto::MoveStartRequest {
        key: "k".into(),
        client_id: me(),
        source: "node-1".into(),
        target: "node-2".into(),
        tenant_id: String::new(),
    };
    let grant: proto::MoveStartResponse = call(&service, Method::MoveStart, &start).unwrap();
    assert_eq!(grant.targets, []);
    assert!(answer::read_transfer(&grant.encode_to_vec()).unwrap().unwrap().targets.is_empty());
    let finish = |grant: &proto::MoveStartResponse| proto::MoveRevokeRequest {
        key: "k".into(),
        client_id: me(),
        transfer: Some(grant.transfer),
        tenant_id: String::new(),
        transfer_token: grant.transfer_token,
        late_writes: false,
    };
    let _: proto::MoveRevokeResponse = call(&service, Method::MoveRevoke, &finish(&grant)).unwrap();
    let grant: proto::MoveStartResponse = call(&service, Method::MoveStart, &start).unwrap();
    let _: proto::MoveEndResponse = call(&service, Method::MoveEnd, &finish(&grant)).unwrap();
    let object = service.master().describe(Still.now(), key("k")).unwrap();
    assert_eq!(object.replicas.len(), 2);
}

#[test]
fn a_task_is_told_with_its_tenant_and_found_by_its_own() {
    let service = service_of_tenants();
    put(&service, &tenant("blue"), "k");
    let create = proto::CreateCopyTaskRequest {
        key: "k".into(),
        targets: vec!["node-2".into()],
        tenant_id: String::new(),
    };
    assert_eq!(
        refused(&service, Method::CreateCopyTask, &create).0,
        ErrorCode::ObjectNotFound,
        "the default tenant has no such object"
    );
    let writer = blue(Role::Writer);
    let created: proto::CreateCopyTaskResponse =
        call_as(&service, &writer, Method::CreateCopyTask, &create).unwrap();
    let query = proto::QueryTaskRequest { task_id: created.task_id.clone() };
    let told: proto::QueryTaskResponse =
        call_as(&service, &writer, Method::QueryTask, &query).unwrap();
    let task = told.task.clone().unwrap();
    assert_eq!((&*task.key, &*task.tenant_id, &*task.source), ("k", "blue", "node-1"));
    assert_eq!((task.kind(), &task.targets[..]), (proto::task::Kind::Copy, &["node-2".into()][..]));
    assert_eq!((told.status(), told.client_id.clone()), (proto::task::Status::Pending, me()));
    let read = Direct(&told).query_task(TaskId::from_u128(7)).unwrap();
    assert_eq!((read.status, read.client, &*read.outcome), (TaskStatus::Pending, ME, ""));
    assert_eq!((read.task.tenant.as_str(), read.task.age), ("blue", Duration::ZERO));

    let stranger = Caller::new("stranger", Role::Writer);
    let hidden = call_as::<()>(&service, &stranger, Method::QueryTask, &query).unwrap_err();
    assert_eq!(hidden.code, ErrorCode::TaskNotFound);
    let foreign = proto::CreateCopyTaskRequest { tenant_id: "blue".into(), ..create };
    let refusal = call_as::<()>(&service, &stranger, Method::CreateCopyTask, &foreign).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::PermissionDenied);
    assert_eq!(
        &*refusal.message,
        "tenant_id is blue, the caller acts for default; the role node may name others"
    );

    // A node of the default tenant gets it and does it.
    let node = Caller::new("node", Role::Node);
    let pong: proto::PingResponse =
        call(&service, Method::Ping, &proto::PingRequest { client_id: me(), ..Default::default() })
            .unwrap();
    assert_eq!(pong.tasks, 1);
    assert_eq!(answer::read_pong(&pong.encode_to_vec()).unwrap().unwrap().tasks, 1);
    let fetch = proto::FetchTasksRequest { client_id: me(), max_tasks: 8 };
    let fetched: proto::FetchTasksResponse =
        call_as(&service, &node, Method::FetchTasks, &fetch).unwrap();
    assert_eq!((fetched.max_retry_attempts, &fetched.tasks[..]), (10, &[task][..]));
    let read = Direct(&fetched).fetch_tasks(ME, 0).unwrap();
    let targets = vec!["node-2".into()];
    assert_eq!(read.tasks[0].kind, TaskKind::Copy { source: "node-1".into(), targets });
    let start = proto::CopyStartRequest {
        key: fetched.tasks[0].key.clone(),
        client_id: me(),
        source: fetched.tasks[0].source.clone(),
        targets: fetched.tasks[0].targets.clone(),
        tenant_id: fetched.tasks[0].tenant_id.clone(),
    };
    let grant: proto::CopyStartResponse =
        call_as(&service, &node, Method::CopyStart, &start).unwrap();
    assert_eq!(grant.targets.len(), 1);

    let mark = proto::MarkTaskToCompleteRequest {
        client_id: me(),
        task_id: created.task_id,
        status: proto::task::Status::Success.into(),
        outcome: "done".into(),
    };
    let unfinished = proto::MarkTaskToCompleteRequest { status: 1, ..mark.clone() };
    assert_eq!(
        refused(&service, Method::MarkTaskToComplete, &unfinished).0,
        ErrorCode::InvalidParams
    );
    let ended: proto::MarkTaskToCompleteResponse =
        call_as(&service, &node, Method::MarkTaskToComplete, &mark).unwrap();
    assert_eq!(ended.status(), proto::task::Status::Success);
    let read = Direct(&ended)
        .mark_task_to_complete(ME, TaskId::from_u128(7), TaskStatus::Failed, "")
        .unwrap();
    assert_eq!(read, TaskStatus::Success);
    let told: proto::QueryTaskResponse =
        call_as(&service, &writer, Method::QueryTask, &query).unwrap();
    assert_eq!(told.outcome, "done");
}

#[test]
fn a_move_task_is_the_message() {
    let service = service();
    put(&service, &TenantId::DEFAULT, "k");
    let create = proto::CreateMoveTaskRequest {
        key: "k".into(),
        source: "node-1".into(),
        target: "node-2".into(),
        tenant_id: "default".into(),
    };
    let created: proto::CreateMoveTaskResponse =
        call(&service, Method::CreateMoveTask, &create).unwrap();
    let id = Direct(&created).create_copy_task(&key("k").into(), &[]).unwrap();
    assert_eq!(id.to_bytes()[..], created.task_id);
    let query = proto::QueryTaskRequest { task_id: created.task_id };
    let told: proto::QueryTaskResponse = call(&service, Method::QueryTask, &query).unwrap();
    let task = told.task.clone().unwrap();
    assert_eq!((task.kind(), &*task.tenant_id), (proto::task::Kind::Move, "default"));
    let read = Direct(&told).query_task(TaskId::from_u128(7)).unwrap();
    let kind = TaskKind::Move { source: "node-1".into(), target: "node-2".into() };
    assert_eq!((read.task.kind, read.task.key.as_str()), (kind, "k"));
}

#[test]
fn bad_requests_about_transfers_are_refused() {
    let service = service();
    put(&service, &TenantId::DEFAULT, "k");
    let good = copy("");
    for (request, code, words) in [
        (
            proto::CopyStartRequest { key: "".into(), ..good.clone() },
            ErrorCode::InvalidKey,
            "empty",
        ),
        (
            proto::CopyStartRequest { key: "x".repeat(1025), ..good.clone() },
            ErrorCode::InvalidKey,
            "1025",
        ),
        (
            proto::CopyStartRequest { client_id: vec![1; 15], ..good.clone() },
            ErrorCode::InvalidParams,
            "client_id has 15 bytes",
        ),
        (
            proto::CopyStartRequest { source: "s".repeat(257), ..good.clone() },
            ErrorCode::InvalidParams,
            "source has 257 bytes",
        ),
        (
            proto::CopyStartRequest { targets: vec!["t".into(); 33], ..good.clone() },
            ErrorCode::InvalidParams,
            "targets has more than 32 items",
        ),
        (
            proto::CopyStartRequest { targets: vec![], ..good.clone() },
            ErrorCode::InvalidParams,
            "0 targets",
        ),
        (copy("no tenant"), ErrorCode::InvalidParams, "tenant_id is not a tenant's name: "),
        (
            proto::CopyStartRequest { source: "node-9".into(), ..good.clone() },
            ErrorCode::SegmentNotFound,
            "node-9",
        ),
    ] {
        let (found, message) = refused(&service, Method::CopyStart, &request);
        assert_eq!(found, code, "{message}");
        assert!(message.contains(words), "{message}");
    }
    let nowhere = proto::MoveStartRequest {
        key: "k".into(),
        client_id: me(),
        source: "node-1".into(),
        target: String::new(),
        tenant_id: String::new(),
    };
    assert_eq!(refused(&service, Method::MoveStart, &nowhere).1, "target is missing");
    for method in [Method::CopyEnd, Method::CopyRevoke, Method::MoveEnd, Method::MoveRevoke] {
        let missing = proto::CopyEndRequest { key: "k".into(), ..Default::default() };
        assert_eq!(refused(&service, method, &missing).0, ErrorCode::InvalidParams);
    }

    let none = proto::QueryTaskRequest { task_id: vec![1] };
    assert_eq!(refused(&service, Method::QueryTask, &none).1, "task_id has 1 bytes, not 16");
    assert_eq!(refused(&service, Method::QueryTask, &()).1, "task_id is missing");
    let unknown = proto::QueryTaskRequest { task_id: vec![9; 16] };
    assert_eq!(refused(&service, Method::QueryTask, &unknown).0, ErrorCode::TaskNotFound);
    let odd = proto::MarkTaskToCompleteRequest {
        client_id: me(),
        task_id: vec![9; 16],
        status: 5,
        outcome: String::new(),
    };
    assert_eq!(
        refused(&service, Method::MarkTaskToComplete, &odd).1,
        "status is 5; a task ends as SUCCESS or FAILED"
    );
    assert_eq!(refused(&service, Method::FetchTasks, &()).0, ErrorCode::InvalidParams);
}

#[test]
fn no_more_tasks_are_fetched_than_fit_into_the_answer() {
    let service = service();
    for i in 0..20 {
        let name = format!("k{i}");
        put(&service, &TenantId::DEFAULT, &name);
        service.master().create_copy_task(Still.now(), key(&name), &["node-2"]).unwrap();
    }
    let limited = Limited(&service, 64 << 10);
    let mut seen = 0;
    for _ in 0..20 {
        let fetched = Direct(&limited).fetch_tasks(ME, 0).unwrap();
        assert!(fetched.tasks.len() < 20);
        seen += fetched.tasks.len();
    }
    assert_eq!(seen, 20);
}

#[test]
fn bad_answers_about_transfers_are_refused() {
    let service = service();
    put(&service, &TenantId::DEFAULT, "k");
    let good: proto::CopyStartResponse = call(&service, Method::CopyStart, &copy("")).unwrap();
    let bad = |change: &dyn Fn(&mut proto::CopyStartResponse)| {
        let mut answer = good.clone();
        change(&mut answer);
        answer::read_transfer(&answer.encode_to_vec()).unwrap_err().to_string()
    };
    assert_eq!(bad(&|answer| answer.source = None), "the field source is missing");
    assert_eq!(bad(&|answer| answer.slices.clear()), "the field slices is missing");
    assert_eq!(
        bad(&|answer| answer.targets[0].handles[0].size = 1),
        "the field targets has a replica of another length than the slices"
    );
    assert_eq!(
        bad(&|answer| answer.targets = vec![answer.targets[0].clone(); 33]),
        "the field targets has too many replicas"
    );

    let task = proto::Task {
        task_id: vec![1; 16],
        kind: proto::task::Kind::Move.into(),
        key: "k".into(),
        tenant_id: "default".into(),
        source: "a".into(),
        targets: vec!["b".into()],
        age_ms: u64::MAX,
    };
    let read = |task: proto::Task| {
        let answer = proto::FetchTasksResponse { tasks: vec![task], ..Default::default() };
        Direct(&answer).fetch_tasks(ME, 0)
    };
    assert!(read(task.clone()).is_ok());
    for bad in [
        proto::Task { task_id: vec![], ..task.clone() },
        proto::Task { kind: 0, ..task.clone() },
        proto::Task { kind: 3, ..task.clone() },
        proto::Task { key: String::new(), ..task.clone() },
        proto::Task { tenant_id: "a b".into(), ..task.clone() },
        proto::Task { targets: vec![], ..task.clone() },
        proto::Task { targets: vec!["b".into(); 2], ..task.clone() },
        proto::Task { kind: 1, targets: vec!["b".into(); 33], ..task.clone() },
        proto::Task { targets: vec!["b".repeat(257)], ..task.clone() },
    ] {
        assert!(is_malformed(&read(bad.clone())), "{bad:?}");
    }
    let many = proto::FetchTasksResponse { tasks: vec![task; 1025], ..Default::default() };
    assert!(is_malformed(&Direct(&many).fetch_tasks(ME, 0)));
    let wordy = proto::QueryTaskResponse { outcome: "x".repeat(1025), ..Default::default() };
    assert!(is_malformed(&Direct(&wordy).query_task(TaskId::from_u128(7))));
    assert!(is_malformed(&Direct(&()).mark_task_to_complete(
        ME,
        TaskId::from_u128(7),
        TaskStatus::Failed,
        ""
    )));
    assert!(is_malformed(&Direct(&()).create_copy_task(&key("k").into(), &[])));
}
