//! Runs the real binary.

use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longer than any run here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs `mc-replay` to its end; panics, and ends it, when it does not end in time.
pub(crate) fn replay(args: &[&str]) -> Output {
    wait(spawn(args))
}

/// Starts `mc-replay` with both outputs piped.
pub(crate) fn spawn(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_mc-replay"))
        .args(args)
        .env_remove("MC_LOG")
        .env_remove("MC_LOG_FORMAT")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
}

/// Waits for the end; panics, and ends the process, when it does not come in time.
pub(crate) fn wait(child: Child) -> Output {
    let pid = child.id().to_string();
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    match end.recv_timeout(DEADLINE) {
        Ok(output) => output.expect("the binary can be waited for"),
        Err(_) => {
            let _ = Command::new("kill").args(["-s", "KILL", &pid]).status();
            panic!("mc-replay ran for more than {DEADLINE:?}");
        }
    }
}

/// What `output` says on standard error.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("errors are text")
}
