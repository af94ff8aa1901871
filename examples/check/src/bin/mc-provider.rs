//! The former name of `mc-check`: prints a notice and becomes that program.

#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    eprintln!("mc-provider is now called mc-check; please use the new name");
    let error = match std::env::current_exe() {
        Ok(this) => {
            Command::new(this.with_file_name("mc-check")).args(std::env::args_os().skip(1)).exec()
        }
        Err(error) => error,
    };
    eprintln!("error: cannot start mc-check: {error}; install it beside mc-provider");
    ExitCode::FAILURE
}
