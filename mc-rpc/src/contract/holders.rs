//! Who holds what: replicas that are taken back, and the hosts of clients.

use mc_types::{ClientId, ErrorCode};
use prost::Message;

use super::{
    Answers as _, Clock as _, Direct, ME, MasterService, Raw, Still, call, is_malformed, key, me,
    message_of, put, request_of, segment, service,
};
use crate::service::{Call, Service};
use crate::{Caller, Method, proto};

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
        let message = clear(&["a", "b"], segment_name.unwrap_or_default());
        let sent = message_of(|client| client.batch_replica_clear(ME, &keys, segment_name));
        assert_eq!(message, sent);
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
    let read = |keys: &[_]| Direct(&message).batch_replica_clear(ME, keys, None);
    assert_eq!(read(&[key("c")]).unwrap(), [key("c").to_owned()]);
    assert!(is_malformed(&read(&[])));
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
    let message: proto::BatchQueryIpRequest =
        message_of(|client| client.batch_query_ip(&[absent, ME, ME]));
    assert_eq!(message.client_ids, [absent.to_bytes().to_vec(), me(), me()]);

    let hosts: proto::BatchQueryIpResponse =
        call(&service, Method::BatchQueryIp, &message).unwrap();
    let own = proto::IpAddressList { ip_addresses: vec!["10.0.0.1".into()] };
    let map = [("0102030405060708090a0b0c0d0e0f10".to_owned(), own)];
    assert_eq!(hosts.client_ip_map, map.into());
    let read = Direct(&hosts).batch_query_ip(&[absent, ME]).unwrap();
    assert_eq!(read, [(ME, vec!["10.0.0.1".into()])]);
    // An answer is read for the clients that were asked for, and no others.
    assert!(Direct(&hosts).batch_query_ip(&[absent]).unwrap().is_empty());
    let none: proto::BatchQueryIpResponse =
        call(&service, Method::BatchQueryIp, &proto::BatchQueryIpRequest::default()).unwrap();
    assert!(none.client_ip_map.is_empty());

    for ids in [vec![vec![1; 15]], vec![me(); 65_537], vec![vec![]]] {
        let request = proto::BatchQueryIpRequest { client_ids: ids };
        let refused = call::<proto::BatchQueryIpResponse>(&service, Method::BatchQueryIp, &request);
        assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidParams);
    }
}

/// As simulations and logs of answers expect.
#[test]
fn the_same_hosts_are_the_same_bytes() {
    let clients: Vec<ClientId> = (1..=8).map(ClientId::from_u128).collect();
    let answer = || {
        let service = service();
        for (number, &client) in clients.iter().enumerate() {
            let spec = segment(10 + number as u8);
            service.master().mount_segment(Still.now(), client, spec).unwrap();
        }
        let ask = request_of(|direct| direct.batch_query_ip(&clients));
        service.answer(Method::BatchQueryIp, &ask).unwrap()
    };
    let first = answer();
    let read = Direct(&Raw(&first)).batch_query_ip(&clients).unwrap();
    assert_eq!(read.len(), clients.len());
    assert_eq!(first, answer());
}
