//! The former name of `mc-node`: prints a notice and becomes that program.

#![forbid(unsafe_code)]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    eprintln!("mc-client is now called mc-node; please use the new name");
    let error = match std::env::current_exe() {
        Ok(this) => {
            Command::new(this.with_file_name("mc-node")).args(std::env::args_os().skip(1)).exec()
        }
        Err(error) => error,
    };
    eprintln!("error: cannot start mc-node: {error}; install it beside mc-client");
    ExitCode::FAILURE
}
