#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod host;
mod serve;
mod settings;

use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    mc_cli::run(|args: args::Args| -> Result<(), Box<dyn Error>> {
        // Flags that need others are refused before anything is done.
        args.credentials.client_config()?;
        Ok(serve::run(&args)?)
    })
}
