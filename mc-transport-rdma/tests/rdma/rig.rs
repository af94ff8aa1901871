//! Nodes on the devices of this host, and the tools of the guest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mc_testkit::{Input, Program, eventually, eventually_blocking, role};
use mc_transport::{
    Access, Link as _, Memory, Operation, Region, RemoteSpan, TransferError, Transport as _,
};
use mc_transport_rdma::{RdmaConfig, RdmaLink, RdmaTransport};
use mc_types::{Endpoint, Extent, RemoteKey};

/// Long enough for a guest without hardware virtualisation; nothing waits for it when all is well.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Held by every test: they count the queue pairs of the host and cut its cable. Each has a runtime
/// of its own, whose thread may block.
pub(crate) struct Alone {
    _guard: MutexGuard<'static, ()>,
    since: Instant,
}

/// Prints how long the test took.
impl Drop for Alone {
    fn drop(&mut self) {
        println!("took {:.1?}", self.since.elapsed());
    }
}

/// Returns the right to use the devices; `None`, with a word about it, where none is to be used.
pub(crate) fn alone() -> Option<Alone> {
    static ALONE: Mutex<()> = Mutex::new(());
    if std::env::var_os("RDMA_GUEST_DEVICES").is_none() {
        println!("skipped: RDMA_GUEST_DEVICES names no device; `./test rdma` runs this in a guest");
        return None;
    }
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Some(Alone { _guard: guard, since: Instant::now() })
}

/// The RDMA devices of this host, by name.
pub(crate) fn devices() -> Vec<String> {
    let listed = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let mut names: Vec<String> =
        listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(
        !names.is_empty(),
        "this host has no RDMA device; `./test rdma` starts a guest with two"
    );
    names
}

/// The settings of an owner of memory, on the first device.
pub(crate) fn owning() -> RdmaConfig {
    let mut config = RdmaConfig::listening("127.0.0.1:0".parse().unwrap());
    config.devices = devices().first().cloned().into_iter().collect();
    config
}

/// The settings of a peer, on the last device.
pub(crate) fn reaching() -> RdmaConfig {
    let mut config = RdmaConfig::default();
    config.devices = devices().last().cloned().into_iter().collect();
    config
}

/// An owner with one region, and a peer with a link to it.
pub(crate) struct Rig {
    pub(crate) owner: RdmaTransport,
    pub(crate) memory: Memory,
    pub(crate) region: Region,
    pub(crate) peer: RdmaTransport,
    pub(crate) link: Arc<RdmaLink>,
}

impl Rig {
    pub(crate) async fn new(len: usize) -> Self {
        Self::with(len, owning(), reaching()).await
    }

    pub(crate) async fn with(len: usize, owning: RdmaConfig, reaching: RdmaConfig) -> Self {
        let owner = RdmaTransport::start(owning).await.unwrap();
        let memory = Memory::allocate(len).unwrap();
        let region = owner.register(&memory, Access::ReadWrite).unwrap();
        let peer = RdmaTransport::start(reaching).await.unwrap();
        let link = peer.connect(owner.endpoint().unwrap()).await.unwrap();
        Self { owner, memory, region, peer, link }
    }

    pub(crate) fn span(&self, offset: usize, len: usize) -> RemoteSpan {
        span(self.region.key(), offset, len)
    }

    pub(crate) async fn shutdown(self) {
        drop(self.link);
        self.peer.shutdown().await;
        self.owner.shutdown().await;
    }
}

pub(crate) fn span(key: RemoteKey, offset: usize, len: usize) -> RemoteSpan {
    RemoteSpan::new(key, Extent::new(offset as u64, len as u64).unwrap())
}

/// Memory of `len` bytes that are all `byte`.
pub(crate) fn filled(byte: u8, len: usize) -> Memory {
    let memory = Memory::allocate(len).unwrap();
    fill(&memory, byte);
    memory
}

pub(crate) fn fill(memory: &Memory, byte: u8) {
    memory.whole().copy_from(0, &vec![byte; memory.len()]).unwrap();
}

/// Carries out one operation.
pub(crate) async fn one(link: &RdmaLink, operation: Operation) -> Result<(), TransferError> {
    link.submit(vec![operation]).await.remove(0).map(|_| ())
}

/// Waits until nothing but `memory` names its block any more.
pub(crate) async fn released(memory: Memory) {
    let len = memory.len();
    // Freezing succeeds once ours is the last handle.
    let mut memory = Some(memory);
    eventually(DEADLINE, "what was in flight is released", || {
        memory = memory.take().and_then(|memory| memory.try_into_bytes(len).err());
        memory.is_none()
    })
    .await;
}

/// Waits until the byte of `memory` at `at` is `byte`: so far a write of a peer has come.
pub(crate) async fn arrived(memory: &Memory, at: usize, byte: u8) {
    let place = memory.slice(at, 1).unwrap();
    eventually(DEADLINE, "the write is under way", || place.to_vec() == [byte]).await;
}

/// The text of an error and of its sources.
pub(crate) fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// An owner in another process, whose role is `serve`.
pub(crate) struct OtherProcess {
    pub(crate) process: Program,
    pub(crate) endpoint: Endpoint,
    pub(crate) keys: [RemoteKey; 2],
}

/// Bytes of each region of the other process.
pub(crate) const OTHERS_REGION: usize = 16 << 20;

impl OtherProcess {
    pub(crate) fn start() -> Self {
        let command = &mut role::command("faults::a_server_for_others", "serve");
        let mut process = Program::start(DEADLINE, command, Input::None);
        let line = process.hear();
        let words: Vec<&str> = line.split(' ').collect();
        let key = |word: &str| RemoteKey::from_bytes(word.parse::<u128>().unwrap().to_le_bytes());
        let keys = [key(words[1]), key(words[2])];
        Self { process, endpoint: words[0].parse().unwrap(), keys }
    }
}

/// The guest's `ip`, of iproute2.
fn ip_tool() -> PathBuf {
    std::env::var_os("RDMA_GUEST_IP").map_or_else(|| "/rdma/ip".into(), PathBuf::from)
}

fn run(tool: &Path, words: &str) -> String {
    let done = Command::new(tool).args(words.split_whitespace()).output();
    let done = done.unwrap_or_else(|error| {
        panic!("{}: {error}; RDMA_GUEST_IP names the guest's tool", tool.display())
    });
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{} {words}: {error}", tool.display());
    String::from_utf8(done.stdout).unwrap()
}

/// Runs the guest's `ip`.
pub(crate) fn ip(words: &str) -> String {
    run(&ip_tool(), words)
}

/// The command `rdma` of iproute2, which lies beside `ip`.
pub(crate) fn rdma(words: &str) -> String {
    run(&ip_tool().with_file_name("rdma"), words)
}

/// The objects that the devices of this host have, for all processes: queue pairs and so on.
pub(crate) fn objects() -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for line in rdma("resource show").lines() {
        let words: Vec<&str> = line.split_whitespace().skip(2).collect();
        for pair in words.chunks_exact(2) {
            *all.entry(pair[0].to_owned()).or_default() += pair[1].parse::<usize>().unwrap();
        }
    }
    assert!(all.contains_key("qp"), "the tool lists queue pairs: {all:?}");
    all
}

/// Waits until the devices have the objects that they had `before`.
pub(crate) fn nothing_is_left(before: &BTreeMap<String, usize>) {
    eventually_blocking(DEADLINE, "no object is left", || {
        let now = objects();
        if now == *before { Ok(()) } else { Err(format!("{now:?}, before {before:?}")) }
    });
}

/// The guest's cable between the first device, on `nic0`, and the second, on `nic1`.
#[derive(Default)]
pub(crate) struct Cable {
    was_cut: bool,
}

impl Cable {
    /// Takes the second device's interface down: both ports see that.
    pub(crate) fn cut(&mut self) {
        self.was_cut = true;
        ip("link set nic1 down");
    }

    /// Has the packets of the second device go astray. No port sees that.
    pub(crate) fn lose_packets(&mut self) {
        self.was_cut = true;
        ip("neigh replace 10.77.0.1 lladdr 02:00:00:00:00:99 dev nic1");
    }

    /// Undoes either, and waits until the ports carry data again.
    pub(crate) fn mend(&mut self) {
        self.was_cut = false;
        run(&ip_tool().with_file_name("cable"), "mend");
        for device in ["rxe0", "rxe1"] {
            let state = format!("/sys/class/infiniband/{device}/ports/1/state");
            eventually_blocking(DEADLINE, format_args!("{device} is up"), || {
                std::fs::read_to_string(&state).unwrap().contains("ACTIVE")
            });
        }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // For the tests behind one that failed.
        if self.was_cut {
            self.mend();
        }
    }
}
