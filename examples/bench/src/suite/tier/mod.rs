//! Storage below memory.

mod fio;
mod gets;
mod objects;
mod puts;
mod rebuild;
mod ssd;

use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub(crate) use self::rebuild::{Fill, Reopen, fill, reopen};
use crate::error::BenchError;
use crate::figure::Report;
use crate::interrupt;
use crate::scale::Scale;

/// Where the suite writes.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TierOptions {
    /// Directory of the tier suite, on the disk to be measured: up to 4.3 GB, removed at the end
    #[arg(long = "tier_dir", value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

impl TierOptions {
    /// A directory of its own, which is removed when it is dropped.
    fn make_directory(&self) -> Result<TempDir, BenchError> {
        Ok(tempfile::Builder::new().prefix("mc-bench-tier-").tempdir_in(&self.directory)?)
    }
}

/// Prints the suite's figures.
pub(crate) fn run<W: Write>(
    scale: Scale,
    options: &TierOptions,
    report: &mut Report<W>,
) -> Result<(), BenchError> {
    // What is on the disk is removed, also after Ctrl-C.
    interrupt::listen()?;
    ssd::run(scale, options, report)?;
    rebuild::run(scale, options, report)?;
    puts::run(scale, options, report)?;
    gets::run(scale, options, report)
}

/// The path of a directory, as masters tell it to their clients.
fn as_text(directory: &Path) -> Result<String, BenchError> {
    let path = directory.canonicalize()?;
    let text = path.to_str().ok_or_else(|| BenchError::wrong("--tier_dir", "it is not UTF-8"))?;
    Ok(text.to_owned())
}
