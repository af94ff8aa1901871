#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod checks;
mod error;
mod installation;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use mc_cli::{MemberArgs, Shutdown, UsageError};
use mc_types::ByteSize;
use tracing::Level;

use crate::error::CheckError;
use crate::installation::Installation;

/// Space for the largest value and its copies, with a margin.
const LEAST_SEGMENT: ByteSize = ByteSize::mib(64);

/// Checks an installation: joins a KV-cache store with memory, or without any, and puts, gets and removes
/// objects.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "mc-check", version)]
struct Args {
    #[command(flatten)]
    member: MemberArgs,
}

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run(args, |args: Args| -> Result<(), Box<dyn Error>> {
        mc_cli::init_tracing(Level::WARN)?;
        let size = args.member.settings()?.global_segment_size.unwrap_or_default();
        if size < LEAST_SEGMENT && size != ByteSize::bytes(0) {
            return Err(UsageError::new(format!(
                "--global_segment_size: the checks need {LEAST_SEGMENT}; contribute as much, or 0 \
                 to use the memory of the cluster's nodes"
            ))
            .into());
        }
        let work = async {
            let mut shutdown = Shutdown::listen().map_err(CheckError::Signals)?;
            tokio::select! {
                outcome = check(&args.member) => outcome,
                signal = shutdown.requested() => Err(CheckError::Interrupted(signal)),
            }
        };
        Ok(mc_cli::block_on_threads("mc-check", 2, work).map_err(CheckError::Runtime)??)
    })
}

async fn check(args: &MemberArgs) -> Result<(), CheckError> {
    let started = Instant::now();
    let installation = Box::pin(Installation::join(args)).await?;
    let outcome = checks::run(&installation).await;
    installation.leave().await;
    let passed = outcome?;
    let seconds = started.elapsed().as_secs_f64();
    let mut out = io::stdout().lock();
    writeln!(out, "success: {passed} of {passed} checks passed in {seconds:.2} s")
        .and_then(|()| out.flush())
        .map_err(CheckError::Print)
}
