//! The directory of a client's local disk, which several processes of a host may have been given.
//!
//! Engines pass one path to all their ranks. Each process takes a directory of its own: the path itself or
//! `rank-N` in it, whichever it finds free. A process that is started again finds one of them, and the
//! processes together find all of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mc_tier::{FileBackend, TierError};
use mc_types::ByteSize;
use tracing::{info, warn};

/// Directories in one path.
const MAX_DIRECTORIES: usize = 256;

/// How long to wait for a directory that is there already before another one is made: a process that
/// ends frees its own in this time, and what is on it is found by the next one.
pub(super) const WAIT: Duration = Duration::from_secs(2);
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Opens the file of the first directory that no other process has, and returns the directory. `None`
/// when all that are there are taken and the caller `may_wait` before another one is made, or when another
/// process has made the same one.
///
/// # Errors
/// [`TierError::InUse`] when all that there can be are taken, and what the file system says.
pub(super) fn open_free(
    root: &Path,
    len: ByteSize,
    may_wait: bool,
) -> Result<Option<(FileBackend, PathBuf)>, TierError> {
    let mut unmade = None;
    for number in 0..MAX_DIRECTORIES {
        let directory = numbered(root, number);
        if number > 0 && !directory.is_dir() {
            unmade.get_or_insert(directory);
            continue;
        }
        if let Some(opened) = open_unless_taken(&directory, len)? {
            return Ok(Some((opened, directory)));
        }
    }
    if may_wait {
        return Ok(None);
    }
    let directory = unmade.ok_or_else(|| TierError::InUse { path: root.to_owned() })?;
    let Some(opened) = open_unless_taken(&directory, len)? else { return Ok(None) };
    info!(
        path = %root.display(), taken = %directory.display(),
        "other processes have the directories of this path; taking another one in it"
    );
    Ok(Some((opened, directory)))
}

fn open_unless_taken(directory: &Path, len: ByteSize) -> Result<Option<FileBackend>, TierError> {
    match FileBackend::open(directory, len) {
        Err(TierError::InUse { .. }) => Ok(None),
        opened => opened.map(Some),
    }
}

/// The path itself, then the directories in it.
fn numbered(root: &Path, number: usize) -> PathBuf {
    match number {
        0 => root.to_owned(),
        number => root.join(format!("rank-{number}")),
    }
}

/// Warns when the disks of a path may grow beyond their file system.
pub(super) fn warn_of_sum(root: &Path) {
    let (mut disks, mut len, mut taken) = (0_u64, 0_u64, 0_u64);
    for number in 0..MAX_DIRECTORIES {
        let path = FileBackend::file_in(&numbered(root, number));
        let Ok(found) = std::fs::metadata(path) else { continue };
        disks += 1;
        len = len.saturating_add(found.len());
        taken = taken.saturating_add(allocated(&found));
    }
    let Ok(space) = rustix::fs::statvfs(root) else { return };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let room = free.saturating_add(taken);
    if len > room {
        warn!(
            path = %root.display(),
            disks,
            together = %ByteSize::bytes(len),
            room = %ByteSize::bytes(room),
            "the local disks of this path may grow beyond their file system; set ssd_offload_size to at \
             most {} for each",
            ByteSize::bytes(room / disks.max(1))
        );
    }
}

/// The bytes of a file that its file system has given to it.
fn allocated(file: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    file.blocks().saturating_mul(512)
}
