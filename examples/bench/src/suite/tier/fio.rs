//! The usual yardstick of a disk, where it is installed.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::error::BenchError;

/// The part of fio's report that is used.
#[derive(Deserialize)]
struct FioReport {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    read: Reads,
}

#[derive(Deserialize)]
struct Reads {
    /// Bytes per second.
    bw_bytes: f64,
}

/// The reads that fio makes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading<'a> {
    pub(super) file: &'a Path,
    /// The bytes from the begin of the file that are read.
    pub(super) len: u64,
    pub(super) block: usize,
    pub(super) depth: u32,
    pub(super) engine: &'static str,
    pub(super) is_direct: bool,
}

/// Bytes per second of random reads by fio; `None` when there is no fio.
pub(super) fn measure(
    reading: &Reading<'_>,
    duration: Duration,
) -> Result<Option<f64>, BenchError> {
    let Reading { file, len, block, depth, engine, is_direct } = *reading;
    let mut fio = Command::new("fio");
    fio.args(["--name=read", "--rw=randread", "--readonly", "--output-format=json"]);
    // Other places each time, and none left out: what was read may be in the caches of a host.
    fio.args(["--randrepeat=0", "--norandommap", "--time_based"]);
    fio.arg(format!("--filename={}", file.display())).arg(format!("--size={len}"));
    fio.arg(format!("--bs={block}")).arg(format!("--iodepth={depth}"));
    fio.arg(format!("--ioengine={engine}")).arg(format!("--direct={}", u8::from(is_direct)));
    fio.arg(format!("--runtime={}ms", duration.as_millis()));
    let output = match fio.output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(BenchError::Spawn { role: "fio", source }),
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(BenchError::wrong("fio", said));
    }
    // Warnings may stand before the report.
    let begin = output.stdout.iter().position(|byte| *byte == b'{').unwrap_or(0);
    let answer: FioReport = serde_json::from_slice(&output.stdout[begin..])
        .map_err(|source| BenchError::PeerWords { role: "fio", source })?;
    let job = answer.jobs.first();
    let job = job.ok_or_else(|| BenchError::wrong("fio", "it tells of no job"))?;
    Ok(Some(job.read.bw_bytes))
}
