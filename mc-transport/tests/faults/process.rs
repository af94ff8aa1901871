//! Other processes: this program again, told by a variable which part it plays.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use bytes::Bytes;
use mc_transport::{Access, Memory, Operation, RemoteSpan};
use mc_types::{Endpoint, Extent, RemoteKey};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::node::{Kind, Node};
use crate::{DEADLINE, MIB, REGION, connected, pattern};

/// Names the part.
const ROLE: &str = "MC_TEST_FAULT_ROLE";

/// Played in other processes; nothing in a run of all tests.
#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
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

fn say(words: &str) {
    // Words of the test harness may stand before it in the same line.
    println!("\n> {words}");
    std::io::stdout().flush().unwrap();
}

/// Opens a region, and says on demand what is open.
async fn own(kind: Kind, files: &Path) {
    let node = kind.owner(files).await;
    let memory = kind.memory(&node, REGION);
    memory.whole().copy_from(0, &pattern(REGION)).unwrap();
    let region = node.transport.register(&memory, Access::ReadWrite).unwrap();
    let key = u128::from_be_bytes(region.key().to_bytes());
    say(&format!("{} {key:032x}", node.transport.endpoint().unwrap()));
    let demand = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap() > 0
    };
    while tokio::task::spawn_blocking(demand).await.unwrap() {
        say(&node.open().connections.to_string());
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
    let (from, into) = (span(unhex(key), 0, 16 * MIB), Memory::allocate(16 * MIB).unwrap());
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

/// A process that plays a part; killed when dropped.
pub(crate) struct Player {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    listener: Option<std::thread::JoinHandle<()>>,
}

impl Player {
    pub(crate) fn start(role: &str) -> Self {
        let mut command = Command::new("/proc/self/exe");
        command.args(["process::plays_its_role", "--exact", "--nocapture"]).env(ROLE, role);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (heard, said) = std::sync::mpsc::channel();
        // Takes everything, so that nobody waits for room in the pipe.
        let listener = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(words) = line.strip_prefix("> ") {
                    let _ = heard.send(words.to_owned());
                }
            }
        });
        Self { child, stdin, lines: said, listener: Some(listener) }
    }

    pub(crate) fn hear(&mut self) -> String {
        self.lines.recv_timeout(DEADLINE).unwrap_or_else(|_| {
            panic!("it says nothing more: {:?}", self.child.try_wait());
        })
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it, and waits until it has.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        let deadline = Instant::now() + DEADLINE;
        // The state follows the name, which is in brackets.
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::yield_now();
        }
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Bytes of memory that are there for it.
    pub(crate) fn resident(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// A process that owns a region of [`REGION`] bytes.
pub(crate) struct Owner {
    pub(crate) player: Player,
    pub(crate) endpoint: Endpoint,
    pub(crate) key: RemoteKey,
}

impl Owner {
    pub(crate) fn start(kind: Kind, files: &Path) -> Self {
        let mut player = Player::start(&format!("own {kind:?} {}", files.display()));
        let words = player.hear();
        let (endpoint, key) = words.split_once(' ').unwrap();
        Self { endpoint: endpoint.parse().unwrap(), key: unhex(key), player }
    }

    /// Connections that it serves.
    pub(crate) fn connections(&mut self) -> usize {
        self.player.stdin.write_all(b"?\n").unwrap();
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
