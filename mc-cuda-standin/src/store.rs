//! The bytes of a GPU: files in memory, of which programs see addresses that they cannot touch.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{self, NonNull};

/// Bytes of an allocation, at an address that the stand-in alone knows.
pub(crate) struct Store {
    file: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a range of bytes with no tie to a thread, which are copied and never referred to.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

/// The length of the pages that hold so many bytes.
pub(crate) const fn pages(len: usize) -> usize {
    len.next_multiple_of(4096)
}

impl Store {
    /// Takes bytes with arbitrary content, as another program may have left them.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"mc-cuda-standin".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else has it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(pages(len) as u64)?;
        let store = Self::of(file.into(), len)?;
        // SAFETY: maps `len` bytes there, which nothing else knows yet.
        unsafe { ptr::write_bytes(store.base.as_ptr(), 0xdd, len) };
        Ok(store)
    }

    /// Maps the bytes behind a descriptor.
    pub(crate) fn of(file: OwnedFd, len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let base = map(None, pages(len), protection, Some(&file))?;
        Ok(Self { file, base, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// The address of a byte for the stand-in's own copies; the caller checked the range.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: was mapped by `of` with this length, and no copy uses it any more.
        let _ = unsafe { libc::munmap(self.base.as_ptr().cast(), pages(self.len)) };
    }
}

/// Maps pages of a file, or of nothing.
pub(crate) fn map(
    at: Option<u64>,
    len: usize,
    protection: libc::c_int,
    file: Option<&OwnedFd>,
) -> io::Result<NonNull<u8>> {
    let mut flags = match file {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    };
    let wanted = match at {
        Some(at) => {
            flags |= libc::MAP_FIXED;
            ptr::with_exposed_provenance_mut(at as usize)
        }
        None => ptr::null_mut(),
    };
    let fd = file.map_or(-1, |file| file.as_raw_fd());
    // SAFETY: a fixed address lies in a range that the stand-in has reserved; another is chosen by
    // the system.
    let base = unsafe { libc::mmap(wanted, len, protection, flags, fd, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Unmaps pages.
pub(crate) fn unmap(at: u64, len: usize) {
    // SAFETY: the stand-in mapped the range, and forgets it with this call.
    let _ = unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at as usize), len) };
}

/// A range of addresses that nothing is behind.
pub(crate) struct AddressSpace {
    pub(crate) base: u64,
    pub(crate) len: usize,
}

impl AddressSpace {
    pub(crate) fn reserve(len: usize) -> io::Result<Self> {
        let base = map(None, len, libc::PROT_NONE, None)?;
        Ok(Self { base: base.as_ptr().expose_provenance() as u64, len })
    }

    /// Shows pages of a file at an address of this range.
    pub(crate) fn show(&self, at: u64, store: &Store, is_host: bool) -> io::Result<()> {
        show(at, store, is_host)
    }

    /// Takes the pages away again.
    pub(crate) fn hide(&self, at: u64, len: usize) {
        hide(at, len);
    }
}

/// Shows pages of a file at a reserved address: to the stand-in's functions, and to the processor if so wanted.
pub(crate) fn show(at: u64, store: &Store, is_host: bool) -> io::Result<()> {
    let protection = if is_host { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    map(Some(at), pages(store.len), protection, Some(&store.file)).map(|_| ())
}

/// Leaves a reserved range with nothing behind it.
pub(crate) fn hide(at: u64, len: usize) {
    let _ = map(Some(at), pages(len), libc::PROT_NONE, None);
}
