//! Address ranges that the system maps, and unmaps when they are dropped.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

#[cfg(target_os = "linux")]
use super::huge::HugePageSize;

/// The number of attempts to find an aligned place before giving up. Only a thread that
/// maps memory in the same moment makes a second look necessary.
const ATTEMPTS: usize = 64;

/// The source of a mapping's bytes.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    /// New pages of zeros that only this process sees.
    Private,
    /// The same of explicit huge pages.
    #[cfg(target_os = "linux")]
    Huge(HugePageSize),
    /// The bytes of a file, shared with processes that map it too.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has such files"))]
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

// SAFETY: a mapping is a range of addresses with no tie to a thread.
unsafe impl Send for Mapping {}
// SAFETY: nothing that a shared mapping offers makes a reference to its bytes.
unsafe impl Sync for Mapping {}

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
            // takes it when it is asked for it and no other thread was faster; a mapping
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
            #[cfg(target_os = "linux")]
            Content::Huge(size) => {
                let size = size.shift().cast_signed() << libc::MAP_HUGE_SHIFT;
                (WRITE, PRIVATE | libc::MAP_HUGETLB | size, -1)
            }
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

    /// Bytes that were mapped.
    #[cfg(target_os = "linux")]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Asks the system to join pages to huge ones. It is a wish: where the kernel
    /// cannot, its answer changes nothing.
    #[cfg(target_os = "linux")]
    pub(super) fn prefer_huge(&self) {
        // SAFETY: the advice names exactly this mapping and changes no content.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }

    /// Gives the pages of `len` bytes from `start`, a multiple of `page`, memory
    /// to write. `blank` says that their bytes are zero.
    ///
    /// # Panics
    /// When they leave the mapping.
    pub(super) fn populate(
        &self,
        start: usize,
        len: usize,
        page: usize,
        blank: bool,
    ) -> io::Result<()> {
        match self.populate_now(start, len) {
            // Unknown before Linux 5.14.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.touch(start, len, page, blank);
                Ok(())
            }
            done => done,
        }
    }

    /// The same, whatever the bytes are and if they are written meanwhile.
    ///
    /// # Errors
    /// `EINVAL` where the system has no such call.
    ///
    /// # Panics
    /// When they leave the mapping.
    #[cfg(target_os = "linux")]
    pub(super) fn populate_now(&self, start: usize, len: usize) -> io::Result<()> {
        self.advise(start, len, libc::MADV_POPULATE_WRITE)
    }

    /// The same, for a reader: cheaper where the pages exist and are not in this process's page
    /// table. A writer finds them there, too, when the memory is shared and not on a disk.
    ///
    /// # Errors
    /// As [`populate_now`](Self::populate_now).
    ///
    /// # Panics
    /// As [`populate_now`](Self::populate_now).
    #[cfg(target_os = "linux")]
    pub(super) fn populate_to_read(&self, start: usize, len: usize) -> io::Result<()> {
        self.advise(start, len, libc::MADV_POPULATE_READ)
    }

    #[cfg(target_os = "linux")]
    fn advise(&self, start: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        let first = self.locate(start, len).cast();
        // SAFETY: `locate` checked that the range lies in this mapping, and
        // populating changes no content.
        let done = unsafe { libc::madvise(first, len, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn populate_now(&self, _start: usize, _len: usize) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn populate_to_read(&self, start: usize, len: usize) -> io::Result<()> {
        self.populate_now(start, len)
    }

    /// Touches a byte of every page without changing it.
    fn touch(&self, start: usize, len: usize, page: usize, blank: bool) {
        for at in (start..start + len).step_by(page) {
            let byte = self.locate(at, 1);
            if blank {
                // SAFETY: `locate` checked that the byte lies in this mapping,
                // and writing the zero that it holds changes nothing.
                unsafe { byte.write_volatile(0) };
            } else {
                // SAFETY: as above, and reading changes nothing.
                unsafe { byte.read_volatile() };
            }
        }
    }

    fn locate(&self, start: usize, len: usize) -> *mut u8 {
        let end = start.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "the range lies in the mapping");
        self.base.as_ptr().wrapping_add(start)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `near` mapped exactly this range, and the owner of the mapping
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

/// Pages of the mapping that have memory.
#[cfg(test)]
pub(super) fn resident_pages(mapping: &Mapping) -> usize {
    let mut pages = vec![0u8; mapping.len.div_ceil(page_size())];
    // SAFETY: the range is a mapping, and the vector has a byte for each page.
    let done = unsafe {
        libc::mincore(mapping.base.as_ptr().cast(), mapping.len, pages.as_mut_ptr().cast())
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 == 1).count()
}

/// Pages of the mapping that are in this process's page table.
#[cfg(all(test, target_os = "linux"))]
pub(super) fn entered_pages(mapping: &Mapping) -> usize {
    use std::os::unix::fs::FileExt;
    let first = mapping.base.addr().get() / page_size();
    let mut entries = vec![0; mapping.len.div_ceil(page_size()) * 8];
    let pagemap = std::fs::File::open("/proc/self/pagemap").expect("of this process");
    pagemap.read_exact_at(&mut entries, first as u64 * 8).expect("mapped");
    entries.as_chunks::<8>().0.iter().filter(|entry| u64::from_ne_bytes(**entry) >> 63 == 1).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_populates_and_changes_nothing() {
        let page = page_size();
        let fresh = Mapping::new(5 * page, Content::Private).unwrap();
        assert_eq!(resident_pages(&fresh), 0);
        fresh.touch(page, 3 * page, page, true);
        assert_eq!(resident_pages(&fresh), 3);
        // SAFETY: the byte lies in the mapping, which no other code uses.
        unsafe { fresh.locate(page, 1).write(7) };
        fresh.touch(0, 5 * page, page, false);
        // SAFETY: as above.
        assert_eq!(unsafe { fresh.locate(page, 1).read() }, 7);
    }
    #[test]
    fn threads_do_not_take_each_others_places() {
        let all = || {
            for round in 0..200 {
                let (len, align) = (1 + round * 5000, 1 << (13 + round % 10));
                let mapping = Mapping::aligned(len, align, Content::Private).unwrap();
                assert!(mapping.base().addr().get().is_multiple_of(align), "{len} {align}");
                mapping.touch(0, len, page_size(), true);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(all);
            }
        });
    }
}
