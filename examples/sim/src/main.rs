//! The command line of the simulator.

#![forbid(unsafe_code)]

mod args;
mod output;

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use mc_sim::{Plan, run, shrink, soak};

use crate::args::{Args, Command, RunArgs, SoakArgs};
use crate::output::{print_failure, print_report, print_soak, print_soaked};

/// Longest plan that is read, in bytes.
const MAX_PLAN: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
enum SimError {
    #[error("cannot read the plan {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has {len} bytes; a plan has at most {MAX_PLAN}", path.display())]
    TooLong { path: PathBuf, len: u64 },
    #[error("{} is no plan", path.display())]
    NoPlan { path: PathBuf, source: serde_json::Error },
    #[error("cannot write the history {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("the simulation found {0} violations")]
    Violations(usize),
}

fn main() -> ExitCode {
    mc_cli::run(std::env::args_os().collect(), |args: Args| match args.command {
        Command::Run(args) => run_one(&args),
        Command::Soak(args) => run_many(&args),
    })
}

fn run_one(args: &RunArgs) -> Result<(), Box<dyn Error>> {
    let mut plan = match &args.plan {
        Some(path) => read_plan(path)?,
        None => args.size.plan(args.seed)?,
    };
    plan.shows_effects |= args.effects;
    plan.check().map_err(|error| mc_cli::UsageError::new(error.to_string()))?;
    let write_error = |source| {
        let path = args.history.clone().unwrap_or_default();
        SimError::Write { path, source }
    };
    let copy = args.history.as_deref().map(copy_to).transpose().map_err(write_error)?;
    let report = run(&plan, copy).map_err(write_error)?;
    print_report(&report, args.json)?;
    if report.violations.is_empty() {
        return Ok(());
    }
    let found = report.violations.len();
    if !args.no_shrink {
        print_failure(&shrink(&plan, args.shrink_time())?, args.json)?;
    }
    Err(SimError::Violations(found).into())
}

fn run_many(args: &SoakArgs) -> Result<(), Box<dyn Error>> {
    args.size.plan(args.seeds.start)?;
    let plan = |seed| args.size.plan(seed).expect("it depends on the size alone");
    let threads = args.threads.or_else(|| std::thread::available_parallelism().ok());
    let threads = threads.unwrap_or(NonZeroUsize::MIN);
    let limit = args.seconds.map(Duration::from_secs);
    let on_end = |report: &_| {
        // Who reads it may have closed the pipe.
        let _ = print_soaked(report, args.json);
    };
    let soak = soak(args.seeds.clone(), threads, limit, args.keep_going, plan, on_end)?;
    print_soak(&soak, args.json)?;
    let Some(failed) = soak.failed.first() else { return Ok(()) };
    let shrunk = shrink(failed, Duration::from_secs(60))?;
    print_failure(&shrunk, args.json)?;
    Err(SimError::Violations(shrunk.report.violations.len()).into())
}

fn read_plan(path: &Path) -> Result<Plan, SimError> {
    let read_error = |source| SimError::Read { path: path.to_owned(), source };
    let len = fs::metadata(path).map_err(read_error)?.len();
    if len > MAX_PLAN {
        return Err(SimError::TooLong { path: path.to_owned(), len });
    }
    let text = fs::read(path).map_err(read_error)?;
    serde_json::from_slice(&text)
        .map_err(|source| SimError::NoPlan { path: path.to_owned(), source })
}

/// Opens the file that a history is copied to.
fn copy_to(path: &Path) -> io::Result<Box<dyn io::Write + Send>> {
    Ok(Box::new(BufWriter::with_capacity(1 << 20, File::create(path)?)))
}
