//! Answers to callers that accept short ones.

use mc_meta::{FoundInTier, LocalDiskSpec, Slice, Slices};
use mc_types::LocalDiskId;

use super::*;

fn answered<T: Message + Default>(
    service: &impl Service,
    max_reply: usize,
    method: Method,
    request: &impl Message,
) -> T {
    let call = (method, &request.encode_to_vec()[..], max_reply);
    let bytes = answer(service, &Caller::ANYBODY, call).unwrap();
    assert!(bytes.len() <= max_reply, "{} of {max_reply}", bytes.len());
    T::decode(bytes).unwrap()
}

#[test]
fn pages_fit_into_the_answer() {
    let service = service();
    let served = Endpoint::new("tcp", &"h".repeat(250)).unwrap();
    for i in 0..300 {
        let client = ClientId::from_u128(u128::MAX - i);
        let disk = LocalDiskSpec {
            id: LocalDiskId::from_bytes(client.to_bytes()),
            endpoint: served.clone(),
            remote_key: RemoteKey::from_bytes([6; 16]),
            ticket_key: None,
        };
        service.master().mount_local_disk(NOW, client, disk, true).unwrap();
    }
    for i in 0..1000 {
        let whose = tenant(&format!("{i:0128}"));
        service.master().set_tenant_quota(NOW, &whose, u64::MAX >> 1).unwrap();
    }
    for max_reply in [64, 1000, 64 << 10, 1 << 20] {
        let list = proto::ListLocalDisksRequest { after: vec![], limit: 8192 };
        let told: proto::ListLocalDisksResponse =
            answered(&service, max_reply, Method::ListLocalDisks, &list);
        assert_eq!(told.more, told.disks.len() < 300);
        let list = proto::ListTenantQuotasRequest { after: String::new(), limit: 8192 };
        let told: proto::ListTenantQuotasResponse =
            answered(&service, max_reply, Method::ListTenantQuotas, &list);
        assert_eq!(told.more, told.tenants.len() < 1002);
    }
    // A page begins after the one that is named.
    let disks = service.master().local_disks();
    let after = disks[100].client.to_bytes().to_vec();
    let list = proto::ListLocalDisksRequest { after, limit: 50 };
    let page: proto::ListLocalDisksResponse =
        answered(&service, 1 << 20, Method::ListLocalDisks, &list);
    let told = page.disks.iter().map(|disk| &disk.client_id[..]);
    assert!(told.eq(disks[101..151].iter().map(|disk| disk.client.to_bytes())));
    assert!(page.more);
}

#[test]
fn drain_jobs_that_do_not_fit_are_counted() {
    let service = service();
    let segments = vec!["node-1".to_owned()];
    let create = proto::CreateDrainJobRequest { segments, targets: vec![], max_concurrency: 1 };
    let mut one = 0;
    for _ in 0..3 {
        let created: proto::CreateDrainJobResponse =
            call(&service, Method::CreateDrainJob, &create).unwrap();
        let id = proto::CancelDrainJobRequest { job_id: created.job_id };
        let _: proto::CancelDrainJobResponse = call(&service, Method::CancelDrainJob, &id).unwrap();
        let told: proto::QueryDrainJobResponse =
            call(&service, Method::QueryDrainJob, &id).unwrap();
        one = told.encoded_len();
    }
    for (max_reply, told) in [(2, 0), (one + 8, 1), (2 * one + 8, 2), (1 << 16, 3)] {
        let list: proto::ListDrainJobsResponse =
            answered(&service, max_reply, Method::ListDrainJobs, &proto::ListDrainJobsRequest {});
        assert_eq!((list.jobs.len(), list.left_out), (told, 3 - told as u32));
    }
}

#[test]
fn no_more_tasks_are_fetched_than_fit_into_the_answer() {
    let service = service_with(config());
    for i in 0..20 {
        let name = format!("k{i}");
        put(&service, &TenantId::DEFAULT, &name);
        service.master().create_copy_task(NOW, key(&name), &["node-2"]).unwrap();
    }
    // Nor told of, and the page after begins where the one before ends.
    let (mut list, mut listed) = (proto::ListTasksRequest::default(), 0);
    loop {
        let page: proto::ListTasksResponse = answered(&service, 500, Method::ListTasks, &list);
        assert!((1..20).contains(&page.tasks.len()));
        listed += page.tasks.len();
        if !page.more {
            break;
        }
        let last = page.tasks.into_iter().next_back().and_then(|it| it.task);
        list.after = last.unwrap().task_id;
    }
    assert_eq!(listed, 20);
    let fetch = proto::FetchTasksRequest { client_id: me(), max_tasks: 0 };
    let mut seen = 0;
    for _ in 0..20 {
        let fetched: proto::FetchTasksResponse =
            answered(&service, 64 << 10, Method::FetchTasks, &fetch);
        assert!(fetched.tasks.len() < 20);
        seen += fetched.tasks.len();
    }
    assert_eq!(seen, 20);
}

#[test]
fn promotions_that_do_not_fit_into_the_answer_are_given_up() {
    let mut config = config();
    let mut promotion = PromotionConfig::default();
    promotion.max_per_heartbeat = 1000;
    config.promotion = Some(promotion);
    config.shared_tier = None;
    let service = service_with(config);
    mount_disk(&service);
    let master = service.master();
    for i in 0..100 {
        let name = format!("k{i}");
        let slices = Slices::One(Slice { len: 300, checksum: None });
        let generation = Generation::new(FOREIGN.as_u64() + i);
        let found = FoundInTier { key: key(&name), generation, slices, address: 0 };
        master.report_local_disk(NOW, ME, &[found])[0].unwrap();
        master.get_replica_list(NOW, key(&name)).unwrap();
        master.get_replica_list(NOW, key(&name)).unwrap();
    }
    let ask = proto::PromotionHeartbeatRequest { client_id: me() };
    let told: proto::PromotionHeartbeatResponse =
        answered(&service, 64 << 10, Method::PromotionHeartbeat, &ask);
    assert!((1..100).contains(&told.jobs.len()));
    let report = master.report();
    assert_eq!(report.totals.promotions_pending, told.jobs.len() as u64);
    assert_eq!(report.totals.promotion_failed, 100 - told.jobs.len() as u64);
}

#[test]
fn nothing_is_cleared_whose_answer_would_not_fit() {
    let service = service_with(config());
    for text in ["a", "b", "c"] {
        put(&service, &TenantId::DEFAULT, text);
    }
    assert!(service.master().exist(NOW, key("b")), "and has a lease now");
    let clear = |keys: &[&str], segment_name: &str| proto::BatchReplicaClearRequest {
        object_keys: keys.iter().map(ToString::to_string).collect(),
        client_id: me(),
        segment_name: segment_name.into(),
    };
    let payload = clear(&["a"], "").encode_to_vec();
    let small = answer(&service, &Caller::ANYBODY, (Method::BatchReplicaClear, &payload, 16));
    assert_eq!(small.unwrap_err().code, ErrorCode::InvalidParams);
    let long = "k".repeat(1025);
    for (keys, segment_name, expected) in [
        (&["a"][..], "node-9", &[][..]),
        (&["c", "", "b", &long, "absent", "a", "a"], "", &["c", "a"]),
    ] {
        let told: proto::BatchReplicaClearResponse =
            call(&service, Method::BatchReplicaClear, &clear(keys, segment_name)).unwrap();
        assert_eq!(told.cleared_keys, expected);
    }
}

/// As simulations and logs of answers expect.
#[test]
fn the_same_hosts_are_the_same_bytes() {
    let answer = || {
        let service = service();
        let clients = (1..=8).map(ClientId::from_u128);
        for (number, client) in clients.clone().enumerate() {
            service.master().mount_segment(NOW, client, segment(10 + number as u8)).unwrap();
        }
        let client_ids = clients.map(|client| client.to_bytes().to_vec()).collect();
        let ask = proto::BatchQueryIpRequest { client_ids };
        answered::<proto::BatchQueryIpResponse>(&service, 1 << 20, Method::BatchQueryIp, &ask)
    };
    let first = answer();
    assert_eq!((first.client_ip_map.len(), first.encode_to_vec()), (8, answer().encode_to_vec()));
}
