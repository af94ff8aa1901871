#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod cluster;
mod content;
mod error;
mod progress;
mod report;
mod tally;
mod trace;
mod worker;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use mc_store::Client;

use crate::args::{Args, Target};
use crate::cluster::{Cluster, Probe};
use crate::error::ReplayError;
use crate::progress::Progress;
use crate::report::{Report, Setting};
use crate::trace::Trace;
use crate::worker::Workload;

fn main() -> ExitCode {
    mc_cli::run(|args: Args| -> Result<(), Box<dyn Error>> {
        mc_cli::init_tracing(tracing::Level::WARN)?;
        let report = replay(&args)?;
        let text =
            if args.json { serde_json::to_string(&report)? + "\n" } else { report.to_string() };
        io::stdout().lock().write_all(text.as_bytes()).map_err(ReplayError::Print)?;
        match report.wrong_bytes {
            0 => Ok(()),
            bytes => Err(ReplayError::WrongBytes { bytes }.into()),
        }
    })
}

/// The whole run. What it started ends when it returns, however it returns.
fn replay(args: &Args) -> Result<Report, Box<dyn Error>> {
    let block_len = args.block_len()?;
    let trace = match &args.trace {
        Some(path) => Trace::open(path, args.limit)?,
        None => Trace::builtin(args.limit)?,
    };
    let node = args.node()?;
    let own;
    let client = match args.target(trace.distinct_blocks())? {
        Target::Running { master } => {
            Client::builder().master(master).rpc(args.credentials.client_config()?)
        }
        Target::Own(plan) => {
            own = Cluster::start(&plan, &node)?;
            Client::builder().master(own.master().to_string())
        }
    };
    let client = client.node(node);
    let probe = Probe::connect(client.clone())?;
    let before = probe.report()?;
    let setting = Setting {
        block_bytes: args.block_bytes.as_u64(),
        capacity_bytes: before.capacity,
        nodes: before.segments.len() as u64,
        replicas: args.replicas,
        workers: args.workers,
    };
    let progress = Progress::start(trace.requests().len() as u64);
    let workload = Workload {
        requests: trace.requests(),
        client: &client,
        block_len,
        replicas: args.replicas,
        speedup: args.speedup,
        progress: &progress,
    };
    let started = Instant::now();
    let tally = worker::run(&workload, args.workers)?;
    let elapsed = started.elapsed();
    progress.finish();
    let evictions = probe.report()?.evicted_objects.saturating_sub(before.evicted_objects);
    Ok(Report::new(setting, &tally, evictions, elapsed))
}
