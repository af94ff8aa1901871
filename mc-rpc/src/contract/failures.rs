//! Reports of what could not be read, and the second look at it.

use bytes::BytesMut;
use mc_meta::{PutEnd, PutStart, ReplicaPlace, ReplicateConfig, TenantId, Verdict};
use mc_types::{Checksum, ClientId, ErrorCode, Extent, Generation, SegmentId};
use prost::Message;

use super::{
    Clock, Direct, ME, MasterService, Still, call, call_as, key, me, message_of, service, written,
};
use crate::answer;
use crate::calls::{Failure, MAX_FAILURES, Reported, parse_failure};
use crate::request::{Heartbeat, PingRequest, TenantKey, write_heartbeat};
use crate::{Caller, Method, Refusal, Role, proto};

fn damaged(place: ReplicaPlace, generation: u64) -> Failure<'static> {
    Failure::Damaged { object: key("k").into(), generation: Generation::new(generation), place }
}

fn memory(offset: u64, len: u64) -> ReplicaPlace {
    ReplicaPlace::Memory {
        segment: SegmentId::from_u128(7),
        extent: Extent::new(offset, len).unwrap(),
    }
}

#[test]
fn failures_are_the_message() {
    let blue: TenantId = "blue".parse().unwrap();
    let failures = [
        damaged(memory(0, 10), 0),
        damaged(memory(u64::MAX - 1, 1), u64::MAX),
        damaged(ReplicaPlace::File, 3),
        damaged(ReplicaPlace::LocalDisk(ClientId::from_u128(5)), 3),
        Failure::Damaged {
            object: TenantKey::of(&blue, key("é")),
            generation: Generation::new(1),
            place: memory(1, 2),
        },
        Failure::Unreachable { segment: SegmentId::from_u128(9) },
    ];
    let message: proto::ReportFailuresRequest =
        message_of(|client| client.report_failures(ME, &failures));
    assert_eq!(message.client_id, me());
    assert_eq!((message.failures[1].offset, message.failures[1].length), (u64::MAX - 1, 1));
    assert_eq!(message.failures[4].tenant_id, "blue");
    let parsed: Vec<_> = message.failures.iter().map(parse_failure).collect();
    assert_eq!(parsed, failures.map(|failure| Ok(Some(failure))));
}

#[test]
fn malformed_failures_are_refused_and_unknown_ones_ignored() {
    let service = service();
    let failure = proto::Failure {
        key: "k".into(),
        kind: proto::failure::Kind::Damaged.into(),
        segment_id: vec![7; 16],
        offset: 1,
        length: 1,
        ..Default::default()
    };
    let report = |failures: Vec<proto::Failure>| {
        let request = proto::ReportFailuresRequest { client_id: me(), failures };
        call::<proto::ReportFailuresResponse>(&service, Method::ReportFailures, &request)
    };
    let code = |failure| report(vec![failure]).unwrap_err().code;
    let no_key = proto::Failure { key: String::new(), ..failure.clone() };
    assert_eq!(code(no_key), ErrorCode::InvalidKey);
    let short = proto::Failure { segment_id: vec![7; 15], ..failure.clone() };
    assert_eq!(code(short), ErrorCode::InvalidParams);
    let beyond = proto::Failure { offset: u64::MAX, ..failure.clone() };
    assert_eq!(code(beyond), ErrorCode::InvalidParams);
    let many = vec![failure.clone(); MAX_FAILURES + 1];
    assert_eq!(report(many).unwrap_err().code, ErrorCode::InvalidParams);
    let other = proto::Failure { kind: 77, ..failure.clone() };
    let answer = report(vec![failure; MAX_FAILURES - 1].into_iter().chain([other]).collect());
    let answer = answer.unwrap();
    assert_eq!((answer.noted, answer.stale, answer.limited), (0, MAX_FAILURES as u64, 0));
}

#[test]
fn heartbeats_are_the_message() {
    let outcomes = [(1, Verdict::Intact), (u64::MAX, Verdict::Damaged), (3, Verdict::Unknown)];
    let beat = Heartbeat::new(ME).cut_off().takes_checks().outcomes(&outcomes);
    let bytes = written(|out| write_heartbeat(out, &beat));
    let message = proto::PingRequest::decode(&bytes[..]).unwrap();
    assert_eq!((&message.client_id, message.takes_checks), (&me(), true));
    assert!(message.is_cut_off);
    assert_eq!(message.encode_to_vec(), &bytes[..]);
    let outcomes = outcomes.to_vec();
    let expected = PingRequest { client: ME, is_cut_off: true, takes_checks: true, outcomes };
    assert_eq!(PingRequest::parse(&bytes).unwrap(), expected);
    // What older clients send.
    let plain = written(|out| crate::request::write_ping(out, ME));
    assert_eq!(written(|out| write_heartbeat(out, &Heartbeat::new(ME))), plain);
    let many = proto::PingRequest {
        outcomes: vec![proto::CheckOutcome::default(); 65],
        ..message.clone()
    };
    let refused = PingRequest::parse(&many.encode_to_vec()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidParams);
}

/// Puts an object with a checksum, and says where it is.
fn put_summed(service: &MasterService<Still>) -> (u64, ReplicaPlace) {
    let (master, now, config) = (service.master(), Still.now(), ReplicateConfig::default());
    let start = PutStart { key: key("k"), slice_lengths: &[64, 1], config: &config };
    let grant = master.put_start(now, ME, &start).unwrap();
    let checksums = [Checksum::from_crc32c(5), Checksum::from_crc32c(6)];
    let end = PutEnd { key: key("k"), handle: grant.handle, checksums: &checksums, prefixes: &[] };
    master.put_end(now, ME, &end).unwrap();
    let placement = &grant.placements[0];
    let (segment, extent) = (placement.segment.spec().id, placement.extent);
    (grant.handle.generation.as_u64(), ReplicaPlace::Memory { segment, extent })
}

fn report(
    service: &MasterService<Still>,
    caller: &Caller,
    failure: &Failure<'_>,
) -> Result<Reported, Refusal> {
    let message: proto::ReportFailuresRequest =
        message_of(|client| client.report_failures(ME, core::slice::from_ref(failure)));
    let answer: proto::ReportFailuresResponse =
        call_as(service, caller, Method::ReportFailures, &message)?;
    Ok(Direct(&answer).report_failures(ME, &[]).unwrap())
}

fn beat(service: &MasterService<Still>, beat: &Heartbeat<'_>) -> answer::Pong {
    let request = proto::PingRequest::decode(&written(|out| write_heartbeat(out, beat))[..]);
    let pong: proto::PingResponse = call(service, Method::Ping, &request.unwrap()).unwrap();
    answer::read_pong(&pong.encode_to_vec()).unwrap().unwrap()
}

#[test]
fn owners_are_asked_with_their_heartbeat() {
    let service = service();
    let (generation, place) = put_summed(&service);
    let noted = report(&service, &Caller::ANYBODY, &damaged(place, generation)).unwrap();
    assert_eq!(noted, Reported { noted: 1, ..Reported::default() });
    let stale = report(&service, &Caller::ANYBODY, &damaged(place, generation + 1)).unwrap();
    assert_eq!(stale, Reported { stale: 1, ..Reported::default() });
    // An older client is not asked what it does not understand.
    assert!(beat(&service, &Heartbeat::new(ME)).checks.is_empty());
    let asked = beat(&service, &Heartbeat::new(ME).takes_checks()).checks;
    let [check] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!(ReplicaPlace::Memory { segment: check.segment, extent: check.extent }, place);
    let sums = check.slices.as_slice().iter().map(|slice| slice.checksum.unwrap().as_u32());
    assert_eq!(sums.collect::<Vec<_>>(), [5, 6]);
    let outcomes = [(check.id, Verdict::Damaged)];
    beat(&service, &Heartbeat::new(ME).takes_checks().outcomes(&outcomes));
    assert!(!service.master().exist(Still.now(), key("k")));
    let counted: proto::ClusterReportResponse =
        call(&service, Method::ClusterReport, &proto::ClusterReportRequest {}).unwrap();
    let counted = Direct(&counted).cluster_report().unwrap().damage;
    assert_eq!((counted.reports, counted.dropped), (2, 1));
    assert_eq!((counted.confirmed, counted.removed, counted.denied), (1, 1, 0));
}

#[test]
fn readers_report_objects_of_their_own_tenant() {
    let service = service();
    let (generation, place) = put_summed(&service);
    let of_others = Failure::Damaged {
        object: TenantKey::of(&TenantId::DEFAULT, key("k")),
        generation: Generation::new(generation),
        place,
    };
    let reader = Caller::new("reader", Role::Reader).of_tenant("blue".parse().unwrap());
    let refused = report(&service, &reader, &of_others).unwrap_err();
    assert_eq!(refused.code, ErrorCode::PermissionDenied);
    let node = Caller::new("node", Role::Node).of_tenant("blue".parse().unwrap());
    assert_eq!(report(&service, &node, &of_others).unwrap().noted, 1);
}

#[test]
fn any_question_fits_into_the_shortest_answer() {
    let service = service();
    let (master, now, config) = (service.master(), Still.now(), ReplicateConfig::default());
    let checksums = vec![Checksum::from_crc32c(u32::MAX); mc_meta::MAX_SLICES];
    for n in 0..20 {
        let name = format!("k{n}");
        let lengths = vec![1; mc_meta::MAX_SLICES];
        let start = PutStart { key: key(&name), slice_lengths: &lengths, config: &config };
        let grant = master.put_start(now, ME, &start).unwrap();
        let (handle, checksums) = (grant.handle, &checksums[..]);
        let end = PutEnd { key: key(&name), handle, checksums, prefixes: &[] };
        master.put_end(now, ME, &end).unwrap();
        let placement = &grant.placements[0];
        let (segment, extent) = (placement.segment.spec().id, placement.extent);
        let report = mc_meta::DamageReport {
            key: key(&name),
            generation: handle.generation,
            place: ReplicaPlace::Memory { segment, extent },
        };
        master.report_damage(now, 1, &report);
    }
    let mut asked = 0;
    let mut out = BytesMut::new();
    loop {
        let checks = master.checks_for(now, ME);
        if checks.is_empty() {
            break;
        }
        asked += checks.len();
        out.clear();
        let signer = crate::reply::Signer { epoch: service.clock_epoch(), now };
        crate::reply::write_pong(&mut out, master.ping(now, ME), &checks, signer);
        assert!(out.len() <= 65_536, "{}", out.len());
    }
    assert_eq!(asked, 20);
}

#[test]
fn what_could_not_be_reached_is_told_and_read_last() {
    let service = service();
    let (master, now) = (service.master(), Still.now());
    let config = ReplicateConfig::default().replicas(3);
    let start = PutStart { key: key("k"), slice_lengths: &[10], config: &config };
    let handle = master.put_start(now, ME, &start).unwrap().handle;
    let end = PutEnd { key: key("k"), handle, checksums: &[], prefixes: &[] };
    master.put_end(now, ME, &end).unwrap();
    let list = || {
        let get = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![] };
        let list: proto::GetReplicaListResponse =
            call(&service, Method::GetReplicaList, &get).unwrap();
        answer::read_replica_list(&list.encode_to_vec()).unwrap().unwrap()
    };
    assert_eq!(list().suspects, 0);
    let segment = SegmentId::from_u128(2);
    for name in ["one", "two"] {
        let reader = Caller::new(name, Role::Reader);
        assert_eq!(report(&service, &reader, &Failure::Unreachable { segment }).unwrap().noted, 1);
    }
    let list = list();
    assert_eq!((list.replicas[2].segment.id, list.suspects), (segment, 1));
    // By the node's own word, until the next heartbeat, also one of an older client.
    beat(&service, &Heartbeat::new(ME).cut_off());
    assert_eq!(service.master().report().suspicion.declared, 2);
    let older = proto::PingRequest { client_id: me(), ..Default::default() };
    let _: proto::PingResponse = call(&service, Method::Ping, &older).unwrap();
    assert_eq!(service.master().report().suspicion.suspects, 0);
    // A client that is told more than there are believes no more than there are.
    let more = proto::GetReplicaListResponse { suspects: 7, ..Default::default() };
    let mut bytes = written(|out| {
        let list = master.get_replica_list(now, key("k")).unwrap();
        let signer = crate::reply::Signer { epoch: service.clock_epoch(), now };
        crate::reply::write_replica_list(out, &list, signer);
    });
    bytes.extend_from_slice(&more.encode_to_vec());
    assert_eq!(answer::read_replica_list(&bytes).unwrap().unwrap().suspects, 3);
    let nothing = proto::ReportFailuresRequest {
        client_id: me(),
        failures: vec![proto::Failure {
            kind: proto::failure::Kind::Unreachable.into(),
            ..Default::default()
        }],
    };
    let refused = call::<proto::ReportFailuresResponse>(&service, Method::ReportFailures, &nothing);
    assert_eq!(refused.unwrap_err().code, ErrorCode::InvalidParams);
}
