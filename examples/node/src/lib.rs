#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod host;
mod serve;
mod settings;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use mc_cli::compat::Otherwise::{Ignore, Warn};
use mc_cli::compat::{CompatFlag, GLOG_FLAGS, switch, value};
use mc_cli::{Parsed, Refusal};

/// Flags of `mooncake_client` without a function of their own here.
const COMPAT: &[CompatFlag] = &[
    switch(
        "start_offload_rpc_server",
        &["true"],
        Warn("it has no effect: peers read the disk through the same port as the memory"),
    ),
    switch(
        "use_mmap_arena_allocator",
        &["false"],
        Warn("it has no effect: for huge pages of the segment set MC_STORE_USE_HUGEPAGE=1"),
    ),
    value("mmap_arena_pool_size", &[], Ignore),
];

fn parse(args: Vec<OsString>) -> Result<Parsed<args::Args>, Refusal> {
    mc_cli::parse_compatible(args, &[COMPAT, GLOG_FLAGS])
}

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run_with(args, parse, |args: args::Args| -> Result<(), Box<dyn Error>> {
        // Flags that need others are refused before anything is done.
        args.credentials.client_config()?;
        Ok(serve::run(&args)?)
    })
}
