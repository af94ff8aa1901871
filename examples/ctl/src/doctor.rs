//! `doctor`: what is wrong with this host or with the cluster, and what to do.

mod cluster;
mod findings;
mod host;

use std::process::ExitCode;

use mc_rpc::ClientConfig;
use mc_store::NodeConfig;

use self::findings::{Findings, Level};
use crate::args::Doctor;
use crate::error::CtlError;
use crate::text::print;

/// Looks at this host and at the cluster of a master, which need not answer.
pub(crate) async fn doctor(
    master: &str,
    rpc: ClientConfig,
    node: NodeConfig,
    doctor: &Doctor,
) -> Result<ExitCode, CtlError> {
    let mut findings = Findings::default();
    host::look(&mut findings);
    cluster::look(&mut findings, master, rpc, node, doctor).await;
    let text = if doctor.json { findings.lines() } else { findings.text() };
    print(text.as_bytes())?;
    Ok(if findings.worst() < Level::Fault { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
