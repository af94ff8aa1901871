#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod host;
mod serve;

use std::process::ExitCode;

fn main() -> ExitCode {
    mc_cli::run(|args: args::Args| serve::run(&args))
}
