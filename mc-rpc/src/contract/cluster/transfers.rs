//! Copies, moves, and tasks.

use core::time::Duration;

use mc_meta::{LateWrites, MAX_FETCHED_TASKS, TaskKind, TaskStatus, TransferHandle, TransferKind};
use mc_ticket::PutToken;
use mc_types::TaskId;

use super::*;
use crate::request::{
    self, CreateCopyTaskRequest, CreateMoveTaskRequest, MarkTaskRequest, TenantKey,
    TransferFinishRequest, TransferStartRequest,
};

#[test]
fn golden_create_copy_task() {
    let object = TenantKey::of(&tenant("blue"), key("k"));
    let bytes = written(|out| CreateCopyTaskRequest::write(out, &object, &["n2", "n3"]));
    assert_eq!(&bytes[..], b"\x0a\x01k\x1a\x04blue\x12\x02n2\x12\x02n3");
}

#[test]
fn golden_copy_start() {
    let bytes =
        written(|out| TransferStartRequest::write(out, ME, &key("k").into(), "n1", &["n2", "n3"]));
    assert_eq!(
        &bytes[..],
        b"\x0a\x01k\
          \x12\x10\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\
          \x1a\x02n1\x22\x02n2\x22\x02n3"
    );
}

#[test]
fn requests_of_transfers_are_the_messages() {
    for (object, tenant_id) in
        [(TenantKey::from(key("k")), ""), (TenantKey::of(&tenant("blue"), key("k")), "blue")]
    {
        let bytes =
            written(|out| TransferStartRequest::write(out, ME, &object, "node-1", &["a", "b"]));
        let message = proto::CopyStartRequest {
            key: "k".into(),
            client_id: me(),
            source: "node-1".into(),
            targets: vec!["a".into(), "b".into()],
            tenant_id: tenant_id.into(),
        };
        assert_eq!(proto::CopyStartRequest::decode(&bytes[..]).unwrap(), message);
        let bytes = message.encode_to_vec();
        let parsed = TransferStartRequest::parse(&bytes, TransferKind::Copy).unwrap();
        assert_eq!((parsed.client, &parsed.object, parsed.source), (ME, &object, "node-1"));
        assert_eq!(parsed.targets, ["a", "b"]);
        // As a move, in which the last of them counts.
        let parsed = TransferStartRequest::parse(&bytes, TransferKind::Move).unwrap();
        assert_eq!(parsed.target(), Ok("b"));

        let bytes = written(|out| TransferStartRequest::write(out, ME, &object, "node-1", &["a"]));
        let message = proto::MoveStartRequest {
            key: "k".into(),
            client_id: me(),
            source: "node-1".into(),
            target: "a".into(),
            tenant_id: tenant_id.into(),
        };
        assert_eq!(proto::MoveStartRequest::decode(&bytes[..]).unwrap(), message);

        for (id, token, late) in
            [(0, 1, LateWrites::Impossible), (u64::MAX, u64::MAX, LateWrites::Possible)]
        {
            let handle =
                TransferHandle { id: Generation::new(id), token: PutToken::from_u64(token) };
            let bytes = written(|out| TransferFinishRequest::write(out, ME, &object, handle, late));
            let message = proto::CopyRevokeRequest {
                key: "k".into(),
                client_id: me(),
                transfer: Some(id),
                tenant_id: tenant_id.into(),
                transfer_token: token,
                late_writes: late == LateWrites::Possible,
            };
            assert_eq!(proto::CopyRevokeRequest::decode(&bytes[..]).unwrap(), message);
            let bytes = message.encode_to_vec();
            let parsed = TransferFinishRequest::parse(&bytes).unwrap();
            assert_eq!((parsed.client, &parsed.object), (ME, &object));
            assert_eq!((parsed.handle, parsed.late), (handle, late));
            let again = proto::MoveRevokeRequest::decode(&bytes[..]).unwrap().encode_to_vec();
            assert_eq!(again, bytes);
            let end = proto::CopyEndRequest::decode(&bytes[..]).unwrap();
            assert_eq!((end.transfer, end.transfer_token), (Some(id), token));
            let bytes = end.encode_to_vec();
            assert_eq!(TransferFinishRequest::parse(&bytes).unwrap().handle, handle);
            let again = proto::MoveEndRequest::decode(&bytes[..]).unwrap().encode_to_vec();
            assert_eq!(again, bytes);
        }

        let bytes = written(|out| CreateCopyTaskRequest::write(out, &object, &["a"]));
        let message = proto::CreateCopyTaskRequest {
            key: "k".into(),
            targets: vec!["a".into()],
            tenant_id: tenant_id.into(),
        };
        assert_eq!(proto::CreateCopyTaskRequest::decode(&bytes[..]).unwrap(), message);
        let parsed = CreateCopyTaskRequest::parse(&bytes).unwrap();
        assert_eq!(parsed, CreateCopyTaskRequest { object: object.clone(), targets: vec!["a"] });

        let bytes = written(|out| CreateMoveTaskRequest::write(out, &object, "a", "b"));
        let message = proto::CreateMoveTaskRequest {
            key: "k".into(),
            source: "a".into(),
            target: "b".into(),
            tenant_id: tenant_id.into(),
        };
        assert_eq!(proto::CreateMoveTaskRequest::decode(&bytes[..]).unwrap(), message);
        let parsed = CreateMoveTaskRequest::parse(&bytes).unwrap();
        let expected = CreateMoveTaskRequest { object: object.clone(), source: "a", target: "b" };
        assert_eq!(parsed, expected);
    }
}

#[test]
fn requests_about_tasks_are_the_messages() {
    let id = TaskId::from_u128(7);
    let bytes = written(|out| request::write_query_task(out, id));
    let message = proto::QueryTaskRequest { task_id: id.to_bytes().to_vec() };
    assert_eq!(proto::QueryTaskRequest::decode(&bytes[..]).unwrap(), message);
    assert_eq!(request::parse_query_task(&bytes), Ok(id));

    let bytes = written(|out| request::write_fetch_tasks(out, ME, usize::MAX));
    let message = proto::FetchTasksRequest { client_id: me(), max_tasks: u32::MAX };
    assert_eq!(proto::FetchTasksRequest::decode(&bytes[..]).unwrap(), message);
    assert_eq!(request::parse_fetch_tasks(&bytes), Ok((ME, MAX_FETCHED_TASKS)));
    let any = written(|out| request::write_fetch_tasks(out, ME, 0));
    assert_eq!(request::parse_fetch_tasks(&any), Ok((ME, MAX_FETCHED_TASKS)));

    let statuses =
        [TaskStatus::Pending, TaskStatus::Processing, TaskStatus::Success, TaskStatus::Failed];
    for (number, status) in (1..).zip(statuses) {
        let bytes = written(|out| MarkTaskRequest::write(out, ME, id, status, "why"));
        let message = proto::MarkTaskToCompleteRequest {
            client_id: me(),
            task_id: id.to_bytes().to_vec(),
            status: number,
            outcome: "why".into(),
        };
        assert_eq!(proto::MarkTaskToCompleteRequest::decode(&bytes[..]).unwrap(), message);
        let expected = MarkTaskRequest { client: ME, id, status, outcome: "why" };
        assert_eq!(MarkTaskRequest::parse(&message.encode_to_vec()), Ok(expected));
    }
    // No more is sent than is kept, and no character is cut in two.
    let long = "é".repeat(1000);
    let bytes = written(|out| MarkTaskRequest::write(out, ME, id, TaskStatus::Failed, &long));
    assert_eq!(MarkTaskRequest::parse(&bytes).unwrap().outcome.len(), 1024);
    let long = format!("x{long}");
    let bytes = written(|out| MarkTaskRequest::write(out, ME, id, TaskStatus::Failed, &long));
    assert_eq!(MarkTaskRequest::parse(&bytes).unwrap().outcome.len(), 1023);
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
    let read = answer::read_task_report(&told.encode_to_vec()).unwrap().unwrap();
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
    let read = answer::read_tasks(&fetched.encode_to_vec()).unwrap().unwrap();
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
    let read = answer::read_task_status(&ended.encode_to_vec()).unwrap().unwrap();
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
    let id = answer::read_task_id(&created.encode_to_vec()).unwrap().unwrap();
    assert_eq!(id.to_bytes()[..], created.task_id);
    let query = proto::QueryTaskRequest { task_id: created.task_id };
    let told: proto::QueryTaskResponse = call(&service, Method::QueryTask, &query).unwrap();
    let task = told.task.clone().unwrap();
    assert_eq!((task.kind(), &*task.tenant_id), (proto::task::Kind::Move, "default"));
    let read = answer::read_task_report(&told.encode_to_vec()).unwrap().unwrap();
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
            "targets has more than 32 names",
        ),
        (
            proto::CopyStartRequest { targets: vec![], ..good.clone() },
            ErrorCode::InvalidParams,
            "0 targets",
        ),
        (copy("no tenant"), ErrorCode::InvalidParams, "tenant_id: "),
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
    let payload = proto::FetchTasksRequest { client_id: me(), max_tasks: 0 }.encode_to_vec();
    let caller = &Caller::ANYBODY;
    let mut seen = 0;
    for _ in 0..20 {
        let mut out = BytesMut::new();
        let call = Call {
            method: Method::FetchTasks,
            payload: &payload,
            max_reply: 64 << 10,
            caller,
            from: None,
        };
        service.call(call, &mut out).unwrap();
        let fetched = answer::read_tasks(&out).unwrap().unwrap();
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
        answer::read_tasks(&answer.encode_to_vec())
    };
    assert!(read(task.clone()).unwrap().is_ok());
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
        assert!(read(bad.clone()).is_err(), "{bad:?}");
    }
    let many = proto::FetchTasksResponse { tasks: vec![task; 1025], ..Default::default() };
    assert!(answer::read_tasks(&many.encode_to_vec()).is_err());
    let wordy = proto::QueryTaskResponse { outcome: "x".repeat(1025), ..Default::default() };
    assert!(answer::read_task_report(&wordy.encode_to_vec()).is_err());
    assert!(answer::read_task_status(&[]).is_err());
    assert!(answer::read_task_id(&[]).is_err());
}
