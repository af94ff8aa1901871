#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod access;
mod args;
mod c2c;
mod change_log;
mod cluster;
mod compat;
mod config_file;
mod connections;
mod etcd;
mod events;
mod figures;
mod ha;
mod http;
mod journal;
mod metadata;
mod serve;
mod storage;

use std::process::ExitCode;

fn main() -> ExitCode {
    mc_cli::run_with(config_file::parse, |args| serve::run(&args))
}
