//! Clients of masters that are away, die, stall or lie.

use std::error::Error;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use mc_rpc::frame::{
    self, ClientPreface, FrameHeader, HEADER_LEN, Kind, PREFACE_LEN, ServerPreface,
};
use mc_rpc::{ClientConfig, MasterClient, RpcError, ServerConfig};
use mc_types::ErrorCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::common::{DEADLINE, connect_with, key, master, serve, serve_at};

fn quick() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.connect_timeout = Duration::from_millis(500);
    config.call_timeout = Duration::from_millis(300);
    config.min_backoff = Duration::from_millis(1);
    config.max_backoff = Duration::from_millis(20);
    config
}

/// A listener and its address.
async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    (listener, addr)
}

/// Takes a connection and shakes hands as a master does.
async fn accept(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
    let mut preface = [0; PREFACE_LEN];
    stream.read_exact(&mut preface).await.unwrap();
    let preface = ClientPreface::parse(&preface).unwrap();
    assert_eq!(preface.version, frame::VERSION);
    let mut hello = vec![0; preface.hello_len.into()];
    stream.read_exact(&mut hello).await.unwrap();
    let answer = ServerPreface {
        version: frame::VERSION,
        message_len: 0,
        status: 0,
        max_payload: 1 << 20,
        max_in_flight: 16,
    };
    stream.write_all(&answer.encode()).await.unwrap();
    stream
}

/// The next request.
async fn request(stream: &mut TcpStream) -> FrameHeader {
    let mut header = [0; HEADER_LEN];
    timeout(DEADLINE, stream.read_exact(&mut header)).await.unwrap().unwrap();
    let header = FrameHeader::parse(&header, 1 << 20).unwrap();
    let mut payload = vec![0; header.payload_len as usize];
    stream.read_exact(&mut payload).await.unwrap();
    header
}

#[tokio::test]
async fn an_unreachable_master_is_named_with_its_cause() {
    let (listener, addr) = listen().await;
    drop(listener);
    let error = MasterClient::connect(&addr, quick()).await.unwrap_err();
    assert!(matches!(error, RpcError::Unreachable { .. }), "{error}");
    assert_eq!((error.code(), error.is_retryable()), (ErrorCode::RpcFail, true));
    let text = error.to_string();
    assert!(text.contains(&addr) && text.contains("refused"), "{text}");
    assert!(error.source().is_some());
}

#[tokio::test]
async fn somebody_else_at_the_address_is_told_apart() {
    let (listener, addr) = listen().await;
    let connecting = MasterClient::connect(&addr, quick());
    let (error, ()) = tokio::join!(connecting, async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400\r\n").await.unwrap();
    });
    let error = error.unwrap_err();
    assert!(matches!(error, RpcError::NotAMaster { .. }), "{error}");
    assert!(error.to_string().contains("HTTP/1"), "{error}");
}

#[tokio::test]
async fn a_master_that_does_not_greet_costs_the_connect_timeout() {
    let (_listener, addr) = listen().await;
    let mut config = quick();
    config.connect_timeout = Duration::from_millis(50);
    let error = MasterClient::connect(&addr, config).await.unwrap_err();
    assert!(matches!(error, RpcError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("no answer within 50ms"), "{error}");
}

#[tokio::test]
async fn silence_ends_a_call_and_the_connection() {
    let (listener, addr) = listen().await;
    let mut config = quick();
    config.retry = false;
    let client = MasterClient::lazy(&addr, config);
    let call = async { client.exist(key("k")).await.unwrap_err() };
    let (error, mut first) = tokio::join!(call, async {
        let mut stream = accept(&listener).await;
        request(&mut stream).await;
        stream
    });
    assert!(matches!(error, RpcError::TimedOut { .. }), "{error}");
    assert_eq!(error.code(), ErrorCode::RpcTimeout);
    // Nothing was heard at all, so the connection counts as dead: the client
    // closes it and the next call makes another.
    assert_eq!(timeout(DEADLINE, first.read(&mut [0])).await.unwrap().unwrap(), 0);
    let (exists, ()) = tokio::join!(client.exist(key("k")), async {
        let mut stream = accept(&listener).await;
        let FrameHeader { id, method, .. } = request(&mut stream).await;
        let mut out = BytesMut::new();
        frame::append_frame::<(), ()>(&mut out, id, method, Kind::Reply, |_| Ok(())).unwrap();
        stream.write_all(&out).await.unwrap();
    });
    assert!(!exists.unwrap());
}

#[tokio::test]
async fn a_late_answer_finds_nobody() {
    let (listener, addr) = listen().await;
    let client = MasterClient::lazy(&addr, quick());
    let late = async { client.exist(key("late")).await };
    let in_time = async {
        tokio::task::yield_now().await;
        client.exist(key("in time")).await
    };
    let (late, in_time, (mut stream, first)) = tokio::join!(late, in_time, async {
        let mut stream = accept(&listener).await;
        let (first, second) = (request(&mut stream).await, request(&mut stream).await);
        assert_ne!(first.id, second.id);
        let mut out = BytesMut::new();
        let FrameHeader { id, method, .. } = second;
        frame::append_frame::<(), ()>(&mut out, id, method, Kind::Reply, |_| Ok(())).unwrap();
        stream.write_all(&out).await.unwrap();
        (stream, first)
    });
    assert!(matches!(late, Err(RpcError::TimedOut { .. })), "{late:?}");
    assert!(!in_time.unwrap());
    // The connection lives, since it was heard of; the late answer says true,
    // the next call's own says false.
    let (next, ()) = tokio::join!(client.exist(key("next")), async {
        let cancelled = request(&mut stream).await;
        assert_eq!((cancelled.kind, cancelled.id), (Kind::Cancel, first.id));
        let next = request(&mut stream).await;
        assert_ne!(next.id, first.id);
        let mut out = BytesMut::new();
        for (id, payload) in [(first.id, &b"\x10\x01"[..]), (next.id, b"")] {
            frame::append_frame::<(), ()>(&mut out, id, next.method, Kind::Reply, |out| {
                out.extend_from_slice(payload);
                Ok(())
            })
            .unwrap();
        }
        stream.write_all(&out).await.unwrap();
    });
    assert!(!next.unwrap());
}

#[tokio::test]
async fn a_lost_connection_fails_the_calls_under_way() {
    let (listener, addr) = listen().await;
    let mut config = quick();
    config.call_timeout = DEADLINE;
    config.retry = false;
    let client = MasterClient::lazy(&addr, config);
    let keys: Vec<String> = (0..10).map(|i| i.to_string()).collect();
    let mut calls = tokio::task::JoinSet::new();
    for name in keys {
        let client = client.clone();
        calls.spawn(async move { client.exist(key(&name)).await });
    }
    let mut stream = accept(&listener).await;
    for _ in 0..10 {
        request(&mut stream).await;
    }
    drop(stream);
    while let Some(done) = calls.join_next().await {
        let error = done.unwrap().unwrap_err();
        assert!(matches!(error, RpcError::ConnectionLost { .. }), "{error}");
        assert!(error.to_string().contains("the master closed the connection"), "{error}");
    }
}

#[tokio::test]
async fn a_restarted_master_is_found_again() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let addr = server.local_addr().to_string();
    let client = connect_with(&server, quick()).await;
    assert!(!client.exist(key("k")).await.unwrap());
    server.shutdown().await;
    let away = client.exist(key("k")).await.unwrap_err();
    assert!(away.is_retryable(), "{away}");
    let server = serve_at(&addr, &master, ServerConfig::default()).await;
    let begin = Instant::now();
    while let Err(error) = client.exist(key("k")).await {
        assert!(error.is_retryable() && begin.elapsed() < DEADLINE, "{error}");
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_master_that_is_known_to_be_down_fail_at_once() {
    let master = master();
    let server = serve(&master, ServerConfig::default()).await;
    let addr = server.local_addr().to_string();
    let mut config = quick();
    config.call_timeout = DEADLINE;
    config.outage_timeout = Some(Duration::from_millis(300));
    let client = connect_with(&server, config.clone()).await;
    let blocking = mc_rpc::blocking::MasterClient::lazy(&addr, config);
    server.shutdown().await;
    let begin = Instant::now();
    for _ in 0..1000 {
        let away = client.exist(key("k")).await.unwrap_err();
        assert!(matches!(away, RpcError::Unreachable { .. }), "{away}");
        let away = tokio::task::block_in_place(|| blocking.exist(key("k"))).unwrap_err();
        assert!(matches!(away, RpcError::Unreachable { .. }), "{away}");
    }
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(300) && took < DEADLINE / 2, "{took:?}");
    let server = serve_at(&addr, &master, ServerConfig::default()).await;
    let begin = Instant::now();
    while client.exist(key("k")).await.is_err() {
        assert!(begin.elapsed() < DEADLINE, "it is found again");
    }
    while tokio::task::block_in_place(|| blocking.exist(key("k"))).is_err() {
        assert!(begin.elapsed() < DEADLINE, "it is found again");
    }
    server.shutdown().await;
}

#[tokio::test]
async fn lies_are_typed_errors() {
    // What the master answers, as the kind, the method (0: the right one) and
    // the payload; and how the client takes it.
    type Takes = fn(&RpcError) -> bool;
    let malformed: Takes = |error| matches!(error, RpcError::Malformed { .. });
    let refused: Takes = |error| error.code() == ErrorCode::ObjectNotFound;
    let segment = b"\x0a\x06\x08\x01\x1a\x02\x08\x02";
    let long_list = b"\x12\x00".repeat(40);
    let cases: [(Kind, u16, &[u8], Takes); 10] = [
        (Kind::Reply, 0, b"", malformed),
        (Kind::Reply, 0, b"\xff", malformed),
        (Kind::Reply, 0, b"\x12\x00", malformed),
        (Kind::Reply, 0, segment, malformed),
        (Kind::Reply, 0, &long_list, malformed),
        (Kind::Reply, 3, b"", malformed),
        (Kind::Error, 0, b"", |error| error.code() == ErrorCode::Internal),
        (Kind::Error, 0, b"\x40\xfd\xff\xff\xff\xfe", refused),
        (Kind::Reply, 0, b"\x08\xc0\xfa\xff\xff\xff\xff\xff\xff\xff\x01", refused),
        (Kind::Request, 0, b"", |error| matches!(error, RpcError::ConnectionLost { .. })),
    ];
    for (kind, method, payload, takes) in cases {
        let (listener, addr) = listen().await;
        let client = MasterClient::lazy(&addr, quick());
        let (error, ()) = tokio::join!(client.get_replica_list(key("k")), async {
            let mut stream = accept(&listener).await;
            let header = request(&mut stream).await;
            let method = if method == 0 { header.method } else { method };
            let mut out = BytesMut::new();
            frame::append_frame::<(), ()>(&mut out, header.id, method, kind, |out| {
                out.extend_from_slice(payload);
                Ok(())
            })
            .unwrap();
            stream.write_all(&out).await.unwrap();
        });
        let error = error.unwrap_err();
        assert!(takes(&error), "{kind:?} {payload:?}: {error}");
    }
}

#[tokio::test]
async fn an_answer_too_long_is_not_waited_for() {
    let (listener, addr) = listen().await;
    let mut config = quick();
    config.call_timeout = DEADLINE;
    let client = MasterClient::lazy(&addr, config);
    let (error, ()) = tokio::join!(client.exist(key("k")), async {
        let mut stream = accept(&listener).await;
        let header = request(&mut stream).await;
        let lie = FrameHeader { payload_len: u32::MAX, kind: Kind::Reply, ..header };
        stream.write_all(&lie.encode()).await.unwrap();
    });
    let error = error.unwrap_err();
    assert!(matches!(error, RpcError::ConnectionLost { .. }), "{error}");
    assert!(error.to_string().contains("4294967295 bytes"), "{error}");
}

#[tokio::test]
async fn callers_that_give_up_leave_no_trace() {
    let (listener, addr) = listen().await;
    let mut config = quick();
    config.call_timeout = DEADLINE;
    config.max_in_flight = 4;
    let (client, mut stream) =
        tokio::join!(MasterClient::connect(&addr, config), accept(&listener));
    let client = client.unwrap();
    // More than may be under way: a dropped call gives its place back, and the master hears
    // of it.
    for _ in 0..20 {
        let call = client.exist(key("dropped"));
        let called = tokio::select! {
            biased;
            answered = call => panic!("an answer without a server: {answered:?}"),
            called = request(&mut stream) => called,
        };
        assert_eq!(called.kind, Kind::Request);
        let cancelled = request(&mut stream).await;
        assert_eq!(cancelled, FrameHeader::new(called.id, called.method, Kind::Cancel));
    }
    let (exists, ()) = tokio::join!(client.exist(key("kept")), async {
        let FrameHeader { id, method, .. } = request(&mut stream).await;
        let mut out = BytesMut::new();
        frame::append_frame::<(), ()>(&mut out, id, method, Kind::Reply, |out| {
            out.extend_from_slice(b"\x10\x01");
            Ok(())
        })
        .unwrap();
        stream.write_all(&out).await.unwrap();
    });
    assert!(exists.unwrap());
}
