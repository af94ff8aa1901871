//! The promises of a server to clients that keep to the protocol: no client waits for another's
//! long calls, time-outs and cancellations are heeded, and nothing is executed twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use mc_rpc::frame::{self, ClientPreface, FrameHeader, Hello, Kind, Welcome};
use mc_rpc::{
    ClientConfig, MasterClient, MasterService, Method, Server, ServerConfig, ServerHandle,
    SystemClock,
};
use mc_testkit::eventually;
use mc_types::ErrorCode;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::common::gate::{Gate, gated};
use crate::common::raw::Raw;
use crate::common::{DEADLINE, ME, key, master, segment};

/// A client of this session; 0 for one that tracks no calls.
async fn connect(server: &ServerHandle, session: u128) -> Raw {
    Raw::connect_as(server, &Hello { session, ..Hello::default() }).await.unwrap()
}

async fn ask(
    raw: &mut Raw<impl AsyncRead + AsyncWrite + Unpin>,
    id: u64,
    method: Method,
    token: Option<u64>,
    within: Option<Duration>,
) {
    let mut out = BytesMut::new();
    let fill = |_: &mut BytesMut| Ok::<(), ()>(());
    frame::append_request(&mut out, id, method.number(), token, within, fill).unwrap();
    raw.send(&out).await;
}

async fn cancel(raw: &mut Raw, id: u64) {
    raw.send(&FrameHeader::new(id, 0, Kind::Cancel).encode()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_call_overtakes_a_long_one() {
    let (gate, server) = gated(ServerConfig::default()).await;
    let mut raw = connect(&server, 0).await;
    ask(&mut raw, 1, Method::ListKeys, None, None).await;
    gate.entered(1).await;
    ask(&mut raw, 2, Method::ExistKey, None, None).await;
    assert_eq!(raw.reply().await, (2, vec![1]));
    gate.open();
    assert_eq!(raw.reply().await, (1, vec![1]));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_take_turns() {
    let (gate, server) = gated(ServerConfig::default()).await;
    let mut greedy = connect(&server, 0).await;
    for id in 0..100 {
        ask(&mut greedy, id, Method::ListKeys, None, None).await;
    }
    gate.entered(2).await;
    let mut modest = connect(&server, 0).await;
    ask(&mut modest, 7, Method::ListKeys, None, None).await;
    // Known to have arrived when a later call is answered, and to wait for its turn after
    // some more.
    for id in 8..40 {
        ask(&mut modest, id, Method::ExistKey, None, None).await;
        assert_eq!(modest.reply().await.0, id);
    }
    gate.open();
    let (id, count) = modest.reply().await;
    assert!((id, count[0]) <= (7, 10), "waited for {} calls of another", count[0]);
    for _ in 0..100 {
        greedy.reply().await;
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_given_up_is_not_executed() {
    let (gate, server) = gated(ServerConfig::default()).await;
    let mut raw = connect(&server, 0).await;
    for id in 1..=4 {
        ask(&mut raw, id, Method::ListKeys, None, None).await;
    }
    gate.entered(2).await;
    cancel(&mut raw, 4).await;
    cancel(&mut raw, 99).await;
    let (id, refusal) = raw.refusal().await;
    assert_eq!((id, refusal.code), (4, ErrorCode::Cancelled));
    gate.open();
    let mut answered = [raw.reply().await.0, raw.reply().await.0, raw.reply().await.0];
    answered.sort_unstable();
    assert_eq!(answered, [1, 2, 3]);
    let metrics = server.metrics();
    assert_eq!((metrics.cancelled, metrics.calls[0].calls), (1, 3));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waited_too_long_is_not_executed() {
    let (gate, server) = gated(ServerConfig::default()).await;
    let mut raw = connect(&server, 0).await;
    for id in 1..=2 {
        ask(&mut raw, id, Method::ListKeys, None, None).await;
    }
    gate.entered(2).await;
    let within = Duration::from_millis(1);
    ask(&mut raw, 3, Method::ListKeys, None, Some(within)).await;
    ask(&mut raw, 4, Method::ExistKey, None, None).await;
    assert_eq!(raw.reply().await.0, 4);
    let arrived = Instant::now();
    eventually(DEADLINE, "it is too late", || arrived.elapsed() > within).await;
    gate.open();
    let mut refused = 0;
    for _ in 0..3 {
        let (header, payload) = raw.frame().await.unwrap();
        if header.kind == Kind::Error {
            assert_eq!(header.id, 3);
            assert_eq!(frame::parse_refusal(&payload).code, ErrorCode::RpcTimeout);
            refused += 1;
        }
    }
    assert_eq!((refused, server.metrics().expired), (1, 1));
    server.shutdown().await;
}

/// The client's clock is another one than the server's, and may say anything.
#[tokio::test]
async fn a_call_that_waited_on_its_way_is_not_executed() {
    let (gate, server) = gated(ServerConfig::default()).await;
    let mut raw = Raw::unshaken(&server).await;
    let hello = Hello { session: 7, send_times: true, ..Hello::default() };
    raw.send(&ClientPreface::with(1 << 20, &hello)).await;
    assert!(Welcome::parse(&raw.preface().await.1).unwrap().send_times);
    let timed = |id: u64, method: Method, timeout_ms: u32, sent: u64| {
        let payload_len = 16;
        let header = FrameHeader::new(id, method.number(), Kind::Request);
        let header = FrameHeader { payload_len, timed: true, tracked: true, timeout_ms, ..header };
        [&header.encode()[..], &sent.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    // The hello took longer than a minute, for all that the server knows.
    let mut sent = 60_000_000;
    for method in [Method::PutStart, Method::ListKeys] {
        raw.send(&timed(sent, method, 10_000, sent)).await;
        if method == Method::ListKeys {
            gate.open();
        }
        assert_eq!(raw.reply().await, (sent, vec![1]));
        // One that was sent half a minute before that.
        raw.send(&timed(sent + 1, method, 10_000, sent - 30_000_000)).await;
        let (id, refusal) = raw.refusal().await;
        assert_eq!((id, refusal.code), (sent + 1, ErrorCode::RpcTimeout));
        // And one that has more time, or all.
        raw.send(&timed(sent + 2, method, 60_000, sent - 30_000_000)).await;
        assert_eq!(raw.reply().await, (sent + 2, vec![2]));
        raw.send(&timed(sent + 3, method, 0, 0)).await;
        assert_eq!(raw.reply().await, (sent + 3, vec![3]));
        sent += 1_000_000;
    }
    assert_eq!(server.metrics().expired, 2);
    for (id, sent) in [(1, 0), (2, 1), (3, i64::MAX as u64), (4, u64::MAX)] {
        raw.send(&timed(id, Method::ExistKey, 1, sent)).await;
        assert_eq!(raw.frame().await.unwrap().0.id, id);
    }
    server.shutdown().await;
}

#[tokio::test]
async fn a_second_attempt_gets_the_first_answer() {
    let (_gate, server) = gated(ServerConfig::default()).await;
    let mut first = connect(&server, 77).await;
    ask(&mut first, 1, Method::PutStart, Some(5), None).await;
    assert_eq!(first.reply().await, (1, vec![1]));
    drop(first);
    let mut second = connect(&server, 77).await;
    ask(&mut second, 9, Method::PutStart, Some(5), None).await;
    assert_eq!(second.reply().await, (9, vec![1]));
    ask(&mut second, 10, Method::PutStart, Some(6), None).await;
    assert_eq!(second.reply().await, (10, vec![2]));
    // Another client's token is another call, and so is one without a token.
    let mut other = connect(&server, 78).await;
    ask(&mut other, 1, Method::PutStart, Some(5), None).await;
    assert_eq!(other.reply().await, (1, vec![3]));
    ask(&mut other, 2, Method::PutStart, None, None).await;
    assert_eq!(other.reply().await, (2, vec![4]));
    assert_eq!(server.metrics().repeated, 1);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_server_says_so_and_answers_what_it_has() {
    let (gate, server) = gated(ServerConfig::default()).await;
    let mut raw = connect(&server, 0).await;
    ask(&mut raw, 1, Method::ListKeys, None, None).await;
    gate.entered(1).await;
    let stopping = tokio::spawn(server.shutdown());
    let (header, _) = raw.frame().await.unwrap();
    assert_eq!(header.kind, Kind::GoAway);
    gate.open();
    assert_eq!(raw.reply().await.0, 1);
    assert_eq!(raw.frame().await, None);
    drop(raw);
    timeout(DEADLINE, stopping).await.unwrap().unwrap();
}

#[cfg(unix)]
#[tokio::test]
async fn a_unix_socket_serves_and_leaves_no_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("server-{}.sock", std::process::id()));
    // What a process that was killed leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let bind = || Server::bind("127.0.0.1:0", Arc::new(Gate::default()), ServerConfig::default());
    let server = bind().await.unwrap().listen_unix(&path).unwrap().spawn();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let mut raw = Raw::over(stream);
    raw.greet(&Hello::default()).await.unwrap();
    ask(&mut raw, 1, Method::ExistKey, None, None).await;
    assert_eq!(raw.reply().await, (1, vec![1]));

    let taken = bind().await.unwrap().listen_unix(&path).unwrap_err();
    assert!(taken.is_retryable(), "{taken}");
    drop(raw);
    server.shutdown().await;
    assert!(!path.exists());
    std::fs::write(&path, "not a socket").unwrap();
    let refused = bind().await.unwrap().listen_unix(&path).unwrap_err();
    assert!(refused.to_string().contains("no socket"), "{refused}");
    std::fs::remove_file(&path).unwrap();
}

/// Heartbeats are answered soon while other connections send as many large batches as the
/// master takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_do_not_starve_behind_batches() {
    let master = master();
    let service = MasterService::new(Arc::clone(&master), SystemClock::new());
    let server = Server::bind("127.0.0.1:0", service, ServerConfig::default());
    let server = server.await.unwrap().spawn();
    let addr = server.local_addr().to_string();
    let keys: Arc<Vec<String>> = Arc::new((0..4000).map(|n| format!("key-{n:040}")).collect());
    let mut bulk = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (addr, keys) = (addr.clone(), Arc::clone(&keys));
        bulk.spawn(async move {
            let client = MasterClient::connect(&addr, ClientConfig::default()).await.unwrap();
            let keys: Vec<_> = keys.iter().map(|text| key(text)).collect();
            loop {
                let asks = (0..4).map(|_| client.batch_exist(&keys));
                for asked in asks {
                    asked.await.unwrap();
                }
            }
        });
    }
    let client = MasterClient::connect(&addr, ClientConfig::default()).await.unwrap();
    client.mount_segment(ME, &segment(1, 1 << 20)).await.unwrap();
    let mut slowest = Duration::ZERO;
    for _ in 0..200 {
        let begin = Instant::now();
        client.ping(ME).await.unwrap();
        slowest = slowest.max(begin.elapsed());
    }
    let begin = Instant::now();
    client.cluster_report().await.unwrap();
    // Clients time out after ten seconds of silence; this is one of a hundred.
    let most = Duration::from_secs(1);
    assert!(slowest.max(begin.elapsed()) < most, "a ping took {slowest:?}");
    bulk.shutdown().await;
    server.shutdown().await;
}
