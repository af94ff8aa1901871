//! The async client with connections that break, masters that go, and masters that are elsewhere.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mc_meta::{PutEnd, PutStart, ReplicateConfig};
use mc_rpc::frame::{HEADER_LEN, Kind, SERVER_PREFACE_LEN, ServerPreface, first_frame};
use mc_rpc::{
    ClientConfig, MasterClient, Method, Refusal, Resolve, ResolveError, RpcError, ServerConfig,
    Token,
};
use mc_testkit::eventually;
use mc_types::ErrorCode;
use tokio::time::timeout;

use crate::common::fake::{Fake, Listen, accept, accept_timed, greet, listen, refuse};
use crate::common::{DEADLINE, ME, connect, key, master, segment, serve};

fn patient() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.connect_timeout = Duration::from_secs(5);
    config.call_timeout = DEADLINE;
    config.min_backoff = Duration::from_millis(1);
    config.max_backoff = Duration::from_millis(20);
    config
}

/// Waits for a fake master to have done its part.
async fn done<T: Send + 'static>(fake: JoinHandle<T>) -> T {
    let joined = tokio::task::spawn_blocking(|| fake.join().unwrap());
    timeout(DEADLINE, joined).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_call_that_is_made_again_is_the_same_call() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, patient());
    let fake = thread::spawn(move || {
        let mut first = accept(&listener);
        // Executed, and not answered.
        let (session, executed) = (first.hello.session, first.frame());
        drop(first);
        let mut second = accept(&listener);
        assert_ne!(session, 0);
        assert_eq!(second.hello.session, session);
        let again = second.answer(b"\x12\x00");
        assert_eq!(again.header.method, Method::PutStart.number());
        assert_eq!((again.token, &again.message), (executed.token, &executed.message));
        assert_eq!(again.token, Some(1));
        // The next call is another one, and a question needs no token.
        assert_eq!(second.answer(b"").token, Some(2));
        assert_eq!(second.answer(b"").token, None);
        second
    });
    let config = ReplicateConfig::default();
    let put = PutStart { key: key("k"), slice_lengths: &[1], config: &config };
    let malformed = client.put_start(ME, &put).await.unwrap_err();
    assert!(matches!(malformed, RpcError::Malformed { .. }), "{malformed}");
    client.remove(key("k"), false).await.unwrap();
    assert!(!client.exist(key("k")).await.unwrap());
    let _open = done(fake).await;
    let metrics = client.metrics();
    assert_eq!((metrics.connections_made, metrics.connections_lost), (2, 1));
    let put = metrics.methods.iter().find(|counted| counted.method == Method::PutStart).unwrap();
    assert_eq!((put.calls, put.failures, put.retries), (1, 1, 1));
}

#[tokio::test]
async fn a_call_that_is_told_early_that_it_is_late_is_made_over_another_connection() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, patient());
    let fake = thread::spawn(move || {
        let mut first = accept_timed(&listener);
        assert!(first.refuse_late().header.timed);
        let mut second = accept_timed(&listener);
        let request = second.answer(b"");
        assert!(request.header.timed && request.token.is_some());
        // A master that says so again is believed.
        second.refuse_late();
        let mut third = accept_timed(&listener);
        third.refuse_late();
        (first, second, third)
    });
    client.remove(key("k"), false).await.unwrap();
    let late = client.exist(key("k")).await.unwrap_err();
    assert_eq!(late.code(), ErrorCode::RpcTimeout, "{late}");
    let _open = done(fake).await;
}

/// Forwards connections to `to`; of the first one no answer comes back.
fn lossy(listener: &TcpListener, to: SocketAddr) {
    for first in [true, false] {
        let (mut client, mut server) = (listener.next(), TcpStream::connect(to).unwrap());
        let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let upwards = thread::spawn(move || {
            drop(io::copy(&mut from, &mut into));
            drop(into.shutdown(Shutdown::Write));
        });
        if first {
            let mut preface = [0; SERVER_PREFACE_LEN];
            server.read_exact(&mut preface).unwrap();
            client.write_all(&preface).unwrap();
            let welcome = ServerPreface::parse(&preface).unwrap().message_len;
            let welcome = &mut vec![0; welcome.into()][..];
            server.read_exact(welcome).unwrap();
            client.write_all(welcome).unwrap();
            server.read_exact(&mut [0]).unwrap();
        } else {
            drop(io::copy(&mut server, &mut client));
        }
        // Either may be gone already.
        drop(client.shutdown(Shutdown::Both));
        drop(server.shutdown(Shutdown::Both));
        upwards.join().unwrap();
    }
}

#[tokio::test]
async fn a_real_master_executes_a_lost_call_once() {
    let master = master();
    // The shorter way would lead past what is lossy.
    let mut config = ServerConfig::default();
    config.local_socket = false;
    let server = serve(&master, config).await;
    let direct = connect(&server).await;
    direct.mount_segment(ME, &segment(1, 1 << 20)).await.unwrap();
    let config = ReplicateConfig::default();
    let put = PutStart { key: key("k"), slice_lengths: &[1], config: &config };
    let handle = direct.put_start(ME, &put).await.unwrap().handle;
    direct.put_end(ME, &PutEnd::new(key("k"), handle)).await.unwrap();

    let (listener, addr) = listen();
    let to = server.local_addr();
    let proxy = thread::spawn(move || lossy(&listener, to));
    let client = MasterClient::lazy(&addr, patient());
    // The second attempt is answered as the first was, though nothing is there any more.
    client.remove(key("k"), false).await.unwrap();
    assert_eq!(client.metrics().connections_lost, 1);
    assert!(!direct.exist(key("k")).await.unwrap());
    drop(client);
    done(proxy).await;
    server.shutdown().await;
}

#[tokio::test]
async fn a_master_that_goes_answers_what_it_has() {
    let (listener, addr) = listen();
    let client = MasterClient::lazy(&addr, patient());
    let fake = thread::spawn(move || {
        let mut old = accept(&listener);
        let first = old.frame().header;
        let second = old.frame().header;
        old.send(0, 0, Kind::GoAway, b"");
        old.send(second.id, second.method, Kind::Reply, b"");
        // The next call comes to another connection, while the first still waits.
        let mut new = accept(&listener);
        new.answer(b"\x10\x01");
        old.send(first.id, first.method, Kind::Reply, b"\x10\x01");
        old.closed();
        new.answer(b"");
        new
    });
    let first = client.exist(key("first"));
    let (first, ()) = tokio::join!(first, async {
        // Its answer comes after the word of the master's leaving.
        assert!(!client.exist(key("second")).await.unwrap());
        assert!(client.exist(key("next")).await.unwrap());
    });
    assert!(first.unwrap());
    assert!(!client.exist(key("last")).await.unwrap());
    let _open = done(fake).await;
    let metrics = client.metrics();
    assert_eq!((metrics.connections_made, metrics.connections_lost), (2, 0));
}

#[tokio::test]
async fn calls_go_where_the_least_is_to_do() {
    let (listener, addr) = listen();
    let mut config = patient();
    config.connections = 2;
    let client = MasterClient::lazy(&addr, config);
    let fake = thread::spawn(move || {
        let mut first = accept(&listener);
        let one = first.frame().header;
        let two = first.frame().header;
        // Two calls have met on the first connection, and another is made.
        let mut second = accept(&listener);
        for header in [one, two] {
            first.send(header.id, header.method, Kind::Reply, b"");
        }
        // With nothing to do on either the first takes the next.
        let busy = first.frame().header;
        second.answer(b"\x10\x01");
        first.send(busy.id, busy.method, Kind::Reply, b"");
    });
    let meet = async { tokio::join!(client.exist(key("1")), client.exist(key("2"))) };
    let (one, two) = meet.await;
    assert!(!one.unwrap() && !two.unwrap());
    let both = || client.metrics().connections_made >= 2;
    eventually(DEADLINE, "both connections are made", both).await;
    let (busy, other) = tokio::join!(client.exist(key("3")), client.exist(key("4")));
    assert!(!busy.unwrap());
    assert!(other.unwrap());
    done(fake).await;
}

#[tokio::test]
async fn the_address_that_worked_is_kept() {
    let (gone, nobody) = listen();
    drop(gone);
    let (standby, at_standby) = listen();
    let (leader, at_leader) = listen();
    let fake = thread::spawn(move || {
        let refusal = Refusal::new(ErrorCode::UnavailableInCurrentStatus, "a standby");
        refuse(&standby, &refusal);
        accept(&leader).answer(b"\x10\x01");
        // Its connection broke, and it is asked first.
        accept(&leader).answer(b"\x10\x01");
        // It has gone: around to the one that was a standby.
        drop(leader);
        accept(&standby).answer(b"\x10\x01");
    });
    let client = MasterClient::lazy(&format!("{nobody}, {at_standby},{at_leader}"), patient());
    for _ in 0..3 {
        assert!(client.exist(key("k")).await.unwrap());
    }
    done(fake).await;
}

/// Gives each of its answers once, the last one for ever.
struct Script {
    answers: Vec<Result<Vec<String>, ()>>,
    asked: AtomicUsize,
}

impl Resolve for Script {
    fn resolve(&self, target: &str) -> Result<Vec<String>, ResolveError> {
        assert_eq!(target, "test://cluster/master");
        let turn = self.asked.fetch_add(1, Ordering::Relaxed).min(self.answers.len() - 1);
        self.answers[turn].clone().map_err(|()| {
            ResolveError::new("no leader yet").caused_by(io::Error::other("election"))
        })
    }
}

#[tokio::test]
async fn masters_are_resolved_and_resolved_again() {
    let (gone, nobody) = listen();
    drop(gone);
    let (listener, addr) = listen();
    let leader = addr.clone();
    let script = Arc::new(Script {
        answers: vec![Err(()), Ok(vec![nobody]), Ok(vec![addr])],
        asked: AtomicUsize::new(0),
    });
    let mut config = patient();
    config.resolver("test", Arc::clone(&script) as Arc<dyn Resolve>);
    let fake = thread::spawn(move || {
        accept(&listener).answer(b"\x10\x01");
        accept(&listener).answer(b"\x10\x01");
    });
    // In one attempt there is only what the resolver says first.
    let error = MasterClient::connect("test://cluster/master", config.clone()).await.unwrap_err();
    assert!(matches!(error, RpcError::Unresolved { .. }), "{error}");
    assert!(error.to_string().contains("no leader yet") && error.is_retryable(), "{error}");
    let client = MasterClient::lazy("test://cluster/master", config);
    assert!(client.exist(key("k")).await.unwrap());
    assert_eq!(script.asked.load(Ordering::Relaxed), 3);
    // A connection that broke is no reason to ask again.
    assert!(client.exist(key("k")).await.unwrap());
    assert_eq!(script.asked.load(Ordering::Relaxed), 3);
    assert_eq!(client.preferred_addr().as_deref(), Some(&*leader));
    done(fake).await;
}

struct Misspelt;

impl Resolve for Misspelt {
    fn resolve(&self, _: &str) -> Result<Vec<String>, ResolveError> {
        Err(ResolveError::new("no such cluster; check its name").lasting())
    }
}

#[tokio::test]
async fn a_lasting_failure_of_a_resolver_ends_calls_at_once() {
    let mut config = patient();
    config.call_timeout = 4 * DEADLINE;
    assert!(!config.has_resolver("test"));
    config.resolver("test", Arc::new(Misspelt));
    assert!(config.has_resolver("test"));
    let client = MasterClient::lazy("test://cluster", config);
    assert_eq!(client.preferred_addr(), None);
    let error = timeout(DEADLINE, client.exist(key("k"))).await.unwrap().unwrap_err();
    assert!(matches!(error, RpcError::Unresolvable { .. }), "{error}");
    assert!(error.to_string().contains("check its name"), "{error}");
    assert_eq!((error.code(), error.is_retryable()), (ErrorCode::InvalidParams, false));
}

#[tokio::test]
async fn bad_settings_are_typed_errors() {
    for (addr, words) in [
        ("etcd://h:2379/master", "ClientConfig::resolver"),
        ("master", "no port"),
        ("", "names no master"),
        ("\0", "no port"),
        ("unix:", "begins with /"),
    ] {
        let client = MasterClient::lazy(addr, patient());
        let error = timeout(DEADLINE, client.exist(key("k"))).await.unwrap().unwrap_err();
        assert!(matches!(error, RpcError::Address { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!((error.code(), error.is_retryable()), (ErrorCode::InvalidParams, false));
    }
    let (_listener, addr) = listen();
    let mut config = patient();
    config.token = Some(Token::from_file("/nonexistent/token"));
    let error = MasterClient::lazy(&addr, config).exist(key("k")).await.unwrap_err();
    assert!(matches!(error, RpcError::Credential(_)), "{error}");
    assert!(error.to_string().contains("/nonexistent/token"), "{error}");
}

#[tokio::test]
async fn who_calls_is_said_at_each_connection() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "the-first-token\n").unwrap();
    let mut config = patient();
    config.token = Some(Token::from_file(&token));
    config.tenant = "team-a".into();
    let client = MasterClient::lazy(&format!("unix:{}", path.display()), config);
    let fake = thread::spawn(move || {
        let mut first = accept(&listener);
        assert_eq!(&*first.hello.token, b"the-first-token");
        assert_eq!(&*first.hello.tenant, "team-a");
        first.answer(b"\x10\x01");
        std::fs::write(&token, "the-second-token\n").unwrap();
        drop(first);
        let mut second = accept(&listener);
        assert_eq!(&*second.hello.token, b"the-second-token");
        second.answer(b"\x10\x01");
    });
    for _ in 0..2 {
        assert!(client.exist(key("k")).await.unwrap());
    }
    done(fake).await;
}

#[tokio::test]
async fn the_longest_and_shortest_times_are_good() {
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
        assert!(MasterClient::lazy(&addr, config).exist(key("k")).await.unwrap());
        done(fake).await;
    }
}

#[tokio::test]
async fn a_refused_client_hears_why() {
    let (listener, addr) = listen();
    let fake = thread::spawn(move || {
        // Too many at the moment is no lasting reason, a wrong token is.
        refuse(&listener, &Refusal::new(ErrorCode::Overloaded, "full"));
        refuse(&listener, &Refusal::new(ErrorCode::Unauthenticated, "no such token"));
    });
    let error = MasterClient::lazy(&addr, patient()).exist(key("k")).await.unwrap_err();
    let expected = Refusal::new(ErrorCode::Unauthenticated, "no such token");
    assert!(matches!(&error, RpcError::Refused(refusal) if *refusal == expected), "{error}");
    done(fake).await;
}

#[tokio::test]
async fn what_waits_to_be_sent_is_bounded() {
    let (listener, addr) = listen();
    let mut config = patient();
    config.max_in_flight = 8;
    let fake = thread::spawn(move || accept(&listener));
    let client = MasterClient::connect(&addr, config).await.unwrap();
    let mut fake: Fake<TcpStream> = done(fake).await;
    let name = "k".repeat(1000);
    let keys = vec![key(&name); 400];
    // The master reads nothing, and every caller gives up.
    const CALLS: usize = 200;
    for _ in 0..CALLS {
        let give_up = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            answered = client.batch_exist(&keys) => panic!("an answer without a server: {answered:?}"),
            () = give_up => {}
        }
    }
    drop(client);
    // The sockets took some megabytes, and one more call was waiting.
    let arrived = thread::spawn(move || {
        let mut arrived = Vec::new();
        fake.stream.read_to_end(&mut arrived).unwrap();
        arrived
    });
    let arrived = done(arrived).await;
    let (mut rest, mut requests) = (&arrived[..], 0);
    while let Some((header, payload)) = first_frame(rest, 1 << 20).unwrap() {
        requests += usize::from(header.kind == Kind::Request);
        rest = &rest[HEADER_LEN + payload.len()..];
    }
    assert!((1..CALLS / 2).contains(&requests), "{requests}");
}

#[tokio::test]
async fn a_master_that_never_answers_a_greeting_costs_its_turn() {
    let (silent, at_silent) = listen();
    let (listener, addr) = listen();
    let mut config = patient();
    config.connect_timeout = Duration::from_millis(50);
    let fake = thread::spawn(move || {
        let heard = greet(&silent);
        accept(&listener).answer(b"\x10\x01");
        drop(heard);
    });
    let client = MasterClient::lazy(&format!("{at_silent},{addr}"), config);
    assert!(client.exist(key("k")).await.unwrap());
    done(fake).await;
}
