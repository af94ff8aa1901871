//! Tenants of objects: nodes work for every tenant, all others for their own.

use super::*;

#[test]
fn a_task_is_told_with_its_tenant_and_found_by_its_own() {
    let service = service();
    put(&service, &tenant("blue"), "k");
    let create = proto::CreateCopyTaskRequest {
        key: "k".into(),
        targets: vec!["node-2".into()],
        tenant_id: String::new(),
    };
    let absent = refused(&service, Method::CreateCopyTask, &create);
    assert_eq!(absent, ErrorCode::ObjectNotFound, "the default tenant has no such object");
    let (writer, stranger) = (blue(Role::Writer), Caller::new("stranger", Role::Writer));
    let created: proto::CreateCopyTaskResponse =
        call_as(&service, &writer, Method::CreateCopyTask, &create).unwrap();
    let query = proto::QueryTaskRequest { task_id: created.task_id };
    let told: proto::QueryTaskResponse =
        call_as(&service, &writer, Method::QueryTask, &query).unwrap();
    let task = told.task.unwrap();
    assert_eq!((&*task.key, &*task.tenant_id, &*task.source), ("k", "blue", "node-1"));

    let hidden = call_as::<()>(&service, &stranger, Method::QueryTask, &query).unwrap_err();
    assert_eq!(hidden.code, ErrorCode::TaskNotFound);
    let foreign = proto::CreateCopyTaskRequest { tenant_id: "blue".into(), ..create };
    let denied = call_as::<()>(&service, &stranger, Method::CreateCopyTask, &foreign).unwrap_err();
    assert_eq!(denied.code, ErrorCode::PermissionDenied);
    assert_eq!(
        &*denied.message,
        "tenant_id is blue, the caller acts for default; the role node may name others"
    );

    // A node of the default tenant gets it and does it.
    let node = Caller::new("node", Role::Node);
    let fetch = proto::FetchTasksRequest { client_id: me(), max_tasks: 8 };
    let fetched: proto::FetchTasksResponse =
        call_as(&service, &node, Method::FetchTasks, &fetch).unwrap();
    assert_eq!(fetched.tasks, [task]);
    let start = proto::CopyStartRequest {
        key: "k".into(),
        client_id: me(),
        source: "node-1".into(),
        targets: vec!["node-2".into()],
        tenant_id: "blue".into(),
    };
    let grant: proto::CopyStartResponse =
        call_as(&service, &node, Method::CopyStart, &start).unwrap();
    assert_eq!(grant.targets.len(), 1);
}

#[test]
fn readers_report_objects_of_their_own_tenant() {
    let service = service();
    let generation = put(&service, &TenantId::DEFAULT, "k").as_u64();
    let failure = proto::Failure {
        key: "k".into(),
        kind: proto::failure::Kind::Damaged.into(),
        tenant_id: "default".into(),
        generation,
        ..Default::default()
    };
    let report = proto::ReportFailuresRequest { client_id: me(), failures: vec![failure] };
    let ask = |role| {
        call_as::<proto::ReportFailuresResponse>(
            &service,
            &blue(role),
            Method::ReportFailures,
            &report,
        )
    };
    assert_eq!(ask(Role::Reader).unwrap_err().code, ErrorCode::PermissionDenied);
    let told = ask(Role::Node).unwrap();
    assert_eq!(told.noted + told.stale, 1);
}

#[test]
fn quotas_are_listed_by_name_from_any_name_on() {
    let service = service();
    let page = |after: &str, limit| {
        let list = proto::ListTenantQuotasRequest { after: after.into(), limit };
        let page: proto::ListTenantQuotasResponse =
            call(&service, Method::ListTenantQuotas, &list).unwrap();
        let names: Vec<String> = page.tenants.into_iter().map(|usage| usage.tenant_id).collect();
        (names.join(" "), page.more)
    };
    service.master().set_tenant_quota(NOW, &tenant("amber"), 10).unwrap();
    for (after, limit, names, more) in [
        ("", 0, "amber blue default", false),
        ("", 2, "amber blue", true),
        ("blue", 2, "default", false),
        // Also after a name that no tenant has.
        ("b", 1, "blue", true),
        ("zebra", 2, "", false),
    ] {
        assert_eq!(page(after, limit), (names.to_owned(), more));
    }
}
