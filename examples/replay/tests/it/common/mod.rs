//! Runs the real binary.

use std::process::Command;
use std::time::Duration;

use mc_testkit::{Finished, Input, Program};

/// Longer than any run here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs `mc-replay` to its end; panics, and ends it, when it does not end in time.
pub(crate) fn replay(args: &[&str]) -> Finished {
    start(args).finish()
}

/// Starts `mc-replay`.
pub(crate) fn start(args: &[&str]) -> Program {
    let command = &mut Command::new(env!("CARGO_BIN_EXE_mc-replay"));
    Program::start(DEADLINE, command.args(args), Input::None)
}
