//! Floods of connections and sessions: those who mean well are served as before, whether they
//! were there first or come while the flood is on. A program of its own, because it raises the limit of
//! descriptors of its process and measures how fast answers come.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use more of it")]
#[path = "it/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{BufMut, BytesMut};
use common::raw::Raw;
use common::{DEADLINE, connect, connect_with, key, master, serve};
use mc_rpc::frame::{self, Hello, Kind};
use mc_rpc::{ClientConfig, MasterClient, Method, ServerConfig, ServerHandle, blocking};
use mc_testkit::{Input, Program, eventually, eventually_blocking, role};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Places of the server under attack; ten times as many sockets come.
const PLACES: usize = 128;

/// Held by each test: what one of them measures is not the load of another.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A quiet server is not asked to be quicker: below this the scheduler is measured. On two processors,
/// which also serve the flood, 99 of 100 calls end within 0.5 ms. A client that is locked out waits for
/// seconds.
const QUICK: Duration = Duration::from_micros(200);

/// Calls of one look at how fast answers come.
const CALLS: usize = 2000;

fn small() -> ServerConfig {
    let mut config = ServerConfig::default();
    config.max_connections = PLACES;
    config
}

fn exist() -> BytesMut {
    let mut out = BytesMut::new();
    let fill = |out: &mut BytesMut| {
        out.put_slice(b"\x0a\x01k");
        Ok::<(), ()>(())
    };
    frame::append_frame(&mut out, 1, Method::ExistKey.number(), Kind::Request, fill).unwrap();
    out
}

/// The 99th percentile of the time that `client` waits for an answer.
async fn p99(client: &MasterClient) -> Duration {
    let mut took = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begin = Instant::now();
        assert!(!client.exist(key("k")).await.unwrap());
        took.push(begin.elapsed());
    }
    took.sort_unstable();
    took[CALLS * 99 / 100]
}

/// The behaviour of a flood's connection before it is left open.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flood {
    Silent,
    HalfPreface,
    Shaken,
    OneCall,
    HalfCall,
}

async fn flood(server: &ServerHandle, how: Flood) -> std::io::Result<TcpStream> {
    use tokio::io::AsyncWriteExt;
    let mut stream = TcpStream::connect(server.local_addr()).await?;
    let preface = frame::ClientPreface::with(16 << 20, &Hello::default());
    match how {
        Flood::Silent => {}
        Flood::HalfPreface => stream.write_all(&preface[..9]).await?,
        Flood::Shaken => stream.write_all(&preface).await?,
        Flood::OneCall => stream.write_all(&[&preface[..], &exist()].concat()).await?,
        Flood::HalfCall => stream.write_all(&[&preface[..], &exist()[..22]].concat()).await?,
    }
    Ok(stream)
}

/// While ten times as many connections come and stay as there are places, a client that
/// was there before and clients that come now are served, about as fast as before.
async fn is_served_through(how: Flood) {
    let _alone = ALONE.lock().await;
    let server = serve(&master(), small()).await;
    // From the address of the flood.
    let mut config = ClientConfig::default();
    config.local_socket = false;
    let before = connect_with(&server, config.clone()).await;
    for round in 1.. {
        let quiet = p99(&before).await;
        let stop = Arc::new(AtomicBool::new(false));
        let come = Arc::new(AtomicUsize::new(0));
        let attack = async {
            let mut held = std::collections::VecDeque::new();
            while !stop.load(Ordering::Relaxed) || come.load(Ordering::Relaxed) < 10 * PLACES {
                for _ in 0..8 {
                    // One that is closed by the server counts too.
                    held.extend(flood(&server, how).await.ok());
                    come.fetch_add(1, Ordering::Relaxed);
                }
                if held.len() > 10 * PLACES {
                    held.drain(..PLACES);
                }
                // About 2,000 connections a second.
                tokio::time::sleep(Duration::from_millis(4)).await;
            }
        };
        let good = async {
            let full = || come.load(Ordering::Relaxed) >= 2 * PLACES;
            eventually(DEADLINE, "all places are taken", full).await;
            let attacked = p99(&before).await;
            for _ in 0..20 {
                let new = connect_with(&server, config.clone()).await;
                assert!(!new.exist(key("k")).await.unwrap());
            }
            stop.store(true, Ordering::Relaxed);
            attacked
        };
        let ((), attacked) = tokio::join!(attack, good);
        println!("{how:?}: p99 of exist {quiet:?} before, {attacked:?} while they come");
        if attacked < 3 * quiet.max(QUICK) {
            break;
        }
        assert!(round < 10, "{how:?}: p99 of exist {quiet:?} before, {attacked:?} while they come");
    }
    assert_eq!(before.metrics().connections_lost, 0, "{how:?}");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_lock_nobody_out() {
    is_served_through(Flood::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_handshakes_lock_nobody_out() {
    is_served_through(Flood::HalfPreface).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_lock_nobody_out() {
    is_served_through(Flood::Shaken).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_with_one_call_lock_nobody_out() {
    is_served_through(Flood::OneCall).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_with_half_a_call_lock_nobody_out() {
    is_served_through(Flood::HalfCall).await;
}

/// While the server has no turn the system keeps its connections. Beyond that TCP lets a client
/// try again only after a second.
#[tokio::test]
async fn a_burst_of_connections_waits_for_a_busy_server() {
    const BURST: usize = 1000;
    let _alone = ALONE.lock().await;
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    let burst = most.trim().parse().map_or(BURST, |most: usize| BURST.min(most));
    let server = serve(&master(), ServerConfig::default()).await;
    // The only thread of the runtime is here, and accepts nothing.
    let connect =
        |_| std::net::TcpStream::connect_timeout(&server.local_addr(), Duration::from_millis(500));
    let waiting: Vec<_> = (0..burst).map(connect).collect::<Result<_, _>>().unwrap();
    let client = connect_with(&server, ClientConfig::default()).await;
    client.exist(key("k")).await.unwrap();
    drop(waiting);
    server.shutdown().await;
}

/// Sessions come and go, with and without a call that is to be remembered: no client is refused
/// a session, and none that a call was remembered for is forgotten at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_sessions_lock_nobody_out() {
    let _alone = ALONE.lock().await;
    let server = serve(&master(), small()).await;
    let before = connect(&server).await;
    let quiet = p99(&before).await;
    for (round, tracked) in [(1u128, false), (2, true)] {
        for n in 0..6 * PLACES as u128 {
            let session = (round << 64) + n + 1;
            let hello = Hello { session, ..Hello::default() };
            let mut raw = Raw::connect_as(&server, &hello).await.unwrap();
            if tracked {
                raw.send(&remove(1, b"k")).await;
                let (id, refusal) = raw.refusal().await;
                assert_eq!((id, refusal.code), (1, mc_types::ErrorCode::ObjectNotFound));
            }
        }
        // While other programs take the processor, the 99th percentile is one of their time slices.
        let begun = Instant::now();
        let mut attacked = p99(&before).await;
        while attacked >= 10 * quiet.max(QUICK) && begun.elapsed() < DEADLINE {
            attacked = p99(&before).await;
        }
        println!("tracked {tracked}: p99 of exist {quiet:?} before, {attacked:?} after");
        assert!(attacked < 10 * quiet.max(QUICK), "{attacked:?} after, {quiet:?} before");
        let new = connect(&server).await;
        assert!(new.remove(key("k"), false).await.is_err());
    }
    server.shutdown().await;
}

/// `Remove` of a key as the call with the token 1.
fn remove(id: u64, key: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    let fill = |out: &mut BytesMut| {
        out.put_slice(&[0x0a, key.len() as u8]);
        out.put_slice(key);
        Ok::<(), ()>(())
    };
    frame::append_request(&mut out, id, Method::Remove.number(), Some(1), None, fill).unwrap();
    out
}

/// A client whose connection made room for others asks again as if nothing had been.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_yielded_notices_nothing() {
    let _alone = ALONE.lock().await;
    let server = serve(&master(), small()).await;
    let asynchronous = connect(&server).await;
    let mut config = ClientConfig::default();
    config.retry = false;
    let stubborn = connect_with(&server, config.clone()).await;
    let addr = server.local_addr().to_string();
    let waiting = tokio::task::spawn_blocking(move || {
        blocking::MasterClient::connect(&addr, ClientConfig::default()).unwrap()
    });
    let waiting = waiting.await.unwrap();
    assert!(!asynchronous.exist(key("k")).await.unwrap());
    assert!(!stubborn.exist(key("k")).await.unwrap());
    let waiting = tokio::task::spawn_blocking(move || {
        assert!(!waiting.exist(key("k")).unwrap());
        waiting
    });
    let waiting = waiting.await.unwrap();
    let mut held = Vec::new();
    for _ in 0..3 * PLACES {
        held.push(flood(&server, Flood::OneCall).await.unwrap());
    }
    let yielded = || server.metrics().yielded >= 2 * PLACES as u64;
    eventually(DEADLINE, "idle connections yield", yielded).await;
    assert!(!asynchronous.exist(key("k")).await.unwrap());
    assert!(!stubborn.exist(key("k")).await.unwrap());
    tokio::task::spawn_blocking(move || assert!(!waiting.exist(key("k")).unwrap())).await.unwrap();
    assert_eq!(asynchronous.metrics().connections_lost, 0);
    server.shutdown().await;
}

/// A connection that says nothing goes after a while.
#[tokio::test]
async fn what_idles_for_long_goes() {
    let _alone = ALONE.lock().await;
    let mut config = ServerConfig::default();
    config.idle_timeout = Duration::from_millis(200);
    let server = serve(&master(), config).await;
    let mut raw = Raw::connect(&server).await;
    let (header, _) = raw.frame().await.unwrap();
    assert_eq!(header.kind, Kind::GoAway);
    raw.assert_closed().await;
    assert_eq!(server.metrics().yielded, 1);
    server.shutdown().await;
}

/// Only few of the connections for calls of many threads at once stay open.
#[test]
fn a_blocking_client_at_rest_holds_few_connections() {
    let _alone = ALONE.blocking_lock();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(serve(&master(), ServerConfig::default()));
    let addr = server.local_addr().to_string();
    let client = blocking::MasterClient::connect(&addr, ClientConfig::default()).unwrap();
    let all = std::sync::Barrier::new(64);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                all.wait();
                for _ in 0..50 {
                    assert!(!client.exist(key("k")).unwrap());
                }
            });
        }
    });
    eventually_blocking(DEADLINE, "few connections are open", || {
        let open = server.metrics().connections;
        if open <= 16 { Ok(()) } else { Err(open) }
    });
    assert!(!client.exist(key("k")).unwrap());
    runtime.block_on(server.shutdown());
}

/// Ten thousand clients of one address, each of which asks, stays, and asks again.
#[test]
fn ten_thousand_clients_have_room() {
    let _alone = ALONE.blocking_lock();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    raise_descriptors();
    if role::role().is_some() {
        return runtime.block_on(serve_until_told());
    }
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = descriptors.map_or(usize::MAX, |most| (most as usize / 4 * 3).saturating_sub(100));
    let count = room.min(10_000);
    if count < 10_000 {
        println!("{count} clients only: the process may have {descriptors:?} file descriptors");
    }
    // This test in a process of its own, as the server.
    let command = &mut role::command("ten_thousand_clients_have_room", "server");
    let mut process = Program::start(DEADLINE, command, Input::Open);
    let addr = process.hear();
    runtime.block_on(async {
        let mut clients = Vec::with_capacity(count);
        let mut connecting = JoinSet::new();
        for n in 0..count {
            let addr = addr.clone();
            connecting.spawn(async move {
                let mut config = ClientConfig::default();
                // All of one address.
                config.local_socket = false;
                let client = MasterClient::connect(&addr, config).await.unwrap();
                assert!(!client.exist(key("k")).await.unwrap());
                client
            });
            if n >= 64 {
                clients.push(connecting.join_next().await.unwrap().unwrap());
            }
        }
        while let Some(client) = connecting.join_next().await {
            clients.push(client.unwrap());
        }
        for client in &clients {
            assert!(!client.exist(key("k")).await.unwrap());
        }
        let made: u64 = clients.iter().map(|client| client.metrics().connections_made).sum();
        assert_eq!(made, count as u64, "some had to connect again");
    });
    process.close_input();
    assert_eq!(process.finish().code, Some(0));
}

fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // What there is has to do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

async fn serve_until_told() {
    let server = serve(&master(), ServerConfig::default()).await;
    role::say(server.local_addr());
    let told = tokio::task::spawn_blocking(|| while role::hear().is_some() {});
    told.await.unwrap();
    assert_eq!(server.metrics().turned_away, 0);
    server.shutdown().await;
}
