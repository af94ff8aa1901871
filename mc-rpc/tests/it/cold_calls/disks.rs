//! Objects that go to disks and come back, of each tenant.

use mc_meta::{FoundError, OffloadError, PromotionError};

use super::*;

fn codes<T>(items: &[T], code: impl Fn(&T) -> i32) -> Vec<i32> {
    items.iter().map(code).collect()
}

#[test]
fn an_object_goes_to_a_disk() {
    let service = service();
    mount_disk(&service);
    let generation = put(&service, &tenant("blue"), "k").as_u64();
    let beat = proto::OffloadHeartbeatRequest { client_id: me(), enabled: true, max_jobs: 0 };
    let told: proto::OffloadHeartbeatResponse =
        call(&service, Method::OffloadHeartbeat, &beat).unwrap();
    let job = proto::DiskJob { key: "k".into(), tenant_id: "blue".into(), generation, length: 300 };
    let [told] = &told.jobs[..] else { panic!("{told:?}") };
    assert_eq!(told.job.as_ref(), Some(&job));
    let lengths: Vec<u64> = told.slices.iter().map(|slice| slice.length).collect();
    assert_eq!((lengths, &told.segment_id[..]), (vec![100, 200], &segment(1).id.to_bytes()[..]));
    let stored = service.master().scoped(&tenant("blue"), key("k")).unwrap();
    let in_memory = service.master().describe(NOW, stored.as_ref()).unwrap();
    assert_eq!(told.offset, in_memory.replicas[0].placement.extent.offset());

    let outcome = |key: &str, tenant_id: &str| proto::OffloadOutcome {
        key: key.into(),
        tenant_id: tenant_id.into(),
        generation,
        written: true,
        too_long: false,
        offset: 8192,
    };
    let outcomes =
        vec![outcome("k", ""), outcome("", ""), outcome("k", "blue"), outcome("k", "blue")];
    let notify = proto::NotifyOffloadRequest { client_id: me(), outcomes };
    let noted: proto::NotifyOffloadResponse =
        call(&service, Method::NotifyOffload, &notify).unwrap();
    let gone = OffloadError::NotPending.code().code();
    let expected = [gone, ErrorCode::InvalidKey.code(), 0, gone];
    assert_eq!(codes(&noted.items, |item| item.status_code), expected);
    let get = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![] };
    let list: proto::GetReplicaListResponse =
        call_as(&service, &blue(Role::Reader), Method::GetReplicaList, &get).unwrap();
    let place = &list.local_disks[0];
    assert_eq!((place.offset, &place.remote_key), (8192, &vec![6; 16]));

    // A writer of another tenant may not speak for it; its own writers and nodes may.
    let evict = proto::EvictDiskReplicaRequest {
        key: "k".into(),
        client_id: me(),
        generation: Some(generation),
        kind: proto::evict_disk_replica_request::Kind::LocalDisk.into(),
        tenant_id: "blue".into(),
    };
    let ask = |caller: &Caller, evict: &_| {
        call_as::<proto::EvictDiskReplicaResponse>(
            &service,
            caller,
            Method::EvictDiskReplica,
            evict,
        )
        .map_err(|refusal| refusal.code)
    };
    let stranger = Caller::new("writer", Role::Writer);
    assert_eq!(ask(&stranger, &evict).unwrap_err(), ErrorCode::PermissionDenied);
    let own = proto::EvictDiskReplicaRequest { tenant_id: String::new(), ..evict };
    ask(&blue(Role::Writer), &own).unwrap();
    assert_eq!(ask(&blue(Role::Writer), &own).unwrap_err(), ErrorCode::ReplicaNotFound);
    let item = proto::EvictDiskItem { key: "k".into(), generation: None, tenant_id: "blue".into() };
    let batch = proto::BatchEvictDiskReplicaRequest { client_id: me(), kind: 1, items: vec![item] };
    let noted: proto::BatchEvictDiskReplicaResponse =
        call(&service, Method::BatchEvictDiskReplica, &batch).unwrap();
    let expected = [ErrorCode::ReplicaIsNotReady.code()];
    assert_eq!(codes(&noted.items, |item| item.status_code), expected);
}

#[test]
fn an_object_found_on_a_disk_comes_back_into_memory() {
    let service = service();
    mount_disk(&service);
    let removed = put(&service, &tenant("blue"), "removed");
    let stored = service.master().scoped(&tenant("blue"), key("removed")).unwrap();
    service.master().remove(NOW, stored.as_ref(), true).unwrap();
    let generation = FOREIGN.as_u64();
    let found = found_on_disk("k", "blue", FOREIGN);
    let other = proto::FoundOnDisk { generation: generation + 1, ..found.clone() };
    let removed = found_on_disk("removed", "blue", removed);
    let found = vec![found, other, removed];
    let report = proto::ReportLocalDiskRequest { client_id: me(), found, is_last: true };
    let noted: proto::ReportLocalDiskResponse =
        call(&service, Method::ReportLocalDisk, &report).unwrap();
    let gone = FoundError::OtherObject.code().code();
    assert_eq!(codes(&noted.items, |item| item.status_code), [0, gone, gone]);
    let stored = service.master().scoped(&tenant("blue"), key("k")).unwrap();

    for _ in 0..2 {
        let list = service.master().get_replica_list(NOW, stored.as_ref()).unwrap();
        assert!(list.placements.is_empty());
    }
    let ask = proto::PromotionHeartbeatRequest { client_id: me() };
    let told: proto::PromotionHeartbeatResponse =
        call(&service, Method::PromotionHeartbeat, &ask).unwrap();
    assert_eq!((&*told.jobs[0].key, &*told.jobs[0].tenant_id), ("k", "blue"));
    let start = |length| proto::PromotionAllocStartRequest {
        key: "k".into(),
        client_id: me(),
        generation,
        length,
        preferred_segments: vec!["node-2".into()],
        tenant_id: "blue".into(),
    };
    let long = refused(&service, Method::PromotionAllocStart, &start(301));
    assert_eq!(long, ErrorCode::InvalidParams);
    let granted: proto::PromotionAllocStartResponse =
        call(&service, Method::PromotionAllocStart, &start(300)).unwrap();
    let handle = &granted.replica.as_ref().unwrap().handles[0];
    assert_eq!((&*handle.segment_name, handle.size), ("node-2", 300));
    let finish = proto::NotifyPromotionSuccessRequest {
        key: "k".into(),
        client_id: me(),
        generation,
        tenant_id: "blue".into(),
        transfer: Some(granted.transfer),
        transfer_token: granted.transfer_token,
    };
    for stranger in [
        proto::NotifyPromotionSuccessRequest { transfer_token: 1, ..finish.clone() },
        proto::NotifyPromotionSuccessRequest { transfer: Some(1), ..finish.clone() },
    ] {
        let told = refused(&service, Method::NotifyPromotionSuccess, &stranger);
        assert_eq!(told, ErrorCode::IllegalClient);
    }
    let _: proto::NotifyPromotionSuccessResponse =
        call(&service, Method::NotifyPromotionSuccess, &finish).unwrap();
    let over = refused(&service, Method::NotifyPromotionSuccess, &finish);
    assert_eq!(over, ErrorCode::ReplicaIsNotReady);
    let list = service.master().get_replica_list(NOW, stored.as_ref()).unwrap();
    assert_eq!(list.placements.len(), 1);
}

#[test]
fn the_causes_of_refusals_keep_their_numbers() {
    for (refusal, code) in [
        (Refusal::from(OffloadError::QueueFull { limit: 1 }), ErrorCode::OffloadQueueFull),
        (FoundError::NotRegistered.into(), ErrorCode::TenantNotRegistered),
        (PromotionError::AlreadyBegun.into(), ErrorCode::ObjectHasReplicationTask),
        (mc_meta::PromotionStartError::NoRoom { len: 1 }.into(), ErrorCode::Full),
        (mc_meta::LocalDiskError::TooManyDisks { limit: 1 }.into(), ErrorCode::Overloaded),
    ] {
        assert_eq!(refusal.code, code);
        assert!(!refusal.message.is_empty());
    }
}

#[test]
fn a_disk_moves_to_another_client() {
    let mut config = config();
    config.shared_tier = None;
    let service = service_with(config);
    mount_disk(&service);
    let generation = put(&service, &TenantId::DEFAULT, "k").as_u64();
    let gone = put(&service, &TenantId::DEFAULT, "gone").as_u64();
    let beat = proto::OffloadHeartbeatRequest { client_id: me(), enabled: true, max_jobs: 0 };
    let _: proto::OffloadHeartbeatResponse =
        call(&service, Method::OffloadHeartbeat, &beat).unwrap();
    let outcome = |key: &str, generation| proto::OffloadOutcome {
        key: key.into(),
        generation,
        written: true,
        offset: 512,
        ..Default::default()
    };
    let outcomes = vec![outcome("k", generation), outcome("gone", gone)];
    let notify = proto::NotifyOffloadRequest { client_id: me(), outcomes };
    let _: proto::NotifyOffloadResponse = call(&service, Method::NotifyOffload, &notify).unwrap();
    for number in 1..=3 {
        service.master().unmount_segment(NOW, ME, SegmentId::from_u128(number)).unwrap();
    }
    let places = || {
        let get = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![] };
        let list: Result<proto::GetReplicaListResponse, _> =
            call(&service, Method::GetReplicaList, &get);
        list.map(|list| list.local_disks).map_err(|refusal| refusal.code)
    };
    assert_eq!(places().unwrap()[0].client_id, me());

    // The node's next client, elsewhere; the disk is known by its id.
    let next = ClientId::from_u128(9).to_bytes().to_vec();
    let moved = proto::MountLocalDiskRequest {
        client_id: next.clone(),
        endpoint: "tcp://h:2".into(),
        remote_key: vec![8; 16],
        ..mount()
    };
    let _: proto::MountLocalDiskResponse = call(&service, Method::MountLocalDisk, &moved).unwrap();
    assert_eq!(places(), Err(ErrorCode::ReplicaIsNotReady));
    assert_eq!(refused(&service, Method::OffloadHeartbeat, &beat), ErrorCode::SegmentNotFound);
    // The former client has nothing to unmount any more.
    let unmount = proto::UnmountLocalDiskRequest { client_id: me(), keep: false };
    let _: proto::UnmountLocalDiskResponse =
        call(&service, Method::UnmountLocalDisk, &unmount).unwrap();
    let list = proto::ListLocalDisksRequest { after: vec![], limit: 0 };
    let told: proto::ListLocalDisksResponse =
        call(&service, Method::ListLocalDisks, &list).unwrap();
    let [disk] = &told.disks[..] else { panic!("{told:?}") };
    assert_eq!((&disk.client_id, disk.objects), (&next, 2));

    let report = |client_id: Vec<u8>, is_last| {
        let found = found_on_disk("k", "", Generation::new(generation));
        let report = proto::ReportLocalDiskRequest { client_id, found: vec![found], is_last };
        call::<proto::ReportLocalDiskResponse>(&service, Method::ReportLocalDisk, &report)
    };
    let noted = report(me(), false).unwrap();
    let no_disk = FoundError::NoDisk.code().code();
    assert_eq!(codes(&noted.items, |item| item.status_code), [no_disk]);
    assert_eq!(report(me(), true).unwrap_err().code, ErrorCode::SegmentNotFound);
    let noted = report(next.clone(), true).unwrap();
    assert_eq!(codes(&noted.items, |item| item.status_code), [0]);
    let place = proto::LocalDiskReplica {
        client_id: next.clone(),
        endpoint: "tcp://h:2".into(),
        remote_key: vec![8; 16],
        offset: 4096,
        ticket: vec![],
    };
    assert_eq!(places().unwrap(), [place]);
    // What was not reported is not there.
    while service.master().tick(NOW) {}
    assert!(service.master().describe(NOW, key("gone")).is_err());

    // It goes for a while, and comes back as it was.
    let unmount = proto::UnmountLocalDiskRequest { client_id: next.clone(), keep: true };
    let _: proto::UnmountLocalDiskResponse =
        call(&service, Method::UnmountLocalDisk, &unmount).unwrap();
    while service.master().tick(NOW) {}
    assert_eq!(places(), Err(ErrorCode::ReplicaIsNotReady));
    let _: proto::MountLocalDiskResponse = call(&service, Method::MountLocalDisk, &moved).unwrap();
    report(next, true).unwrap();
    assert_eq!(places().unwrap().len(), 1);
}

#[test]
fn a_disk_without_an_id_is_named_after_its_client() {
    let service = service();
    let nameless = proto::MountLocalDiskRequest { disk_id: vec![], ..mount() };
    let named = proto::MountLocalDiskRequest { client_id: vec![9; 16], disk_id: me(), ..mount() };
    for mount in [&nameless, &named] {
        let _: proto::MountLocalDiskResponse =
            call(&service, Method::MountLocalDisk, mount).unwrap();
    }
    let clients: Vec<_> = service.master().local_disks().iter().map(|disk| disk.client).collect();
    assert_eq!(clients, [ClientId::from_bytes([9; 16])], "it is the same disk");
}
