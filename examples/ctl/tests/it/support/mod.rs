//! Real programs as child processes.

mod answers;
mod cluster;
mod masters;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use mc_testkit::{Finished, Input, Program, binary};

pub(crate) use answers::{Answer, ask, change, get};
pub(crate) use cluster::{Master, Node, ctl, ctl_with_input};
pub(crate) use masters::Cluster;
pub(crate) use mc_testkit::free_port;

/// Longer than anything here takes on a busy machine, and short enough for a failing test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Starts one of this workspace's programs without standard input.
pub(crate) fn start(name: &str, args: &[&str]) -> Program {
    Program::start(DEADLINE, Command::new(binary(name)).args(args), Input::None)
}

/// Runs one of this workspace's programs to its end.
pub(crate) fn run(name: &str, args: &[&str]) -> Finished {
    start(name, args).finish()
}

/// A page of the port at `url`, which is `http://host:port`.
///
/// # Panics
/// When there is none within [`DEADLINE`].
pub(crate) fn page(url: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).expect("a listener");
    stream.set_read_timeout(Some(DEADLINE)).expect("a time");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .expect("a reader");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}
