//! Who holds what: replicas that are taken back, and the hosts of clients.

use mc_types::{ClientId, ErrorCode};
use prost::Message;

use super::{ME, MasterService, Still, call, key, me, put, service, written};
use crate::request::{ClearRequest, parse_client_ids, write_client_ids};
use crate::service::{Call, Service};
use crate::{Caller, Method, answer, proto};

fn clear(keys: &[&str], segment_name: &str) -> proto::BatchReplicaClearRequest {
    proto::BatchReplicaClearRequest {
        object_keys: keys.iter().map(ToString::to_string).collect(),
        client_id: me(),
        segment_name: segment_name.into(),
    }
}

fn cleared(
    service: &MasterService<Still>,
    request: &proto::BatchReplicaClearRequest,
) -> Vec<String> {
    let answer: proto::BatchReplicaClearResponse =
        call(service, Method::BatchReplicaClear, request).unwrap();
    answer.cleared_keys
}

#[test]
fn clearing_requests_are_the_message() {
    for segment_name in [None, Some("node-1")] {
        let keys = [key("a"), key("b")];
        let bytes = written(|out| ClearRequest::write(out, ME, &keys, segment_name));
        let message = proto::BatchReplicaClearRequest::decode(&bytes[..]).unwrap();
        assert_eq!(message, clear(&["a", "b"], segment_name.unwrap_or_default()));
        let bytes = message.encode_to_vec();
        let parsed = ClearRequest::parse(&bytes).unwrap();
        assert_eq!((parsed.client, parsed.segment_name), (ME, segment_name));
        let parsed: Vec<_> = parsed.keys.keys().map(Result::unwrap).collect();
        assert_eq!(parsed, keys);
    }
}

#[test]
fn what_a_client_has_put_is_taken_back() {
    let service = service();
    for text in ["a", "b", "c"] {
        put(&service, text);
    }
    let exist = proto::ExistKeyRequest { key: "b".into() };
    let leased: proto::ExistKeyResponse = call(&service, Method::ExistKey, &exist).unwrap();
    assert!(leased.exists);
    let other = proto::BatchReplicaClearRequest {
        client_id: ClientId::from_u128(9).to_bytes().to_vec(),
        ..clear(&["a"], "")
    };
    assert!(cleared(&service, &other).is_empty());
    assert!(cleared(&service, &clear(&["a"], "node-9")).is_empty());
    let long = "k".repeat(1025);
    let all = ["c", "", "b", &long, "absent", "a", "a"];
    assert_eq!(cleared(&service, &clear(&all, "")), ["c", "a"]);
    let message =
        proto::BatchReplicaClearResponse { cleared_keys: vec!["c".into()], ..Default::default() };
    let bytes = message.encode_to_vec();
    assert_eq!(answer::read_cleared_keys(&bytes, 1).unwrap().unwrap(), [key("c").to_owned()]);
    assert!(answer::read_cleared_keys(&bytes, 0).is_err());
}

#[test]
fn bad_clearings_are_refused_and_clear_nothing() {
    let service = service();
    put(&service, "a");
    let good = clear(&["a"], "");
    for bad in [
        proto::BatchReplicaClearRequest { client_id: vec![], ..good.clone() },
        proto::BatchReplicaClearRequest { client_id: vec![1; 17], ..good.clone() },
        clear(&["a"], &"s".repeat(257)),
        clear(&["a"; 65_537], ""),
    ] {
        let refused =
            call::<proto::BatchReplicaClearResponse>(&service, Method::BatchReplicaClear, &bad);
        assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidParams);
    }
    let (payload, mut out) = (good.encode_to_vec(), bytes::BytesMut::new());
    let (method, caller, max_reply) = (Method::BatchReplicaClear, &Caller::ANYBODY, 16);
    let small =
        service.call(Call { method, payload: &payload, max_reply, caller, from: None }, &mut out);
    assert_eq!(small.unwrap_err().code, ErrorCode::InvalidParams);
    assert_eq!(cleared(&service, &good), ["a"]);
}

#[test]
fn hosts_are_told_by_the_clients_id_in_hexadecimal() {
    let service = service();
    let absent = ClientId::from_u128(7);
    let bytes = written(|out| write_client_ids(out, &[absent, ME, ME]));
    let message = proto::BatchQueryIpRequest::decode(&bytes[..]).unwrap();
    assert_eq!(message.client_ids, [absent.to_bytes().to_vec(), me(), me()]);
    assert_eq!(parse_client_ids(&message.encode_to_vec()).unwrap(), [absent, ME, ME]);

    let hosts: proto::BatchQueryIpResponse =
        call(&service, Method::BatchQueryIp, &message).unwrap();
    let own = proto::IpAddressList { ip_addresses: vec!["10.0.0.1".into()] };
    let map = [("0102030405060708090a0b0c0d0e0f10".to_owned(), own)];
    assert_eq!(hosts.client_ip_map, map.into());
    let read = answer::read_hosts(&hosts.encode_to_vec(), 1).unwrap().unwrap();
    assert_eq!(read, [(ME, vec!["10.0.0.1".into()])]);
    let none: proto::BatchQueryIpResponse =
        call(&service, Method::BatchQueryIp, &proto::BatchQueryIpRequest::default()).unwrap();
    assert!(none.client_ip_map.is_empty());

    for ids in [vec![vec![1; 15]], vec![me(); 65_537], vec![vec![]]] {
        let request = proto::BatchQueryIpRequest { client_ids: ids };
        let refused = call::<proto::BatchQueryIpResponse>(&service, Method::BatchQueryIp, &request);
        assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidParams);
    }
}

#[test]
fn hosts_that_make_no_sense_are_malformed() {
    let read = |id: &str, hosts: usize, asked| {
        let list = proto::IpAddressList { ip_addresses: vec!["h".into(); hosts] };
        let message = proto::BatchQueryIpResponse {
            client_ip_map: [(id.to_owned(), list)].into(),
            ..Default::default()
        };
        answer::read_hosts(&message.encode_to_vec(), asked)
    };
    let id = "00000000000000000000000000000abc";
    assert_eq!(read(id, 1, 1).unwrap().unwrap(), [(ClientId::from_u128(0xabc), vec!["h".into()])]);
    assert!(read(id, 65_536, 1).is_ok());
    for (id, hosts, asked) in [
        (id, 65_537, 1),
        (id, 1, 0),
        (&id[1..], 1, 1),
        ("0000000000000000000000000000ABCD", 1, 1),
        ("+0000000000000000000000000000abc", 1, 1),
        ("", 1, 1),
    ] {
        assert!(read(id, hosts, asked).is_err(), "{id} {hosts} {asked}");
    }
}
