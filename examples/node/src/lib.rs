#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod check;
mod host;
mod serve;
mod settings;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use mc_cli::compat::Otherwise::{Ignore, Warn};
use mc_cli::compat::{CompatFlag, GLOG_FLAGS, switch, value};
use mc_cli::{ClientFlags, Configured, Program, Reloader, UsageError};

use crate::args::Args;

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

/// The settings of this program: its flags, and all settings of a client.
pub(crate) const PROGRAM: Program = Program {
    tables: &[COMPAT, GLOG_FLAGS],
    prefix: "MC_NODE_",
    variables: &[
        ("config_path", "MOONCAKE_CONFIG_PATH"),
        // Kubernetes sets MC_NODE_PORT, to a URL, where a service is called mc-node.
        ("port", "MC_NODE_THIN_CLIENTS_PORT"),
    ],
    client: Some(ClientFlags {
        flags: &[
            ("enable_offload", "enable_ssd_offload"),
            ("enable_http_server", "enable_client_http_server"),
            ("http_port", "client_http_port"),
        ],
        defaults: settings::DEFAULTS,
    }),
};

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let command_line = args.clone();
    mc_cli::run_program(
        &PROGRAM,
        args,
        |configured: Configured<Args>| -> Result<(), Box<dyn Error>> {
            let (args, config) = (&configured.args, settings::settings(&configured));
            // Flags that need others are refused before anything is done.
            args.credentials.over(config.clone())?;
            if args.server.check_config {
                return Ok(check::check(&configured).map_err(UsageError::new)?);
            }
            let reloader = Reloader::new(PROGRAM, command_line, configured.settings.clone());
            Ok(serve::run(args, &config, reloader)?)
        },
    )
}
