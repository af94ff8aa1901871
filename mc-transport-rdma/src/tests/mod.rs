//! Tests that reach inside: keys that are wrong, queue pairs that the peer destroys, and peers that
//! break the protocol of the connection.
//!
//! Those whose name begins with `on_device_` need an RDMA device. `./test rdma` runs them in a guest
//! that has some, where RDMA_GUEST_DEVICES is set: they fail there without one. Where it is not set
//! they print that they were skipped.

mod hostile_owners;
mod hostile_peers;
mod keys;
mod proxy;
mod recovery;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mc_transport::{Access, Memory};
use mc_transport::{Link as _, Operation, Region, RemoteSpan, TransferError, Transport as _};
use mc_types::{Extent, RemoteKey};

use super::{RdmaConfig, RdmaLink, RdmaTransport};

/// Long enough for a guest without hardware virtualisation; nothing waits for it when all is well.
const DEADLINE: Duration = Duration::from_secs(60);

/// Time limits of the nodes under test, where a test waits for one.
const SHORT: Duration = Duration::from_millis(700);

/// The right to use the devices, which tests have one at a time since they count objects. Each has
/// a runtime of its own, whose thread may block.
struct OnDevice {
    _guard: MutexGuard<'static, ()>,
    since: Instant,
}

/// Prints how long the test took.
impl Drop for OnDevice {
    fn drop(&mut self) {
        println!("took {:.1?}", self.since.elapsed());
    }
}

/// Returns the right to use the devices; `None` where they are not to be used.
fn on_device() -> Option<OnDevice> {
    static ALONE: Mutex<()> = Mutex::new(());
    if std::env::var_os("RDMA_GUEST_DEVICES").is_none() {
        println!("skipped: RDMA_GUEST_DEVICES names no device; `./test rdma` runs this in a guest");
        return None;
    }
    assert!(!devices().is_empty(), "this host has no RDMA device");
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Some(OnDevice { _guard: guard, since: Instant::now() })
}

fn devices() -> Vec<String> {
    let listed = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let mut names: Vec<String> =
        listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The settings of an owner of memory, on the first device.
fn owning() -> RdmaConfig {
    let mut config = RdmaConfig::listening("127.0.0.1:0".parse().unwrap());
    config.devices = devices().first().cloned().into_iter().collect();
    config
}

/// The settings of a peer, on the last device.
fn reaching() -> RdmaConfig {
    let devices = devices().last().cloned().into_iter().collect();
    RdmaConfig { devices, ..RdmaConfig::default() }
}

/// An owner with one region of 1 MiB, and a peer with a link to it.
struct Rig {
    owner: RdmaTransport,
    memory: Memory,
    region: Region,
    peer: RdmaTransport,
    link: Arc<RdmaLink>,
}

const LEN: usize = 1 << 20;

impl Rig {
    async fn new() -> Self {
        Self::with(owning(), reaching()).await
    }

    async fn with(owning: RdmaConfig, reaching: RdmaConfig) -> Self {
        let owner = RdmaTransport::start(owning).await.unwrap();
        let memory = Memory::allocate(LEN).unwrap();
        let region = owner.register(&memory, Access::ReadWrite).unwrap();
        let peer = RdmaTransport::start(reaching).await.unwrap();
        let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
        Self { owner, memory, region, peer, link }
    }

    /// Shows that the link still works.
    async fn works(&self) {
        assert!(self.link.is_healthy());
        let write = Operation::write(Bytes::from_static(b"works"), span(self.region.key(), 0, 5));
        one(&self.link, write).await.unwrap();
    }

    async fn shutdown(self) {
        drop(self.link);
        self.peer.shutdown().await;
        self.owner.shutdown().await;
    }
}

fn span(key: RemoteKey, offset: usize, len: usize) -> RemoteSpan {
    RemoteSpan::new(key, Extent::new(offset as u64, len as u64).unwrap())
}

/// Carries out one operation.
async fn one(link: &RdmaLink, operation: Operation) -> Result<(), TransferError> {
    let done = tokio::time::timeout(DEADLINE, link.submit(vec![operation])).await;
    done.expect("no operation hangs").remove(0).map(|_| ())
}

/// The objects that the devices of this host have, for all processes: queue pairs and so on. The
/// tool `rdma` lies beside `ip`, which `RDMA_GUEST_IP` names.
fn objects() -> BTreeMap<String, usize> {
    let ip = std::env::var_os("RDMA_GUEST_IP").map_or_else(|| "/rdma/ip".into(), PathBuf::from);
    let shown = Command::new(ip.with_file_name("rdma")).args(["resource", "show"]).output();
    let shown = String::from_utf8(shown.expect("the tool lies beside RDMA_GUEST_IP").stdout);
    let mut all = BTreeMap::new();
    for line in shown.unwrap().lines() {
        let words: Vec<&str> = line.split_whitespace().skip(2).collect();
        for pair in words.chunks_exact(2) {
            *all.entry(pair[0].to_owned()).or_default() += pair[1].parse::<usize>().unwrap();
        }
    }
    all
}

/// Waits until the devices have the objects that they had `before`.
async fn nothing_is_left(before: &BTreeMap<String, usize>) {
    let begun = Instant::now();
    loop {
        let now = objects();
        if now == *before {
            return;
        }
        assert!(begun.elapsed() < DEADLINE, "{now:?}, before {before:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
