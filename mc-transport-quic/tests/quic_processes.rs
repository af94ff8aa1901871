//! Peers over QUIC in other processes, which are killed and halted; and what is left of
//! transports that ended. Apart from the other tests, because descriptors are counted.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

#[allow(dead_code, reason = "other tests use more of them")]
#[path = "it/nodes.rs"]
mod nodes;
#[path = "it/pki.rs"]
mod pki;

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::{Input, Program, eventually, role};
use mc_tls::{ClientAuth, ServerTls, TlsFiles};
use mc_transport::{Access, Link as _, Memory, Operation, TransferError, Transport as _};
use mc_transport_quic::QuicConfig;
use mc_types::{Endpoint, RemoteKey};
use tokio::time::timeout;

use crate::nodes::{DEADLINE, Rig, connecting, one, span, start};
use crate::pki::Authority;

const REGION: usize = 64 << 20;

/// Held by tests that count descriptors.
static ALONE: Mutex<()> = Mutex::new(());

/// Descriptors that this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Timeout of the clients under test.
const STALL: Duration = Duration::from_secs(3);

/// The other process, whose role is where its certificates are. As a test of its own it does
/// nothing.
#[tokio::test]
async fn a_server_for_others() {
    let Some(dir) = role::role().map(PathBuf::from) else { return };
    let files = TlsFiles::new(dir.join("server.pem"), dir.join("server.key"));
    let files = files.client_ca(dir.join("ca.pem"), ClientAuth::Required);
    let tls = ServerTls::load(files).unwrap().into();
    let server = start(QuicConfig::listening("127.0.0.1:0".parse().unwrap(), tls)).await;
    let memory = Memory::allocate(REGION).unwrap();
    let region = server.register(&memory, Access::ReadWrite).unwrap();
    let key = u128::from_le_bytes(region.key().to_bytes());
    role::say(format_args!("{} {key}", server.endpoint().unwrap()));
    // The test kills this process; should that fail, it ends by itself.
    tokio::time::sleep(DEADLINE * 4).await;
}

struct Server {
    process: Program,
    endpoint: Endpoint,
    key: RemoteKey,
}

impl Server {
    fn start(authority: &Authority) -> Self {
        authority.issue("server", &["127.0.0.1"], false);
        let files = authority.ca().parent().unwrap().display().to_string();
        let command = &mut role::command("a_server_for_others", &files);
        let mut process = Program::start(DEADLINE, command, Input::None);
        let line = process.hear();
        let (endpoint, key) = line.split_once(' ').unwrap();
        let key = key.parse::<u128>().unwrap().to_le_bytes();
        Self { process, endpoint: endpoint.parse().unwrap(), key: RemoteKey::from_bytes(key) }
    }
}

/// The way in which the server is stopped.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Killed,
    Halted,
}

/// Stops a server while operations of 64 MiB run, and looks at what they come to.
async fn stop_while_under_way(fate: Fate, write: bool) {
    let before = descriptors();
    let authority = Authority::new();
    let mut server = Server::start(&authority);
    let mut config = connecting(&authority);
    (config.stall_timeout, config.connect_timeout) = (STALL, STALL);
    let client = start(config).await;
    let link = client.connect(&server.endpoint).await.unwrap();
    let whole = span(server.key, 0, REGION as u64);
    let memory = Memory::allocate(REGION).unwrap();
    let bytes = Bytes::from(vec![3; REGION]);
    let operation = || match write {
        true => Operation::write(bytes.clone(), whole),
        false => Operation::read(whole, memory.whole()),
    };
    one(&*link, operation()).await.unwrap();
    let small = Operation::read(span(server.key, 0, 1), memory.slice(0, 1).unwrap());
    let mut batch = link.submit((0..20).map(|_| operation()).chain([small]).collect());
    // The small one is done while the others are under way.
    timeout(DEADLINE, batch.next()).await.expect("in time").unwrap().1.unwrap();
    match fate {
        Fate::Killed => server.process.kill(),
        Fate::Halted => server.process.freeze(),
    }
    let outcomes = timeout(DEADLINE, batch).await.expect("in time");
    let failed = outcomes.into_iter().filter_map(Result::err).collect::<Vec<_>>();
    assert!(!failed.is_empty(), "it was stopped before all was done");
    for error in failed {
        // No error reports that datagrams are not received.
        let said = matches!(error, TransferError::TimedOut { after: STALL });
        assert!(said && error.is_retryable(), "{fate:?}, write {write}: {error:?}");
    }
    assert!(!link.is_healthy());
    assert!(client.connect(&server.endpoint).await.is_err(), "nobody is there");
    drop(link);
    eventually(DEADLINE, "every task has ended", || client.stats().tasks == 0).await;
    assert!(memory.try_into_bytes(0).is_ok(), "nothing holds the memory any more");
    let replacement = Server::start(&authority);
    let link = client.connect(&replacement.endpoint).await.unwrap();
    let byte = Memory::allocate(1).unwrap();
    one(&*link, Operation::read(span(replacement.key, 0, 1), byte.whole())).await.unwrap();
    drop((link, replacement, server));
    client.shutdown().await;
    drop(client);
    eventually(DEADLINE, "the descriptors are back", || descriptors() <= before).await;
}

#[test]
fn a_server_that_stops_fails_what_is_under_way() {
    let _alone = ALONE.lock().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for fate in [Fate::Killed, Fate::Halted] {
        for write in [false, true] {
            runtime.block_on(stop_while_under_way(fate, write));
        }
    }
}

#[test]
fn everything_is_given_back() {
    let _alone = ALONE.lock().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let before = descriptors();
        for _ in 0..5 {
            let rig = Rig::new(1 << 20, |_| {}, |_| {}).await;
            let memory = Memory::allocate(1 << 20).unwrap();
            let read = Operation::read(span(rig.region.key(), 0, 1 << 20), memory.whole());
            one(&*rig.link, read).await.unwrap();
            rig.client.shutdown().await;
            assert_eq!((rig.client.stats().links, rig.client.stats().tasks), (0, 0));
            rig.server.shutdown().await;
            let stats = rig.server.stats();
            assert_eq!((stats.connections, stats.tasks, stats.regions), (0, 0, 0));
        }
        eventually(DEADLINE, "the descriptors are back", || descriptors() <= before).await;
    });
}
