//! The client that blocks, against a real master and against masters that stall, lie and
//! come back.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use mc_meta::{ClientStatus, LateWrites, ListCursor, Master, PutEnd, PutStart, ReplicateConfig};
use mc_rpc::blocking::{MasterClient, in_place};
use mc_rpc::frame::{FrameHeader, Kind};
use mc_rpc::{
    ClientConfig, ClientMetrics, Method, MethodMetrics, PutRevokeItem, PutStartItem, Refusal,
    RpcError, ServerConfig, ServerHandle, Token,
};
use mc_testkit::eventually_blocking;
use mc_types::{ErrorCode, SegmentId};
use tokio::runtime::Runtime;

use crate::common::fake::{accept, accept_timed, listen, refuse};
use crate::common::{DEADLINE, ME, key, master, segment, serve, serve_at};

fn quick() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.connect_timeout = Duration::from_millis(500);
    config.call_timeout = Duration::from_millis(300);
    config.min_backoff = Duration::from_millis(1);
    config.max_backoff = Duration::from_millis(20);
    config
}

fn patient() -> ClientConfig {
    let mut config = quick();
    config.call_timeout = DEADLINE;
    config
}

/// A real server, with the runtime that it lives in.
fn real(master: &Arc<Master>) -> (Runtime, ServerHandle, String) {
    let runtime = Runtime::new().unwrap();
    let server = runtime.block_on(serve(master, ServerConfig::default()));
    let addr = server.local_addr().to_string();
    (runtime, server, addr)
}

fn of(metrics: &ClientMetrics, method: Method) -> MethodMetrics {
    metrics.methods.iter().find(|counted| counted.method == method).unwrap().clone()
}

#[test]
fn a_call_that_is_told_early_that_it_is_late_is_made_over_another_connection() {
    let (listener, addr) = listen();
    let fake = thread::spawn(move || {
        let mut first = accept_timed(&listener);
        let request = first.refuse_late();
        assert!(request.header.timed);
        let mut second = accept_timed(&listener);
        assert_eq!(second.answer(b"").token, request.token);
        // A master that says so again is believed.
        second.refuse_late();
        let mut third = accept_timed(&listener);
        third.refuse_late();
    });
    let client = MasterClient::lazy(&addr, patient());
    client.remove(key("k"), false).unwrap();
    let late = client.exist(key("k")).unwrap_err();
    assert_eq!(late.code(), ErrorCode::RpcTimeout, "{late}");
    fake.join().unwrap();
}

#[test]
fn every_family_of_calls() {
    let master = master();
    let (runtime, server, addr) = real(&master);
    let client = MasterClient::connect(&addr, ClientConfig::default()).unwrap();
    assert_eq!(client.addr(), addr);
    let spec = segment(1, 1 << 30);
    client.mount_segment(ME, &spec).unwrap();
    assert_eq!(client.ping(ME).unwrap().status, ClientStatus::Ok);

    let config = ReplicateConfig::default();
    let put = PutStart { key: key("a"), slice_lengths: &[4096, 1], config: &config };
    let grant = client.put_start(ME, &put).unwrap();
    let refused = client.get_replica_list(key("a")).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::ReplicaIsNotReady);
    let end = PutEnd::new(key("a"), grant.handle);
    client.put_end(ME, &end).unwrap();
    let list = client.get_replica_list(key("a")).unwrap();
    assert_eq!((list.generation, list.replicas.len()), (grant.handle.generation, 1));
    assert_eq!(client.describe(key("a")).unwrap().owner, ME);

    let items = [key("b"), key("c")].map(|key| PutStartItem::new(key, &[7]));
    let grants = client.batch_put_start(ME, &config, &items).unwrap();
    let handle = |at: usize| grants[at].as_ref().unwrap().handle;
    let late = LateWrites::Impossible;
    let revoke = PutRevokeItem { key: key("c"), handle: handle(1), late };
    client.batch_put_revoke(ME, &[revoke]).unwrap()[0].as_ref().unwrap();
    let end = PutEnd::new(key("b"), handle(0));
    client.batch_put_end(ME, &[end]).unwrap()[0].as_ref().unwrap();
    let exist: Vec<_> = client.batch_exist(&[key("a"), key("b"), key("c")]).unwrap();
    let exist: Vec<_> = exist.into_iter().map(Result::unwrap).collect();
    assert_eq!(exist, [true, true, false]);
    assert_eq!(client.longest_prefix(&[key("a"), key("b"), key("c")]).unwrap(), 2);
    assert_eq!(client.list_keys("", ListCursor::default(), 0).unwrap().keys.len(), 2);

    client.remove(key("a"), true).unwrap();
    assert!(!client.exist(key("a")).unwrap());
    assert_eq!(client.remove_all(true).unwrap(), 1);
    assert_eq!(client.cluster_report().unwrap().totals.objects, 0);
    client.unmount_segment(ME, spec.id).unwrap();
    let unknown = client.unmount_segment(ME, SegmentId::from_u128(1)).unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::SegmentNotFound);

    let metrics = client.metrics();
    assert_eq!((metrics.connections_made, metrics.connections_lost), (1, 0));
    let unmount = of(&metrics, Method::UnmountSegment);
    assert_eq!((unmount.calls, unmount.failures, unmount.retries), (2, 1, 0));
    assert_eq!(unmount.latencies.count(), 2);
    let exist = of(&metrics, Method::ExistKey);
    assert_eq!((exist.bytes_sent, exist.bytes_received), (23, 20));
    runtime.block_on(server.shutdown());
}

#[test]
fn threads_share_a_bounded_pool() {
    let master = master();
    let (runtime, server, addr) = real(&master);
    let mut config = patient();
    config.connections_max = 4;
    let client = MasterClient::lazy(&addr, config);
    let threads: Vec<_> = (0..16)
        .map(|thread| {
            let client = client.clone();
            thread::spawn(move || {
                for call in 0..100 {
                    let name = format!("{thread}-{call}");
                    assert!(!client.exist(key(&name)).unwrap());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let metrics = client.metrics();
    assert!((1..=4).contains(&metrics.connections_made), "{metrics:?}");
    assert_eq!(of(&metrics, Method::ExistKey).calls, 1600);
    runtime.block_on(server.shutdown());
}

#[test]
fn a_restarted_master_costs_no_call() {
    let master = master();
    let (runtime, server, addr) = real(&master);
    let client = MasterClient::connect(&addr, patient()).unwrap();
    assert!(!client.exist(key("k")).unwrap());
    runtime.block_on(server.shutdown());
    let caller = thread::spawn({
        let client = client.clone();
        move || client.exist(key("k"))
    });
    // The call finds the connection gone, before it is sent or after, then no server at the
    // address.
    let is_lost = || client.metrics().connections_lost > 0;
    eventually_blocking(DEADLINE, "the connection is lost", is_lost);
    let server = runtime.block_on(serve_at(&addr, &master, ServerConfig::default()));
    assert!(!caller.join().unwrap().unwrap());
    let metrics = client.metrics();
    assert_eq!((metrics.connections_made, metrics.connections_lost), (2, 1));
    assert!(of(&metrics, Method::ExistKey).retries <= 1);
    runtime.block_on(server.shutdown());
}

#[test]
fn stale_connections_are_given_up_together() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, patient());
    let callers: Vec<_> = (0..3)
        .map(|_| {
            let client = client.clone();
            thread::spawn(move || client.exist(key("k")).unwrap())
        })
        .collect();
    // Three calls at a time make three connections.
    let mut masters: Vec<_> = (0..3).map(|_| accept(&listener)).collect();
    masters.iter_mut().for_each(|master| drop(master.answer(b"\x10\x01")));
    callers.into_iter().for_each(|caller| assert!(caller.join().unwrap()));
    drop(masters);
    let restarted = thread::spawn(move || {
        let mut master = accept(&listener);
        master.answer(b"");
        master.answer(b"\x10\x01");
    });
    assert!(!client.exist(key("k")).unwrap());
    assert!(client.exist(key("k")).unwrap());
    restarted.join().unwrap();
    let metrics = client.metrics();
    assert_eq!((metrics.connections_made, metrics.connections_lost), (4, 1));
}

#[test]
fn a_call_that_is_made_again_is_the_same_call() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, patient());
    let fake = thread::spawn(move || {
        let mut first = accept(&listener);
        first.answer(b"");
        // Executed, and not answered.
        let (session, executed) = (first.hello.session, first.frame());
        drop(first);
        let mut second = accept(&listener);
        assert_ne!(session, 0);
        assert_eq!(second.hello.session, session);
        let again = second.answer(b"");
        assert_eq!((again.token, &again.message), (executed.token, &executed.message));
        assert_eq!(again.token, Some(2));
        assert_eq!(second.answer(b"").token, Some(3));
        // A call that may be executed twice needs none.
        assert_eq!(second.answer(b"").token, None);
    });
    for name in ["a", "b", "c"] {
        client.remove(key(name), false).unwrap();
    }
    assert!(!client.exist(key("d")).unwrap());
    fake.join().unwrap();
}

#[test]
fn without_retry_a_lost_call_is_lost() {
    let (listener, addr) = listen();
    let mut config = patient();
    config.retry = false;
    let client = MasterClient::lazy(&addr, config);
    let fake = thread::spawn(move || {
        let mut master = accept(&listener);
        assert_eq!(master.hello.session, 0);
        assert_eq!(master.frame().token, None);
    });
    let error = client.remove(key("k"), false).unwrap_err();
    assert!(matches!(error, RpcError::ConnectionLost { .. }), "{error}");
    fake.join().unwrap();
    let error = client.remove(key("k"), false).unwrap_err();
    assert!(matches!(error, RpcError::Unreachable { .. }), "{error}");
}

#[test]
fn silence_ends_a_call_and_its_connection() {
    let (listener, addr) = listen();
    let mut config = quick();
    config.retry = false;
    let client = MasterClient::lazy(&addr, config);
    let fake = thread::spawn(move || {
        let mut silent = accept(&listener);
        let timeout = silent.frame().header.timeout().unwrap();
        assert!(timeout <= Duration::from_millis(300), "{timeout:?}");
        silent.closed();
        let mut slow = accept(&listener);
        let FrameHeader { id, method, .. } = slow.frame().header;
        // Half an answer is none.
        slow.stream.write_all(&FrameHeader::new(id, method, Kind::Reply).encode()[..10]).unwrap();
        slow.closed();
        accept(&listener).answer(b"\x10\x01");
    });
    for _ in 0..2 {
        let begin = Instant::now();
        let error = client.exist(key("k")).unwrap_err();
        assert!(matches!(error, RpcError::TimedOut { .. }), "{error}");
        assert!(begin.elapsed() >= Duration::from_millis(300));
        assert!(begin.elapsed() < DEADLINE);
    }
    assert!(client.exist(key("k")).unwrap());
    fake.join().unwrap();
}

#[test]
fn a_master_that_only_says_that_it_goes_is_not_waited_for() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, quick());
    let fake = thread::spawn(move || {
        let mut master = accept(&listener);
        let farewell = FrameHeader::new(0, 0, Kind::GoAway).encode().repeat(100);
        while master.stream.write_all(&farewell).is_ok() {}
    });
    let error = client.exist(key("k")).unwrap_err();
    assert!(matches!(error, RpcError::TimedOut { .. }), "{error}");
    fake.join().unwrap();
}

#[test]
fn answers_in_pieces_and_long_ones() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, patient());
    let fake = thread::spawn(move || {
        let mut master = accept(&listener);
        let FrameHeader { id, method, .. } = master.frame().header;
        let header = FrameHeader { payload_len: 2, ..FrameHeader::new(id, method, Kind::Reply) };
        for byte in header.encode().iter().chain(b"\x10\x01") {
            master.stream.write_all(&[*byte]).unwrap();
        }
        // An unknown field of a mebibyte.
        let mut long = b"\x10\x01\xfa\x3f\x80\x80\x40".to_vec();
        long.resize(long.len() + (1 << 20), 7);
        master.answer(&long);
        master.answer(b"");
    });
    assert!(client.exist(key("k")).unwrap());
    assert!(client.exist(key("k")).unwrap());
    assert!(!client.exist(key("k")).unwrap());
    assert_eq!(client.metrics().connections_made, 1);
    fake.join().unwrap();
}

#[test]
fn lies_are_typed_errors() {
    type Takes = fn(&RpcError) -> bool;
    let malformed: Takes = |error| matches!(error, RpcError::Malformed { .. });
    let lost: Takes = |error| matches!(error, RpcError::ConnectionLost { .. });
    let refused: Takes = |error| error.code() == ErrorCode::ObjectNotFound;
    // What the master answers: the kind, how far the id and the method are off, the
    // payload; and how the client takes it.
    let cases: [(Kind, u64, u16, &[u8], Takes); 9] = [
        (Kind::Reply, 0, 0, b"", malformed),
        (Kind::Reply, 0, 0, b"\xff", malformed),
        (Kind::Reply, 0, 1, b"", malformed),
        (Kind::Reply, 1, 0, b"", lost),
        (Kind::Request, 0, 0, b"", lost),
        (Kind::Cancel, 0, 0, b"", lost),
        (Kind::Error, 0, 0, b"", |error| error.code() == ErrorCode::Internal),
        (Kind::Error, 0, 0, b"\x40\xfd\xff\xff\xff\xfe", refused),
        (Kind::Error, 0, 0, &[0; 100_000], |error| error.code() == ErrorCode::Internal),
    ];
    for (kind, id, method, payload, takes) in cases {
        let (listener, addr) = listen();
        let client = MasterClient::lazy(&addr, patient());
        let fake = thread::spawn({
            let payload = payload.to_vec();
            move || {
                let mut master = accept(&listener);
                let header = master.frame().header;
                master.send(header.id + id, header.method + method, kind, &payload);
                master
            }
        });
        let error = client.get_replica_list(key("k")).unwrap_err();
        assert!(takes(&error), "{kind:?} {payload:?}: {error}");
        drop(fake.join().unwrap());
    }
}

#[test]
fn an_answer_too_long_is_not_waited_for() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, patient());
    let fake = thread::spawn(move || {
        let mut master = accept(&listener);
        let header = master.frame().header;
        let lie =
            FrameHeader { payload_len: u32::MAX, tracked: false, kind: Kind::Reply, ..header };
        master.stream.write_all(&lie.encode()).unwrap();
        master.closed();
    });
    let error = client.exist(key("k")).unwrap_err();
    assert!(matches!(error, RpcError::ConnectionLost { .. }), "{error}");
    assert!(error.to_string().contains("4294967295 bytes"), "{error}");
    fake.join().unwrap();
}

#[test]
fn a_request_too_long_is_not_sent() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, patient());
    let fake = thread::spawn(move || {
        accept(&listener).answer(b"");
    });
    let (name, keys) = ("k".repeat(1000), 2000);
    let error = client.batch_exist(&vec![key(&name); keys]).unwrap_err();
    assert!(matches!(error, RpcError::RequestTooLarge { max: 1_048_576, .. }), "{error}");
    // And the connection is as good as before.
    assert!(!client.exist(key("k")).unwrap());
    fake.join().unwrap();
}

#[test]
fn callers_beyond_the_pool_wait_and_give_up() {
    let (listener, addr) = listen();
    let mut config = quick();
    config.connections_max = 1;
    config.retry = false;
    let stuck = MasterClient::lazy(&addr, config);
    let fake = thread::spawn(move || {
        let mut first = accept(&listener);
        first.frame();
        // No other client connects meanwhile.
        first.closed();
    });
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let client = stuck.clone();
            thread::spawn(move || client.exist(key("k")).unwrap_err())
        })
        .collect();
    let mut late = 0;
    for caller in callers {
        match caller.join().unwrap() {
            RpcError::TimedOut { .. } => late += 1,
            RpcError::NoFreeConnection { max, .. } => assert_eq!(max, 1),
            // The place became free in the last moment, too late for a connection.
            RpcError::Unreachable { .. } => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(late, 1);
    fake.join().unwrap();
}

#[test]
fn a_master_that_goes_gets_no_further_call() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, patient());
    let fake = thread::spawn(move || {
        let mut old = accept(&listener);
        let FrameHeader { id, method, .. } = old.frame().header;
        old.send(0, 0, Kind::GoAway, b"");
        old.send(id, method, Kind::Reply, b"\x10\x01");
        old.closed();
        accept(&listener).answer(b"");
    });
    assert!(client.exist(key("k")).unwrap());
    assert!(!client.exist(key("k")).unwrap());
    let metrics = client.metrics();
    assert_eq!((metrics.connections_made, metrics.connections_lost), (2, 0));
    fake.join().unwrap();
}

#[test]
fn over_a_unix_socket_with_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut config = patient();
    config.token = Some(Token::new("a-token-of-the-test").unwrap());
    config.tenant = "team-a".into();
    let addr = format!("unix:{}", path.display());
    let client = MasterClient::lazy(&addr, config);
    let fake = thread::spawn(move || {
        let mut master = accept(&listener);
        assert_eq!(&*master.hello.token, b"a-token-of-the-test");
        assert_eq!(&*master.hello.tenant, "team-a");
        master.answer(b"\x10\x01");
    });
    assert!(client.exist(key("k")).unwrap());
    fake.join().unwrap();
}

#[test]
fn a_master_that_refuses_is_heard_or_passed_over() {
    let (listener, addr) = listen();
    let wrong = Refusal::new(ErrorCode::Unauthenticated, "no such token");
    let fake = thread::spawn({
        let wrong = wrong.clone();
        move || {
            refuse(&listener, &wrong);
            listener
        }
    });
    let error = MasterClient::lazy(&addr, patient()).exist(key("k")).unwrap_err();
    assert!(matches!(&error, RpcError::Refused(refusal) if *refusal == wrong), "{error}");
    let (first, second) = (fake.join().unwrap(), listen());
    let fake = thread::spawn(move || {
        let standby = Refusal::new(ErrorCode::UnavailableInCurrentStatus, "a standby");
        refuse(&first, &standby);
        let mut leader = accept(&second.0);
        leader.answer(b"\x10\x01");
        leader.answer(b"");
    });
    let client = MasterClient::lazy(&format!("{addr},{}", second.1), patient());
    assert!(client.exist(key("k")).unwrap());
    assert!(!client.exist(key("k")).unwrap());
    fake.join().unwrap();
}

#[test]
fn a_busy_master_is_asked_again() {
    let (listener, addr) = listen();
    let fake = thread::spawn(move || {
        for _ in 0..3 {
            refuse(&listener, &Refusal::new(ErrorCode::Overloaded, "full"));
        }
        accept(&listener).answer(b"\x10\x01");
    });
    assert!(MasterClient::lazy(&addr, patient()).exist(key("k")).unwrap());
    fake.join().unwrap();
}

#[test]
fn the_longest_and_shortest_times_are_good() {
    for time in [Duration::MAX, Duration::ZERO] {
        let (listener, addr) = listen();
        let mut config = patient();
        config.keepalive = time;
        config.min_backoff = time;
        config.max_backoff = time;
        config.call_timeout = time.max(DEADLINE);
        config.connect_timeout = time.max(DEADLINE);
        let fake = thread::spawn(move || {
            accept(&listener);
            accept(&listener).answer(b"\x10\x01");
        });
        assert!(MasterClient::lazy(&addr, config).exist(key("k")).unwrap());
        fake.join().unwrap();
    }
}

#[test]
fn somebody_else_at_the_address_is_told_apart() {
    let (listener, addr) = listen();
    let fake = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400\r\n").unwrap();
        // Until the client has read it.
        let _ = stream.read_to_end(&mut Vec::new());
        // One that never greets.
        listener
    });
    let error = MasterClient::connect(&addr, quick()).unwrap_err();
    assert!(matches!(error, RpcError::NotAMaster { .. }), "{error}");
    assert!(error.to_string().contains("HTTP/1"), "{error}");
    let _listener = fake.join().unwrap();
    let mut config = quick();
    config.connect_timeout = Duration::from_millis(50);
    let error = MasterClient::connect(&addr, config).unwrap_err();
    assert!(error.to_string().contains("no answer within 50ms"), "{error}");
}

/// Polls `call` once.
fn polled<T>(call: impl Future<Output = T>) -> Poll<T> {
    pin!(call).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls `call` once, in place.
fn poll_in_place<T>(give_up: fn() -> bool, call: impl Future<Output = T>) -> Poll<T> {
    in_place(give_up, || polled(call))
}

#[test]
fn the_async_client_may_call_in_place() {
    let master = master();
    let (runtime, server, addr) = real(&master);
    let client = mc_rpc::MasterClient::lazy(&addr, ClientConfig::default());
    // This thread is in no runtime.
    for _ in 0..2 {
        let Poll::Ready(exists) = poll_in_place(|| false, client.exist(key("a"))) else {
            panic!("a call in place is over when it was polled");
        };
        assert!(!exists.unwrap());
    }
    let exist = of(&client.metrics(), Method::ExistKey);
    assert_eq!((exist.calls, client.metrics().connections_made), (2, 1));
    // Later calls, and those of other threads, are those of an async client again.
    assert!(!runtime.block_on(client.exist(key("a"))).unwrap());
    let elsewhere = in_place(
        || false,
        || thread::scope(|scope| scope.spawn(|| runtime.block_on(client.ping(ME))).join()),
    );
    elsewhere.unwrap().unwrap();
    assert_eq!(client.metrics().connections_made, 2);
    runtime.block_on(server.shutdown());
}

#[test]
fn whoever_calls_in_place_may_give_up() {
    let client = mc_rpc::MasterClient::lazy("127.0.0.1:1", patient());
    let begin = Instant::now();
    in_place(
        || false,
        || {
            let call = poll_in_place(|| true, client.exist(key("a")));
            assert!(matches!(call, Poll::Ready(Err(RpcError::Unreachable { .. }))));
        },
    );
    assert!(begin.elapsed() < DEADLINE / 2, "it was not to try again");
    let client = mc_rpc::MasterClient::lazy("127.0.0.1:1", quick());
    let begin = Instant::now();
    in_place(|| true, || assert!(poll_in_place(|| false, client.exist(key("a"))).is_ready()));
    assert!(begin.elapsed() >= quick().call_timeout / 2, "it was to try again and again");
}

#[test]
fn whoever_gives_up_while_a_master_is_silent_goes_at_once_and_says_nothing_of_it() {
    /// As with a signal, which is seen once.
    fn once() -> bool {
        !SEEN.swap(true, Ordering::Relaxed)
    }
    static SEEN: AtomicBool = AtomicBool::new(false);
    let (listener, addr) = listen();
    let mut config = patient();
    config.outage_timeout = Some(Duration::ZERO);
    let client = mc_rpc::MasterClient::lazy(&addr, config);
    let begin = Instant::now();
    in_place(once, || {
        for _ in 0..2 {
            let call = polled(client.exist(key("a")));
            assert!(matches!(call, Poll::Ready(Err(RpcError::GivenUp { .. }))), "{call:?}");
        }
    });
    assert!(begin.elapsed() < DEADLINE / 2, "it was not to wait");
    // One attempt that had failed would be an outage.
    let fake = thread::spawn(move || {
        for _ in 0..2 {
            drop(listener.accept().unwrap());
        }
        accept(&listener).answer(b"\x10\x01");
    });
    let exists = poll_in_place(|| false, client.exist(key("a")));
    assert!(matches!(exists, Poll::Ready(Ok(true))), "{exists:?}");
    fake.join().unwrap();
}
