//! Other processes: this program again, told by a variable which part it plays.

use std::path::Path;

use bytes::Bytes;
use mc_testkit::role::{self, say};
use mc_testkit::{Input, Program, Signal};
use mc_transport::{Access, Memory, Operation, RemoteSpan};
use mc_types::{Endpoint, Extent, RemoteKey};
use rustix::process::set_parent_process_death_signal;

use crate::node::{Kind, Node};
use crate::{DEADLINE, MIB, REGION, connected, pattern};

/// Played in other processes; nothing in a run of all tests.
#[test]
fn plays_its_role() {
    let Some(role) = role::role() else { return };
    // Also if it is stopped at that moment.
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    let kind = Kind::named(words[1]);
    let files = Path::new(words[2]);
    match words[..] {
        ["own", ..] => runtime.block_on(own(kind, files)),
        ["write", _, _, at, key] => runtime.block_on(write(kind, files, at, key)),
        ["hoard", _, _, at, key] => runtime.block_on(hoard(kind, files, at, key)),
        _ => panic!("{role}"),
    }
}

/// Opens a region, and says on demand what is open.
async fn own(kind: Kind, files: &Path) {
    let node = kind.owner(files).await;
    let memory = kind.memory(&node, REGION);
    memory.whole().copy_from(0, &pattern(REGION)).unwrap();
    let region = node.transport.register(&memory, Access::ReadWrite).unwrap();
    let key = u128::from_be_bytes(region.key().to_bytes());
    say(format_args!("{} {key:032x}", node.transport.endpoint().unwrap()));
    while tokio::task::spawn_blocking(role::hear).await.unwrap().is_some() {
        say(node.open().connections);
    }
}

/// Writes large blocks until it is killed.
async fn write(kind: Kind, files: &Path, at: &str, key: &str) {
    let node = kind.peer(files).await;
    let link = node.transport.connect(&at.parse().unwrap()).await.unwrap();
    let to = span(unhex(key), 0, 8 * MIB);
    let block = Bytes::from(vec![7; 8 * MIB]);
    loop {
        let writes = vec![Operation::write(block.clone(), to); 16];
        let mut results = link.submit(writes);
        while let Some((_, outcome)) = results.next().await {
            outcome.unwrap();
            say("writing");
        }
    }
}

/// Has many large reads under way until it is killed.
async fn hoard(kind: Kind, files: &Path, at: &str, key: &str) {
    let node = kind.peer(files).await;
    let at = at.parse().unwrap();
    // 256 MiB under way, and yet the first of them is there soon where all come at a time.
    let (from, into) = (span(unhex(key), 0, 2 * MIB), Memory::allocate(2 * MIB).unwrap());
    loop {
        let link = connected(&node, &at).await;
        let batch = || link.submit(vec![Operation::read(from, into.whole()); 64]);
        let mut running = batch();
        let mut said = false;
        while link.is_healthy() {
            // The next is there before the last has ended.
            let next = batch();
            while let Some((_, outcome)) = running.next().await {
                if outcome.is_ok() && !std::mem::replace(&mut said, true) {
                    say("reading");
                }
            }
            running = next;
        }
    }
}

pub(crate) fn span(key: RemoteKey, offset: usize, len: usize) -> RemoteSpan {
    RemoteSpan::new(key, Extent::new(offset as u64, len as u64).unwrap())
}

pub(crate) fn hex(key: RemoteKey) -> String {
    format!("{:032x}", u128::from_be_bytes(key.to_bytes()))
}

fn unhex(key: &str) -> RemoteKey {
    RemoteKey::from_bytes(u128::from_str_radix(key, 16).unwrap().to_be_bytes())
}

/// Starts a process that plays a part.
pub(crate) fn play(role: &str) -> Program {
    let command = &mut role::command("process::plays_its_role", role);
    Program::start(DEADLINE, command, Input::Open)
}

/// A process that owns a region of [`REGION`] bytes.
pub(crate) struct Owner {
    pub(crate) player: Program,
    pub(crate) endpoint: Endpoint,
    pub(crate) key: RemoteKey,
}

impl Owner {
    pub(crate) fn start(kind: Kind, files: &Path) -> Self {
        let mut player = play(&format!("own {kind:?} {}", files.display()));
        let words = player.hear();
        let (endpoint, key) = words.split_once(' ').unwrap();
        Self { endpoint: endpoint.parse().unwrap(), key: unhex(key), player }
    }

    /// Connections that it serves.
    pub(crate) fn connections(&mut self) -> usize {
        self.player.tell("?");
        self.player.hear().parse().unwrap()
    }

    pub(crate) fn span(&self, offset: usize, len: usize) -> RemoteSpan {
        span(self.key, offset, len)
    }

    /// The words with which another process finds the region.
    pub(crate) fn place(&self) -> String {
        format!("{} {}", self.endpoint, hex(self.key))
    }
}

/// The words with which another process finds a region of this one.
pub(crate) fn place(node: &Node, key: RemoteKey) -> String {
    format!("{} {}", node.transport.endpoint().unwrap(), hex(key))
}
