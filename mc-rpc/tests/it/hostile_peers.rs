//! Servers with clients that break the protocol, stall or do not read. Each test ends with a good
//! client that is served all the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use mc_meta::{Master, PutEnd, PutStart, ReplicateConfig};
use mc_rpc::frame::{self, ClientPreface, FrameHeader, Kind, MAGIC};
use mc_rpc::proto::MountSegmentRequest;
use mc_rpc::{ClientConfig, MasterClient, Method, RpcError, Server, ServerConfig, ServerHandle};
use mc_testkit::eventually_async;
use mc_types::{ErrorCode, KeyRef};
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::common::gate::gated;
use crate::common::raw::Raw;
use crate::common::{DEADLINE, ME, connect, key, master, segment, serve};

fn request(id: u64, method: Method, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    frame::append_frame::<(), ()>(&mut out, id, method.number(), Kind::Request, |out| {
        out.put_slice(payload);
        Ok(())
    })
    .unwrap();
    out
}

async fn assert_serves(server: &ServerHandle) {
    let client = connect(server).await;
    assert!(!client.exist(key("absent")).await.unwrap());
}

#[tokio::test]
async fn other_protocols_are_turned_away() {
    let server = serve(&master(), ServerConfig::default()).await;
    for hello in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"\0",
        b"\xa7MCRPC\n\n",
    ] {
        let mut raw = Raw::unshaken(&server).await;
        raw.send(hello).await;
        raw.assert_closed().await;
    }
    assert_serves(&server).await;
    server.shutdown().await;
}

#[tokio::test]
async fn another_version_is_told_which_one_is_spoken() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut raw = Raw::unshaken(&server).await;
    raw.send(&ClientPreface { version: 9, hello_len: 0, max_payload: 0 }.encode()).await;
    let (answer, words) = raw.preface().await;
    assert_eq!((answer.version, answer.status), (frame::VERSION, ErrorCode::InvalidVersion.code()));
    assert!(String::from_utf8(words).unwrap().contains("version 2, not 9"));
    raw.assert_closed().await;
    server.shutdown().await;
}

#[tokio::test]
async fn half_a_preface_and_half_a_frame_do_not_stay() {
    let mut config = ServerConfig::default();
    config.handshake_timeout = Duration::from_millis(50);
    config.stall_timeout = Duration::from_millis(50);
    let server = serve(&master(), config).await;
    let mut raw = Raw::unshaken(&server).await;
    raw.send(&MAGIC[..5]).await;
    raw.assert_closed().await;

    // One byte after the other does not buy time: the whole request counts.
    let mut raw = Raw::connect(&server).await;
    let bytes = request(1, Method::ExistKey, &[0; 60_000]);
    let begin = Instant::now();
    for byte in bytes.iter() {
        if raw.stream.write_all(&[*byte]).await.is_err() || begin.elapsed() > DEADLINE {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(begin.elapsed() < Duration::from_secs(20));
    raw.assert_closed().await;
    assert_serves(&server).await;
    server.shutdown().await;
}

#[tokio::test]
async fn frames_may_arrive_in_any_pieces() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut raw = Raw::connect(&server).await;
    for byte in request(77, Method::ExistKey, b"\x0a\x01k").iter() {
        raw.send(&[*byte]).await;
        raw.stream.flush().await.unwrap();
    }
    let (header, payload) = raw.frame().await.unwrap();
    assert_eq!((header.id, header.kind, payload), (77, Kind::Reply, vec![]));
    server.shutdown().await;
}

#[tokio::test]
async fn broken_frames_are_answered_before_the_connection_closes() {
    let server = serve(&master(), ServerConfig::default()).await;
    let header =
        |payload_len, kind| FrameHeader { payload_len, ..FrameHeader::new(5, 7, kind) }.encode();
    let mut unknown_kind = header(0, Kind::Request);
    unknown_kind[14] = 9;
    let timed = FrameHeader { payload_len: 15, ..FrameHeader::new(5, 7, Kind::Request) };
    let timed = FrameHeader { timed: true, tracked: true, ..timed };
    for (bytes, says) in [
        (header(u32::MAX, Kind::Request), "the limit is 16777216"),
        (header(0, Kind::Reply), "wrong side"),
        (unknown_kind, "unknown kind 9"),
        (timed.encode(), "too short for its send time or its token"),
    ] {
        let mut raw = Raw::connect(&server).await;
        // What follows must neither be taken for frames nor reset the answer.
        let mut stream = request(4, Method::ExistKey, b"\x0a\x01k");
        stream.extend_from_slice(&bytes);
        stream.extend_from_slice(&[b'x'; 100_000]);
        raw.send(&stream).await;
        assert_eq!(raw.frame().await.unwrap().0.id, 4);
        let (id, refusal) = raw.refusal().await;
        assert_eq!((id, refusal.code), (5, ErrorCode::InvalidParams));
        assert!(refusal.message.contains(says), "{refusal}");
        raw.assert_closed().await;
    }
    assert_serves(&server).await;
    server.shutdown().await;
}

#[tokio::test]
async fn an_unknown_method_costs_one_call() {
    let server = serve(&master(), ServerConfig::default()).await;
    let mut raw = Raw::connect(&server).await;
    let mut frames = request(1, Method::ExistKey, b"\x0a\x01k");
    frames[12..14].copy_from_slice(&999u16.to_le_bytes());
    frames.extend_from_slice(&request(2, Method::ExistKey, b"\x0a\x01k"));
    raw.send(&frames).await;
    let (id, refusal) = raw.refusal().await;
    assert_eq!((id, refusal.code), (1, ErrorCode::NotSupported));
    assert_eq!(raw.frame().await.unwrap().0.id, 2);
    server.shutdown().await;
}

#[tokio::test]
async fn bad_requests_are_refused_by_name() {
    use ErrorCode::{InvalidKey, InvalidParams, SegmentNotFound};
    let server = serve(&master(), ServerConfig::default()).await;
    let mut raw = Raw::connect(&server).await;
    let long_key = [&b"\x0a\x81\x08"[..], &[b'k'; 1025]].concat();
    let id = [&b"\x10"[..], &[7; 16]].concat();
    let with_id = |tag: u8, rest: &[u8]| [&[tag], &id[..], rest].concat();
    let many_slices = with_id(0x2a, &[&b"\x0a\x01k\x22\x81\x08"[..], &[1; 1025]].concat());
    let many_checksums = with_id(0x12, &[&b"\x0a\x01k\x22\x84\x20"[..], &[1; 4100]].concat());
    let mount = MountSegmentRequest {
        segment_id: vec![7; 16],
        client_id: vec![7; 16],
        endpoint: "tcp://10.0.0.1:1".into(),
        remote_key: vec![7; 16],
        ..Default::default()
    };
    let no_endpoint = MountSegmentRequest { endpoint: "ftp:/".into(), ..mount.clone() };
    let short_key = MountSegmentRequest { remote_key: vec![7], ..mount.clone() };
    let no_segment = MountSegmentRequest { segment_id: vec![], ..mount.clone() };
    let long_name = MountSegmentRequest { segment_name: "n".repeat(257), ..mount };
    let [no_endpoint, short_key, no_segment, long_name] =
        [no_endpoint, short_key, no_segment, long_name].map(|message| message.encode_to_vec());
    let cases: [(Method, &[u8], ErrorCode, &str); 25] = [
        (Method::ExistKey, b"", InvalidKey, "key is empty"),
        (Method::ExistKey, b"\x0a\x00", InvalidKey, "key is empty"),
        (Method::ExistKey, b"\x0a\x02\xff\xfe", InvalidKey, "not UTF-8"),
        (Method::GetReplicaList, &long_key, InvalidKey, "1025 bytes; the limit is 1024"),
        (Method::ExistKey, b"\x0a\x05k", InvalidParams, "cut off"),
        (Method::ExistKey, b"\x08\x05", InvalidParams, "field 1 has another type"),
        (Method::ExistKey, b"\x0b", InvalidParams, "unknown type"),
        (Method::Ping, b"", InvalidParams, "client_id is missing"),
        (Method::Ping, b"\x0a\x03abc", InvalidParams, "client_id has 3 bytes, not 16"),
        (Method::PutStart, b"\x0a\x01k\x10\x05", InvalidParams, "client_id is missing"),
        (
            Method::PutStart,
            b"\x0a\x01k\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            InvalidParams,
            "value_length is negative",
        ),
        (Method::PutStart, b"\x0a\x01k\x10\x05\x22\x01\x04", InvalidParams, "value_length is 5"),
        (Method::PutStart, &with_id(0x2a, b"\x0a\x01k"), InvalidParams, "at least one byte"),
        (Method::PutStart, b"\x1a\x02\x08\x21", InvalidParams, "replica_num is 33"),
        (Method::PutStart, &many_slices, InvalidParams, "slice_lengths has more than 1024"),
        (Method::PutEnd, &many_checksums, InvalidParams, "slice_checksums has more than 1024"),
        (Method::MountSegment, &no_endpoint, InvalidParams, "endpoint is not an endpoint: "),
        (Method::MountSegment, &no_segment, InvalidParams, "segment_id is missing"),
        (Method::ReMountSegment, &no_endpoint, InvalidParams, "endpoint is not an endpoint: "),
        (Method::ReMountSegment, &short_key, InvalidParams, "remote_key has 1 bytes, not 16"),
        (Method::ReMountSegment, &long_name, InvalidParams, "segment_name has 257 bytes"),
        (Method::ReMountSegment, &no_segment, InvalidParams, "segment_id is missing"),
        (Method::UnmountSegment, &with_id(0x1a, b""), InvalidParams, "neither segment_id"),
        (Method::UnmountSegment, &with_id(0x1a, b"\x0a\x01x"), SegmentNotFound, "named \"x\""),
        (Method::LongestPrefix, b"\x0a\x01k\x0a\x00", InvalidKey, "keys: the key is empty"),
    ];
    for (at, (method, payload, code, says)) in cases.into_iter().enumerate() {
        raw.send(&request(at as u64, method, payload)).await;
        let (id, refusal) = raw.refusal().await;
        assert_eq!((id, refusal.code), (at as u64, code), "{method}: {refusal}");
        assert!(refusal.message.contains(says), "{method}: {refusal}");
    }
    server.shutdown().await;
}

async fn put(master: &Arc<Master>, client: &MasterClient, name: &str, lengths: &[u64]) {
    let config = ReplicateConfig::default();
    assert_eq!(master.report().totals.processing, 0);
    let start = PutStart { key: key(name), slice_lengths: lengths, config: &config };
    let handle = client.put_start(ME, &start).await.unwrap().handle;
    let end = PutEnd::new(key(name), handle);
    client.put_end(ME, &end).await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_from() {
    let master = master();
    let mut config = ServerConfig::default();
    config.stall_timeout = Duration::from_secs(1);
    let server = serve(&master, config).await;
    let client = connect(&server).await;
    client.mount_segment(ME, &segment(1, 1 << 20)).await.unwrap();
    put(&master, &client, "sliced", &[1; 1024]).await;

    // Each call asks for a few kilobytes; without a limit the server would
    // gather them as fast as this side can ask.
    let mut raw = Raw::connect(&server).await;
    let ask = request(1, Method::GetReplicaList, b"\x0a\x06sliced").repeat(1000);
    let mut asked = 0usize;
    let stalled = async {
        loop {
            raw.stream.write_all(&ask).await?;
            asked += 1000;
        }
        #[allow(unreachable_code, reason = "gives the block its type")]
        std::io::Result::Ok(())
    };
    // The server first stops reading, then gives the connection up.
    let ended = timeout(DEADLINE, stalled).await.expect("the server gives up in time");
    assert!(ended.is_err());
    // What one side's buffers hold, and not a multiple of it.
    assert!(asked < 2_000_000, "{asked} calls were taken");
    assert!(client.exist(key("sliced")).await.unwrap());
    server.shutdown().await;
}

#[tokio::test]
async fn large_requests_share_a_limit() {
    let mut config = ServerConfig::default();
    config.max_buffered = 1 << 20;
    let server = serve(&master(), config).await;
    let mut raw = Raw::connect(&server).await;
    let large = request(3, Method::BatchExistKey, &b"\x0a\x01k".repeat(3 << 20));
    // The server may close before all of it is written.
    drop(raw.stream.write_all(&large).await);
    if let Some((header, payload)) = raw.frame().await {
        assert_eq!(header.id, 3);
        assert_eq!(frame::parse_refusal(&payload).code, ErrorCode::Overloaded);
    }
    assert_serves(&server).await;
    server.shutdown().await;
}

#[tokio::test]
async fn connections_are_limited() {
    let mut config = ServerConfig::default();
    config.max_connections = 2;
    let server = serve(&master(), config).await;
    let (first, second) = (connect(&server).await, connect(&server).await);
    assert!(!first.exist(key("k")).await.unwrap());
    assert!(!second.exist(key("k")).await.unwrap());
    // A third one has the place of one that idles, which comes back when it is wanted.
    let third = connect(&server).await;
    for client in [&third, &first, &second] {
        assert!(!client.exist(key("k")).await.unwrap());
    }
    assert!(server.metrics().yielded > 0);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_calls_under_way_yields_nothing() {
    let mut config = ServerConfig::default();
    config.max_connections = 2;
    let (gate, server) = gated(config).await;
    let (mut first, mut second) = (Raw::connect(&server).await, Raw::connect(&server).await);
    for raw in [&mut first, &mut second] {
        raw.send(&request(1, Method::ListKeys, b"")).await;
        // The call before it has arrived.
        raw.send(&request(2, Method::ExistKey, b"")).await;
        assert_eq!(raw.frame().await.unwrap().0.id, 2);
    }
    gate.entered(2).await;
    let addr = server.local_addr().to_string();
    let third = MasterClient::connect(&addr, ClientConfig::default()).await.unwrap_err();
    assert_eq!(third.code(), ErrorCode::Overloaded);
    assert!(third.is_retryable());
    gate.open();
    assert_eq!(first.frame().await.unwrap().0.id, 1);
    // The place becomes free once the server has seen the end of the first.
    drop(first);
    eventually_async(DEADLINE, "the place is free", async || {
        let third = MasterClient::connect(&addr, ClientConfig::default()).await;
        third.inspect_err(|error| assert_eq!(error.code(), ErrorCode::Overloaded))
    })
    .await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_shutdown_answers_what_has_arrived() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let mut raw = Raw::connect(&server).await;
    let mut frames = BytesMut::new();
    for id in 0..5000 {
        frames.extend_from_slice(&request(id, Method::ExistKey, b"\x0a\x01k"));
    }
    raw.send(&frames).await;
    let (shutdown, answered) = tokio::join!(server.shutdown(), async {
        let mut answered = 0;
        while let Some((header, _)) = raw.frame().await {
            if header.kind != Kind::GoAway {
                assert_eq!(header.id, answered);
                answered += 1;
            }
        }
        answered
    });
    let () = shutdown;
    assert_eq!(answered, 5000);
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let addr = server.local_addr().to_string();
    let service = mc_rpc::MasterService::new(master, mc_rpc::SystemClock::new());
    let error = Server::bind(&addr, service, ServerConfig::default()).await.unwrap_err();
    assert!(error.is_retryable());
    assert!(error.to_string().starts_with(&format!("{addr} is in use")), "{error}");
    server.shutdown().await;
}

#[tokio::test]
async fn long_calls_hold_up_their_own_connection_only() {
    let server = serve(&master(), ServerConfig::default()).await;
    let (busy, other) = (connect(&server).await, connect(&server).await);
    let names: Vec<String> = (0..60_000).map(|i| format!("a rather long key {i}")).collect();
    let keys: Vec<KeyRef<'_>> = names.iter().map(|name| key(name)).collect();
    let (exist, quick) = tokio::join!(busy.batch_exist(&keys), other.exist(key("k")));
    assert_eq!(exist.unwrap().len(), 60_000);
    assert!(matches!(quick, Ok::<bool, RpcError>(false)));
    server.shutdown().await;
}
