//! This test's program, started again as one of the processes of a cluster.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_testkit::{Input, Program, role};

use crate::DEADLINE;

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

/// Returns the role of this process, and its master's address; `None` for the test itself.
pub(crate) fn own_role() -> Option<(Role, SocketAddr)> {
    let text = role::role()?;
    let words: Vec<&str> = text.split(' ').collect();
    let role = match words[0] {
        "master" => Role::Master,
        "node" => Role::Node,
        "writer" => Role::Writer,
        _ => Role::Worker { number: words[2].parse().unwrap(), seed: words[3].parse().unwrap() },
    };
    Some((role, words[1].parse().unwrap()))
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

/// Starts a process, which is killed when it is dropped.
pub(crate) fn start(role: Role, master: SocketAddr) -> Program {
    let text = match role {
        Role::Master => format!("master {master}"),
        Role::Node => format!("node {master}"),
        Role::Writer => format!("writer {master}"),
        Role::Worker { number, seed } => format!("worker {master} {number} {seed}"),
    };
    // A worker ends after the calls that it has under way.
    Program::start(2 * DEADLINE, &mut role::command("process", &text), Input::Open)
}

/// Waits for a line with `words`, and returns the text behind them.
pub(crate) fn wait_for(process: &mut Program, words: &str) -> String {
    loop {
        if let Some(rest) = process.hear().strip_prefix(words) {
            return rest.to_owned();
        }
    }
}

/// Tells a process to end; returns what it says until then.
pub(crate) fn end(process: &mut Program) -> Vec<String> {
    process.close_input();
    std::iter::from_fn(|| process.hear_or_end()).collect()
}
