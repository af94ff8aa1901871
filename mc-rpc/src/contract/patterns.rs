//! Objects whose keys match a pattern.

use std::collections::BTreeSet;

use mc_meta::{ListCursor, MasterConfig, TenantId};
use mc_types::{ErrorCode, Time};
use prost::Message;

use super::{MasterService, Still, call, call_as, end_of, me, put, service, service_with};
use crate::calls::read_replica_page;
use crate::service::{Call, Service};
use crate::{Caller, Method, Refusal, Role, answer, proto};

fn matching(key_regex: &str) -> proto::GetReplicaListByRegexRequest {
    proto::GetReplicaListByRegexRequest { key_regex: key_regex.into(), ..Default::default() }
}

fn get(
    service: &MasterService<Still>,
    request: &proto::GetReplicaListByRegexRequest,
) -> Result<proto::GetReplicaListByRegexResponse, Refusal> {
    call(service, Method::GetReplicaListByRegex, request)
}

/// The keys of all pages of this length.
fn pages(service: &MasterService<Still>, key_regex: &str, limit: u32) -> BTreeSet<String> {
    let (mut keys, mut request) = (BTreeSet::new(), matching(key_regex));
    request.limit = limit;
    loop {
        let page = get(service, &request).unwrap();
        assert!(page.object_map.len() <= limit as usize);
        for key in page.object_map.into_keys() {
            assert!(keys.insert(key), "an object is told once");
        }
        match page.next_cursor {
            Some(next) => request.cursor = next,
            None => return keys,
        }
    }
}

#[test]
fn who_sets_the_pattern_alone_gets_everything_that_matches() {
    let service = service();
    for i in 0..300 {
        put(&service, &format!("a/{i}"));
        put(&service, &format!("b/{i}"));
    }
    let found = get(&service, &matching("^a/")).unwrap();
    assert_eq!((found.object_map.len(), found.next_cursor), (300, None));
    let list = &found.object_map["a/17"];
    let get_one = proto::GetReplicaListRequest { key: "a/17".into(), ranges: vec![] };
    let one: proto::GetReplicaListResponse =
        call(&service, Method::GetReplicaList, &get_one).unwrap();
    assert_eq!(list.replica_list, one.replica_list);
    assert_eq!(
        (list.generation, &list.slices, list.lease_ttl_ms),
        (one.generation, &one.slices, one.lease_ttl_ms)
    );
    // As prost writes it, the reader understands it.
    let read = read_replica_page(&found.encode_to_vec(), 0).unwrap().unwrap();
    assert_eq!((read.objects.len(), read.next), (300, None));
    let (_, told) = read.objects.iter().find(|(key, _)| key.as_str() == "a/17").unwrap();
    assert_eq!(Ok(told), answer::read_replica_list(&one.encode_to_vec()).unwrap().as_ref());
    assert!(get(&service, &matching("^c/")).unwrap().object_map.is_empty());
    assert_eq!(get(&service, &matching("")).unwrap().object_map.len(), 600);
}

#[test]
fn pages_tell_every_object_once() {
    let service = service();
    let names = |of: &str| (0..200).map(|i| format!("{of}/{i}")).collect::<BTreeSet<_>>();
    for name in names("a").iter().chain(&names("b")) {
        put(&service, name);
    }
    for limit in [1, 7, 64, 65, 200, 8192] {
        assert_eq!(pages(&service, "^a/", limit), names("a"), "{limit}");
    }
    let page = get(&service, &proto::GetReplicaListByRegexRequest { limit: 8193, ..matching("a") });
    assert_eq!(&*page.unwrap_err().message, "limit is 8193; the most is 8192");
    // Any number is a cursor.
    let beyond = proto::GetReplicaListByRegexRequest { cursor: u64::MAX, ..matching("a") };
    assert!(get(&service, &beyond).unwrap().object_map.is_empty());
}

#[test]
fn a_page_ends_where_the_answer_is_full() {
    let service = service();
    for i in 0..200 {
        put(&service, &format!("k{i}"));
    }
    let ask = |cursor, limit, max_reply| {
        let request = proto::GetReplicaListByRegexRequest { cursor, limit, ..matching("k") };
        let (payload, mut out) = (request.encode_to_vec(), bytes::BytesMut::new());
        let (method, caller) = (Method::GetReplicaListByRegex, &Caller::ANYBODY);
        service.call(Call::new(method, &payload, max_reply, caller), &mut out)?;
        assert!(out.len() <= max_reply, "{}", out.len());
        Ok::<_, Refusal>(read_replica_page(&out, limit as usize).unwrap().unwrap())
    };
    let (mut seen, mut cursor) = (BTreeSet::new(), ListCursor::default());
    let mut asked = 0;
    loop {
        let page = ask(cursor.to_u64(), 1000, 4000).unwrap();
        asked += 1;
        assert!(!page.objects.is_empty());
        seen.extend(page.objects.into_iter().map(|(key, _)| key.as_str().to_owned()));
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    assert_eq!(seen.len(), 200);
    assert!(asked < 20, "{asked} pages are not nearly full");
    for (limit, max_reply) in [(1000, 60), (0, 4000)] {
        assert_eq!(ask(0, limit, max_reply).unwrap_err().code, ErrorCode::InvalidParams);
    }
}

#[test]
fn a_tenants_patterns_meet_its_own_keys() {
    let mut config = MasterConfig::default();
    config.multi_tenant = true;
    let service = service_with(config);
    let callers = ["a", "b"].map(|name| {
        let tenant = TenantId::new(name).unwrap();
        service.master().set_tenant_quota(Time::ORIGIN, &tenant, 1 << 20).unwrap();
        Caller::new(name, Role::Writer).of_tenant(tenant)
    });
    for caller in &callers {
        let start = proto::PutStartRequest {
            key: "k".into(),
            value_length: 64,
            client_id: me(),
            ..Default::default()
        };
        let grant: proto::PutStartResponse =
            call_as(&service, caller, Method::PutStart, &start).unwrap();
        let end = end_of("k", &grant);
        let _: proto::PutEndResponse = call_as(&service, caller, Method::PutEnd, &end).unwrap();
    }
    let [a, b] = &callers;
    let found = |caller| {
        let page: proto::GetReplicaListByRegexResponse =
            call_as(&service, caller, Method::GetReplicaListByRegex, &matching("^k$")).unwrap();
        page.object_map.into_keys().collect::<Vec<_>>()
    };
    assert_eq!((found(a), found(b)), (vec!["k".to_owned()], vec!["k".to_owned()]));
    let clear = proto::BatchReplicaClearRequest {
        object_keys: vec!["k".into()],
        client_id: me(),
        segment_name: String::new(),
    };
    let remove = proto::RemoveByRegexRequest { key_regex: "^k".into(), force: true };
    let removed: proto::RemoveByRegexResponse =
        call_as(&service, a, Method::RemoveByRegex, &remove).unwrap();
    assert_eq!(removed.removed_count, 1);
    assert_eq!((found(a).len(), found(b).len()), (0, 1));
    // Leased replicas are not cleared, of any client.
    let cleared: proto::BatchReplicaClearResponse =
        call_as(&service, b, Method::BatchReplicaClear, &clear).unwrap();
    assert!(cleared.cleared_keys.is_empty());
}

#[test]
fn pages_that_make_no_sense_are_malformed() {
    let service = service();
    for text in ["a", "b"] {
        put(&service, text);
    }
    let good = get(&service, &matching("")).unwrap();
    let read = |page: &proto::GetReplicaListByRegexResponse, limit| {
        read_replica_page(&page.encode_to_vec(), limit)
    };
    assert!(read(&good, 2).is_ok());
    assert!(read(&good, 1).is_err(), "more than asked for");
    let list = good.object_map["a"].clone();
    let with = |key: &str, list| proto::GetReplicaListByRegexResponse {
        object_map: [(key.to_owned(), list)].into(),
        ..Default::default()
    };
    let other_length = proto::Slice { length: 63, checksum: None };
    for bad in [
        with("", list.clone()),
        with(&"k".repeat(1025), list.clone()),
        with("a", proto::ObjectReplicaList { replica_list: vec![], ..list.clone() }),
        with("a", proto::ObjectReplicaList { slices: vec![], ..list.clone() }),
        with("a", proto::ObjectReplicaList { slices: vec![other_length], ..list }),
    ] {
        assert!(read(&bad, 0).is_err(), "{bad:?}");
    }
}
