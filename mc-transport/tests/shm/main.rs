//! Processes of one host that share memory: killed, stopped, hostile, and well-behaved.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up fails")]

mod hostile;
mod processes;
mod regions;
mod trust;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use mc_testkit::eventually;
use mc_transport::shm::ShmListen;
use mc_transport::{
    Link, Memory, Operation, Outcome, RemoteSpan, ShmConfig, ShmLink, ShmTransport, TransferError,
    Transport,
};
use mc_types::{Extent, RemoteKey};
use tokio::sync::{Mutex, MutexGuard};

/// Long enough for a loaded machine; nothing waits for it when all is well.
const DEADLINE: Duration = Duration::from_secs(30);

/// Timeouts of the nodes under test, where a test waits for one.
const SHORT: Duration = Duration::from_millis(500);

/// Held by every test: some count what the whole process has open. A test begins when
/// those before it have let go of everything, which their runtimes do after they end.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    static NOTHING: OnceLock<(usize, usize)> = OnceLock::new();
    let guard = ALONE.lock().await;
    let nothing = *NOTHING.get_or_init(held);
    eventually(DEADLINE, "earlier tests left nothing", || held() == nothing).await;
    guard
}

fn short() -> ShmConfig {
    let mut config = ShmConfig::default();
    config.connect_timeout = SHORT;
    config.stall_timeout = SHORT;
    config
}

/// A node that only reaches others.
async fn client(mut config: ShmConfig) -> ShmTransport {
    config.listen = ShmListen::Nowhere;
    ShmTransport::start(config).await.unwrap()
}

async fn owner() -> ShmTransport {
    ShmTransport::start(ShmConfig::default()).await.unwrap()
}

async fn link_to(client: &ShmTransport, owner: &ShmTransport) -> Arc<ShmLink> {
    client.connect(owner.endpoint().unwrap()).await.unwrap()
}

fn span(key: RemoteKey, offset: u64, len: u64) -> RemoteSpan {
    RemoteSpan::new(key, Extent::new(offset, len).unwrap())
}

fn read_of(key: RemoteKey, len: usize) -> Operation {
    Operation::read(span(key, 0, len as u64), Memory::allocate(len).unwrap().whole())
}

fn write_of(key: RemoteKey, byte: u8, len: usize) -> Operation {
    Operation::write(Bytes::from(vec![byte; len]), span(key, 0, len as u64))
}

async fn one(link: &dyn Link, operation: Operation) -> Outcome {
    let results = tokio::time::timeout(DEADLINE, link.submit(vec![operation])).await;
    results.expect("the operation ends in time").remove(0)
}

fn is_lost(outcome: &Outcome) -> bool {
    matches!(outcome, Err(TransferError::LinkLost { .. }))
}

fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Err(TransferError::KeyRefused))
}

/// Descriptors of this process, and memory of files that it maps. What runtimes hold is
/// left out, since those of other tests come and go: their `anon_inode:`s, and the copy that
/// each has of the one socket by which it learns of signals.
fn held() -> (usize, usize) {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = all.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let (mut others, mut sockets) = (0, HashSet::new());
    for target in targets.map(|target| target.to_string_lossy().into_owned()) {
        if target.starts_with("socket:") {
            sockets.insert(target);
        } else if !target.starts_with("anon_inode:") {
            others += 1;
        }
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mapped = maps.lines().filter(|line| line.contains("memfd:")).count();
    (others + sockets.len(), mapped)
}
