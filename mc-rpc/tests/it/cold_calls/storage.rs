//! The shared tier of files: where it is, and what becomes of the files.

use mc_meta::{FileSystemState, FoundError, PutGrant};
use mc_rpc::StorageSettings;

use super::*;

fn storage_config(
    service: &MasterService<Still>,
    caller: &Caller,
) -> proto::GetStorageConfigResponse {
    let ask = proto::GetStorageConfigRequest {};
    call_as(service, caller, Method::GetStorageConfig, &ask).unwrap()
}

/// Begins a put of this tenant, of 300 bytes.
fn start(service: &MasterService<Still>, tenant: &TenantId, text: &str) -> PutGrant {
    let key = service.master().scoped(tenant, key(text)).unwrap();
    let config = ReplicateConfig::default();
    let start = PutStart { key: key.as_ref(), slice_lengths: &[300], config: &config };
    service.master().put_start(NOW, ME, &start).unwrap()
}

/// Puts an object of this tenant with its file, and says which put that was.
fn put_file(service: &MasterService<Still>, tenant: &TenantId, text: &str) -> Generation {
    let handle = start(service, tenant, text).handle;
    let key = service.master().scoped(tenant, key(text)).unwrap();
    let end = PutEnd::new(key.as_ref(), handle);
    service.master().put_end(NOW, ME, &end).unwrap();
    service.master().file_put_end(NOW, ME, key.as_ref(), handle).unwrap();
    handle.generation
}

fn is_in_file(service: &MasterService<Still>, tenant: &TenantId, text: &str) -> bool {
    let key = service.master().scoped(tenant, key(text)).unwrap();
    let list = service.master().get_replica_list(NOW, key.as_ref());
    list.is_ok_and(|list| list.file.is_some())
}

fn codes(items: &[proto::DiskItemResponse]) -> Vec<i32> {
    items.iter().map(|item| item.status_code).collect()
}

#[test]
fn a_client_is_told_where_the_files_of_its_tenant_are() {
    let settings = || StorageSettings::in_directory("/mnt/kv").cluster_id("c1").evicts(false);
    let told = storage_config(&service().with_storage(settings()), &blue(Role::Reader));
    assert_eq!((&*told.fsdir, &*told.cluster_id, &*told.tenant_id), ("/mnt/kv", "c1", "blue"));
    assert_eq!((told.quota_bytes, told.enable_disk_eviction), (1 << 20, false));
    let told = storage_config(&service().with_storage(settings()), &Caller::ANYBODY);
    assert_eq!(&*told.tenant_id, "default");

    // As nothing is configured.
    let told = storage_config(&service(), &blue(Role::Reader));
    assert_eq!((&*told.fsdir, &*told.cluster_id), ("", "mooncake_cluster"));
    assert!(told.enable_disk_eviction);
    // Without a quota, and on a master that plans no files.
    for (disk, fsdir) in [(Some(SharedTierConfig::default()), "/mnt/kv"), (None, "")] {
        let mut config = config();
        config.shared_tier = disk;
        let service = service_with(config).with_storage(settings());
        let told = storage_config(&service, &Caller::ANYBODY);
        assert_eq!((&*told.fsdir, told.quota_bytes), (fsdir, 0));
    }
}

#[test]
fn a_client_is_told_of_a_bucket_apart_from_directories() {
    let settings = StorageSettings::in_object_store("s3://kv-cache/prod").cluster_id("c1");
    let told = storage_config(&service().with_storage(settings), &blue(Role::Reader));
    // A client that knows directories only sees none.
    assert_eq!(
        (&*told.fsdir, &*told.shared_tier, &*told.cluster_id),
        ("", "s3://kv-cache/prod", "c1")
    );
}

#[test]
fn many_files_are_reported_at_once() {
    let service = service();
    let blue_tenant = tenant("blue");
    let names = ["written", "not", "guessed", "foreign"];
    let grants = names.map(|text| start(&service, &blue_tenant, text));
    assert!(grants.iter().all(|grant| grant.file));
    assert_eq!(service.master().report().totals.files_unfinished, 4);
    let outcome = |at: usize, written| proto::FileOutcome {
        key: names[at].into(),
        generation: grants[at].handle.generation.as_u64(),
        put_token: grants[at].handle.token.as_u64(),
        written,
    };
    let guessed = outcome(2, true);
    let put_token = guessed.put_token ^ 1;
    let outcomes = vec![
        outcome(0, true),
        outcome(0, true),
        outcome(1, false),
        outcome(1, false),
        proto::FileOutcome { put_token, ..guessed.clone() },
        proto::FileOutcome { put_token, written: false, ..guessed },
        proto::FileOutcome { key: "absent".into(), ..outcome(0, true) },
        proto::FileOutcome { key: String::new(), ..outcome(0, true) },
    ];
    let end = |caller: &Caller, outcomes| {
        let request = proto::BatchDiskPutEndRequest { client_id: me(), outcomes };
        let ended: Result<proto::BatchDiskPutEndResponse, _> =
            call_as(&service, caller, Method::BatchDiskPutEnd, &request);
        ended.map(|ended| codes(&ended.items)).map_err(|refusal| refusal.code)
    };
    let illegal = ErrorCode::IllegalClient.code();
    let [closed, absent, keyless] =
        [ErrorCode::InvalidWrite, ErrorCode::ObjectNotFound, ErrorCode::InvalidKey]
            .map(ErrorCode::code);
    let expected = vec![0, 0, 0, closed, illegal, illegal, absent, keyless];
    assert_eq!(end(&blue(Role::Writer), outcomes), Ok(expected));
    // A key belongs to the caller's own tenant: that of another one is not reached.
    let stranger = Caller::new("stranger", Role::Writer);
    assert_eq!(end(&stranger, vec![outcome(3, true)]), Ok(vec![absent]));
    assert_eq!(end(&stranger, vec![]), Ok(vec![]));
    assert_eq!(end(&blue(Role::Reader), vec![]), Err(ErrorCode::PermissionDenied));
    assert!(is_in_file(&service, &blue_tenant, "written"));
    for text in &names[1..] {
        assert!(!is_in_file(&service, &blue_tenant, text), "{text}");
    }
    let report = service.master().report();
    assert_eq!(
        (report.totals.files_used, report.totals.files_unfinished, report.totals.files_written),
        (900, 2, 1)
    );
}

fn fetch(is_compared: bool, is_full: bool, max_jobs: u32) -> proto::FetchFileJobsRequest {
    let client_id = me();
    let state = (is_compared, is_full);
    proto::FetchFileJobsRequest {
        client_id,
        is_compared: state.0,
        is_full: state.1,
        max_jobs,
        ..Default::default()
    }
}

#[test]
fn nodes_delete_the_files_of_removed_objects_of_any_tenant() {
    let service = service();
    let ask = |caller: &Caller, request: &_| {
        call_as::<proto::FetchFileJobsResponse>(&service, caller, Method::FetchFileJobs, request)
    };
    let (node, writer) = (Caller::new("node", Role::Node), Caller::new("writer", Role::Writer));
    let denied = ask(&writer, &fetch(false, false, 0)).unwrap_err();
    assert_eq!(denied.code, ErrorCode::PermissionDenied);
    let told = ask(&node, &fetch(false, false, 0)).unwrap();
    assert_eq!((told.delete.len(), told.compare, told.evict), (0, true, false));
    // A full file system, and a comparison that is done.
    let told = ask(&node, &fetch(true, true, 0)).unwrap();
    assert_eq!((told.compare, told.evict), (false, true));

    let generation = put_file(&service, &tenant("blue"), "k").as_u64();
    for (of, text) in [(&tenant("blue"), "k"), (&TenantId::DEFAULT, "other")] {
        if text == "other" {
            put_file(&service, of, text);
        }
        let stored = service.master().scoped(of, key(text)).unwrap();
        service.master().remove(NOW, stored.as_ref(), true).unwrap();
    }
    let told = ask(&node, &fetch(false, false, 1)).unwrap();
    let job = proto::DiskJob { key: "k".into(), tenant_id: "blue".into(), generation, length: 300 };
    assert_eq!(told.delete, [job]);
    let told = ask(&node, &fetch(false, false, u32::MAX)).unwrap();
    let [job] = &told.delete[..] else { panic!("{told:?}") };
    assert_eq!((&*job.key, &*job.tenant_id), ("other", "default"));
    assert!(ask(&node, &fetch(false, false, 0)).unwrap().delete.is_empty());
}

#[test]
fn no_client_deletes_files_where_the_operator_forbids_it() {
    let service = service().with_storage(StorageSettings::default().evicts(false));
    let told: proto::FetchFileJobsResponse =
        call(&service, Method::FetchFileJobs, &fetch(false, true, 0)).unwrap();
    assert!(!told.evict && told.compare);
}

#[test]
fn no_more_files_are_handed_out_than_fit_into_the_answer() {
    let service = service_with(config());
    for i in 0..100 {
        let name = format!("{i:0>1024}");
        put_file(&service, &TenantId::DEFAULT, &name);
        service.master().remove(NOW, key(&name), true).unwrap();
    }
    let ask = |max_reply| {
        let payload = fetch(false, false, 0).encode_to_vec();
        let call = (Method::FetchFileJobs, &payload[..], max_reply);
        let bytes = answer(&service, &Caller::ANYBODY, call).unwrap();
        assert!(bytes.len() <= max_reply, "{} of {max_reply}", bytes.len());
        proto::FetchFileJobsResponse::decode(bytes).unwrap().delete.len()
    };
    // What does not fit is not lost.
    assert_eq!(ask(1000), 0);
    assert_eq!(ask(2000), 1);
    let mut seen = 1;
    while let told @ 1.. = ask(16 << 10) {
        assert!(told < 16);
        seen += told;
    }
    assert_eq!(seen, 100);
}

#[test]
fn nodes_report_files_of_any_tenant() {
    let service = service();
    let blue_tenant = tenant("blue");
    let known = put_file(&service, &blue_tenant, "known");
    let removed = put_file(&service, &blue_tenant, "removed");
    let stored = service.master().scoped(&blue_tenant, key("removed")).unwrap();
    service.master().remove(NOW, stored.as_ref(), true).unwrap();
    let found = vec![
        found_on_disk("known", "blue", known),
        found_on_disk("removed", "blue", removed),
        found_on_disk("foreign", "blue", FOREIGN),
        // Of the caller's own tenant, which has no such object.
        found_on_disk("known", "", FOREIGN),
        found_on_disk("known", "nobody", FOREIGN),
        proto::FoundOnDisk { slices: vec![], ..found_on_disk("torn", "blue", FOREIGN) },
        proto::FoundOnDisk { key: String::new(), ..found_on_disk("", "blue", FOREIGN) },
    ];
    let ask = |caller: &Caller, max_reply| {
        let report = proto::ReportFilesRequest { client_id: me(), found: found.clone() };
        let payload = report.encode_to_vec();
        let bytes = answer(&service, caller, (Method::ReportFiles, &payload, max_reply))?;
        assert!(bytes.len() <= max_reply);
        Ok::<_, Refusal>(proto::ReportFilesResponse::decode(bytes).unwrap().items)
    };
    let node = Caller::new("node", Role::Node);
    let denied = ask(&blue(Role::Writer), 1 << 20).unwrap_err();
    assert_eq!(denied.code, ErrorCode::PermissionDenied);
    // An answer that could not name each file is refused before anything is done.
    let small = ask(&node, 7 * 32 - 1).unwrap_err();
    assert_eq!(small.code, ErrorCode::InvalidParams);
    assert!(!is_in_file(&service, &blue_tenant, "foreign"));

    let gone = FoundError::OtherObject.code().code();
    let unregistered = FoundError::NotRegistered.code().code();
    let [invalid, keyless] = [ErrorCode::InvalidParams, ErrorCode::InvalidKey].map(ErrorCode::code);
    let expected = [0, gone, 0, 0, unregistered, invalid, keyless];
    for max_reply in [7 * 32, 1 << 20] {
        let items = ask(&node, max_reply).unwrap();
        assert_eq!(codes(&items), expected, "again, too");
    }
    for (of, text) in
        [(&blue_tenant, "known"), (&blue_tenant, "foreign"), (&TenantId::DEFAULT, "known")]
    {
        assert!(is_in_file(&service, of, text), "{of} {text}");
    }
    let stored = service.master().scoped(&blue_tenant, key("foreign")).unwrap();
    let list = service.master().get_replica_list(NOW, stored.as_ref()).unwrap();
    let sums: Vec<_> =
        list.slices.as_slice().iter().map(|slice| slice.checksum.map(|sum| sum.as_u32())).collect();
    assert_eq!((sums, list.generation), (vec![None, Some(7)], FOREIGN));
    // The comparison is still the node's.
    let state = FileSystemState::default();
    assert!(service.master().file_jobs(NOW, ME, state, 0).compare);
}
