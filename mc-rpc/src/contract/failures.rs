//! Heartbeats, the questions that they are answered with, and replicas out of reach.

use bytes::BytesMut;
use mc_meta::{Beat, PutEnd, PutStart, ReplicaPlace, ReplicateConfig, ReportOutcome, Verdict};
use mc_types::{Checksum, ErrorCode, SegmentId};
use prost::Message;

use super::{Clock, ME, MasterService, Still, call, key, me, service, written};
use crate::request::{Heartbeat, NodeLoad, PeerSpeed, PingRequest, write_heartbeat};
use crate::{Method, answer, proto};

#[test]
fn heartbeats_are_the_message() {
    let outcomes = [(1, Verdict::Intact), (u64::MAX, Verdict::Damaged), (3, Verdict::Unknown)];
    let beat = Heartbeat::new(ME).cut_off().unproven().segments(3).promotes().takes_checks();
    let speed = PeerSpeed { endpoint: "tcp://a:1".into(), small_us: 40, mebibyte_us: 0 };
    let load = NodeLoad {
        reads: 7,
        read_bytes: 70,
        answer_us: Some(3),
        peers: vec![speed],
        ..NodeLoad::default()
    };
    let beat = beat.outcomes(&outcomes).load(&load);
    let bytes = written(|out| write_heartbeat(out, &beat));
    let message = proto::PingRequest::decode(&bytes[..]).unwrap();
    assert_eq!((&message.client_id, message.takes_checks), (&me(), true));
    assert!(message.is_cut_off && message.is_unproven && message.promotes);
    assert_eq!(message.encode_to_vec(), &bytes[..]);
    let outcomes = outcomes.to_vec();
    let expected = PingRequest {
        client: ME,
        beat: Beat { is_cut_off: true, is_unproven: true, segments: 3, promotes: true },
        takes_checks: true,
        outcomes,
        load: Some(load.clone()),
    };
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
    // Of no more peers than a call tells of is memory taken for long.
    let crowd = NodeLoad { peers: vec![PeerSpeed::default(); 17], ..load };
    let many = written(|out| write_heartbeat(out, &Heartbeat::new(ME).load(&crowd)));
    let refused = PingRequest::parse(&many).unwrap_err();
    assert!(refused.message.contains("17 items, more than 16"), "{refused}");
}

#[test]
fn what_heartbeats_say_of_their_load_is_reported() {
    let service = service();
    let endpoint = service.master().report().segments[0].spec.endpoint.as_str().to_owned();
    let peers = vec![PeerSpeed { endpoint, small_us: 40, mebibyte_us: 900 }];
    let load =
        NodeLoad { reads: 7, answer_us: Some(3), worst_answer_us: 9, peers, ..NodeLoad::default() };
    beat(&service, &Heartbeat::new(ME).load(&load));
    // One that says nothing takes nothing back.
    beat(&service, &Heartbeat::new(ME));
    let report: proto::ClusterReportResponse =
        call(&service, Method::ClusterReport, &proto::ClusterReportRequest {}).unwrap();
    let expected = proto::NodeReport {
        client_id: me(),
        answer_us: Some(3),
        worst_answer_us: 9,
        judges: 1,
        small_us: 40,
        mebibyte_us: 900,
        ..Default::default()
    };
    assert_eq!(report.nodes, [expected]);
}

fn beat(service: &MasterService<Still>, beat: &Heartbeat<'_>) -> answer::Pong {
    let request = proto::PingRequest::decode(&written(|out| write_heartbeat(out, beat))[..]);
    let pong: proto::PingResponse = call(service, Method::Ping, &request.unwrap()).unwrap();
    answer::read_pong(&pong.encode_to_vec()).unwrap().unwrap()
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
        let end = PutEnd { checksums, ..PutEnd::new(key(&name), handle) };
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
    let end = PutEnd::new(key("k"), handle);
    master.put_end(now, ME, &end).unwrap();
    let list = || {
        let get = proto::GetReplicaListRequest { key: "k".into(), ranges: vec![] };
        let list: proto::GetReplicaListResponse =
            call(&service, Method::GetReplicaList, &get).unwrap();
        answer::read_replica_list(&list.encode_to_vec()).unwrap().unwrap()
    };
    assert_eq!(list().suspects, 0);
    let segment = SegmentId::from_u128(2);
    for reader in 1..=2 {
        let outcome = master.report_unreachable(now, reader, segment);
        assert_eq!(outcome, ReportOutcome::Noted);
    }
    let list = list();
    assert_eq!((list.replicas[2].segment.id, list.suspects), (segment, 1));
    // By the node's own word, until the next heartbeat, also one of an older client.
    beat(&service, &Heartbeat::new(ME).cut_off());
    assert_eq!(service.master().report().totals.suspicion_declared, 2);
    let older = proto::PingRequest { client_id: me(), ..Default::default() };
    let _: proto::PingResponse = call(&service, Method::Ping, &older).unwrap();
    assert_eq!(service.master().report().totals.suspicion_suspects, 0);
    // A client that is told more than there are believes no more than there are.
    let more = proto::GetReplicaListResponse { suspects: 7, ..Default::default() };
    let mut bytes = written(|out| {
        let list = master.get_replica_list(now, key("k")).unwrap();
        let signer = crate::reply::Signer { epoch: service.clock_epoch(), now };
        crate::reply::write_replica_list(out, &list, signer);
    });
    bytes.extend_from_slice(&more.encode_to_vec());
    assert_eq!(answer::read_replica_list(&bytes).unwrap().unwrap().suspects, 3);
}
