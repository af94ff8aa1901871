//! Disks, and what goes to them and comes back.

use mc_meta::{
    DiskConfig, FoundError, LateWrites, LocalDiskConfig, LocalDiskError, OffloadError,
    PromotionConfig, PromotionError, PromotionStartError, ReplicaKind, TransferHandle,
};
use mc_ticket::PutToken;
use mc_types::TransferId;

use super::*;
use crate::calls::{EvictDiskItem, FoundItem, OffloadItem};
use crate::request::TenantKey;

fn objects() -> [(TenantKey<'static>, String); 2] {
    [
        (TenantKey::from(key("k")), String::new()),
        (TenantKey::of(&tenant("blue"), key("k")), "blue".into()),
    ]
}

#[test]
fn requests_about_files_are_the_messages() {
    let (handle, late) = (named(0, 9), LateWrites::Impossible);
    let message = proto::DiskPutEndRequest {
        key: "k".into(),
        client_id: me(),
        generation: Some(0),
        put_token: 9,
    };
    assert_eq!(message, message_of(|client| client.disk_put_end(ME, key("k"), handle)));
    let bytes = message.encode_to_vec();
    assert_eq!(bytes, request_of(|client| client.disk_put_revoke(ME, key("k"), handle)));
    assert_eq!(bytes, request_of(|client| client.memory_put_revoke(ME, key("k"), handle, late)));
    assert_eq!(proto::DiskPutRevokeRequest::decode(&bytes[..]).unwrap().encode_to_vec(), bytes);
    assert_eq!(proto::MemoryPutRevokeRequest::decode(&bytes[..]).unwrap().encode_to_vec(), bytes);

    let generation = Some(Generation::new(7));
    for (object, tenant_id) in objects() {
        for kind in [ReplicaKind::Memory, ReplicaKind::Disk, ReplicaKind::LocalDisk] {
            let message = proto::EvictDiskReplicaRequest {
                key: "k".into(),
                client_id: me(),
                generation: Some(7),
                kind: kind as i32,
                tenant_id: tenant_id.clone(),
            };
            let sent =
                message_of(|client| client.evict_disk_replica(ME, &object, generation, kind));
            assert_eq!(message, sent);

            let items = [None, generation]
                .map(|generation| EvictDiskItem { object: object.clone(), generation });
            let item = |generation| proto::EvictDiskItem {
                key: "k".into(),
                generation,
                tenant_id: tenant_id.clone(),
            };
            let message = proto::BatchEvictDiskReplicaRequest {
                client_id: me(),
                kind: kind as i32,
                items: vec![item(None), item(Some(7))],
            };
            let sent = message_of(|client| client.batch_evict_disk_replica(ME, &items, kind));
            assert_eq!(message, sent);
        }
    }
}

#[test]
fn requests_about_local_disks_are_the_messages() {
    let served = Endpoint::new("tcp", "h:1").unwrap();
    let message = proto::MountLocalDiskRequest {
        client_id: me(),
        endpoint: "tcp://h:1".into(),
        enabled: true,
    };
    assert_eq!(message, message_of(|client| client.mount_local_disk(ME, &served, true)));
    let message = proto::UnmountLocalDiskRequest { client_id: me() };
    assert_eq!(message, message_of(|client| client.unmount_local_disk(ME)));
    let message = proto::PollRemoveAllRequest { client_id: me() };
    assert_eq!(message, message_of(|client| client.poll_remove_all(ME)));
    let message = proto::PromotionHeartbeatRequest { client_id: me() };
    assert_eq!(message, message_of(|client| client.promotion_heartbeat(ME)));
    let message = proto::OffloadHeartbeatRequest { client_id: me(), enabled: true, max_jobs: 9 };
    assert_eq!(message, message_of(|client| client.offload_heartbeat(ME, true, 9)));
    let message = proto::ReportSsdCapacityRequest { client_id: me(), capacity: u64::MAX };
    assert_eq!(message, message_of(|client| client.report_ssd_capacity(ME, u64::MAX)));
    let message = proto::ListLocalDisksRequest { after: me(), limit: 9 };
    assert_eq!(message, message_of(|client| client.local_disks(Some(ME), 9)));

    let generation = Generation::new(7);
    for (object, tenant_id) in objects() {
        let items = [true, false].map(|written| OffloadItem {
            object: object.clone(),
            generation,
            written,
        });
        let outcome = |written| proto::OffloadOutcome {
            key: "k".into(),
            tenant_id: tenant_id.clone(),
            generation: 7,
            written,
        };
        let message = proto::NotifyOffloadRequest {
            client_id: me(),
            outcomes: vec![outcome(true), outcome(false)],
        };
        assert_eq!(message, message_of(|client| client.notify_offload(ME, &items)));

        let items = [u64::MAX, 0].map(|len| FoundItem { object: object.clone(), generation, len });
        let found = |length| proto::FoundOnDisk {
            key: "k".into(),
            tenant_id: tenant_id.clone(),
            generation: 7,
            length,
        };
        let message = proto::ReportLocalDiskRequest {
            client_id: me(),
            found: vec![found(u64::MAX), found(0)],
        };
        assert_eq!(message, message_of(|client| client.report_local_disk(ME, &items)));

        let message = proto::PromotionAllocStartRequest {
            key: "k".into(),
            client_id: me(),
            generation: 7,
            length: 300,
            preferred_segments: vec!["a".into(), "b".into()],
            tenant_id: tenant_id.clone(),
        };
        let sent = message_of(|client| {
            client.promotion_alloc_start(ME, &object, generation, 300, &["a", "b"])
        });
        assert_eq!(message, sent);

        let handle =
            TransferHandle { id: TransferId::new(9), token: PutToken::from_u64(0x1234_5678) };
        for (handle, late) in [
            (None, LateWrites::Impossible),
            (Some(handle), LateWrites::Impossible),
            (Some(handle), LateWrites::Possible),
        ] {
            let message = proto::NotifyPromotionFailureRequest {
                key: "k".into(),
                client_id: me(),
                generation: 7,
                tenant_id: tenant_id.clone(),
                transfer: handle.map(|_| 9),
                transfer_token: handle.map_or(0, |_| 0x1234_5678),
                late_writes: late == LateWrites::Possible,
            };
            let sent = message_of(|client| {
                client.notify_promotion_failure(ME, &object, generation, handle, late)
            });
            assert_eq!(message, sent);
        }
        let message = proto::NotifyPromotionSuccessRequest {
            key: "k".into(),
            client_id: me(),
            generation: 7,
            tenant_id: tenant_id.clone(),
            transfer: Some(9),
            transfer_token: 0x1234_5678,
        };
        let sent =
            message_of(|client| client.notify_promotion_success(ME, &object, generation, handle));
        assert_eq!(message, sent);
    }
}

/// A service with a shared tier, local disks, promotion, and tenants.
fn service_of_disks() -> MasterService<Still> {
    let mut config = MasterConfig::default();
    config.disk = Some(DiskConfig::with_capacity(1 << 20));
    config.local_disk = Some(LocalDiskConfig::default());
    config.promotion = Some(PromotionConfig::default());
    config.multi_tenant = true;
    let service = service_with(config);
    for tenant in [TenantId::DEFAULT, tenant("blue")] {
        service.master().set_tenant_quota(Still.now(), &tenant, 1 << 20).unwrap();
    }
    service
}

fn mount(service: &MasterService<Still>) {
    let mount = proto::MountLocalDiskRequest {
        client_id: me(),
        endpoint: "tcp://h:1".into(),
        enabled: true,
    };
    let _: proto::MountLocalDiskResponse = call(service, Method::MountLocalDisk, &mount).unwrap();
}

fn heartbeat(service: &MasterService<Still>) -> proto::OffloadHeartbeatResponse {
    let ask = proto::OffloadHeartbeatRequest { client_id: me(), enabled: true, max_jobs: 0 };
    call(service, Method::OffloadHeartbeat, &ask).unwrap()
}

#[test]
fn a_job_goes_to_its_node_and_back_whoever_the_tenant_is() {
    let service = service_of_disks();
    mount(&service);
    let generation = put(&service, &tenant("blue"), "k").as_u64();
    let told = heartbeat(&service);
    let job = proto::DiskJob { key: "k".into(), tenant_id: "blue".into(), generation, length: 300 };
    assert_eq!(told.jobs, std::slice::from_ref(&job));
    let read = Direct(&told).offload_heartbeat(ME, true, 0).unwrap();
    assert_eq!((read[0].tenant.as_str(), read[0].key.as_str()), ("blue", "k"));
    assert_eq!((read[0].generation.as_u64(), read[0].len), (generation, 300));

    let outcome = |tenant_id: &str| proto::OffloadOutcome {
        key: "k".into(),
        tenant_id: tenant_id.into(),
        generation,
        written: true,
    };
    let nobodys = proto::OffloadOutcome { key: String::new(), ..outcome("") };
    let notify = proto::NotifyOffloadRequest {
        client_id: me(),
        outcomes: vec![outcome(""), nobodys, outcome("blue"), outcome("blue")],
    };
    let noted: proto::NotifyOffloadResponse =
        call(&service, Method::NotifyOffload, &notify).unwrap();
    let codes: Vec<i32> = noted.items.iter().map(|item| item.status_code).collect();
    let gone = OffloadError::NotPending.code().code();
    assert_eq!(codes, [gone, ErrorCode::InvalidKey.code(), 0, gone]);
    let read = answer::read_all_done(&noted.encode_to_vec(), 4).unwrap().unwrap();
    assert!(read[2].is_ok() && read[3].is_err());

    let list: proto::ListLocalDisksResponse =
        call(&service, Method::ListLocalDisks, &proto::ListLocalDisksRequest::default()).unwrap();
    let disk = &list.disks[0];
    assert_eq!((&disk.client_id, &*disk.endpoint, disk.objects), (&me(), "tcp://h:1", 1));
    assert_eq!((disk.enabled, disk.used, disk.capacity, list.more), (true, 300, 0, false));
    let read = Direct(&list).local_disks(None, 0).unwrap();
    assert_eq!((read.disks, read.next_after), (service.master().local_disks(), None));

    // A writer of another tenant may not speak for it; its own writers and nodes may.
    let evict = proto::EvictDiskReplicaRequest {
        key: "k".into(),
        client_id: me(),
        generation: Some(generation),
        kind: proto::evict_disk_replica_request::Kind::LocalDisk.into(),
        tenant_id: "blue".into(),
    };
    let writer = Caller::new("writer", Role::Writer);
    let denied = call_as::<()>(&service, &writer, Method::EvictDiskReplica, &evict).unwrap_err();
    assert_eq!(denied.code, ErrorCode::PermissionDenied);
    let own = proto::EvictDiskReplicaRequest { tenant_id: String::new(), ..evict };
    let _: proto::EvictDiskReplicaResponse =
        call_as(&service, &blue(Role::Writer), Method::EvictDiskReplica, &own).unwrap();
    let again = call_as::<()>(&service, &blue(Role::Writer), Method::EvictDiskReplica, &own);
    assert_eq!(again.unwrap_err().code, ErrorCode::ReplicaNotFound);
    let item = proto::EvictDiskItem { key: "k".into(), generation: None, tenant_id: "blue".into() };
    let batch = proto::BatchEvictDiskReplicaRequest { client_id: me(), kind: 1, items: vec![item] };
    let noted: proto::BatchEvictDiskReplicaResponse =
        call(&service, Method::BatchEvictDiskReplica, &batch).unwrap();
    assert_eq!(noted.items[0].status_code, ErrorCode::ReplicaIsNotReady.code());
}

#[test]
fn an_object_found_on_a_disk_comes_back_into_memory() {
    let service = service_of_disks();
    mount(&service);
    let generation = put(&service, &tenant("blue"), "k").as_u64();
    let stored = service.master().scoped(&tenant("blue"), key("k")).unwrap();
    service.master().remove(Still.now(), stored.as_ref(), true).unwrap();
    let found =
        proto::FoundOnDisk { key: "k".into(), tenant_id: "blue".into(), generation, length: 300 };
    let unknown = proto::FoundOnDisk { generation: generation + 1, ..found.clone() };
    let report = proto::ReportLocalDiskRequest { client_id: me(), found: vec![found, unknown] };
    let noted: proto::ReportLocalDiskResponse =
        call(&service, Method::ReportLocalDisk, &report).unwrap();
    let codes: Vec<i32> = noted.items.iter().map(|item| item.status_code).collect();
    assert_eq!(codes, [0, FoundError::OtherObject.code().code()]);

    for _ in 0..2 {
        let list = service.master().get_replica_list(Still.now(), stored.as_ref()).unwrap();
        assert!(list.placements.is_empty());
    }
    let ask = proto::PromotionHeartbeatRequest { client_id: me() };
    let told: proto::PromotionHeartbeatResponse =
        call(&service, Method::PromotionHeartbeat, &ask).unwrap();
    assert_eq!((&*told.jobs[0].key, &*told.jobs[0].tenant_id), ("k", "blue"));
    let start = proto::PromotionAllocStartRequest {
        key: "k".into(),
        client_id: me(),
        generation,
        length: 300,
        preferred_segments: vec!["node-2".into()],
        tenant_id: "blue".into(),
    };
    let long = proto::PromotionAllocStartRequest { length: 301, ..start.clone() };
    assert_eq!(refused(&service, Method::PromotionAllocStart, &long).0, ErrorCode::InvalidParams);
    let granted: proto::PromotionAllocStartResponse =
        call(&service, Method::PromotionAllocStart, &start).unwrap();
    let handle = &granted.replica.as_ref().unwrap().handles[0];
    assert_eq!((&*handle.segment_name, handle.size), ("node-2", 300));
    let bytes = granted.encode_to_vec();
    let read = answer::read_promotion(&bytes, 300).unwrap().unwrap();
    assert_eq!(&*read.replica.segment.name, "node-2");
    assert_eq!(read.time_left, Duration::from_millis(granted.grant_ttl_ms));
    assert_eq!(read.time_left, service.master().config().put_start_release_timeout);
    assert!(answer::read_promotion(&bytes, 301).is_err());
    assert!(answer::read_promotion(&[], 300).is_err());
    let finish = proto::NotifyPromotionSuccessRequest {
        key: "k".into(),
        client_id: me(),
        generation,
        tenant_id: "blue".into(),
        transfer: Some(granted.transfer),
        transfer_token: granted.transfer_token,
    };
    assert_eq!(
        (read.handle.id.as_u64(), read.handle.token.as_u64()),
        (granted.transfer, granted.transfer_token)
    );
    for stranger in [
        proto::NotifyPromotionSuccessRequest { transfer_token: 1, ..finish.clone() },
        proto::NotifyPromotionSuccessRequest { transfer: Some(1), ..finish.clone() },
    ] {
        let told = refused(&service, Method::NotifyPromotionSuccess, &stranger);
        assert_eq!(told.0, ErrorCode::IllegalClient);
    }
    let unnamed = proto::NotifyPromotionSuccessRequest { transfer: None, ..finish.clone() };
    let told = refused(&service, Method::NotifyPromotionSuccess, &unnamed);
    assert_eq!(told.0, ErrorCode::InvalidParams);
    let _: proto::NotifyPromotionSuccessResponse =
        call(&service, Method::NotifyPromotionSuccess, &finish).unwrap();
    let over = refused(&service, Method::NotifyPromotionSuccess, &finish);
    assert_eq!(over.0, ErrorCode::ReplicaIsNotReady);
    let _: proto::NotifyPromotionFailureResponse =
        call(&service, Method::NotifyPromotionFailure, &finish).unwrap();
    let list = service.master().get_replica_list(Still.now(), stored.as_ref()).unwrap();
    assert_eq!(list.placements.len(), 1);
}

#[test]
fn promotions_that_do_not_fit_into_the_answer_are_given_up() {
    let mut config = MasterConfig::default();
    config.local_disk = Some(LocalDiskConfig::default());
    let mut promotion = PromotionConfig::default();
    promotion.max_per_heartbeat = 1000;
    config.promotion = Some(promotion);
    let service = service_with(config);
    mount(&service);
    for i in 0..100 {
        let name = format!("k{i}");
        let generation = put(&service, &TenantId::DEFAULT, &name);
        let (master, now, key) = (service.master(), Still.now(), key(&name));
        master.remove(now, key, true).unwrap();
        let found = mc_meta::FoundOnDisk { key, generation, len: 300 };
        master.report_local_disk(now, ME, &[found])[0].unwrap();
        master.get_replica_list(now, key).unwrap();
        master.get_replica_list(now, key).unwrap();
    }
    let told = Direct(&Limited(&service, 64 << 10)).promotion_heartbeat(ME).unwrap();
    assert!((1..100).contains(&told.len()));
    let report = service.master().report();
    assert_eq!(report.promotions_pending, told.len() as u64);
    assert_eq!(report.promotion.failed, 100 - told.len() as u64);
}

#[test]
fn files_are_written_or_given_up() {
    let service = service_of_disks();
    let put = |name: &str| {
        let start = proto::PutStartRequest {
            key: name.into(),
            value_length: 8,
            client_id: me(),
            ..Default::default()
        };
        let grant: proto::PutStartResponse = call(&service, Method::PutStart, &start).unwrap();
        proto::DiskPutEndRequest {
            key: name.into(),
            client_id: me(),
            generation: Some(grant.generation),
            put_token: grant.put_token,
        }
    };
    let kept = put("kept");
    let _: proto::DiskPutEndResponse = call(&service, Method::DiskPutEnd, &kept).unwrap();
    let _: proto::DiskPutEndResponse = call(&service, Method::DiskPutEnd, &kept).unwrap();
    let _: proto::MemoryPutRevokeResponse = call(&service, Method::MemoryPutRevoke, &kept).unwrap();
    assert_eq!(service.master().report().disk_only_objects, 1);
    let memory = proto::EvictDiskReplicaRequest {
        key: "kept".into(),
        client_id: me(),
        ..Default::default()
    };
    assert_eq!(refused(&service, Method::EvictDiskReplica, &memory).0, ErrorCode::InvalidParams);
    let odd = proto::EvictDiskReplicaRequest { kind: 3, ..memory.clone() };
    assert_eq!(
        refused(&service, Method::EvictDiskReplica, &odd).1,
        "kind is 3; name DISK or LOCAL_DISK"
    );
    let file = proto::EvictDiskReplicaRequest { kind: 1, ..memory };
    let _: proto::EvictDiskReplicaResponse =
        call(&service, Method::EvictDiskReplica, &file).unwrap();
    assert_eq!(service.master().report().objects, 0);

    let dropped = put("dropped");
    let _: proto::DiskPutRevokeResponse = call(&service, Method::DiskPutRevoke, &dropped).unwrap();
    assert_eq!(refused(&service, Method::DiskPutEnd, &dropped).0, ErrorCode::InvalidWrite);
}

#[test]
fn bad_requests_about_disks_are_refused() {
    let service = service_of_disks();
    let unmounted = proto::OffloadHeartbeatRequest { client_id: me(), ..Default::default() };
    for method in [Method::OffloadHeartbeat, Method::ReportSsdCapacity] {
        assert_eq!(refused(&service, method, &unmounted).0, ErrorCode::SegmentNotFound);
    }
    for method in Method::ALL.iter().filter(|method| (71..=87).contains(&method.number())) {
        if *method != Method::ListLocalDisks {
            let code = refused(&service, *method, &()).0;
            assert!(matches!(code, ErrorCode::InvalidParams | ErrorCode::InvalidKey), "{method}");
        }
    }
    let mount = proto::MountLocalDiskRequest {
        client_id: me(),
        endpoint: "no endpoint".into(),
        enabled: true,
    };
    assert_eq!(refused(&service, Method::MountLocalDisk, &mount).0, ErrorCode::InvalidParams);
    let list = proto::ListLocalDisksRequest { after: vec![1; 3], limit: 0 };
    assert_eq!(refused(&service, Method::ListLocalDisks, &list).1, "after has 3 bytes, not 16");
    let list = proto::ListLocalDisksRequest { after: vec![], limit: 8193 };
    assert_eq!(refused(&service, Method::ListLocalDisks, &list).0, ErrorCode::InvalidParams);
    let start = proto::PromotionAllocStartRequest {
        key: "k".into(),
        client_id: me(),
        preferred_segments: vec!["n".into(); 33],
        ..Default::default()
    };
    assert_eq!(
        refused(&service, Method::PromotionAllocStart, &start).1,
        "preferred_segments has more than 32 items"
    );
    let start = proto::PromotionAllocStartRequest { preferred_segments: vec![], ..start };
    assert_eq!(refused(&service, Method::PromotionAllocStart, &start).0, ErrorCode::ObjectNotFound);
    let many = proto::NotifyOffloadRequest {
        client_id: me(),
        outcomes: vec![proto::OffloadOutcome::default(); 65_537],
    };
    assert_eq!(
        refused(&service, Method::NotifyOffload, &many).1,
        "outcomes has more than 65536 items"
    );

    let without = super::service();
    let mount = proto::MountLocalDiskRequest { endpoint: "tcp://h:1".into(), ..mount };
    for method in [Method::MountLocalDisk, Method::UnmountLocalDisk] {
        assert_eq!(refused(&without, method, &mount).0, LocalDiskError::Unsupported.code());
    }
}

#[test]
fn a_page_of_disks_fits_into_the_answer() {
    let service = service_of_disks();
    let served = Endpoint::new("tcp", &"h".repeat(250)).unwrap();
    for i in 0..300 {
        let client = ClientId::from_u128(u128::MAX - i);
        service.master().mount_local_disk(Still.now(), client, served.clone(), true).unwrap();
    }
    let disks = service.master().local_disks();
    let list = proto::ListLocalDisksRequest { after: vec![], limit: 8192 }.encode_to_vec();
    for max_reply in [2, 1000, 64 << 10, 1 << 20] {
        let bytes = Limited(&service, max_reply).answer(Method::ListLocalDisks, &list).unwrap();
        let told = proto::ListLocalDisksResponse::decode(&bytes[..]).unwrap();
        assert!(bytes.len() <= max_reply, "{} of {max_reply}", bytes.len());
        assert_eq!(told.more, told.disks.len() < 300);
    }
    let list =
        proto::ListLocalDisksRequest { after: disks[100].client.to_bytes().to_vec(), limit: 50 };
    let page: proto::ListLocalDisksResponse =
        call(&service, Method::ListLocalDisks, &list).unwrap();
    let read = Direct(&page).local_disks(None, 0).unwrap();
    assert_eq!(
        (read.disks.as_slice(), read.next_after),
        (&disks[101..151], Some(disks[150].client))
    );
    let endless = proto::ListLocalDisksResponse { more: true, ..Default::default() };
    assert!(is_malformed(&Direct(&endless).local_disks(None, 0)));
}

#[test]
fn bad_answers_about_disks_are_refused() {
    let job = proto::DiskJob { key: "k".into(), tenant_id: "blue".into(), ..Default::default() };
    let read = |jobs: Vec<proto::DiskJob>| {
        let answer = proto::OffloadHeartbeatResponse { jobs, ..Default::default() };
        Direct(&answer).offload_heartbeat(ME, true, 0)
    };
    assert_eq!(read(vec![job.clone(); 8192]).unwrap().len(), 8192);
    assert!(is_malformed(&read(vec![job.clone(); 8193])));
    assert!(is_malformed(&read(vec![proto::DiskJob { key: "k".repeat(1025), ..job.clone() }])));
    assert!(is_malformed(&read(vec![proto::DiskJob { tenant_id: "..".into(), ..job }])));
    let disk = proto::LocalDiskReport { client_id: me(), ..Default::default() };
    let answer = proto::ListLocalDisksResponse { disks: vec![disk], ..Default::default() };
    assert!(is_malformed(&Direct(&answer).local_disks(None, 0)));
}

#[test]
fn what_a_disk_is_refused_for_keeps_its_number() {
    for (refusal, code) in [
        (Refusal::from(OffloadError::QueueFull { limit: 1 }), ErrorCode::OffloadQueueFull),
        (FoundError::NotRegistered.into(), ErrorCode::TenantNotRegistered),
        (PromotionError::AlreadyBegun.into(), ErrorCode::ObjectHasReplicationTask),
        (PromotionStartError::NoRoom { len: 1 }.into(), ErrorCode::Full),
        (LocalDiskError::TooManyDisks { limit: 1 }.into(), ErrorCode::Overloaded),
    ] {
        assert_eq!(refusal.code, code);
        assert!(!refusal.message.is_empty());
    }
}
