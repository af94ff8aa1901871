//! A server that stood still, as one that is swapped out or stopped does, executes no call whose
//! caller has given up meanwhile: the call waited in the socket, and says when it was sent.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::{ME, PATIENCE, key, master, segment, serve};
use mc_meta::{PutEnd, PutStart, ReplicateConfig};
use mc_rpc::{ClientConfig, MasterClient, Method, RpcError, ServerConfig, blocking};
use mc_types::ErrorCode;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Set in the process that is the server.
const VARIABLE: &str = "STOPPED_SERVER";
/// What lines for the parent begin with, so that the harness's are none.
const PREFIX: &str = "| ";
/// How long the callers wait that give up.
const SHORT: Duration = Duration::from_millis(600);
const SIZE: u64 = 4096;

/// The server's process; nothing in the test's own.
#[tokio::test]
async fn process() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let server = serve(&master(), ServerConfig::default()).await;
    let say = |line: String| {
        let mut out = std::io::stdout();
        writeln!(out, "{PREFIX}{line}").unwrap();
        out.flush().unwrap();
    };
    say(server.local_addr().to_string());
    loop {
        let read = || std::io::stdin().read_line(&mut String::new());
        if tokio::task::spawn_blocking(read).await.unwrap().unwrap() == 0 {
            return;
        }
        let metrics = server.metrics();
        let executed = |of: Method| {
            metrics.calls.iter().filter(|calls| calls.method == of).map(|of| of.calls).sum::<u64>()
        };
        let executed = executed(Method::PutStart) + executed(Method::Remove);
        say(format!("{executed} {}", metrics.expired));
    }
}

struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    addr: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, to, from, addr: String::new() };
        process.addr = process.line();
        process
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        while self.from.read_line(&mut line).unwrap() > 0 {
            // The harness may have begun the line.
            if let Some(at) = line.find(PREFIX) {
                return line[at + PREFIX.len()..].trim_end().to_owned();
            }
            line.clear();
        }
        panic!("the server has ended")
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }

    /// Stops the process; it stands still when this returns.
    fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }

    fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// How many puts were begun and objects removed, and how many calls came too late.
    fn counts(&mut self) -> (u64, u64) {
        writeln!(self.to).unwrap();
        let line = self.line();
        let (executed, expired) = line.split_once(' ').unwrap();
        (executed.parse().unwrap(), expired.parse().unwrap())
    }
}

fn config(call_timeout: Duration) -> ClientConfig {
    let mut config = ClientConfig::default();
    config.call_timeout = call_timeout;
    config
}

fn put<'a>(text: &'a str, config: &'a ReplicateConfig) -> PutStart<'a> {
    PutStart { key: key(text), slice_lengths: &[SIZE], config }
}

/// A cluster with the object `old`.
async fn cluster() -> (Process, MasterClient) {
    let process = Process::start();
    let other = MasterClient::connect(&process.addr, config(PATIENCE)).await.unwrap();
    let replicas = ReplicateConfig::default();
    other.mount_segment(ME, &segment(1, 1 << 20)).await.unwrap();
    let handle = other.put_start(ME, &put("old", &replicas)).await.unwrap().handle;
    let end = PutEnd { key: key("old"), handle, checksums: &[], prefixes: &[] };
    other.put_end(ME, &end).await.unwrap();
    (process, other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executes_no_call_whose_caller_gave_up() {
    let (mut process, other) = cluster().await;
    let replicas = ReplicateConfig::default();
    // One that repeats calls would ask for its put again, and revoke it.
    let mut once = config(SHORT);
    once.retry = false;
    let caller = MasterClient::connect(&process.addr, once).await.unwrap();
    assert!(caller.exist(key("old")).await.unwrap());
    let thread = blocking::MasterClient::connect(&process.addr, config(SHORT)).unwrap();
    assert!(thread.exist(key("old")).unwrap());
    let before = process.counts();

    process.stop();
    let removing = tokio::task::spawn_blocking(move || thread.remove(key("old"), true));
    let begun = caller.put_start(ME, &put("new", &replicas)).await;
    let removed = removing.await.unwrap();
    process.go_on();
    for error in [begun.map(drop).unwrap_err(), removed.map(drop).unwrap_err()] {
        assert_eq!(error.code(), ErrorCode::RpcTimeout, "{error}");
    }

    let deadline = Instant::now() + PATIENCE;
    let (executed, late) = loop {
        let (executed, late) = process.counts();
        let (executed, late) = (executed - before.0, late - before.1);
        if executed + late >= 2 {
            break (executed, late);
        }
        assert!(Instant::now() < deadline, "{executed} executed, {late} refused");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!((executed, late), (0, 2), "calls that were executed, and that were refused");
    assert!(other.exist(key("old")).await.unwrap(), "removed after its caller gave up");
    other
        .put_start(ME, &put("new", &replicas))
        .await
        .expect("the key of a put that nobody waits for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executes_the_calls_that_are_still_waited_for() {
    let (mut process, _other) = cluster().await;
    let replicas = ReplicateConfig::default();
    let caller = MasterClient::connect(&process.addr, config(PATIENCE)).await.unwrap();
    assert!(caller.exist(key("old")).await.unwrap());
    let (_, late) = process.counts();
    process.stop();
    let put = put("new", &replicas);
    let mut call = std::pin::pin!(caller.put_start(ME, &put));
    let early: Result<Result<_, RpcError>, _> = tokio::time::timeout(SHORT, &mut call).await;
    assert!(early.is_err(), "the server is stopped");
    process.go_on();
    call.await.unwrap();
    assert_eq!(process.counts().1, late);
}
