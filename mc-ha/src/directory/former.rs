//! A history that another one has replaced.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{At, create_dir, rename};
use super::logs::{self, NumberedLog};
use super::terms::{IDENTITY, TERM};
use super::write_format;
use crate::journal::JournalError;
use crate::position::Position;

/// Moves everything that makes the history, whose last position this is, to a directory of its own,
/// and returns that. `logs` may be closed afterwards, also when it fails.
///
/// In this order a crash leaves a beginning of the history where it was: its snapshots, and then nothing.
pub(super) fn move_aside(
    metadata: &Path,
    last: Position,
    logs: &[Arc<NumberedLog>],
) -> Result<PathBuf, JournalError> {
    let all = metadata.join("former");
    create_dir(&all)?;
    let name = format!("{}-{}", last.epoch.as_u64(), last.sequence.as_u64());
    let free = (1..).map(|number| all.join(format!("{name}.{number}"))).find(|to| !to.exists());
    let to = free.expect("there are enough numbers");
    create_dir(&to)?;
    write_format(&to)?;
    for name in [TERM, IDENTITY] {
        let from = metadata.join(name);
        if from.exists() {
            fs::copy(&from, to.join(name)).at("copy", &from)?;
        }
    }
    logs.iter().for_each(|log| log.close());
    for from in [logs::directory(metadata), metadata.join("snapshots")] {
        if let Some(name) = from.file_name().filter(|_| from.exists()) {
            rename(&from, &to.join(name))?;
        }
    }
    Ok(to)
}

/// Makes the rest of the directory that of a new journal.
pub(super) fn begin_anew(metadata: &Path) -> Result<(), JournalError> {
    for path in [metadata.join(IDENTITY), metadata.join(TERM)] {
        if path.exists() {
            fs::remove_file(&path).at("remove", &path)?;
        }
    }
    create_dir(&logs::directory(metadata))
}
