//! Address ranges that the system maps, and unmaps when they are dropped.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

/// How often to look for an aligned place before giving up. Only a thread that
/// maps memory in the same moment makes a second look necessary.
const ATTEMPTS: usize = 16;

/// What a mapping shows.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    /// New pages of zeros that only this process sees.
    Private,
    /// The bytes of a file, shared with whoever maps it too.
    Shared {
        /// The file.
        file: BorrowedFd<'a>,
        /// Whether this process may write it.
        writable: bool,
    },
    /// Nothing: the range is only taken, and touching it is a fault.
    Reserved,
}

/// A mapped range of addresses, unmapped when dropped.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of `content` at a place of the system's choice, which is
    /// a multiple of the page size.
    pub(super) fn new(len: usize, content: Content<'_>) -> io::Result<Self> {
        Self::near(ptr::null_mut(), len, content)
    }

    /// Maps `len` bytes of `content` at a multiple of `align`, a power of two.
    pub(super) fn aligned(len: usize, align: usize, content: Content<'_>) -> io::Result<Self> {
        if align <= page_size() {
            return Self::new(len, content);
        }
        let room = len.checked_add(align).ok_or(io::ErrorKind::OutOfMemory)?;
        for _ in 0..ATTEMPTS {
            let reserved = Self::new(room, Content::Reserved)?;
            let first = reserved.base.as_ptr();
            let place = first.wrapping_add(first.align_offset(align));
            // The place is free as soon as the reservation is gone. The system
            // takes it when it is asked for it and nobody was faster; a mapping
            // that it had to put elsewhere is given back and tried again.
            drop(reserved);
            let mapping = Self::near(place, len, content)?;
            if mapping.base.addr().get().is_multiple_of(align) {
                return Ok(mapping);
            }
        }
        Err(io::Error::other("no aligned range of addresses stayed free"))
    }

    fn near(place: *mut u8, len: usize, content: Content<'_>) -> io::Result<Self> {
        const WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
        const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let (protection, flags, file) = match content {
            Content::Private => (WRITE, PRIVATE, -1),
            Content::Shared { file, writable: true } => (WRITE, libc::MAP_SHARED, file.as_raw_fd()),
            Content::Shared { file, .. } => (libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd()),
            Content::Reserved => (libc::PROT_NONE, PRIVATE | libc::MAP_NORESERVE, -1),
        };
        // SAFETY: the address is a wish and never forced on the system, so no
        // existing mapping is touched.
        let base = unsafe { libc::mmap(place.cast(), len, protection, flags, file, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("the system maps nothing at address zero");
        Ok(Self { base, len })
    }

    /// First byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `near` mapped exactly this range, and whoever owns the mapping
        // drops it only when nothing names its bytes any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Bytes of a page.
pub(super) fn page_size() -> usize {
    // SAFETY: `sysconf` reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}
