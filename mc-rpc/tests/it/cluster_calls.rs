//! The calls about the cluster, through a real connection, against a real master.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_meta::{
    FileSystemState, JobStatus, LateWrites, LocalDiskConfig, LocalDiskSpec, Master, MasterConfig,
    PromotionConfig, PutEnd, PutStart, QuotaMode, ReplicaKind, ReplicateConfig, SegmentStatus,
    SharedTierConfig, Slice, Slices, TaskKind, TaskStatus, TenantId, TierQuotas,
};
use mc_rpc::{
    Clock, FileOutcome, FoundItem, MasterClient, MasterService, OffloadItem, Server, ServerConfig,
    ServerHandle, StorageSettings, TenantKey, TierEviction, proto,
};
use mc_types::{ClientId, Endpoint, ErrorCode, Generation, KeyRef, LocalDiskId, RemoteKey, Time};

use crate::common::{ME, connect, key, master, segment, serve};

const MIB: u64 = 1 << 20;

/// Moves when the test says so.
#[derive(Default)]
struct Hand(AtomicU64);

impl Hand {
    fn advance(&self, millis: u64) -> Time {
        Time::from_millis(self.0.fetch_add(millis, Ordering::Relaxed) + millis)
    }
}

impl Clock for Hand {
    fn now(&self) -> Time {
        Time::from_millis(self.0.load(Ordering::Relaxed))
    }
}

async fn serve_by_hand(master: &Arc<Master>) -> (ServerHandle, Arc<Hand>) {
    let hand = Arc::new(Hand::default());
    let service = MasterService::new(Arc::clone(master), Arc::clone(&hand));
    let server = Server::bind("127.0.0.1:0", service, ServerConfig::default()).await.unwrap();
    (server.spawn(), hand)
}

/// Puts an object into the segment `node-1`.
async fn put(client: &MasterClient, key: KeyRef<'_>) {
    let config = ReplicateConfig::default().prefer("node-1");
    let start = PutStart { key, slice_lengths: &[4096, 100], config: &config };
    let grant = client.put_start(ME, &start).await.unwrap();
    let end = PutEnd::new(key, grant.handle);
    client.put_end(ME, &end).await.unwrap();
}

async fn holders(client: &MasterClient, key: KeyRef<'_>) -> Vec<String> {
    let list = client.get_replica_list(key).await.unwrap();
    let mut names: Vec<String> =
        list.replicas.iter().map(|replica| replica.segment.name.to_string()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_copy_adds_replicas_and_a_move_takes_the_old_one_away() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    for number in 1..=3 {
        client.mount_segment(ME, &segment(number, MIB)).await.unwrap();
    }
    let block = key("block");
    let object = TenantKey::from(block);
    put(&client, block).await;

    let grant = client.copy_start(ME, &object, "node-1", &["node-2"]).await.unwrap();
    assert_eq!(&*grant.source.segment.name, "node-1");
    assert_eq!(&*grant.targets[0].segment.name, "node-2");
    assert_eq!(grant.targets[0].extent.len(), 4196);
    let busy = client.copy_start(ME, &object, "node-1", &["node-3"]).await.unwrap_err();
    assert_eq!(busy.code(), ErrorCode::ObjectHasReplicationTask);
    assert!(busy.is_retryable());
    let handle = grant.handle;
    let stranger = client.copy_end(ClientId::from_u128(9), &object, handle).await.unwrap_err();
    assert_eq!(stranger.code(), ErrorCode::IllegalClient);
    client.copy_revoke(ME, &object, handle, LateWrites::Impossible).await.unwrap();
    assert_eq!(holders(&client, block).await, ["node-1"]);
    let grant = client.copy_start(ME, &object, "node-1", &["node-2"]).await.unwrap();
    client.copy_end(ME, &object, grant.handle).await.unwrap();
    assert_eq!(holders(&client, block).await, ["node-1", "node-2"]);

    let grant = client.move_start(ME, &object, "node-1", "node-3").await.unwrap();
    client.move_revoke(ME, &object, grant.handle, LateWrites::Impossible).await.unwrap();
    let grant = client.move_start(ME, &object, "node-1", "node-3").await.unwrap();
    client.move_end(ME, &object, grant.handle).await.unwrap();
    assert_eq!(holders(&client, block).await, ["node-2", "node-3"]);
    server.shutdown().await;
}

#[tokio::test]
async fn tasks_are_created_fetched_and_reported_on() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    for number in 1..=2 {
        client.mount_segment(ME, &segment(number, MIB)).await.unwrap();
    }
    let object = TenantKey::from(key("block"));
    put(&client, key("block")).await;
    assert_eq!(client.ping(ME).await.unwrap().tasks, 0);

    let copy = client.create_copy_task(&object, &["node-2"]).await.unwrap();
    let move_ = client.create_move_task(&object, "node-1", "node-2").await.unwrap();
    assert_eq!(client.ping(ME).await.unwrap().tasks, 2);
    let waiting = client.query_task(copy).await.unwrap();
    assert_eq!((waiting.status, waiting.client), (TaskStatus::Pending, ME));
    assert_eq!(waiting.task.tenant, TenantId::DEFAULT);
    let moving = client.query_task(move_).await.unwrap().task;
    let (source, target) = ("node-1".into(), "node-2".into());
    assert_eq!(moving.kind, TaskKind::Move { source, target });

    let all = client.list_tasks(None, 0).await.unwrap();
    let mut known =
        [client.query_task(copy).await.unwrap(), client.query_task(move_).await.unwrap()];
    known.sort_by_key(|report| report.task.id);
    let ids = known.clone().map(|report| report.task.id);
    assert_eq!(
        (all.tasks.iter().map(|it| it.task.id).collect::<Vec<_>>(), all.next_after),
        (ids.into(), None)
    );
    assert_eq!(all.tasks[0].task.kind, known[0].task.kind);
    let first = client.list_tasks(None, 1).await.unwrap();
    assert_eq!((first.tasks.len(), first.next_after), (1, Some(ids[0])));
    let second = client.list_tasks(first.next_after, 1).await.unwrap();
    assert_eq!((second.tasks[0].task.id, second.next_after), (ids[1], None));

    let fetched = client.fetch_tasks(ME, 1).await.unwrap();
    assert_eq!((fetched.tasks.len(), fetched.tasks[0].id), (1, copy));
    assert_eq!(fetched.max_retry_attempts, 10);
    let task = &fetched.tasks[0];
    let TaskKind::Copy { source, targets } = &task.kind else { panic!("{task:?}") };
    let targets: Vec<&str> = targets.iter().map(|name| &**name).collect();
    let grant = client.copy_start(ME, &task.object(), source, &targets).await.unwrap();
    client.copy_end(ME, &task.object(), grant.handle).await.unwrap();
    let early = client.mark_task_to_complete(ME, copy, TaskStatus::Pending, "").await.unwrap_err();
    assert_eq!(early.code(), ErrorCode::InvalidParams);
    let ended = client.mark_task_to_complete(ME, copy, TaskStatus::Success, "").await.unwrap();
    assert_eq!(ended, TaskStatus::Success);
    let again = client.mark_task_to_complete(ME, copy, TaskStatus::Failed, "late").await.unwrap();
    assert_eq!(again, TaskStatus::Success);

    let rest = client.fetch_tasks(ME, 0).await.unwrap();
    assert_eq!(rest.tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [move_]);
    client.mark_task_to_complete(ME, move_, TaskStatus::Failed, "no room").await.unwrap();
    let report = client.query_task(move_).await.unwrap();
    assert_eq!((report.status, &*report.outcome), (TaskStatus::Failed, "no room"));
    let none = client.create_copy_task(&object, &[]).await.unwrap_err();
    assert_eq!(none.code(), ErrorCode::InvalidParams);
    server.shutdown().await;
}

/// Does the moves that wait for the only client.
async fn do_moves(client: &MasterClient) {
    for task in client.fetch_tasks(ME, 0).await.unwrap().tasks {
        let TaskKind::Move { source, target } = &task.kind else { panic!("{task:?}") };
        let grant = client.move_start(ME, &task.object(), source, target).await.unwrap();
        client.move_end(ME, &task.object(), grant.handle).await.unwrap();
        client.mark_task_to_complete(ME, task.id, TaskStatus::Success, "").await.unwrap();
    }
}

#[tokio::test]
async fn a_segment_is_drained_and_reopened() {
    let master = master();
    let (server, hand) = serve_by_hand(&master).await;
    let client = connect(&server).await;
    for number in 1..=2 {
        client.mount_segment(ME, &segment(number, MIB)).await.unwrap();
    }
    for i in 0..10 {
        put(&client, key(&format!("block-{i}"))).await;
    }
    let id = client.create_drain_job(&["node-1"], &[], 0).await.unwrap();
    let job = client.query_drain_job(id).await.unwrap();
    assert_eq!((job.status, job.max_concurrency, job.targets.len()), (JobStatus::Created, 4, 0));
    let known = master.query_drain_job(id).unwrap();
    let counts = (job.moved, job.moved_bytes, job.active, job.blocked, job.failed);
    let expected = (known.moved, known.moved_bytes, known.active, known.blocked, known.failed);
    assert_eq!(counts, expected);
    let busy = client.create_drain_job(&["node-1"], &[], 1).await.unwrap_err();
    assert_eq!(busy.code(), ErrorCode::UnavailableInCurrentStatus);

    let mut ticks = 0;
    let job = loop {
        master.tick(hand.advance(500));
        client.ping(ME).await.unwrap();
        do_moves(&client).await;
        let job = client.query_drain_job(id).await.unwrap();
        if job.status.is_final() {
            break job;
        }
        ticks += 1;
        assert!(ticks < 1000, "{job:?}");
    };
    assert_eq!((job.status, job.moved, job.moved_bytes), (JobStatus::Succeeded, 10, 41_960));
    assert_eq!(client.list_drain_jobs().await.unwrap().jobs[0].id, id);
    assert_eq!(holders(&client, key("block-0")).await, ["node-2"]);
    let status_of_first = || async {
        let report = client.cluster_report().await.unwrap();
        report.segments.iter().find(|segment| &*segment.name == "node-1").unwrap().status
    };
    assert_eq!(status_of_first().await, SegmentStatus::Drained);
    client.reopen_segment("node-1").await.unwrap();
    assert_eq!(status_of_first().await, SegmentStatus::Ok);

    let id = client.create_drain_job(&["node-2"], &["node-1"], 1).await.unwrap();
    assert_eq!(client.cancel_drain_job(id).await.unwrap(), JobStatus::Canceled);
    server.shutdown().await;
}

#[tokio::test]
async fn tenants_get_quotas_and_lose_them() {
    let mut config = MasterConfig::default();
    config.multi_tenant = true;
    config.default_tenant_quota = mc_meta::DefaultQuota::Denied;
    let master = Arc::new(Master::new(config, 11).unwrap());
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, MIB)).await.unwrap();

    let [red, blue] = ["red", "blue"].map(|name| TenantId::new(name).unwrap());
    client.set_tenant_quota(&red, 1000).await.unwrap();
    let usage = client.tenant_quota(&red).await.unwrap();
    assert_eq!((usage.requested, usage.charged), (Some(1000), 0));
    // Quotas below memory too, with or without one of memory.
    let below = TierQuotas { disks: Some(5), files: Some(0) };
    for memory in [Some(1000), None] {
        client.set_tenant_quotas(&red, memory, QuotaMode::Refuse, below).await.unwrap();
        let usage = client.tenant_quota(&red).await.unwrap();
        assert_eq!(
            (usage.requested, usage.below(), usage.mode),
            (memory, below, QuotaMode::Refuse)
        );
        assert_eq!(Some(usage), master.tenant_quota(&red));
    }
    let none = client.set_tenant_quotas(&red, None, QuotaMode::Evict, TierQuotas::NONE).await;
    assert_eq!(none.unwrap_err().code(), ErrorCode::InvalidParams);
    client.set_tenant_quota(&red, 1000).await.unwrap();
    assert_eq!(client.tenant_quota(&red).await.unwrap().below(), TierQuotas::NONE);
    let nobody = client.tenant_quota(&blue).await.unwrap_err();
    assert_eq!(nobody.code(), ErrorCode::TenantNotRegistered);

    let quotas = [(TenantId::DEFAULT, MIB), (blue.clone(), 10)]
        .map(|(tenant, requested)| proto::TenantQuota { tenant_id: tenant.to_string(), requested });
    let quotas = proto::ReplaceTenantQuotasRequest { quotas: quotas.into() };
    client.request(quotas).await.unwrap();
    put(&client, key("block")).await;
    let all = client.tenant_quotas(None, 0).await.unwrap();
    let known = master.tenant_quotas().unwrap();
    assert_eq!((all.capacity, all.requested, all.effective), (MIB, MIB + 10, known.effective));
    assert_eq!((all.unregistered, all.mismatches), (known.unregistered, known.mismatches));
    assert_eq!(all.tenants, known.tenants);
    let first = client.tenant_quotas(None, 1).await.unwrap();
    assert_eq!((first.tenants[0].tenant.as_str(), first.requested), ("blue", MIB + 10));
    let rest = client.tenant_quotas(first.next_after.as_ref(), 0).await.unwrap();
    assert_eq!((rest.tenants[0].objects, rest.next_after), (1, None));
    client.delete_tenant_quota(&blue).await.unwrap();
    let used = client.delete_tenant_quota(&TenantId::DEFAULT).await.unwrap_err();
    assert_eq!(used.code(), ErrorCode::TenantNotEmpty);
    assert!(used.is_retryable());
    server.shutdown().await;
}

#[tokio::test]
async fn objects_go_to_disks_and_come_back() {
    let mut config = MasterConfig::default();
    config.local_disk = Some(LocalDiskConfig::default());
    config.promotion = Some(PromotionConfig::default());
    let master = Arc::new(Master::new(config, 11).unwrap());
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, MIB)).await.unwrap();
    let disk = LocalDiskSpec {
        id: LocalDiskId::from_u128(5),
        endpoint: Endpoint::new("tcp", "10.0.0.1:7").unwrap(),
        remote_key: RemoteKey::from_bytes([6; 16]),
        ticket_key: None,
    };
    let early = client.offload_heartbeat(ME, true, 0).await.unwrap_err();
    assert_eq!(early.code(), ErrorCode::SegmentNotFound);
    client.mount_local_disk(ME, &disk, true).await.unwrap();
    client.report_ssd_capacity(ME, 1 << 40).await.unwrap();

    put(&client, key("a")).await;
    put(&client, key("b")).await;
    let jobs = client.offload_heartbeat(ME, true, 0).await.unwrap();
    assert_eq!((jobs.len(), jobs[0].job.len, jobs[0].slices.total_len()), (2, 4196, 4196));
    let list = client.get_replica_list(key("a")).await.unwrap();
    let in_memory = (list.replicas[0].segment.id, list.replicas[0].extent);
    assert_eq!((jobs[0].source.segment, jobs[0].source.extent), in_memory);
    let outcome = |at: usize, written_at| OffloadItem {
        too_long: false,
        object: jobs[at].job.object(),
        generation: jobs[at].job.generation,
        written_at,
    };
    let outcomes = [outcome(0, Some(512)), outcome(1, None)];
    let noted = client.notify_offload(ME, &outcomes).await.unwrap();
    assert_eq!(noted, [Ok(()), Ok(())]);
    let list = client.get_replica_list(key("a")).await.unwrap();
    let place = &list.local_disks[0];
    assert_eq!((place.client, &place.endpoint), (ME, &disk.endpoint));
    assert_eq!((place.remote_key, place.ticket), (disk.remote_key, None));
    assert_eq!((place.extent.offset(), place.extent.len()), (512, 4196));
    let disks = client.local_disks(None, 0).await.unwrap();
    assert_eq!((&disks.disks[0].endpoint, disks.disks[0].objects), (&disk.endpoint, 1));
    assert_eq!((disks.disks[0].usage.capacity, disks.next_after), (1 << 40, None));
    assert_eq!(disks.disks, master.local_disks());
    let written = client.cluster_report().await.unwrap().totals;
    assert_eq!((written.offload_written, written.offload_failed), (1, 1));

    // Everything goes. What another master's client wrote comes back from there, and nothing else.
    let removed = (jobs[0].job.object(), jobs[0].job.generation);
    client.remove_all(true).await.unwrap();
    for remove_all in [true, false] {
        let poll = proto::PollRemoveAllRequest { client_id: ME.to_bytes().into() };
        assert_eq!(client.request(poll).await.unwrap().remove_all, remove_all);
    }
    let slices = || Slices::One(Slice { len: 4196, checksum: None });
    let found =
        |(object, generation)| FoundItem { object, generation, slices: slices(), address: 64 };
    let (object, generation) = (TenantKey::from(key("foreign")), Generation::new(1 << 62));
    let both = [found(removed), found((object.clone(), generation))];
    let noted = client.report_local_disk(ME, &both, true).await.unwrap();
    assert_eq!(noted[0].as_ref().unwrap_err().code, ErrorCode::ObjectAlreadyExists);
    assert_eq!(noted[1], Ok(()));
    for _ in 0..2 {
        assert!(client.exist(key("foreign")).await.unwrap());
        let list = client.get_replica_list(key("foreign")).await.unwrap();
        assert_eq!((list.replicas.len(), list.local_disks[0].extent.offset()), (0, 64));
    }
    let back = client.promotion_heartbeat(ME).await.unwrap();
    let [back] = &back[..] else { panic!("{back:?}") };
    assert_eq!((back.key.as_str(), back.generation, back.len), ("foreign", generation, 4196));
    let space = client.promotion_alloc_start(ME, &object, generation, 4196, &["node-1"]);
    let handle = space.await.unwrap().handle;
    client.notify_promotion_success(ME, &object, generation, handle).await.unwrap();
    let late = LateWrites::Impossible;
    client.notify_promotion_failure(ME, &object, generation, Some(handle), late).await.unwrap();
    assert_eq!(holders(&client, key("foreign")).await, ["node-1"]);

    let evicted = TierEviction { object, generation: Some(generation) };
    let absent = TierEviction { object: key("c").into(), generation: None };
    let items = [evicted, absent];
    let noted = client.batch_evict_from_tier(ME, &items, ReplicaKind::LocalDisk).await.unwrap();
    assert_eq!(noted[0], Ok(()));
    assert_eq!(noted[1].as_ref().unwrap_err().code, ErrorCode::ObjectNotFound);
    client.unmount_local_disk(ME, false).await.unwrap();
    assert!(client.local_disks(None, 0).await.unwrap().disks.is_empty());
    server.shutdown().await;
}

#[tokio::test]
async fn files_outlive_memory() {
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::with_capacity(MIB));
    let master = Arc::new(Master::new(config, 11).unwrap());
    let server = serve(&master, ServerConfig::default()).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, MIB)).await.unwrap();
    for (text, kept) in [("kept", true), ("lost", false)] {
        let config = ReplicateConfig::default();
        let start = PutStart { key: key(text), slice_lengths: &[64], config: &config };
        let handle = client.put_start(ME, &start).await.unwrap().handle;
        let (key_of, client_id) = (String::from(text), Vec::from(ME.to_bytes()));
        let (generation, put_token) = (Some(handle.generation.as_u64()), handle.token.as_u64());
        if kept {
            let (key, client_id) = (key_of.clone(), client_id.clone());
            let end = proto::DiskPutEndRequest { key, client_id, generation, put_token };
            client.request(end).await.unwrap();
        } else {
            let (key, client_id) = (key_of.clone(), client_id.clone());
            let revoke = proto::DiskPutRevokeRequest { key, client_id, generation, put_token };
            client.request(revoke).await.unwrap();
        }
        let revoke = proto::MemoryPutRevokeRequest {
            key: key_of,
            client_id,
            generation,
            put_token,
            late_writes: false,
        };
        client.request(revoke).await.unwrap();
        assert_eq!(client.exist(key(text)).await.unwrap(), kept);
    }
    assert_eq!(client.cluster_report().await.unwrap().totals.files_used, 64);
    let evict = proto::EvictDiskReplicaRequest {
        key: "kept".into(),
        client_id: ME.to_bytes().into(),
        kind: proto::evict_disk_replica_request::Kind::Disk.into(),
        ..Default::default()
    };
    client.request(evict).await.unwrap();
    assert!(!client.exist(key("kept")).await.unwrap());
    server.shutdown().await;
}

#[tokio::test]
async fn files_are_kept_in_step_with_the_objects() {
    let mut config = MasterConfig::default();
    config.shared_tier = Some(SharedTierConfig::with_capacity(MIB));
    let master = Arc::new(Master::new(config, 11).unwrap());
    let service = MasterService::new(Arc::clone(&master), Hand::default())
        .with_storage(StorageSettings::in_directory("/mnt/kv").cluster_id("c1"));
    let server = Server::bind("127.0.0.1:0", service, ServerConfig::default()).await.unwrap();
    let server = server.spawn();
    let client = connect(&server).await;
    let storage = client.storage_config().await.unwrap();
    assert_eq!(storage.settings, StorageSettings::in_directory("/mnt/kv").cluster_id("c1"));
    assert_eq!((storage.tenant, storage.quota), (TenantId::DEFAULT, Some(MIB)));

    client.mount_segment(ME, &segment(1, MIB)).await.unwrap();
    let mut outcomes = Vec::new();
    for (text, written) in [("written", true), ("not", false)] {
        let config = ReplicateConfig::default();
        let start = PutStart { key: key(text), slice_lengths: &[64], config: &config };
        let handle = client.put_start(ME, &start).await.unwrap().handle;
        client.put_end(ME, &PutEnd::new(key(text), handle)).await.unwrap();
        outcomes.push(FileOutcome { key: key(text), handle, written });
    }
    let absent = FileOutcome { key: key("absent"), ..outcomes[0].clone() };
    outcomes.push(absent);
    let ended = client.batch_file_put_end(ME, &outcomes).await.unwrap();
    assert_eq!(ended[..2], [Ok(()), Ok(())]);
    assert_eq!(ended[2].as_ref().unwrap_err().code, ErrorCode::ObjectNotFound);
    for FileOutcome { key, written, .. } in &outcomes[..2] {
        let list = client.get_replica_list(*key).await.unwrap();
        assert_eq!(list.file.is_some(), *written, "{key}");
    }

    client.remove(key("written"), true).await.unwrap();
    let state = FileSystemState::default();
    let jobs = client.fetch_file_jobs(ME, state, 0).await.unwrap();
    assert_eq!((jobs.compare, jobs.evict), (true, false));
    let [job] = &jobs.delete[..] else { panic!("{jobs:?}") };
    assert_eq!((job.key.as_ref(), job.generation), (key("written"), outcomes[0].handle.generation));
    let removed = (job.object(), job.generation);
    let foreign = (TenantKey::from(key("foreign")), Generation::new(1 << 62));
    let found = [removed, foreign].map(|(object, generation)| FoundItem {
        object,
        generation,
        slices: Slices::One(Slice { len: 64, checksum: None }),
        address: 0,
    });
    let noted = client.report_files(ME, &found).await.unwrap();
    assert_eq!(noted[0].as_ref().unwrap_err().code, ErrorCode::ObjectAlreadyExists);
    assert_eq!(noted[1], Ok(()));
    assert!(client.get_replica_list(key("foreign")).await.unwrap().file.is_some());
    let jobs = client.fetch_file_jobs(ME, state.compared(true).full(true), 0).await.unwrap();
    assert_eq!((jobs.delete.len(), jobs.compare, jobs.evict), (0, false, true));
    server.shutdown().await;
}
