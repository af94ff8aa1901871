#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod access;
mod args;
mod c2c;
mod change_log;
mod check;
mod cluster;
mod compat;
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
mod tuning;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use mc_cli::{Configured, Program, Reloader, UsageError};

use crate::args::Args;

/// The settings of this program.
pub(crate) const PROGRAM: Program = Program {
    tables: compat::TABLES,
    prefix: "MC_MASTER_",
    // Mooncake's file of a client is not the master's: MOONCAKE_CONFIG_PATH is not looked at.
    variables: &[],
    client: None,
};

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let command_line = args.clone();
    mc_cli::run_program(
        &PROGRAM,
        args,
        |configured: Configured<Args>| -> Result<(), Box<dyn Error>> {
            let Configured { args, settings, .. } = configured;
            if args.server.check_config {
                return Ok(check::check(&args).map_err(UsageError::new)?);
            }
            Ok(serve::run(&args, Reloader::new(PROGRAM, command_line, settings))?)
        },
    )
}
