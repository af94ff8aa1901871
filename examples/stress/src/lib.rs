#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod content;
mod decode;
mod error;
mod prefill;
mod progress;
mod summary;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use mc_cli::Shutdown;
use tracing::Level;

use crate::args::{Args, Role};
use crate::error::StressError;

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run(args, |args: Args| -> Result<(), Box<dyn Error>> {
        mc_cli::init_tracing(Level::WARN)?;
        let client = args.member.client()?;
        // More threads than CPUs would only take turns.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let work = async {
            let mut shutdown = Shutdown::listen().map_err(StressError::Signals)?;
            let client = client.connect().await.map_err(StressError::Join)?;
            let outcome = tokio::select! {
                outcome = run(&args, &client) => outcome,
                signal = shutdown.requested() => Err(StressError::Interrupted(signal)),
            };
            client.shutdown().await;
            outcome
        };
        let threads = args.threads.min(cpus);
        Ok(mc_cli::block_on_threads("mc-stress", threads, work).map_err(StressError::Runtime)??)
    })
}

async fn run(args: &Args, client: &mc_store::Client) -> Result<(), StressError> {
    let workload = args.workload();
    match args.role {
        Role::Prefill => {
            let summary = prefill::put_all(client, workload).await?;
            say(&format!("prefill: {summary}"))?;
            prefill::stay_until_taken(client, workload).await
        }
        Role::Decode => {
            let found = decode::check_all(client, workload).await?;
            say(&format!("decode: {found}"))?;
            found.verdict()
        }
    }
}

/// Prints a result's line.
fn say(line: &str) -> Result<(), StressError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(StressError::Print)
}
