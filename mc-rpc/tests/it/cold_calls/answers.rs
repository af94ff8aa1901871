//! Answers that a client gets from a server that says anything.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Mutex;

use mc_meta::{
    EvictionBlocker, FileSystemState, JobStatus, KeyEventKind, LateWrites, ListCursor,
    SegmentStatus, TaskKind, TaskStatus,
};
use mc_rpc::blocking::MasterClient;
use mc_rpc::{
    ClientConfig, Completion, RpcError, Server, ServerConfig, ServerHandle, StorageSettings,
    TaskReport, TenantKey,
};
use mc_types::{JobId, MediaType, TaskId};
use proptest::prelude::*;
use prost::encoding::uint64;
use tokio::runtime::Runtime;

use super::*;

/// Answers every call with the same bytes.
#[derive(Default)]
struct Says(Mutex<Vec<u8>>);

impl Service for Says {
    fn call(&self, _: Call<'_>, out: &mut BytesMut) -> Result<Completion, Refusal> {
        out.extend_from_slice(&self.0.lock().unwrap());
        Ok(Completion::Now)
    }
}

/// A client, and what its server says.
struct Told {
    says: Arc<Says>,
    client: MasterClient,
    _server: ServerHandle,
    _runtime: Runtime,
}

impl Told {
    fn new() -> Self {
        let (says, runtime) = (Arc::new(Says::default()), Runtime::new().unwrap());
        let server = runtime.block_on(async {
            let config = ServerConfig::default();
            Server::bind("127.0.0.1:0", Arc::clone(&says), config).await.unwrap().spawn()
        });
        let addr = server.local_addr().to_string();
        let client = MasterClient::connect(&addr, ClientConfig::default()).unwrap();
        Self { says, client, _server: server, _runtime: runtime }
    }

    fn bytes(&self, answer: &[u8]) -> &MasterClient {
        *self.says.0.lock().unwrap() = answer.to_vec();
        &self.client
    }

    /// The client, which is answered with this message.
    fn with<M: Message>(&self, answer: &M) -> &MasterClient {
        self.bytes(&answer.encode_to_vec())
    }
}

#[track_caller]
fn assert_malformed<T: Debug>(answer: Result<T, RpcError>) {
    match answer {
        Err(RpcError::Malformed { .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// A message with a number of its own in each field that can hold one, `first` and more.
fn numbered<M: Message + Default>(first: u64, fields: core::ops::Range<u32>) -> M {
    let mut bytes = Vec::new();
    for number in fields {
        let mut field = Vec::new();
        uint64::encode(number, &(first + u64::from(number)), &mut field);
        if M::decode(&field[..]).is_ok() {
            bytes.extend(field);
        }
    }
    M::decode(&bytes[..]).unwrap()
}

/// The fields with a number from 100 on, by name. What is a duration in one type is a number
/// of milliseconds in the other.
fn numbers(value: &impl Debug) -> BTreeSet<(String, u64)> {
    let text = format!("{value:?}");
    let pairs = text.split(['{', '}', ',', '(', ')']).collect::<Vec<_>>().join(" ");
    let words: Vec<&str> = pairs.split_whitespace().filter(|word| *word != "Some").collect();
    let field = |pair: &[&str]| {
        let name = pair[0].strip_suffix(':')?.trim_end_matches("_ms").trim_end_matches("_ttl");
        let number: u64 = pair[1].trim_end_matches("ms").parse().ok()?;
        (number >= 100).then(|| (name.to_owned(), number))
    };
    words.windows(2).filter_map(field).collect()
}

#[test]
fn a_total_is_read_by_its_name_and_one_that_is_unknown_is_left_out() {
    let told = Told::new();
    let total = |name: &str, value| proto::Total { name: name.into(), value };
    let totals = vec![total("of_a_later_version", 1), total("get_hits", 2)];
    let report =
        proto::ClusterReportResponse { get_hits: 1, objects: 3, totals, ..Default::default() };
    let read = told.with(&report).cluster_report().unwrap().totals;
    assert_eq!((read.get_hits, read.objects), (2, 3));
    assert_eq!(read.values().filter(|(_, value)| *value > 0).count(), 2);
}

/// Fields of the message whose totals have other names since.
const RENAMED: [(&str, &str); 7] = [
    ("disk_capacity", "files_capacity"),
    ("disk_evictions", "tier_evictions"),
    ("disk_no_room", "files_no_room"),
    ("disk_only_objects", "tier_only_objects"),
    ("disk_processing", "files_unfinished"),
    ("disk_put_ends", "files_written"),
    ("disk_used", "files_used"),
];

/// Neither takes another's place.
#[test]
fn every_number_of_an_answer_comes_to_the_field_of_its_name() {
    let told = Told::new();
    let report = proto::ClusterReportResponse {
        message: String::new(),
        offload: Some(numbered(1000, 1..40)),
        promotion: Some(numbered(2000, 1..40)),
        damage: Some(numbered(3000, 1..40)),
        suspicion: Some(numbered(4000, 1..40)),
        ..numbered(100, 2..100)
    };
    let read = told.with(&report).cluster_report().unwrap();
    let groups = [
        ("offload", numbers(&report.offload)),
        ("promotion", numbers(&report.promotion)),
        ("damage", numbers(&report.damage)),
        ("suspicion", numbers(&report.suspicion)),
    ];
    let without = proto::ClusterReportResponse {
        offload: None,
        promotion: None,
        damage: None,
        suspicion: None,
        ..report
    };
    let now_called = |(name, value): (String, u64)| {
        let renamed = RENAMED.iter().find(|(old, _)| *old == name);
        (renamed.map_or(name, |(_, new)| (*new).to_owned()), value)
    };
    let mut expected: BTreeSet<_> = numbers(&without).into_iter().map(now_called).collect();
    for (group, fields) in groups {
        expected.extend(fields.into_iter().map(|(name, value)| (format!("{group}_{name}"), value)));
    }
    assert_eq!(numbers(&read), expected);
    assert!(numbers(&read).len() > 60, "{read:?}");

    let job = || proto::DrainJob { job_id: vec![1; 16], status: 4, ..numbered(100, 5..40) };
    let answer = proto::QueryDrainJobResponse { job: Some(job()), ..Default::default() };
    let read = told.with(&answer).query_drain_job(JobId::from_u128(1)).unwrap();
    assert_eq!((numbers(&read), read.status), (numbers(&answer), JobStatus::Failed));

    let usage = || proto::TenantUsage {
        tenant_id: "a".into(),
        disks: Some(numbered(2000, 1..9)),
        files: Some(numbered(3000, 1..9)),
        found: 1011,
        missed: 1012,
        ..numbered(1000, 2..9)
    };
    let all = proto::ListTenantQuotasResponse {
        tenants: vec![usage()],
        more: true,
        ..numbered(100, 2..40)
    };
    let read = told.with(&all).tenant_quotas(None, 0).unwrap();
    assert_eq!((numbers(&read), read.next_after), (numbers(&all), Some(tenant("a"))));

    let disk = proto::LocalDiskReport {
        client_id: me(),
        endpoint: "tcp://h:1".into(),
        enabled: true,
        ..numbered(100, 3..40)
    };
    let all = proto::ListLocalDisksResponse { disks: vec![disk], more: true, ..Default::default() };
    let read = told.with(&all).local_disks(None, 0).unwrap();
    assert_eq!((numbers(&read), read.next_after), (numbers(&all), Some(ME)));

    let answer = proto::QueryTaskResponse {
        task: Some(proto::Task { age_ms: 101, ..task() }),
        status: 3,
        unchanged_ms: 102,
        client_id: me(),
        outcome: "why".into(),
        ..Default::default()
    };
    let read = told.with(&answer).query_task(TaskId::from_u128(7)).unwrap();
    assert_eq!(numbers(&read), numbers(&answer));
    let TaskReport { task, status, client, outcome, .. } = read;
    assert_eq!((status, client, &*outcome), (TaskStatus::Success, ME, "why"));
    let (source, target) = ("a".into(), "b".into());
    assert_eq!(task.kind, TaskKind::Move { source, target });

    let noted: proto::ReportFailuresResponse = numbered(100, 2..15);
    let read = told.with(&noted).report_failures(ME, &[]).unwrap();
    assert_eq!(numbers(&read), numbers(&noted));

    let object = proto::DescribeObjectResponse {
        slices: vec![proto::Slice { length: 100, checksum: None }],
        lease_ttl_ms: 101,
        idle_ms: 102,
        generation: 103,
        client_id: me(),
        ..Default::default()
    };
    let read = told.with(&object).describe(key("k")).unwrap();
    let (lease, idle) = (read.lease.as_millis(), read.idle.as_millis());
    assert_eq!((lease, idle, read.generation, read.owner), (101, 102, Generation::new(103), ME));
}

fn task() -> proto::Task {
    proto::Task {
        task_id: vec![1; 16],
        kind: proto::task::Kind::Move.into(),
        key: "k".into(),
        tenant_id: "default".into(),
        source: "a".into(),
        targets: vec!["b".into()],
        age_ms: u64::MAX,
    }
}

fn replica(segment_name: &str) -> proto::ReplicaInfo {
    let handle = proto::BufHandle {
        segment_name: segment_name.into(),
        size: 300,
        buffer: 8,
        segment_id: vec![1; 16],
        endpoint: "tcp://h:1".into(),
        remote_key: vec![2; 16],
        ..Default::default()
    };
    proto::ReplicaInfo { handles: vec![handle], status: 0 }
}

#[test]
fn settings_of_conversions_are_there_only_when_enabled() {
    let told = Told::new();
    let answer = |enabled| proto::GetC2cConfigResponse {
        enabled,
        workers: 2,
        config_json: "{}".into(),
        ..Default::default()
    };
    assert_eq!(told.with(&answer(false)).c2c_settings().unwrap(), None);
    let settings = told.with(&answer(true)).c2c_settings().unwrap();
    assert_eq!(settings, Some(mc_rpc::C2cSettings::new(2, "{}")));
}

#[test]
fn where_files_are_is_read_as_it_was_written() {
    let told = Told::new();
    let good = || proto::GetStorageConfigResponse {
        fsdir: "/mnt/kv".into(),
        cluster_id: "c1".into(),
        tenant_id: "blue".into(),
        quota_bytes: 100,
        ..Default::default()
    };
    let read = told.with(&good()).storage_config().unwrap();
    let settings = StorageSettings::in_directory("/mnt/kv").cluster_id("c1").evicts(false);
    assert_eq!((read.settings, read.tenant, read.quota), (settings, tenant("blue"), Some(100)));
    let bare = proto::GetStorageConfigResponse {
        fsdir: String::new(),
        quota_bytes: 0,
        enable_disk_eviction: true,
        ..good()
    };
    let read = told.with(&bare).storage_config().unwrap();
    assert_eq!((read.settings.root, read.settings.evicts, read.quota), (None, true, None));
    let bucket = proto::GetStorageConfigResponse { shared_tier: "s3://kv-cache".into(), ..bare };
    let read = told.with(&bucket).storage_config().unwrap();
    assert_eq!(read.settings, StorageSettings::in_object_store("s3://kv-cache").cluster_id("c1"));
    let nobody = proto::GetStorageConfigResponse { tenant_id: "..".into(), ..good() };
    assert_malformed(told.with(&nobody).storage_config());
}

#[test]
fn grants_of_space_are_read_as_they_were_written() {
    let told = Told::new();
    let object = TenantKey::from(key("k"));
    let good = || proto::CopyStartResponse {
        transfer: 101,
        generation: 102,
        slices: vec![proto::Slice { length: 300, checksum: Some(5) }],
        source: Some(replica("a")),
        targets: vec![replica("b"), replica("c")],
        grant_ttl_ms: 103,
        transfer_token: 104,
        ..Default::default()
    };
    let read = told.with(&good()).copy_start(ME, &object, "a", &["b", "c"]).unwrap();
    let (id, token) = (read.handle.id.as_u64(), read.handle.token.as_u64());
    assert_eq!((id, token, read.generation), (101, 104, Generation::new(102)));
    assert_eq!((read.time_left.as_millis(), read.slices.total_len()), (103, 300));
    let places = [&[read.source][..], &read.targets].concat();
    let names: Vec<&str> = places.iter().map(|place| &*place.segment.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let changed = |change: fn(&mut proto::BufHandle)| {
        let mut replica = replica("b");
        change(&mut replica.handles[0]);
        replica
    };
    let ticket = changed(|handle| handle.ticket = vec![0xff; 24]);
    let sealed = proto::CopyStartResponse { targets: vec![ticket], ..good() };
    let read = told.with(&sealed).copy_start(ME, &object, "a", &["b"]).unwrap();
    assert!(read.targets[0].ticket.is_some() && read.source.ticket.is_none());
    let short = changed(|handle| handle.size = 1);
    let keyless = changed(|handle| handle.remote_key.clear());
    let torn = changed(|handle| handle.ticket = vec![0xff; 23]);
    for bad in [
        proto::CopyStartResponse { source: None, ..good() },
        proto::CopyStartResponse { slices: vec![], ..good() },
        proto::CopyStartResponse { targets: vec![short], ..good() },
        proto::CopyStartResponse { targets: vec![keyless], ..good() },
        proto::CopyStartResponse { targets: vec![torn], ..good() },
        proto::CopyStartResponse { targets: vec![replica("b"); 33], ..good() },
    ] {
        assert_malformed(told.with(&bad).move_start(ME, &object, "a", "b"));
    }

    let good = proto::PromotionAllocStartResponse {
        replica: Some(replica("a")),
        grant_ttl_ms: 101,
        transfer: 102,
        transfer_token: 103,
        ..Default::default()
    };
    let start = |answer: &_, len| {
        told.with::<proto::PromotionAllocStartResponse>(answer).promotion_alloc_start(
            ME,
            &object,
            Generation::new(3),
            len,
            &[],
        )
    };
    let read = start(&good, 300).unwrap();
    let (id, token) = (read.handle.id.as_u64(), read.handle.token.as_u64());
    assert_eq!((id, token, read.time_left.as_millis()), (102, 103, 101));
    assert_eq!((&*read.replica.segment.name, read.replica.extent.offset()), ("a", 8));
    assert_malformed(start(&good, 301));
    assert_malformed(start(&Default::default(), 300));
}

#[test]
fn bad_answers_about_tasks_and_jobs_are_malformed() {
    let told = Told::new();
    let read = |task| {
        let answer = proto::FetchTasksResponse { tasks: vec![task], ..Default::default() };
        told.with(&answer).fetch_tasks(ME, 0)
    };
    read(task()).unwrap();
    for bad in [
        proto::Task { task_id: vec![], ..task() },
        proto::Task { kind: 0, ..task() },
        proto::Task { kind: 3, ..task() },
        proto::Task { key: String::new(), ..task() },
        proto::Task { tenant_id: "a b".into(), ..task() },
        proto::Task { targets: vec![], ..task() },
        proto::Task { targets: vec!["b".into(); 2], ..task() },
        proto::Task { kind: 1, targets: vec!["b".into(); 33], ..task() },
        proto::Task { targets: vec!["b".repeat(257)], ..task() },
    ] {
        assert_malformed(read(bad));
    }
    let many = proto::FetchTasksResponse { tasks: vec![task(); 1025], ..Default::default() };
    assert_malformed(told.with(&many).fetch_tasks(ME, 0));
    let outcome = "x".repeat(1025);
    let wordy = proto::QueryTaskResponse {
        task: Some(task()),
        status: 1,
        client_id: me(),
        outcome,
        ..Default::default()
    };
    assert_malformed(told.with(&wordy).query_task(TaskId::from_u128(7)));
    assert_malformed(
        told.with(&proto::ListTasksResponse { tasks: vec![wordy], ..Default::default() })
            .list_tasks(None, 0),
    );
    // A list that goes on after nothing would never end.
    let endless = proto::ListTasksResponse { more: true, ..Default::default() };
    assert_malformed(told.with(&endless).list_tasks(None, 0));
    let done = TaskStatus::Success;
    assert_malformed(told.with(&()).mark_task_to_complete(ME, TaskId::from_u128(7), done, ""));
    assert_malformed(told.with(&()).create_copy_task(&key("k").into(), &[]));

    let job = || proto::DrainJob { job_id: vec![1; 16], ..Default::default() };
    let read = |job| {
        let answer = proto::QueryDrainJobResponse { job, ..Default::default() };
        told.with(&answer).query_drain_job(JobId::from_u128(1))
    };
    assert_eq!(read(Some(job())).unwrap().status, JobStatus::Created);
    for bad in [
        None,
        Some(proto::DrainJob { job_id: vec![1; 17], ..job() }),
        Some(proto::DrainJob { status: 6, ..job() }),
        Some(proto::DrainJob { segments: vec!["n".into(); 1025], ..job() }),
        Some(proto::DrainJob { targets: vec!["n".repeat(257)], ..job() }),
    ] {
        assert_malformed(read(bad));
    }
    let many = proto::ListDrainJobsResponse { jobs: vec![job(); 321], ..Default::default() };
    assert_malformed(told.with(&many).list_drain_jobs());
    assert_malformed(told.with(&()).create_drain_job(&[], &[], 0));
}

#[test]
fn bad_answers_about_disks_and_tenants_are_malformed() {
    let told = Told::new();
    let job = || proto::DiskJob { key: "k".into(), tenant_id: "blue".into(), ..Default::default() };
    let bad_jobs = [
        proto::DiskJob { key: "k".repeat(1025), ..job() },
        proto::DiskJob { tenant_id: "..".into(), ..job() },
    ];
    let read = |jobs: Vec<proto::OffloadJob>| {
        let answer = proto::OffloadHeartbeatResponse { jobs, ..Default::default() };
        told.with(&answer).offload_heartbeat(ME, true, 0)
    };
    let slice = || proto::Slice { length: 5, checksum: Some(9) };
    let offload = || proto::OffloadJob {
        job: Some(job()),
        slices: vec![slice()],
        segment_id: vec![1; 16],
        offset: 7,
    };
    let good = read(vec![offload(); 8192]).unwrap();
    assert_eq!((good.len(), good[0].slices.total_len()), (8192, 5));
    let source = good[0].source;
    assert_eq!((source.segment.as_u128() as u8, source.extent.offset()), (1, 7));
    assert_malformed(read(vec![offload(); 8193]));
    for bad in [
        proto::OffloadJob { job: None, ..offload() },
        proto::OffloadJob { slices: vec![], ..offload() },
        proto::OffloadJob { slices: vec![slice(); 1025], ..offload() },
        proto::OffloadJob { segment_id: vec![], ..offload() },
        proto::OffloadJob { offset: u64::MAX, ..offload() },
    ]
    .into_iter()
    .chain(bad_jobs.clone().map(|job| proto::OffloadJob { job: Some(job), ..offload() }))
    {
        assert_malformed(read(vec![bad]));
    }

    let read = |delete: Vec<proto::DiskJob>| {
        let answer = proto::FetchFileJobsResponse { delete, ..Default::default() };
        told.with(&answer).fetch_file_jobs(ME, FileSystemState::default(), 0)
    };
    assert_eq!(read(vec![job(); 8192]).unwrap().delete.len(), 8192);
    assert_malformed(read(vec![job(); 8193]));
    bad_jobs.into_iter().for_each(|job| assert_malformed(read(vec![job])));

    let disk = proto::LocalDiskReport { client_id: me(), ..Default::default() };
    for (disks, more) in [(vec![disk], false), (vec![], true)] {
        let answer = proto::ListLocalDisksResponse { disks, more, ..Default::default() };
        assert_malformed(told.with(&answer).local_disks(None, 0));
    }

    let usage = || proto::TenantUsage { tenant_id: "a".into(), ..Default::default() };
    let read = |usage| {
        let answer = proto::GetTenantQuotaResponse { usage, ..Default::default() };
        told.with(&answer).tenant_quota(&TenantId::DEFAULT)
    };
    assert_eq!(read(Some(usage())).unwrap().requested, None);
    assert_malformed(read(None));
    assert_malformed(read(Some(proto::TenantUsage { tenant_id: "x".repeat(129), ..usage() })));
    for (tenants, more) in [(vec![usage(); 8193], false), (vec![], true)] {
        let answer = proto::ListTenantQuotasResponse { tenants, more, ..Default::default() };
        assert_malformed(told.with(&answer).tenant_quotas(None, 0));
    }
}

#[test]
fn segments_tell_every_status() {
    let told = Told::new();
    let of_medium = |status, medium| {
        let report = proto::SegmentReport {
            medium,
            segment_name: "n".into(),
            segment_id: vec![1; 16],
            client_id: me(),
            endpoint: "tcp://h:1".into(),
            status,
            suspect: true,
            ..numbered(100, 5..9)
        };
        let segments = vec![report];
        let answer = proto::ClusterReportResponse { segments, ..Default::default() };
        told.with(&answer).cluster_report().map(|report| (numbers(&answer), report))
    };
    let read = |status| of_medium(status, 0);
    for status in SegmentStatus::ALL {
        assert!(proto::segment_report::SegmentStatus::try_from(status as i32).is_ok());
        let (sent, report) = read(status as i32).unwrap();
        let [segment] = &report.segments[..] else { panic!("{report:?}") };
        assert_eq!((segment.status, segment.is_suspect), (status, true));
        assert!(!segment.is_usable());
        assert_eq!(numbers(segment), sent);
    }
    assert_malformed(read(7));
    let status = SegmentStatus::ALL[0] as i32;
    for medium in MediaType::ALL {
        let (_, report) = of_medium(status, medium.number().into()).unwrap();
        assert_eq!(report.segments[0].medium, medium);
    }
    assert_malformed(of_medium(status, 3));
}

#[test]
fn explanations_of_a_later_version_are_left_out_and_too_many_are_malformed() {
    let told = Told::new();
    let explain = |answer: proto::ExplainObjectResponse| told.with(&answer).explain(key("k"));
    let kept_by = |reason| proto::KeptBy { reason, duration_ms: 1 };
    let happening = |event| proto::Happening { event, generation: 3, ..Default::default() };
    let read = explain(proto::ExplainObjectResponse {
        kept_by: vec![kept_by(99), kept_by(proto::kept_by::Reason::HardPin.into())],
        history: vec![happening(99), happening(proto::happening::Event::Evicted.into())],
        ..Default::default()
    });
    let read = read.unwrap();
    assert_eq!(read.kept_by, [EvictionBlocker::HardPin]);
    assert!(
        matches!(read.history[..], [event] if matches!(event.kind, KeyEventKind::Removed { .. }))
    );
    assert!(explain(Default::default()).unwrap().object.is_none());
    let refused = proto::DescribeObjectResponse { status_code: -704, ..Default::default() };
    for bad in [
        proto::ExplainObjectResponse { kept_by: vec![kept_by(1); 65], ..Default::default() },
        proto::ExplainObjectResponse { history: vec![happening(1); 4097], ..Default::default() },
        proto::ExplainObjectResponse { object: Some(refused), ..Default::default() },
        proto::ExplainObjectResponse { object: Some(Default::default()), ..Default::default() },
    ] {
        assert_malformed(explain(bad));
    }
}

#[test]
fn answers_are_read_for_what_was_asked_and_no_more() {
    let told = Told::new();
    let answer =
        proto::BatchReplicaClearResponse { cleared_keys: vec!["c".into()], ..Default::default() };
    let clear = |keys: &[_]| told.with(&answer).batch_replica_clear(ME, keys, None);
    assert_eq!(clear(&[key("c")]).unwrap(), [key("c").to_owned()]);
    assert_malformed(clear(&[]));

    let ip_addresses = vec!["10.0.0.1".into()];
    let map =
        [("0102030405060708090a0b0c0d0e0f10".to_owned(), proto::IpAddressList { ip_addresses })];
    let hosts = proto::BatchQueryIpResponse { client_ip_map: map.into(), ..Default::default() };
    let other = ClientId::from_u128(7);
    let read = told.with(&hosts).batch_query_ip(&[other, ME]).unwrap();
    assert_eq!(read, [(ME, vec!["10.0.0.1".into()])]);
    assert!(told.with(&hosts).batch_query_ip(&[other]).unwrap().is_empty());
}

#[test]
fn a_refusal_inside_an_answer_is_one() {
    let told = Told::new();
    let answer = proto::ClusterReportResponse {
        status_code: -902,
        message: "full".into(),
        ..Default::default()
    };
    let RpcError::Refused(refusal) = told.with(&answer).cluster_report().unwrap_err() else {
        panic!("not refused")
    };
    assert_eq!((refusal.code, &*refusal.message), (ErrorCode::Overloaded, "full"));
}

/// Every call that prost reads the answer of.
fn call_all(client: &MasterClient) {
    let (object, generation) = (TenantKey::from(key("k")), Generation::new(3));
    let _ = client.describe(key("k"));
    let _ = client.explain(key("k"));
    let _ = client.pin(key("k"), None);
    let _ = client.unpin(key("k"));
    let _ = client.list_keys("", ListCursor::from_u64(0), 0);
    let _ = client.cluster_report();
    let _ = client.mount_segment(ME, &segment(1));
    let _ = client.batch_query_ip(&[ME]);
    let _ = client.batch_replica_clear(ME, &[key("k")], None);
    let _ = client.copy_start(ME, &object, "a", &["b"]);
    let _ = client.create_move_task(&object, "a", "b");
    let _ = client.query_task(TaskId::from_u128(7));
    let _ = client.list_tasks(None, 0);
    let _ = client.fetch_tasks(ME, 0);
    let _ = client.mark_task_to_complete(ME, TaskId::from_u128(7), TaskStatus::Success, "");
    let _ = client.create_drain_job(&[], &[], 0);
    let _ = client.query_drain_job(JobId::from_u128(7));
    let _ = client.list_drain_jobs();
    let _ = client.cancel_drain_job(JobId::from_u128(7));
    let _ = client.tenant_quota(&TenantId::DEFAULT);
    let _ = client.tenant_quotas(None, 0);
    let _ = client.offload_heartbeat(ME, true, 0);
    let _ = client.fetch_file_jobs(ME, FileSystemState::default(), 0);
    let _ = client.storage_config();
    let _ = client.report_files(ME, &[]);
    let _ = client.batch_file_put_end(ME, &[]);
    let _ = client.local_disks(None, 0);
    let _ = client.request(proto::PollRemoveAllRequest::default());
    let _ = client.promotion_alloc_start(ME, &object, generation, 1, &[]);
    let _ = client.notify_promotion_failure(ME, &object, generation, None, LateWrites::Possible);
    let _ = client.request(proto::EvictDiskReplicaRequest::default());
    let _ = client.report_failures(ME, &[]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// No answer panics the client.
    #[test]
    fn any_answers_are_read_or_refused(
        answers in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..10),
    ) {
        let told = Told::new();
        for answer in answers {
            call_all(told.bytes(&answer));
        }
    }
}
