//! This test's program, started again as one of the processes of a cluster.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process};

/// Where a process is told what it is.
const VARIABLE: &str = "LATE_BYTES_ROLE";
/// What lines for the parent begin with, so that the harness's are none.
const PREFIX: &str = "| ";

#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    Master,
    Node,
    Worker {
        number: u64,
        seed: u64,
    },
    /// Puts large objects, one after the other, and says when each has ended.
    Writer,
}

/// What this process is, and where its master is; `None` for the test itself.
pub(crate) fn role() -> Option<(Role, SocketAddr)> {
    let text = std::env::var(VARIABLE).ok()?;
    let words: Vec<&str> = text.split(' ').collect();
    let role = match words[0] {
        "master" => Role::Master,
        "node" => Role::Node,
        "writer" => Role::Writer,
        _ => Role::Worker { number: words[2].parse().unwrap(), seed: words[3].parse().unwrap() },
    };
    Some((role, words[1].parse().unwrap()))
}

/// Tells the parent.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{PREFIX}{line}").unwrap();
    out.flush().unwrap();
}

/// Whether the parent has closed this process's input, or has gone.
pub(crate) fn is_told_to_end() -> bool {
    static ENDED: OnceLock<&'static AtomicBool> = OnceLock::new();
    let ended = ENDED.get_or_init(|| {
        let ended: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            ended.store(true, Ordering::SeqCst);
        });
        ended
    });
    ended.load(Ordering::SeqCst)
}

/// Waits for that.
pub(crate) async fn wait_for_the_end() {
    let ended = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let _ = ended.await;
}

/// A process. Dropping it kills it.
pub(crate) struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(role: Role, master: SocketAddr) -> Self {
        let text = match role {
            Role::Master => format!("master {master}"),
            Role::Node => format!("node {master}"),
            Role::Writer => format!("writer {master}"),
            Role::Worker { number, seed } => format!("worker {master} {number} {seed}"),
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// What the process says behind `words`.
    pub(crate) fn wait_for(&mut self, words: &str) -> String {
        loop {
            let line = self.line().expect("the process ended before it said that");
            if let Some(rest) = line.strip_prefix(words) {
                return rest.to_owned();
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.out.read_line(&mut line).unwrap() > 0 {
            // The harness may have begun the line.
            if let Some(at) = line.find(PREFIX) {
                return Some(line[at + PREFIX.len()..].trim_end().to_owned());
            }
            line.clear();
        }
        None
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Tells it to end; what it says until then.
    pub(crate) fn end(&mut self) -> Vec<String> {
        drop(self.child.stdin.take());
        let mut said = Vec::new();
        while let Some(line) = self.line() {
            said.push(line);
        }
        said
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
