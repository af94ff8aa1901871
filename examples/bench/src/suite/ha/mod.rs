//! The cost of keeping a master's metadata, and the time until it is back.

mod bytes;
mod failover;
mod puts;
mod restart;

use std::io::Write;

use super::rpc::LoadOptions;
use crate::error::BenchError;
use crate::figure::Report;
use crate::scale::Scale;

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(
    scale: Scale,
    options: &LoadOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    bytes::run(scale, report)?;
    puts::run(scale, options, report)?;
    restart::run(scale, report)?;
    failover::run(scale, report)
}
