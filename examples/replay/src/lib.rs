#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod cluster;
mod content;
mod error;
mod interrupt;
mod progress;
mod report;
mod tally;
mod tier;
pub mod trace;
mod worker;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mc_store::Client;

use crate::args::{Args, Target};
use crate::cluster::{Cluster, Probe};
use crate::error::ReplayError;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::report::{Report, Setting, Totals};
use crate::tier::{Tier, TierDirectory, TierKind};
use crate::trace::Trace;
use crate::worker::Workload;

/// Time that a put waits for memory while blocks are written to a disk.
const DISK_PUT_WAIT: Duration = Duration::from_secs(60);

/// Does what the command line `args`, program name first, asks for.
pub fn main(args: Vec<OsString>) -> ExitCode {
    mc_cli::run(args, |args: Args| -> Result<(), Box<dyn Error>> {
        mc_cli::init_tracing(tracing::Level::WARN)?;
        let (report, cluster) = replay(&args)?;
        let text =
            if args.json { serde_json::to_string(&report)? + "\n" } else { report.to_string() };
        io::stdout().lock().write_all(text.as_bytes()).map_err(ReplayError::Print)?;
        // After the result is printed: to remove many files takes minutes on some file systems.
        cluster.map_or(Ok(()), Cluster::end)?;
        match report.wrong_bytes {
            0 => Ok(()),
            bytes => Err(ReplayError::WrongBytes { bytes }.into()),
        }
    })
}

/// The whole run. Returns the cluster that it started, if any, which ends when it is dropped.
fn replay(args: &Args) -> Result<(Report, Option<Cluster>), Box<dyn Error>> {
    let block_len = args.block_len()?;
    let interrupt = match args.tier {
        Some(_) => Interrupt::listen()?,
        None => Interrupt::never(),
    };
    let tier = args.tier.as_ref().map(Tier::make_directory).transpose()?;
    let kind = tier.as_ref().map(TierDirectory::kind);
    let trace = match &args.trace {
        Some(path) => Trace::open(path, args.limit)?,
        None => Trace::builtin(args.limit)?,
    };
    let node = args.node()?;
    let mut own = None;
    let client = match args.target(trace.distinct_blocks())? {
        Target::Running { master } => {
            Client::builder().master(master).rpc(args.credentials.client_config()?)
        }
        Target::Own(plan) => {
            let cluster = own.insert(Cluster::start(&plan, &node, tier)?);
            let client = Client::builder().master(cluster.address().to_string());
            if kind.is_some() { client.put_wait(DISK_PUT_WAIT) } else { client }
        }
    };
    let client = client.node(node);
    let probe = Probe::connect(client.clone())?;
    let before = probe.report()?;
    let setting = Setting {
        block_bytes: args.block_bytes.as_u64(),
        capacity_bytes: before.totals.capacity,
        nodes: before.segments.len() as u64,
        replicas: args.replicas,
        workers: args.workers,
        tier: kind,
    };
    let progress = Progress::start(trace.requests().len() as u64);
    let workload = Workload {
        requests: trace.requests(),
        client: &client,
        block_len,
        replicas: args.replicas,
        speedup: args.speedup,
        has_files: kind == Some(TierKind::Dfs),
        interrupt: &interrupt,
        progress: &progress,
    };
    let started = Instant::now();
    let tally = worker::run(&workload, args.workers)?;
    let elapsed = started.elapsed();
    progress.finish();
    if interrupt.is_asked() {
        return Err(ReplayError::Interrupted.into());
    }
    let mut tier = tally.tier;
    if let Some(cluster) = &own {
        tier += cluster.disk_use();
    }
    let totals = Totals {
        infinite_hits: trace.infinite_hits(),
        evictions: probe
            .report()?
            .totals
            .evicted_objects
            .saturating_sub(before.totals.evicted_objects),
        tier,
        elapsed,
    };
    Ok((Report::new(setting, &tally, totals), own))
}
