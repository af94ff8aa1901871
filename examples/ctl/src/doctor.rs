//! `doctor`: what is wrong with this host or with the cluster, and what to do.

mod certificates;
mod cluster;
mod findings;
mod host;
mod masters;
mod reach;
mod transfers;

use std::process::ExitCode;

use mc_rpc::ClientConfig;
use mc_store::NodeConfig;

use self::findings::{Findings, Level};
use crate::args::{Args, Doctor};
use crate::error::CtlError;
use crate::text::print;

/// Looks at this host and at the cluster of a master, which need not answer. `below` are the settings
/// of the environment.
pub(crate) async fn doctor(
    args: &Args,
    rpc: ClientConfig,
    node: NodeConfig,
    below: mc_store::ClientConfig,
    doctor: &Doctor,
) -> Result<ExitCode, CtlError> {
    let mut flags = args.credentials.settings();
    args.path.add_to(&mut flags);
    args.transfer.add_to(&mut flags);
    let settings = below.overridden_by(flags);
    let mut findings = Findings::default();
    host::look(&mut findings, &settings);
    certificates::own(&mut findings, &settings);
    cluster::look(&mut findings, &args.master, rpc, node, doctor).await;
    let text = if doctor.json { findings.lines() } else { findings.text() };
    print(text.as_bytes())?;
    Ok(if findings.worst() < Level::Fault { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
