#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod check;
mod convert;
mod error;
mod fetch;
mod files;
mod inspect;
mod quality;
mod text;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use args::{Args, Verb};
use tracing::Level;

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run(args, |args: Args| -> Result<(), Box<dyn Error>> {
        mc_cli::init_tracing(Level::WARN)?;
        match &args.verb {
            Verb::Convert(convert) => convert::convert(convert),
            Verb::Inspect(inspect) => inspect::inspect(inspect),
            Verb::Quality(quality) => quality::quality(quality),
            Verb::Fetch(fetch) => fetch::fetch(fetch),
            Verb::Check(check) => check::check(check),
        }
    })
}
