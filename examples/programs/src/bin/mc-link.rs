//! A small program that replaces links where there cannot be any: copied under a program's name
//! beside `mc-store`, it becomes that program.

#![forbid(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The program that has all others, and the name for which this one stands.
fn program() -> io::Result<(PathBuf, PathBuf)> {
    let this = std::env::current_exe()?;
    Ok((this.with_file_name("mc-store"), this))
}

fn main() -> ExitCode {
    let error = match program() {
        Ok((program, this)) => {
            Command::new(program).arg0(this).args(std::env::args_os().skip(1)).exec()
        }
        Err(error) => error,
    };
    eprintln!("error: cannot start mc-store: {error}; install it beside this program");
    ExitCode::FAILURE
}
