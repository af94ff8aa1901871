//! What goes to disks and comes back, of whichever tenant.

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
    assert_eq!(told.jobs, [job]);

    let outcome = |key: &str, tenant_id: &str| proto::OffloadOutcome {
        key: key.into(),
        tenant_id: tenant_id.into(),
        generation,
        written: true,
    };
    let outcomes =
        vec![outcome("k", ""), outcome("", ""), outcome("k", "blue"), outcome("k", "blue")];
    let notify = proto::NotifyOffloadRequest { client_id: me(), outcomes };
    let noted: proto::NotifyOffloadResponse =
        call(&service, Method::NotifyOffload, &notify).unwrap();
    let gone = OffloadError::NotPending.code().code();
    let expected = [gone, ErrorCode::InvalidKey.code(), 0, gone];
    assert_eq!(codes(&noted.items, |item| item.status_code), expected);

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
    let generation = put(&service, &tenant("blue"), "k").as_u64();
    let stored = service.master().scoped(&tenant("blue"), key("k")).unwrap();
    service.master().remove(NOW, stored.as_ref(), true).unwrap();
    let found = proto::FoundOnDisk {
        key: "k".into(),
        tenant_id: "blue".into(),
        generation,
        slices: vec![proto::Slice { length: 300, checksum: None }],
    };
    let unknown = proto::FoundOnDisk { generation: generation + 1, ..found.clone() };
    let report = proto::ReportLocalDiskRequest { client_id: me(), found: vec![found, unknown] };
    let noted: proto::ReportLocalDiskResponse =
        call(&service, Method::ReportLocalDisk, &report).unwrap();
    let expected = [0, FoundError::OtherObject.code().code()];
    assert_eq!(codes(&noted.items, |item| item.status_code), expected);

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
