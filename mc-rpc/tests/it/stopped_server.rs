//! A server that stood still, as one that is swapped out or stopped does, executes no call that
//! timed out at its caller meanwhile: the call waited in the socket, and says when it was sent.

use std::time::Duration;

use mc_meta::{PutEnd, PutStart, ReplicateConfig};
use mc_rpc::{ClientConfig, MasterClient, Method, RpcError, ServerConfig, blocking};
use mc_testkit::{Input, Program, eventually, role};
use mc_types::ErrorCode;

use crate::common::{DEADLINE, ME, key, master, segment, serve};

/// How long the callers wait that give up.
const SHORT: Duration = Duration::from_millis(600);
const SIZE: u64 = 4096;

/// The server's process; nothing in the test's own.
#[tokio::test]
async fn process() {
    if role::role().is_none() {
        return;
    }
    let server = serve(&master(), ServerConfig::default()).await;
    role::say(server.local_addr());
    while tokio::task::spawn_blocking(role::hear).await.unwrap().is_some() {
        let metrics = server.metrics();
        let executed = |of: Method| {
            metrics.calls.iter().filter(|calls| calls.method == of).map(|of| of.calls).sum::<u64>()
        };
        let executed = executed(Method::PutStart) + executed(Method::Remove);
        role::say(format_args!("{executed} {}", metrics.expired));
    }
}

struct Process {
    program: Program,
    addr: String,
}

impl Process {
    fn start() -> Self {
        let command = &mut role::command("stopped_server::process", "server");
        let mut program = Program::start(DEADLINE, command, Input::Open);
        let addr = program.hear();
        Self { program, addr }
    }

    /// How many puts were begun and objects removed, and how many calls came too late.
    fn counts(&mut self) -> (u64, u64) {
        self.program.tell("count");
        let line = self.program.hear();
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
    let other = MasterClient::connect(&process.addr, config(DEADLINE)).await.unwrap();
    let replicas = ReplicateConfig::default();
    other.mount_segment(ME, &segment(1, 1 << 20)).await.unwrap();
    let handle = other.put_start(ME, &put("old", &replicas)).await.unwrap().handle;
    let end = PutEnd::new(key("old"), handle);
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

    process.program.freeze();
    let removing = tokio::task::spawn_blocking(move || thread.remove(key("old"), true));
    let begun = caller.put_start(ME, &put("new", &replicas)).await;
    let removed = removing.await.unwrap();
    process.program.resume();
    for error in [begun.map(drop).unwrap_err(), removed.map(drop).unwrap_err()] {
        assert_eq!(error.code(), ErrorCode::RpcTimeout, "{error}");
    }

    let counted = eventually(DEADLINE, "both calls are executed or refused", || {
        let (executed, late) = process.counts();
        let counts = (executed - before.0, late - before.1);
        if counts.0 + counts.1 >= 2 { Ok(counts) } else { Err(counts) }
    });
    assert_eq!(counted.await, (0, 2), "calls that were executed, and that were refused");
    assert!(other.exist(key("old")).await.unwrap(), "removed after its caller gave up");
    other.put_start(ME, &put("new", &replicas)).await.expect("the key of the abandoned put");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn executes_the_calls_that_are_still_waited_for() {
    let (mut process, _other) = cluster().await;
    let replicas = ReplicateConfig::default();
    let caller = MasterClient::connect(&process.addr, config(DEADLINE)).await.unwrap();
    assert!(caller.exist(key("old")).await.unwrap());
    let (_, late) = process.counts();
    process.program.freeze();
    let put = put("new", &replicas);
    let mut call = std::pin::pin!(caller.put_start(ME, &put));
    let early: Result<Result<_, RpcError>, _> = tokio::time::timeout(SHORT, &mut call).await;
    assert!(early.is_err(), "the server is stopped");
    process.program.resume();
    call.await.unwrap();
    assert_eq!(process.counts().1, late);
}
