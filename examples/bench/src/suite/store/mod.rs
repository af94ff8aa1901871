//! Puts and gets: master, storage node and client in processes of their own.

mod cluster;
mod fresh;
mod latency;
mod pressure;
mod range_verify;
mod reference;
mod relay;
mod restart;
mod slow_reader;
mod ticket;

use std::io::Write;

pub(super) use self::cluster::{Carrier, Cluster, DiskPlan, Keeping, Plan, connect};
pub(crate) use self::cluster::{MasterAddress, MasterTask, NodeTask, serve_master, serve_node};
pub(crate) use self::reference::ReferenceOptions;
pub(crate) use self::relay::{RelayTask, serve_relay};
use crate::error::BenchError;
use crate::figure::Report;
use crate::scale::Scale;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(
    scale: Scale,
    reference: &ReferenceOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    let reference = reference.find()?;
    latency::run(scale, reference.as_ref(), report)?;
    fresh::run(scale, report)?;
    range_verify::run(scale, report)?;
    ticket::run(scale, report)?;
    pressure::run(scale, report)?;
    slow_reader::run(scale, report)?;
    restart::run(scale, report)
}
