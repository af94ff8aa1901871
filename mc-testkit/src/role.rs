//! A test's own program, started again as another process that plays a part.
//!
//! The part is a test of its own, which returns at once where [`role`] names none.

use std::io::Write as _;
use std::process::Command;

/// Names the part to the process that plays it.
const VARIABLE: &str = "MC_TEST_ROLE";

/// The beginning of a line for the parent, which no line of the harness has.
pub(crate) const PREFIX: &str = "> ";

/// The command that runs the test `player` of this program alone, as `role`.
#[must_use]
pub fn command(player: &str, role: &str) -> Command {
    // Not by its path, which another user may not be able to walk.
    let this = if cfg!(target_os = "linux") {
        "/proc/self/exe".into()
    } else {
        std::env::current_exe().expect("the path of this program")
    };
    let mut command = Command::new(this);
    command.args([player, "--exact", "--nocapture"]).env(VARIABLE, role);
    command
}

/// The command as [`command`], run by `launcher`, a program that takes another as its last
/// arguments.
#[must_use]
pub fn launched_by(mut launcher: Command, player: &str, role: &str) -> Command {
    let this = command(player, role);
    // `/proc/self/exe` would be the launcher.
    launcher.arg(std::env::current_exe().expect("the path of this program"));
    launcher.args(this.get_args()).env(VARIABLE, role);
    launcher
}

/// The part that this process plays; `None` in a run of all tests.
#[must_use]
pub fn role() -> Option<String> {
    std::env::var(VARIABLE).ok()
}

/// Tells the parent, which [hears](crate::Program::hear) it.
///
/// # Panics
/// When the parent has closed the pipe.
pub fn say(words: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // The harness may have begun a line.
    writeln!(out, "\n{PREFIX}{words}").and_then(|()| out.flush()).expect("the parent listens");
}

/// The next line that the parent [tells](crate::Program::tell); `None` when it has closed the
/// pipe or is gone. Blocks.
#[must_use]
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line).unwrap_or(0);
    (read > 0).then(|| line.trim_end().to_owned())
}
