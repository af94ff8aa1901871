//! Memory that several processes of one host map: an unnamed file in memory,
//! passed on as a descriptor and sealed so that it cannot be shortened.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals,
    memfd_create,
};
use rustix::io::Errno;

use super::MemoryError;
use super::huge::HugePageSize;
use super::mapping::{Content, Mapping};
use crate::access::Access;

/// The name in `/proc/PID/maps`, for people who wonder whose memory it is.
const NAME: &str = "mc-transport";

/// A new file of `len` zeros in memory, in whole huge pages when there are any. It
/// can neither shrink nor grow, and only processes of this user can open it again
/// with more rights than they were given.
pub(super) fn create(len: usize, huge: Option<HugePageSize>) -> io::Result<File> {
    let pages = match huge {
        None => MemfdFlags::empty(),
        Some(HugePageSize::Mib2) => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        Some(HugePageSize::Gib1) => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages;
    // Systems may demand that the bytes can never be executed; those before
    // Linux 6.3 do not know the flag.
    let file = match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(NAME, flags)?,
        result => result?,
    };
    let file = File::from(file);
    let page = huge.map_or(1, HugePageSize::bytes);
    let room = len.checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
    file.set_len(room as u64)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Another descriptor of `file`, with which a process that gets it can do what
/// `access` says.
pub(super) fn reopen(file: &File, access: Access) -> io::Result<OwnedFd> {
    match access {
        Access::Read => {
            // A duplicate would share the rights of the original.
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            Ok(OpenOptions::new().read(true).open(path)?.into())
        }
        // A mapping that can be written can be read, too.
        Access::Write | Access::ReadWrite => file.as_fd().try_clone_to_owned(),
    }
}

/// Gives every page of `file` back to the system.
pub(super) fn punch(file: &File) -> io::Result<()> {
    let len = file.metadata()?.len();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match fallocate(file, flags, 0, len) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// Maps what another process offers, after making sure that touching it can do
/// no harm.
pub(super) fn map(file: &File, len: usize, access: Access) -> Result<Mapping, MemoryError> {
    let not_memory = |source| MemoryError::NotSharedMemory { source };
    let metadata = || file.metadata().map_err(|source| not_memory(Some(source)));
    if !metadata()?.is_file() {
        return Err(not_memory(None));
    }
    let seals = fcntl_get_seals(file).map_err(|source| not_memory(Some(source.into())))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(MemoryError::Shrinkable);
    }
    // Measured behind the seal: from here on the file cannot become shorter.
    let sealed = metadata()?;
    if sealed.len() < len as u64 {
        return Err(MemoryError::TooShort { len, available: sealed.len() });
    }
    let room = whole_pages(len, &sealed).ok_or(MemoryError::TooLarge { len })?;
    let content = Content::Shared { file: file.as_fd(), writable: access != Access::Read };
    Mapping::new(room, content).map_err(|source| MemoryError::Refused { len, source })
}

/// `len` rounded up so that it can be mapped and unmapped when the file consists of
/// huge pages, which are its blocks. The bytes that this adds are never touched.
pub(super) fn whole_pages(len: usize, file: &Metadata) -> Option<usize> {
    let page = usize::try_from(file.blksize()).unwrap_or(1).max(1);
    len.checked_next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::memory::{CopyError, Memory};

    const LEN: usize = 10_000;

    fn shared() -> Memory {
        Memory::options().shared().allocate(LEN).unwrap()
    }

    fn seen_by_a_peer(memory: &Memory, access: Access) -> Memory {
        Memory::map_shared(memory.share(access).unwrap(), LEN, access).unwrap()
    }

    fn unsealed(len: u64, flags: MemfdFlags) -> File {
        let file = File::from(memfd_create("test", flags | MemfdFlags::CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn both_sides_see_the_same_bytes() {
        let owner = shared();
        assert!(owner.whole().to_vec().iter().all(|&byte| byte == 0));
        for access in [Access::Write, Access::ReadWrite] {
            let peer = seen_by_a_peer(&owner, access);
            assert!(peer.is_writable());
            assert!(peer.shareable().is_none());
            owner.whole().copy_from(LEN - 5, b"owner").unwrap();
            assert_eq!(peer.slice(LEN - 5, 5).unwrap().to_vec(), b"owner");
            peer.whole().copy_from(0, b"peer").unwrap();
            assert_eq!(owner.slice(0, 4).unwrap().to_vec(), b"peer");
            assert!(peer.try_into_bytes(1).is_err());
        }
        assert!(owner.try_into_bytes(1).is_err(), "a peer may still have it");
    }

    #[test]
    fn memory_outlives_whoever_made_it() {
        let owner = shared();
        let peer = seen_by_a_peer(&owner, Access::Read);
        owner.whole().copy_from(0, b"last words").unwrap();
        drop(owner);
        assert_eq!(peer.slice(0, 10).unwrap().to_vec(), b"last words");
    }

    #[test]
    fn read_only_memory_is_never_written() {
        let owner = shared();
        let peer = seen_by_a_peer(&owner, Access::Read);
        owner.whole().copy_from(0, b"owner").unwrap();
        assert!(!peer.is_writable());
        assert!(!peer.slice(0, 5).unwrap().part(1, 2).unwrap().is_writable());
        assert_eq!(peer.whole().copy_from(0, b"peer"), Err(CopyError::ReadOnly));
        assert_eq!(owner.whole().copy_to_slice(&peer.whole()), Err(CopyError::ReadOnly));
        assert_eq!(peer.whole().checksum(), owner.whole().checksum());
        peer.whole().copy_to_slice(&owner.whole()).unwrap();
    }

    #[test]
    fn the_system_keeps_a_reader_from_writing() {
        let owner = shared();
        let reader = owner.share(Access::Read).unwrap();
        let refused = Memory::map_shared(reader, LEN, Access::ReadWrite);
        let Err(MemoryError::Refused { source, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(source.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn another_user_cannot_open_more_than_it_got() {
        let owner = shared();
        let reader = File::from(owner.share(Access::Read).unwrap());
        assert_eq!(reader.metadata().unwrap().mode() & 0o777, 0o600);
        // SAFETY: `geteuid` only reads a number of this process.
        if unsafe { libc::geteuid() } != 0 {
            // Only root can become another user to try; the mode is what counts.
            return;
        }
        let open_to_write = |user: u32| {
            let mut shell = Command::new("sh");
            shell.args(["-c", ": 3<>/proc/self/fd/0"]).uid(user).stderr(Stdio::null());
            shell.stdin(reader.try_clone().unwrap()).status().unwrap().success()
        };
        assert!(open_to_write(0), "this user can");
        assert!(!open_to_write(65_534));
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let map = |file: File, len| Memory::map_shared(file.into(), len, Access::Read);
        let sealing = MemfdFlags::ALLOW_SEALING;
        for flags in [MemfdFlags::empty(), sealing] {
            let refused = map(unsealed(4096, flags), 4096);
            assert!(matches!(refused, Err(MemoryError::Shrinkable)), "{refused:?}");
        }
        let sealed = unsealed(4096, sealing);
        fcntl_add_seals(&sealed, SealFlags::SHRINK).unwrap();
        assert!(map(sealed.try_clone().unwrap(), 4096).is_ok());
        for len in [4097, 1 << 40, isize::MAX as usize] {
            let refused = map(sealed.try_clone().unwrap(), len);
            assert!(
                matches!(refused, Err(MemoryError::TooShort { available: 4096, .. })),
                "{len} {refused:?}"
            );
        }
        let refused = map(sealed.try_clone().unwrap(), usize::MAX);
        assert!(matches!(refused, Err(MemoryError::TooLarge { .. })));
        assert!(matches!(map(sealed, 0), Err(MemoryError::Empty)));
    }

    #[test]
    fn other_descriptors_are_refused() {
        let (pipe, _writer) = io::pipe().unwrap();
        let program = std::env::current_exe().unwrap();
        let directory = File::open(program.parent().unwrap()).unwrap();
        let file = File::open(program).unwrap();
        for other in [pipe.into(), OwnedFd::from(directory), file.into()] {
            let refused = Memory::map_shared(other, 1, Access::Read);
            assert!(matches!(refused, Err(MemoryError::NotSharedMemory { .. })), "{refused:?}");
        }
    }

    #[test]
    fn nobody_can_resize_shared_memory() {
        let owner = shared();
        let descriptor = File::from(owner.share(Access::ReadWrite).unwrap());
        for len in [0, LEN as u64 - 1, LEN as u64 + 1] {
            assert!(descriptor.set_len(len).is_err(), "{len}");
        }
        assert!(fcntl_add_seals(&descriptor, SealFlags::WRITE).is_err());
    }

    #[test]
    fn only_shared_memory_can_be_shared() {
        for memory in [Memory::allocate(100).unwrap(), Memory::allocate(1 << 20).unwrap()] {
            assert!(memory.shareable().is_none());
            assert!(matches!(memory.share(Access::Read), Err(MemoryError::NotShareable)));
        }
        let owner = shared();
        assert_eq!(
            File::from(owner.shareable().unwrap().try_clone_to_owned().unwrap())
                .metadata()
                .unwrap()
                .len(),
            LEN as u64
        );
    }
}
