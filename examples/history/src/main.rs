#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod args;
mod record;
mod report;
mod value;

use std::error::Error;
use std::process::ExitCode;

use mc_cli::cause_chain;
use tracing::Level;

use crate::args::{Args, Check, Command};

/// Exit code of a check that found violations.
const VIOLATED: u8 = 1;

/// Exit code of a check whose logs cannot be read.
const UNREADABLE: u8 = 2;

fn main() -> ExitCode {
    mc_cli::run(std::env::args_os().collect(), |args: Args| -> Result<ExitCode, Box<dyn Error>> {
        mc_cli::init_tracing(Level::WARN)?;
        match args.command {
            Command::Record(record) => {
                record::record(&record, record.last_client()?)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Check(check) => Ok(run_check(&check)?),
        }
    })
}

fn run_check(check: &Check) -> std::io::Result<ExitCode> {
    let mut history = mc_history::History::default();
    for log in &check.logs {
        if let Err(error) = history.read(log) {
            eprintln!("error: {}", cause_chain(&error));
            return Ok(ExitCode::from(UNREADABLE));
        }
    }
    let violations = mc_history::check(&history.operations, &check.rules(&history));
    report::print(check, &history, &violations)?;
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}
