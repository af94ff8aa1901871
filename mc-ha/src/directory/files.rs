//! Files that are replaced as a whole, or moved aside.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::journal::JournalError;

/// Adds the file to an error.
pub(super) trait At<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, JournalError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, JournalError> {
        self.map_err(|source| file_error(what, path, source))
    }
}

/// Makes a directory that only this user reads, and those above it.
pub(super) fn create_dir(path: &Path) -> Result<(), JournalError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).at("make the directory", path)
}

/// Makes a file durable that holds these bytes, in place of the one that may be there. After a
/// crash it holds the one or the other, whole.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), JournalError> {
    let part = path.with_extension("part");
    let mut file = File::create(&part).at("write", &part)?;
    #[cfg(unix)]
    {
        let only_ours = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        file.set_permissions(only_ours).at("protect", &part)?;
    }
    file.write_all(bytes).at("write", &part)?;
    file.sync_all().at("write", &part)?;
    rename(&part, path)
}

/// Renames a file durably.
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), JournalError> {
    fs::rename(from, to).at("rename", from)?;
    let directory = to.parent().unwrap_or(to);
    File::open(directory).and_then(|directory| directory.sync_all()).at("write", directory)
}

/// Moves a file or directory to `damaged/` in the metadata directory, under a name that is free;
/// returns where it is.
pub(super) fn move_aside(metadata: &Path, path: &Path) -> Result<PathBuf, JournalError> {
    let directory = metadata.join("damaged");
    create_dir(&directory)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let free = (1..).map(|number| directory.join(format!("{name}.{number}")));
    let to = free.into_iter().find(|to| !to.exists()).expect("there are enough numbers");
    rename(path, &to)?;
    Ok(to)
}

/// Wraps what the standard library says of a file.
pub(super) fn file_error(what: &'static str, path: &Path, source: io::Error) -> JournalError {
    JournalError::File { what, path: path.into(), source: Arc::new(source) }
}
