//! Memory whose bytes are those of a file.

use std::fs::{File, OpenOptions, TryLockError, remove_file};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{FileLock, MemoryError};

/// Opens the file at `path`, or makes it, and takes room for `len` bytes on its
/// file system, so that writing them cannot fail later. A longer file stays as it
/// is. Nothing is changed in a file whose lock others have.
pub(super) fn open(path: &Path, len: usize, lock: Option<FileLock>) -> Result<File, MemoryError> {
    let failed = |source| MemoryError::File { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    // Whatever else is at the place, opening it must not wait.
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            take_lock(&file, path, lock)?;
            reserve(&file, len).map_err(|source| {
                // What this call made goes with it; there is no one to tell when
                // even that fails.
                let _ = remove_file(path);
                failed(source)
            })?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = options.open(path).map_err(failed)?;
            if !file.metadata().map_err(failed)?.is_file() {
                return Err(MemoryError::NotAFile { path: path.to_owned() });
            }
            take_lock(&file, path, lock)?;
            reserve(&file, len).map_err(failed)?;
            Ok(file)
        }
        Err(error) => Err(failed(error)),
    }
}

fn take_lock(file: &File, path: &Path, lock: Option<FileLock>) -> Result<(), MemoryError> {
    let locked = match lock {
        None => return Ok(()),
        Some(FileLock::Shared) => file.try_lock_shared(),
        Some(FileLock::Exclusive) => file.try_lock(),
    };
    let in_use = || MemoryError::FileInUse { path: path.to_owned() };
    let failed = |source| MemoryError::File { path: path.to_owned(), source };
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use()),
        Err(TryLockError::Error(_)) if lock == Some(FileLock::Shared) => return Ok(()),
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    // The user that had the lock before may have put another file there.
    let (own, there) = (file.metadata().map_err(failed)?, path.metadata().map_err(failed)?);
    let is_there = own.dev() == there.dev() && own.ino() == there.ino();
    if is_there { Ok(()) } else { Err(in_use()) }
}

fn reserve(file: &File, len: usize) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::empty(), 0, len as u64) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Memory;

    #[test]
    fn bytes_stay_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("segment");
        let memory = Memory::options().file(&path).allocate(5000).unwrap();
        assert!(memory.whole().to_vec().iter().all(|&byte| byte == 0));
        memory.whole().copy_from(4990, b"kept").unwrap();
        assert!(matches!(memory.share(crate::Access::Read), Err(MemoryError::NotShareable)));
        assert!(memory.try_into_bytes(1).is_err(), "the file can still change");
        assert_eq!(fs::metadata(&path).unwrap().len(), 5000);

        let options = Memory::options().file(&path).pre_fault(2.try_into().unwrap());
        let longer = options.align(1 << 20).allocate(9000).unwrap();
        assert_eq!(longer.slice(4990, 4).unwrap().to_vec(), b"kept");
        assert_eq!(fs::metadata(&path).unwrap().len(), 9000);
        let shorter = Memory::options().file(&path).allocate(4994).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 9000, "nothing is cut off");
        longer.whole().copy_from(0, b"seen").unwrap();
        assert_eq!(shorter.slice(0, 4).unwrap().to_vec(), b"seen");
        assert_eq!(&fs::read(&path).unwrap()[..4], b"seen");
    }

    #[test]
    fn a_full_disk_is_an_error_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("segment");
        let more_than_any_disk = 1 << 60;
        let refused = Memory::options().file(&path).allocate(more_than_any_disk).unwrap_err();
        assert!(matches!(refused, MemoryError::File { .. }), "{refused}");
        assert!(!path.exists(), "what was made is gone again");

        fs::write(&path, "precious").unwrap();
        let refused = Memory::options().file(&path).allocate(more_than_any_disk).unwrap_err();
        assert!(matches!(refused, MemoryError::File { .. }), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_locked_file_has_no_other_user_while_its_memory_lives() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("segment");
        let with = |lock| Memory::options().file(&path).lock(lock).allocate(5000);
        let in_use = |lock| {
            let refused = with(lock).unwrap_err();
            assert!(matches!(refused, MemoryError::FileInUse { .. }), "{refused}");
        };
        let memory = with(FileLock::Exclusive).unwrap();
        in_use(FileLock::Exclusive);
        in_use(FileLock::Shared);
        let part = memory.slice(0, 10).unwrap();
        drop(memory);
        in_use(FileLock::Exclusive);
        part.copy_from(0, b"kept").unwrap();
        drop(part);

        let first = with(FileLock::Shared).unwrap();
        assert_eq!(first.slice(0, 4).unwrap().to_vec(), b"kept");
        let second = with(FileLock::Shared).unwrap();
        in_use(FileLock::Exclusive);
        drop((first, second));
        assert!(with(FileLock::Exclusive).is_ok());
    }

    #[test]
    fn a_refused_user_leaves_the_file_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("segment");
        let with = |len| Memory::options().file(&path).lock(FileLock::Exclusive).allocate(len);
        let _memory = with(5000).unwrap();
        assert!(with(9000).is_err());
        assert_eq!(fs::metadata(&path).unwrap().len(), 5000);
    }

    #[test]
    fn only_files_hold_memory() {
        let directory = tempfile::tempdir().unwrap();
        let refused = Memory::options().file(directory.path()).allocate(1).unwrap_err();
        assert!(matches!(refused, MemoryError::File { .. }), "{refused}");
        let refused = Memory::options().file("/dev/null").allocate(1).unwrap_err();
        assert!(matches!(refused, MemoryError::NotAFile { .. }), "{refused}");
        let absent = directory.path().join("no such directory/segment");
        let refused = Memory::options().file(absent).allocate(1).unwrap_err();
        assert!(matches!(refused, MemoryError::File { .. }), "{refused}");
        let both = Memory::options().file("/dev/null").shared().allocate(1).unwrap_err();
        assert!(matches!(both, MemoryError::Incompatible { .. }), "{both}");
    }
}
