//! Why a command fails.

use std::io;
use std::path::PathBuf;

use mc_c2c::{ConvertError, WeightsError};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ToolError {
    #[error("cannot read {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot use the weights in {path:?}")]
    Weights { path: PathBuf, source: WeightsError },
    #[error("{path:?} exists; name another file, or replace it with --force")]
    Exists { path: PathBuf },
    #[error("cannot write {path:?}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot convert {path:?}")]
    Convert { path: PathBuf, source: ConvertError },
    #[error("{path:?} has an infinite or undefined element")]
    NotFinite { path: PathBuf },
    #[error("{failed} of {rules} rules cannot be followed; see above")]
    Rules { failed: usize, rules: usize },
    #[error("cannot write to standard output")]
    WriteOutput(#[source] io::Error),
}
