//! Clients follow the leader: they find it quickly, believe no former one, and make no call twice
//! that must be made once.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use mc_meta::{LateWrites, PutEnd, PutHandle, PutStart, PutToken, ReplicateConfig};
use mc_rpc::frame::{self, ServerPreface, Welcome};
use mc_rpc::{
    ClientConfig, MasterClient, Method, PutRevokeItem, Refusal, Resolve, ResolveError, RpcError,
    ServerConfig, blocking,
};
use mc_testkit::eventually;
use mc_types::{Epoch, ErrorCode, Generation};

use crate::common::fake::{Fake, Listen, accept, greet, listen, refuse};
use crate::common::leader::leader;
use crate::common::{DEADLINE, ME, connect, key, master, segment, serve, serve_at};

/// A call's time: whatever takes this long has not found the leader quickly.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const QUICKLY: Duration = Duration::from_secs(2);

fn config() -> ClientConfig {
    let mut config = ClientConfig::default();
    config.call_timeout = CALL_TIMEOUT;
    config.connect_timeout = CALL_TIMEOUT;
    config.local_socket = false;
    config
}

/// Waits for a fake master to have done its part.
async fn done<T: Send + 'static>(fake: thread::JoinHandle<T>) -> T {
    let joined = tokio::task::spawn_blocking(|| fake.join().unwrap());
    tokio::time::timeout(DEADLINE, joined).await.unwrap().unwrap()
}

/// Takes a connection as the leader of this term, at a server with this incarnation.
fn accept_in<L: Listen>(listener: &L, epoch: u64, incarnation: u64) -> Fake<L::Stream> {
    use std::io::Write;
    let mut fake = greet(listener);
    let answer = ServerPreface {
        version: frame::VERSION,
        message_len: 0,
        status: 0,
        max_payload: 1 << 20,
        max_in_flight: 16,
    };
    let epoch = Some(epoch).filter(|&epoch| epoch != 0).map(Epoch::new);
    let welcome = Welcome { epoch, incarnation, ..Welcome::default() };
    fake.stream.write_all(&answer.welcoming(&welcome)).unwrap();
    fake
}

/// Whether a key exists, by either client.
async fn exist(kind: Kind, client: &Clients) -> Result<bool, RpcError> {
    match kind {
        Kind::Async => client.asynchronous.exist(key("k")).await,
        Kind::Blocking => {
            let client = client.blocking.clone();
            tokio::task::spawn_blocking(move || client.exist(key("k"))).await.unwrap()
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Async,
    Blocking,
}

const BOTH: [Kind; 2] = [Kind::Async, Kind::Blocking];

/// Clients of one configuration.
struct Clients {
    asynchronous: MasterClient,
    blocking: blocking::MasterClient,
}

impl Clients {
    fn new(addr: &str, config: &ClientConfig) -> Self {
        Self {
            asynchronous: MasterClient::lazy(addr, config.clone()),
            blocking: blocking::MasterClient::lazy(addr, config.clone()),
        }
    }
}

#[tokio::test]
async fn silent_hosts_and_standbys_cost_little() {
    let (_silent, at_silent) = listen();
    let (gone, nobody) = listen();
    drop(gone);
    let server = serve(&master(), leader(3).0).await;
    for kind in BOTH {
        let (standby, at_standby) = listen();
        let refusing = thread::spawn(move || {
            refuse(&standby, &Refusal::new(ErrorCode::UnavailableInCurrentStatus, "a standby"))
        });
        let leader = server.local_addr();
        let addr = format!("{at_silent}; {nobody};{at_standby} ,{leader}");
        let begun = Instant::now();
        assert!(!exist(kind, &Clients::new(&addr, &config())).await.unwrap());
        assert!(begun.elapsed() < QUICKLY, "{kind:?}: {:?}", begun.elapsed());
        done(refusing).await;
    }
}

#[tokio::test]
async fn a_slow_master_among_several_is_waited_for() {
    for kind in BOTH {
        let (slow, at_slow) = listen();
        let (gone, nobody) = listen();
        drop(gone);
        let clients = Clients::new(&format!("{at_slow},{nobody}"), &config());
        let fake = thread::spawn(move || {
            // As a host that is overloaded; the blocking client comes twice.
            let first = greet(&slow);
            if matches!(kind, Kind::Blocking) {
                accept_in(&slow, 0, 1).answer(b"\x10\x01");
            } else {
                thread::sleep(Duration::from_millis(600));
                answer_greeted(first).answer(b"\x10\x01");
            }
        });
        assert!(exist(kind, &clients).await.unwrap());
        done(fake).await;
    }
}

fn answer_greeted<S: std::io::Read + std::io::Write>(mut fake: Fake<S>) -> Fake<S> {
    let answer = ServerPreface {
        version: frame::VERSION,
        message_len: 0,
        status: 0,
        max_payload: 1 << 20,
        max_in_flight: 16,
    };
    fake.stream.write_all(&answer.encode()).unwrap();
    fake
}

#[tokio::test]
async fn a_leader_is_found_soon_after_it_begins() {
    for kind in BOTH {
        let (first, second) = (listen(), listen());
        let addr = format!("{};{}", first.1, second.1);
        // Standbys for a while, then one leads.
        let standbys = thread::spawn(move || {
            let begun = Instant::now();
            let refusal = Refusal::new(ErrorCode::UnavailableInCurrentStatus, "a standby");
            while begun.elapsed() < Duration::from_secs(3) {
                refuse(&first.0, &refusal);
                refuse(&second.0, &refusal);
            }
            let leads = Instant::now();
            refuse(&first.0, &refusal);
            accept_in(&second.0, 2, 1).answer(b"\x10\x01");
            leads.elapsed()
        });
        assert!(exist(kind, &Clients::new(&addr, &config())).await.unwrap());
        let took = done(standbys).await;
        assert!(took < QUICKLY, "{kind:?}: {took:?}");
    }
}

fn never(error: &RpcError) {
    panic!("it waits: {error}");
}

#[tokio::test]
async fn connecting_waits_for_a_leader_and_says_so_once() {
    let refusal = || Refusal::new(ErrorCode::UnavailableInCurrentStatus, "a standby");
    let (standby, addr) = listen();
    let becomes_leader = thread::spawn(move || {
        for _ in 0..3 {
            refuse(&standby, &refusal());
        }
        accept_in(&standby, 2, 1).answer(b"\x10\x01");
    });
    let told = std::sync::Mutex::new(Vec::new());
    let tell = |error: &RpcError| told.lock().unwrap().push(error.to_string());
    let client = MasterClient::connect_to_leader(&addr, config(), tell).await.unwrap();
    assert!(client.exist(key("k")).await.unwrap());
    done(becomes_leader).await;
    let told = told.into_inner().unwrap();
    assert!(matches!(&told[..], [why] if why.contains("a standby")), "{told:?}");

    // Not in one attempt, and not while no master answers at all.
    let (standby, addr) = listen();
    let refuses = thread::spawn(move || refuse(&standby, &refusal()));
    let mut once = config();
    once.retry = false;
    let error = MasterClient::connect_to_leader(&addr, once, never).await.unwrap_err();
    assert!(matches!(error, RpcError::Refused(_)), "{error}");
    done(refuses).await;
    let error = MasterClient::connect_to_leader(&addr, config(), never).await.unwrap_err();
    assert!(matches!(error, RpcError::Unreachable { .. }), "{error}");
}

/// A resolver that names first a former leader, and the present one when it is asked again.
struct Etcd(std::sync::Mutex<Vec<String>>);

impl Resolve for Etcd {
    fn resolve(&self, _: &str) -> Result<Vec<String>, ResolveError> {
        let mut left = self.0.lock().unwrap();
        Ok(vec![if left.len() > 1 { left.remove(0) } else { left[0].clone() }])
    }
}

#[tokio::test]
async fn a_resolver_is_asked_again_when_a_former_leader_answers() {
    let (old, young) = (serve(&master(), leader(3).0).await, serve(&master(), leader(4).0).await);
    let config = config();
    // Some client of the process has met the younger leader.
    let other = MasterClient::connect(&young.local_addr().to_string(), config.clone()).await;
    assert!(!other.unwrap().exist(key("k")).await.unwrap());
    for kind in BOTH {
        let mut config = config.clone();
        let names = [old.local_addr(), young.local_addr()].map(|addr| addr.to_string()).to_vec();
        config.resolver("etcd", Arc::new(Etcd(std::sync::Mutex::new(names))));
        let begun = Instant::now();
        assert!(!exist(kind, &Clients::new("etcd://a;b;c/cluster", &config)).await.unwrap());
        assert!(begun.elapsed() < QUICKLY, "{kind:?}: {:?}", begun.elapsed());
    }
    assert_eq!(old.metrics().calls.iter().map(|of| of.calls).sum::<u64>(), 0);
}

#[tokio::test]
async fn a_leader_that_the_resolver_does_not_know_is_found_where_a_standby_names_it() {
    let server = serve(&master(), leader(3).0).await;
    let leader = server.local_addr();
    for kind in BOTH {
        let (standby, at_standby) = listen();
        let message = format!("this master is a standby; the leader is {leader}");
        let refusal = Refusal::new(ErrorCode::UnavailableInCurrentStatus, message);
        let refusing = thread::spawn(move || refuse(&standby, &refusal));
        let mut config = config();
        config.resolver("etcd", Arc::new(Etcd(std::sync::Mutex::new(vec![at_standby]))));
        assert!(!exist(kind, &Clients::new("etcd://a/cluster", &config)).await.unwrap());
        done(refusing).await;
    }
}

#[tokio::test]
async fn a_former_leader_is_not_believed_by_any_client_of_the_configuration() {
    for kind in BOTH {
        let (old, at_old) = listen();
        let (young, at_young) = listen();
        let config = config();
        let clients = Clients::new(&format!("{at_old};{at_young}"), &config);
        let other = MasterClient::lazy(&at_young, config.clone());
        let (took_call, old_has_call) = std::sync::mpsc::channel();
        let (answer, may_answer) = std::sync::mpsc::channel();
        let former = thread::spawn(move || {
            let mut connection = accept_in(&old, 3, 1);
            let request = connection.frame();
            took_call.send(()).unwrap();
            may_answer.recv().unwrap();
            // It does not know that it leads no more; the client may be gone before it answers.
            let (id, method) = (request.header.id, request.header.method);
            drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                connection.send(id, method, frame::Kind::Reply, b"\x10\x01");
            })));
            connection.closed();
            // It is asked again, and its term is known to be over.
            accept_in(&old, 3, 1).closed();
        });
        let present = thread::spawn(move || {
            let mut first = accept_in(&young, 4, 2);
            first.answer(b"");
            let mut second = accept_in(&young, 4, 2);
            second.answer(b"");
            (first, second)
        });
        let asked = async { (exist(kind, &clients).await, Instant::now()) };
        let elsewhere = async {
            tokio::task::spawn_blocking(move || old_has_call.recv().unwrap()).await.unwrap();
            assert!(!other.exist(key("k")).await.unwrap());
            answer.send(()).unwrap();
            Instant::now()
        };
        let ((believed, at), met) = tokio::join!(asked, elsewhere);
        assert!(!believed.unwrap(), "{kind:?}: the former leader says yes, the present one no");
        assert!(at < met + QUICKLY, "{kind:?}");
        done(former).await;
        let _open = done(present).await;
    }
}

#[tokio::test]
async fn a_call_at_a_former_leader_that_says_nothing_is_made_again_at_once() {
    for kind in BOTH {
        let (old, at_old) = listen();
        let young = serve(&master(), leader(4).0).await;
        let config = config();
        let clients = Clients::new(&format!("{at_old};{}", young.local_addr()), &config);
        let other = MasterClient::lazy(&young.local_addr().to_string(), config.clone());
        let (took_call, old_has_call) = std::sync::mpsc::channel();
        let former = thread::spawn(move || {
            let mut connection = accept_in(&old, 3, 1);
            connection.frame();
            took_call.send(()).unwrap();
            // As a process that is stopped.
            (old, connection)
        });
        let elsewhere = async {
            tokio::task::spawn_blocking(move || old_has_call.recv().unwrap()).await.unwrap();
            other.exist(key("k")).await.unwrap();
            Instant::now()
        };
        let asked = async { (exist(kind, &clients).await, Instant::now()) };
        let ((answer, at), met) = tokio::join!(asked, elsewhere);
        assert!(!answer.unwrap());
        assert!(at < met + QUICKLY, "{kind:?}: {:?}", at - met);
        done(former).await;
    }
}

/// Revokes a put, or removes an object.
async fn change(kind: Kind, clients: &Clients, is_remove: bool) -> Result<(), RpcError> {
    let handle = PutHandle { generation: Generation::new(1), token: PutToken::from_u64(2) };
    let put = PutRevokeItem { key: key("k"), handle, late: LateWrites::Impossible };
    match (kind, is_remove) {
        (Kind::Async, true) => clients.asynchronous.remove(key("k"), false).await,
        (Kind::Async, false) => clients.asynchronous.batch_put_revoke(ME, &[put]).await.map(drop),
        (Kind::Blocking, _) => {
            let client = clients.blocking.clone();
            let change = move || match is_remove {
                true => client.remove(key("k"), false),
                false => client.batch_put_revoke(ME, &[put]).map(drop),
            };
            tokio::task::spawn_blocking(change).await.unwrap()
        }
    }
}

#[tokio::test]
async fn a_call_that_another_server_may_have_executed_is_marked() {
    for (kind, is_remove) in BOTH.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let (listener, addr) = listen();
        let clients = Clients::new(&addr, &config());
        let fakes = thread::spawn(move || {
            // The same server knows the token; another life of it does not.
            for (incarnation, moved) in [(7, false), (7, false), (8, true), (7, false)] {
                let mut connection = accept_in(&listener, 0, incarnation);
                assert_eq!(connection.frame().header.moved, moved, "{incarnation}");
            }
            // An older version cannot be told.
            let mut connection = accept(&listener);
            let request = connection.frame_or_end();
            assert_eq!(request.is_none(), is_remove);
            if let Some(request) = request {
                assert!(!request.header.moved && request.token.is_some());
                let (id, method) = (request.header.id, request.header.method);
                connection.send(id, method, frame::Kind::Reply, b"\x12\x00");
                connection.closed();
            }
        });
        let changed = change(kind, &clients, is_remove).await;
        match is_remove {
            true => {
                let refused = changed.unwrap_err();
                assert_eq!(refused.code(), ErrorCode::OutcomeUnknown, "{kind:?}: {refused}");
                assert!(!refused.is_retryable());
            }
            // It names its put.
            false => changed.unwrap(),
        }
        drop(clients);
        done(fakes).await;
    }
}

/// A proxy whose answers can be lost, in front of a server that a test restarts.
#[tokio::test]
async fn a_real_master_refuses_what_its_former_life_may_have_executed() {
    let first = master();
    let mut settings = ServerConfig::default();
    settings.local_socket = false;
    let server = serve(&first, settings.clone()).await;
    let at = server.local_addr().to_string();
    connect(&server).await.mount_segment(ME, &segment(1, 1 << 20)).await.unwrap();

    let (listener, addr) = listen();
    let (executed, was_executed) = std::sync::mpsc::channel();
    let (restarted, was_restarted) = std::sync::mpsc::channel::<()>();
    let to = at.clone();
    let proxy = thread::spawn(move || {
        lose_one_answer(&listener, &to, &executed);
        was_restarted.recv().unwrap();
        pass(&listener, &to);
    });
    let client = MasterClient::lazy(&addr, config());
    let config = ReplicateConfig::default();
    let put = PutStart { key: key("k"), slice_lengths: &[1], config: &config };
    let restart = async {
        tokio::task::spawn_blocking(move || was_executed.recv().unwrap()).await.unwrap();
        server.close().await;
        // With its journal: the same state.
        let server = serve_at(&at, &first, settings).await;
        restarted.send(()).unwrap();
        server
    };
    let (refused, server) = tokio::join!(client.put_start(ME, &put), restart);
    let refused = refused.map(drop).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::OutcomeUnknown, "{refused}");
    let metrics = server.metrics();
    let begun = metrics.calls.iter().filter(|of| of.method == Method::PutStart);
    assert_eq!(begun.map(|of| of.calls).sum::<u64>(), 0, "it is not executed again");
    // Made anew it is another call.
    let other = client.put_start(ME, &put).await.map(drop).unwrap_err();
    assert_eq!(other.code(), ErrorCode::PutInProgress, "{other}");
    let second = PutStart { key: key("other"), ..put };
    let handle = client.put_start(ME, &second).await.unwrap().handle;
    client.put_end(ME, &PutEnd::new(key("other"), handle)).await.unwrap();
    let known = || client.metrics().connections_lost >= 1;
    eventually(DEADLINE, "its connection was lost", known).await;
    drop(client);
    done(proxy).await;
}

/// Forwards a connection until the server has answered its first call, which it says, and keeps the
/// answer.
fn lose_one_answer(listener: &TcpListener, to: &str, executed: &std::sync::mpsc::Sender<()>) {
    use std::io::{Read, Write};
    let (mut client, mut server) = (listener.next(), std::net::TcpStream::connect(to).unwrap());
    let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let upwards = thread::spawn(move || drop(std::io::copy(&mut from, &mut into)));
    let mut preface = [0; frame::SERVER_PREFACE_LEN];
    server.read_exact(&mut preface).unwrap();
    client.write_all(&preface).unwrap();
    let mut welcome = vec![0; ServerPreface::parse(&preface).unwrap().message_len.into()];
    server.read_exact(&mut welcome).unwrap();
    client.write_all(&welcome).unwrap();
    server.read_exact(&mut [0]).unwrap();
    executed.send(()).unwrap();
    for stream in [client, server] {
        drop(stream.shutdown(std::net::Shutdown::Both));
    }
    upwards.join().unwrap();
}

/// Forwards a connection to its end.
fn pass(listener: &TcpListener, to: &str) {
    let (mut client, mut server) = (listener.next(), std::net::TcpStream::connect(to).unwrap());
    let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let upwards = thread::spawn(move || {
        drop(std::io::copy(&mut from, &mut into));
        drop(into.shutdown(std::net::Shutdown::Write));
    });
    drop(std::io::copy(&mut server, &mut client));
    drop(client.shutdown(std::net::Shutdown::Both));
    upwards.join().unwrap();
}
