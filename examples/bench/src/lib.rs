#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod cpu_clock;
mod error;
mod figure;
mod interrupt;
mod iperf;
mod latency;
mod pattern;
mod placement;
mod process;
mod raw;
mod scale;
mod suite;

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::figure::Report;
use crate::scale::Scale;
use crate::suite::roles::Role;
use crate::suite::{LoadOptions, Options, ReferenceOptions, Suite, TierOptions, TraceSource};

/// Measures every figure in the project's documents, and its rival or limit.
///
/// Correctness is checked while measuring: a wrong byte or two allocations that
/// overlap end the run with exit code 1.
#[derive(Debug, clap::Parser)]
#[command(version)]
struct Args {
    /// Suites to run
    #[arg(value_name = "SUITE", required_unless_present = "role")]
    suites: Vec<Suite>,
    /// Print one JSON object per line instead of tables
    #[arg(long)]
    json: bool,
    /// Measure less: every suite in under 50 seconds
    #[arg(long)]
    quick: bool,
    /// Measure as little as possible, to check that every suite runs
    #[arg(long, hide = true)]
    smoke: bool,
    /// Trace of the evict suite: JSON lines with "hash_ids", or .gz of them [default: the shipped
    /// one]
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Draw the evict suite's hit rates as an SVG picture
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    reference: ReferenceOptions,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    tier: TierOptions,
    /// Role of a child process of this program, as JSON
    #[arg(long, hide = true, value_parser = parse_role)]
    role: Option<Role>,
}

fn parse_role(text: &str) -> Result<Role, serde_json::Error> {
    serde_json::from_str(text)
}

impl Args {
    fn scale(&self) -> Scale {
        match (self.smoke, self.quick) {
            (true, _) => Scale::Smoke,
            (false, true) => Scale::Quick,
            (false, false) => Scale::Full,
        }
    }
}

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run(args, |mut args: Args| -> Result<(), Box<dyn Error>> {
        if let Some(role) = &args.role {
            return Ok(role.play()?);
        }
        if args.load.master.is_some() {
            args.load.rpc = args.load.credentials.client_config()?;
            interrupt::listen()?;
        }
        let options = Options {
            scale: args.scale(),
            trace: TraceSource { path: args.trace, plot: args.plot },
            reference: args.reference,
            load: args.load,
            tier: args.tier,
        };
        let mut report = Report::new(io::stdout().lock(), args.json);
        Suite::expand(&args.suites).into_iter().try_for_each(|suite| {
            interrupt::check()?;
            suite.run(&options, &mut report)
        })?;
        Ok(())
    })
}
