//! The tenants' quotas.

use std::collections::BTreeMap;

use super::*;

#[test]
fn requests_about_quotas_are_the_messages() {
    let whose = tenant("blue");
    let message = proto::SetTenantQuotaRequest { tenant_id: "blue".into(), requested: 1 << 40 };
    assert_eq!(message, message_of(|client| client.set_tenant_quota(&whose, 1 << 40)));

    let quotas = BTreeMap::from([(TenantId::DEFAULT, 5), (whose.clone(), u64::MAX)]);
    let message = proto::ReplaceTenantQuotasRequest {
        quotas: vec![
            proto::TenantQuota { tenant_id: "blue".into(), requested: u64::MAX },
            proto::TenantQuota { tenant_id: "default".into(), requested: 5 },
        ],
    };
    assert_eq!(message, message_of(|client| client.replace_tenant_quotas(&quotas)));

    let message = proto::GetTenantQuotaRequest { tenant_id: "blue".into() };
    assert_eq!(message, message_of(|client| client.tenant_quota(&whose)));
    let message = proto::DeleteTenantQuotaRequest { tenant_id: "blue".into() };
    assert_eq!(message, message_of(|client| client.delete_tenant_quota(&whose)));
    let message = proto::ListTenantQuotasRequest { after: "blue".into(), limit: 7 };
    assert_eq!(message, message_of(|client| client.tenant_quotas(Some(&whose), 7)));
}

fn page(
    service: &MasterService<Still>,
    after: &str,
    limit: u32,
) -> proto::ListTenantQuotasResponse {
    let list = proto::ListTenantQuotasRequest { after: after.into(), limit };
    call(service, Method::ListTenantQuotas, &list).unwrap()
}

#[test]
fn quotas_are_the_messages() {
    let service = service_of_tenants();
    put(&service, &tenant("blue"), "k");
    let get = proto::GetTenantQuotaRequest { tenant_id: "blue".into() };
    let told: proto::GetTenantQuotaResponse = call(&service, Method::GetTenantQuota, &get).unwrap();
    let usage = told.usage.clone().unwrap();
    assert_eq!((&*usage.tenant_id, usage.requested, usage.objects), ("blue", Some(1 << 20), 1));
    assert_eq!((usage.charged, usage.effective), (300, 1 << 20));
    let read = Direct(&told).tenant_quota(&TenantId::DEFAULT).unwrap();
    assert_eq!(read, service.master().tenant_quota(&tenant("blue")).unwrap());

    let set = proto::SetTenantQuotaRequest { tenant_id: "amber".into(), requested: 10 };
    let _: proto::SetTenantQuotaResponse = call(&service, Method::SetTenantQuota, &set).unwrap();
    let all = page(&service, "", 0);
    let names = |page: &proto::ListTenantQuotasResponse| -> Vec<String> {
        page.tenants.iter().map(|usage| usage.tenant_id.clone()).collect()
    };
    assert_eq!(names(&all), ["amber", "blue", "default"]);
    assert_eq!((all.more, all.capacity, all.requested), (false, 3 << 20, (2 << 20) + 10));
    let read = Direct(&all).tenant_quotas(None, 0).unwrap();
    let report = service.master().tenant_quotas().unwrap();
    assert_eq!((read.tenants, read.next_after), (report.tenants, None));
    assert_eq!(
        (read.capacity, read.requested, read.effective, read.unregistered, read.mismatches),
        (report.capacity, report.requested, report.effective, 0, 0)
    );
    // Page by page, also after a name that no client has.
    let first = page(&service, "", 2);
    assert_eq!((names(&first), first.more), (vec!["amber".into(), "blue".into()], true));
    let read = Direct(&first).tenant_quotas(None, 0).unwrap();
    assert_eq!(read.next_after, Some(tenant("blue")));
    assert_eq!(names(&page(&service, "blue", 2)), ["default"]);
    assert_eq!(names(&page(&service, "b", 1)), ["blue"]);
    assert!(page(&service, "zebra", 2).tenants.is_empty());

    let delete = proto::DeleteTenantQuotaRequest { tenant_id: "blue".into() };
    let kept = refused(&service, Method::DeleteTenantQuota, &delete);
    assert_eq!(kept.0, ErrorCode::TenantNotEmpty);
    let delete = proto::DeleteTenantQuotaRequest { tenant_id: "amber".into() };
    let _: proto::DeleteTenantQuotaResponse =
        call(&service, Method::DeleteTenantQuota, &delete).unwrap();
    assert_eq!(
        refused(&service, Method::DeleteTenantQuota, &delete).0,
        ErrorCode::TenantNotRegistered
    );

    let quotas = vec![proto::TenantQuota { tenant_id: "red".into(), requested: 77 }];
    let replace = proto::ReplaceTenantQuotasRequest { quotas };
    let _: proto::ReplaceTenantQuotasResponse =
        call(&service, Method::ReplaceTenantQuotas, &replace).unwrap();
    let all = page(&service, "", 0);
    let requested: Vec<_> = all.tenants.iter().map(|usage| usage.requested).collect();
    assert_eq!((names(&all), requested), (vec!["blue".into(), "red".into()], vec![None, Some(77)]));
}

#[test]
fn a_page_of_tenants_fits_into_the_answer() {
    let service = service_of_tenants();
    for i in 0..1000 {
        let whose = tenant(&format!("{i:0128}"));
        service.master().set_tenant_quota(Still.now(), &whose, u64::MAX >> 1).unwrap();
    }
    let list = proto::ListTenantQuotasRequest { after: String::new(), limit: 8192 };
    let list = list.encode_to_vec();
    for max_reply in [64, 500, 64 << 10, 1 << 20] {
        let bytes = Limited(&service, max_reply).answer(Method::ListTenantQuotas, &list).unwrap();
        let told = proto::ListTenantQuotasResponse::decode(&bytes[..]).unwrap();
        assert!(bytes.len() <= max_reply, "{} of {max_reply}", bytes.len());
        assert_eq!(told.more, told.tenants.len() < 1002);
    }
}

#[test]
fn bad_requests_about_quotas_are_refused() {
    let service = service_of_tenants();
    let set = |tenant_id: &str, requested| proto::SetTenantQuotaRequest {
        tenant_id: tenant_id.into(),
        requested,
    };
    let long = "x".repeat(129);
    for (request, words) in [
        (set("", 1), "tenant_id is missing"),
        (set("a b", 1), "tenant_id is not a tenant's name: "),
        (set(&long, 1), "tenant_id is not a tenant's name: "),
        (set("..", 1), "tenant_id is not a tenant's name: "),
        (set("a", 0), "a quota of 0 bytes"),
        (set("a", u64::MAX), "a quota of 18446744073709551615 bytes"),
    ] {
        let (code, message) = refused(&service, Method::SetTenantQuota, &request);
        assert_eq!(code, ErrorCode::InvalidParams, "{message}");
        assert!(message.contains(words), "{message}");
    }
    let quota = |name: &str| proto::TenantQuota { tenant_id: name.into(), requested: 1 };
    let replace = |quotas| proto::ReplaceTenantQuotasRequest { quotas };
    assert_eq!(
        refused(&service, Method::ReplaceTenantQuotas, &replace(vec![quota("a"), quota("a")])).1,
        "quotas names the tenant a twice"
    );
    let many = (0..=65_536).map(|i| quota(&format!("t{i}"))).collect();
    assert_eq!(
        refused(&service, Method::ReplaceTenantQuotas, &replace(many)).1,
        "quotas has more than 65536 items"
    );
    let list = proto::ListTenantQuotasRequest { after: String::new(), limit: 8193 };
    assert_eq!(
        refused(&service, Method::ListTenantQuotas, &list).1,
        "limit is 8193; the most is 8192"
    );
    let list = proto::ListTenantQuotasRequest { after: long, limit: 1 };
    assert_eq!(refused(&service, Method::ListTenantQuotas, &list).0, ErrorCode::InvalidParams);
    let get = proto::GetTenantQuotaRequest { tenant_id: "nobody".into() };
    assert_eq!(refused(&service, Method::GetTenantQuota, &get).0, ErrorCode::TenantNotRegistered);

    let without = super::service();
    for method in [Method::SetTenantQuota, Method::DeleteTenantQuota, Method::GetTenantQuota] {
        let (code, _) = refused(&without, method, &set("a", 1));
        assert_eq!(code, ErrorCode::UnavailableInCurrentMode);
    }
    for method in [Method::ReplaceTenantQuotas, Method::ListTenantQuotas] {
        assert_eq!(refused(&without, method, &()).0, ErrorCode::UnavailableInCurrentMode);
    }
    let node = Caller::new("node", Role::Node);
    let denied = call_as::<()>(&service, &node, Method::SetTenantQuota, &set("a", 1)).unwrap_err();
    assert_eq!(denied.code, ErrorCode::PermissionDenied);
}

#[test]
fn bad_answers_about_quotas_are_refused() {
    let usage = proto::TenantUsage { tenant_id: "a".into(), ..Default::default() };
    let read = |usage: proto::TenantUsage| {
        let answer = proto::GetTenantQuotaResponse { usage: Some(usage), ..Default::default() };
        Direct(&answer).tenant_quota(&TenantId::DEFAULT)
    };
    assert_eq!(read(usage.clone()).unwrap().requested, None);
    assert!(is_malformed(&read(proto::TenantUsage {
        tenant_id: "x".repeat(129),
        ..usage.clone()
    })));
    let endless = proto::ListTenantQuotasResponse { more: true, ..Default::default() };
    assert!(is_malformed(&Direct(&endless).tenant_quotas(None, 0)));
    let many = proto::ListTenantQuotasResponse { tenants: vec![usage; 8193], ..Default::default() };
    assert!(is_malformed(&Direct(&many).tenant_quotas(None, 0)));
    assert!(is_malformed(&Direct(&()).tenant_quota(&TenantId::DEFAULT)));
}
