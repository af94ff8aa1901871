//! Leases of reads that take longer than one lasts.

use mc_types::{ErrorCode, Generation};
use prost::Message;

use super::{MasterService, Still, call, key, put, service};
use crate::request::{BatchRenewRequest, parse_renew};
use crate::{Method, Refusal, proto};

fn renewal(text: &str, generation: u64) -> proto::RenewLeaseRequest {
    proto::RenewLeaseRequest { key: text.into(), generation: Some(generation) }
}

fn renew(
    service: &MasterService<Still>,
    request: &proto::RenewLeaseRequest,
) -> Result<u64, Refusal> {
    let renewed: proto::RenewLeaseResponse = call(service, Method::RenewLease, request)?;
    Ok(renewed.lease_ttl_ms)
}

#[test]
fn renewals_are_the_messages() {
    for number in [0, 7, u64::MAX] {
        let generation = Generation::new(number);
        let message = renewal("k", number).encode_to_vec();
        assert_eq!(parse_renew(&message).unwrap(), (key("k"), generation));

        let reads = [(key("k"), generation), (key("é"), Generation::new(1))];
        let items = reads.map(|(key, generation)| proto::RenewLeaseItem {
            key: key.as_str().into(),
            generation: Some(generation.as_u64()),
        });
        let bytes = proto::BatchRenewLeaseRequest { reads: items.into() }.encode_to_vec();
        let mut parsed = Vec::new();
        BatchRenewRequest::parse(&bytes).unwrap().for_each(|read| parsed.push(read.unwrap()));
        assert_eq!(parsed, reads);
    }
}

#[test]
fn a_lease_is_renewed_for_the_put_that_is_read() {
    let service = service();
    let generation = put(&service, "k");
    assert_eq!(renew(&service, &renewal("k", generation)).unwrap(), 5000);
    let code = |request: &_| renew(&service, request).unwrap_err().code;
    assert_eq!(code(&renewal("k", generation + 1)), ErrorCode::LeaseExpired);
    assert_eq!(code(&renewal("absent", generation)), ErrorCode::ObjectNotFound);
    let unnamed = proto::RenewLeaseRequest { generation: None, ..renewal("k", 0) };
    assert_eq!(code(&unnamed), ErrorCode::InvalidParams);
    assert_eq!(code(&renewal("", generation)), ErrorCode::InvalidKey);

    let item = |text: &str, generation| proto::RenewLeaseItem { key: text.into(), generation };
    let batch = proto::BatchRenewLeaseRequest {
        reads: vec![
            item("k", Some(generation)),
            item("k", Some(generation + 1)),
            item("k", None),
            item("", Some(1)),
        ],
    };
    let renewed: proto::BatchRenewLeaseResponse =
        call(&service, Method::BatchRenewLease, &batch).unwrap();
    let codes: Vec<i32> = renewed.items.iter().map(|item| item.status_code).collect();
    let causes = [ErrorCode::LeaseExpired, ErrorCode::InvalidParams, ErrorCode::InvalidKey];
    assert_eq!((codes[0], &codes[1..]), (0, &causes.map(ErrorCode::code)[..]));
    assert_eq!((renewed.items.len(), renewed.items[0].lease_ttl_ms), (4, 5000));
    // It names what it protects, each segment once.
    let get = proto::BatchGetReplicaListRequest { keys: vec!["k".into()], reads: vec![] };
    let lists: proto::BatchGetReplicaListResponse =
        call(&service, Method::BatchGetReplicaList, &get).unwrap();
    assert_eq!(renewed.segments, lists.segments);
    assert_eq!(renewed.items[0].replica_list, lists.items[0].replica_list);
    assert_eq!((renewed.segments.len(), renewed.items[0].replica_list.len()), (1, 1));

    let many = proto::BatchRenewLeaseRequest { reads: vec![item("k", Some(1)); 65_537] };
    let refused = call::<proto::BatchRenewLeaseResponse>(&service, Method::BatchRenewLease, &many);
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidParams);
}
