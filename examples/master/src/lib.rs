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
mod interface;
mod journal;
mod metadata;
mod serve;
mod storage;

use std::ffi::OsString;
use std::process::ExitCode;

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run_with(args, config_file::parse, |args| serve::run(&args))
}
