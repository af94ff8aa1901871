//! Memory that peers may reach: allocated, borrowed, and copied without ever
//! forming a reference to it.
//!
//! A byte of registered memory can change at any moment, because a peer writes
//! it. Rust references promise the opposite, so none is ever made to these
//! bytes: they are moved by raw copies between checked bounds, and nothing here
//! decides anything by looking at them. A copy that races with a peer's write
//! yields a mixture of old and new bytes; leases keep that from happening and
//! checksums find it when it does.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use mc_types::Checksum;

use crate::checksum::Digest;

/// Up to this size the heap is cheaper than mapping pages and faulting them in.
const HEAP_LIMIT: usize = 64 << 10;

/// A block of memory, shared by handle: a clone names the same bytes, and the
/// block lives until the last handle, slice, region or running operation that
/// names it is gone.
///
/// ```
/// use mc_transport::Memory;
/// let memory = Memory::allocate(4096)?;
/// memory.whole().copy_from(10, b"hello")?;
/// let mut word = [0; 5];
/// memory.whole().copy_to(10, &mut word)?;
/// assert_eq!(&word, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Memory {
    block: Arc<Block>,
}

struct Block {
    base: NonNull<u8>,
    len: usize,
    /// Set by the first registration and never cleared: a peer, or a device that
    /// remembers the address, may have written these bytes behind our back.
    exposed: AtomicBool,
    backing: Backing,
}

enum Backing {
    /// No bytes at all.
    Empty,
    /// From the global allocator, with this layout.
    Heap(Layout),
    /// From `mmap`, `len` bytes.
    Mapped,
    /// Somebody else's, kept alive by what is inside.
    Foreign { _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: a block is a range of plain bytes with no tie to a thread; whoever
// made it keeps the range valid until `drop` (`allocate` owns it, `from_raw`'s
// caller promises it).
unsafe impl Send for Block {}
// SAFETY: shared access only ever copies bytes through raw pointers, never by
// reference, so two threads in the same range mix bytes at worst; see the
// module's introduction.
unsafe impl Sync for Block {}

impl Memory {
    /// Takes `len` zeroed bytes, aligned to a page. Large blocks are mapped, and
    /// the system populates their pages when they are first touched.
    ///
    /// # Errors
    /// [`MemoryError`] when the system has no such room.
    pub fn allocate(len: usize) -> Result<Self, MemoryError> {
        let (base, backing) = match len {
            0 => (NonNull::dangling(), Backing::Empty),
            _ if len <= HEAP_LIMIT => allocate_heap(len)?,
            _ => (map_anonymous(len)?, Backing::Mapped),
        };
        Ok(Self { block: Arc::new(Block { base, len, exposed: AtomicBool::new(false), backing }) })
    }

    /// Names memory that somebody else owns: a mapped file, pinned memory of a
    /// device, a buffer of an inference engine. `owner` is dropped with the last
    /// handle and releases the memory.
    ///
    /// # Safety
    /// From now until `owner` is dropped, `len` bytes from `base` must be
    /// readable and writable from any thread, and no Rust reference to any of
    /// them may exist: peers and this crate read and write them at any time.
    /// `len` must not exceed `isize::MAX`.
    #[must_use]
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Self {
        let backing = Backing::Foreign { _owner: Box::new(owner) };
        Self { block: Arc::new(Block { base, len, exposed: AtomicBool::new(false), backing }) }
    }

    /// Bytes in the block.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.len
    }

    /// Whether the block has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// `len` bytes from `offset`; `None` when they do not lie inside.
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Option<MemorySlice> {
        let end = offset.checked_add(len)?;
        (end <= self.block.len).then(|| MemorySlice { memory: self.clone(), offset, len })
    }

    /// All bytes of the block.
    #[must_use]
    pub fn whole(&self) -> MemorySlice {
        MemorySlice { memory: self.clone(), offset: 0, len: self.block.len }
    }

    /// Turns the first `len` bytes into [`Bytes`] without a copy, for a caller
    /// that read into memory of its own.
    ///
    /// # Errors
    /// Gives the handle back when the bytes could still change or are not there:
    /// when another handle, slice or operation names the block, when it was ever
    /// registered for peers, when it is foreign, and when `len` exceeds it.
    pub fn try_into_bytes(self, len: usize) -> Result<Bytes, Self> {
        let block = &self.block;
        let ours = !matches!(block.backing, Backing::Foreign { .. });
        if !ours || len > block.len || block.exposed.load(Ordering::Acquire) {
            return Err(self);
        }
        Arc::try_unwrap(self.block)
            .map(|block| Bytes::from_owner(FrozenBlock { block, len }))
            .map_err(|block| Self { block })
    }

    /// Whether both handles name the same block.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }

    /// Notes that peers may reach the block from now on.
    pub(crate) fn expose(&self) {
        self.block.exposed.store(true, Ordering::Release);
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.block.len).finish_non_exhaustive()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match self.backing {
            Backing::Empty | Backing::Foreign { .. } => {}
            Backing::Heap(layout) => {
                // SAFETY: `allocate_heap` got this block from the same allocator
                // with this layout, and nothing names it any more.
                unsafe { dealloc(self.base.as_ptr(), layout) }
            }
            Backing::Mapped => {
                // SAFETY: `map_anonymous` mapped exactly this range, and nothing
                // names it any more.
                unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
            }
        }
    }
}

/// Part of a [`Memory`], which it keeps alive.
#[derive(Clone)]
pub struct MemorySlice {
    memory: Memory,
    offset: usize,
    len: usize,
}

impl MemorySlice {
    /// The block that this is a part of.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Where the slice begins in its block.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes in the slice.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the slice has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes of this slice from `start`; `None` when they do not lie inside.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Option<Self> {
        let end = start.checked_add(len)?;
        (end <= self.len).then(|| Self {
            memory: self.memory.clone(),
            offset: self.offset + start,
            len,
        })
    }

    /// Copies the bytes from `at` on into `target`.
    ///
    /// # Errors
    /// [`OutOfRange`] when fewer than `target.len()` bytes follow `at`; nothing
    /// is copied then.
    pub fn copy_to(&self, at: usize, target: &mut [u8]) -> Result<(), OutOfRange> {
        let source = self.locate(at, target.len())?;
        // SAFETY: `locate` proved that the range lies in the block, which this
        // slice keeps alive; `target` is a reference, and no reference overlaps
        // a block.
        unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    /// Copies `source` over the bytes from `at` on.
    ///
    /// # Errors
    /// [`OutOfRange`] when fewer than `source.len()` bytes follow `at`; nothing
    /// is copied then.
    pub fn copy_from(&self, at: usize, source: &[u8]) -> Result<(), OutOfRange> {
        let target = self.locate(at, source.len())?;
        // SAFETY: as in `copy_to`, with the roles exchanged.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        Ok(())
    }

    /// Copies this slice over the first bytes of `other`, also when the two
    /// overlap.
    ///
    /// # Errors
    /// [`OutOfRange`] when `other` is shorter; nothing is copied then.
    pub fn copy_to_slice(&self, other: &Self) -> Result<(), OutOfRange> {
        let target = other.locate(0, self.len)?;
        // SAFETY: both ranges lie in blocks that the two slices keep alive, and
        // `copy` allows them to overlap.
        unsafe { ptr::copy(self.address(), target, self.len) };
        Ok(())
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        self.copy_to(0, &mut copy).expect("the copy is as long as the slice");
        copy
    }

    /// CRC-32C of the bytes as they are now, copied out piece by piece because a
    /// peer may be writing them.
    #[must_use]
    pub fn checksum(&self) -> Checksum {
        let mut digest = Digest::new();
        digest.update_memory(self);
        digest.finish()
    }

    /// First byte, for system calls. Valid for `len()` bytes while the slice
    /// lives.
    pub(crate) fn address(&self) -> *mut u8 {
        // SAFETY: `offset` is at most the block's length, so the sum stays inside
        // the block or one past its end.
        unsafe { self.memory.block.base.as_ptr().add(self.offset) }
    }

    fn locate(&self, at: usize, len: usize) -> Result<*mut u8, OutOfRange> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => {
                // SAFETY: `at <= self.len`, so the sum stays inside the block or
                // one past its end.
                Ok(unsafe { self.address().add(at) })
            }
            _ => Err(OutOfRange { at, len, available: self.len }),
        }
    }
}

impl fmt::Debug for MemorySlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySlice").field("offset", &self.offset).field("len", &self.len).finish()
    }
}

/// A block that nobody can write any more, read by reference.
struct FrozenBlock {
    block: Block,
    len: usize,
}

impl AsRef<[u8]> for FrozenBlock {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `try_into_bytes` checked `len`, took the only handle of a block
        // that we allocated (zeroed) and never exposed, so no pointer to it is
        // left that could write; the block is never moved out of `self`.
        unsafe { std::slice::from_raw_parts(self.block.base.as_ptr(), self.len) }
    }
}

fn allocate_heap(len: usize) -> Result<(NonNull<u8>, Backing), MemoryError> {
    let layout =
        Layout::from_size_align(len, page_size()).map_err(|_| MemoryError::TooLarge { len })?;
    // SAFETY: `allocate` sends only sizes above zero here.
    let base = unsafe { alloc_zeroed(layout) };
    let base = NonNull::new(base)
        .ok_or_else(|| MemoryError::Refused { len, source: io::ErrorKind::OutOfMemory.into() })?;
    Ok((base, Backing::Heap(layout)))
}

fn map_anonymous(len: usize) -> Result<NonNull<u8>, MemoryError> {
    if isize::try_from(len).is_err() {
        return Err(MemoryError::TooLarge { len });
    }
    // SAFETY: asks for new pages at an address of the system's choice; no
    // existing memory is touched.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(MemoryError::Refused { len, source: io::Error::last_os_error() });
    }
    Ok(NonNull::new(base.cast()).expect("the system maps nothing at address zero unasked"))
}

fn page_size() -> usize {
    // SAFETY: `sysconf` reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// No address space is that large.
    #[error("{len} bytes do not fit in the address space")]
    TooLarge {
        /// Bytes asked for.
        len: usize,
    },
    /// The system refused.
    #[error("the system gave no {len} bytes of memory; ask for less or raise its limits")]
    Refused {
        /// Bytes asked for.
        len: usize,
        /// What the system said.
        source: io::Error,
    },
}

/// A copy would leave its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {at} leave a slice of {available} bytes")]
pub struct OutOfRange {
    /// First byte of the copy in the slice.
    pub at: usize,
    /// Bytes to copy.
    pub len: usize,
    /// Bytes in the slice.
    pub available: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_is_zeroed_and_aligned() {
        for len in [1, 4096, HEAP_LIMIT, HEAP_LIMIT + 1, (1 << 20) + 1] {
            let memory = Memory::allocate(len).unwrap();
            assert_eq!(memory.whole().address() as usize % page_size(), 0, "{len}");
            assert!(memory.whole().to_vec().iter().all(|&byte| byte == 0), "{len}");
        }
        assert!(Memory::allocate(0).unwrap().whole().to_vec().is_empty());
    }

    #[test]
    fn absurd_sizes_are_errors() {
        assert!(matches!(Memory::allocate(usize::MAX), Err(MemoryError::TooLarge { .. })));
        let larger_than_any_machine = isize::MAX as usize;
        assert!(matches!(
            Memory::allocate(larger_than_any_machine),
            Err(MemoryError::Refused { .. })
        ));
    }

    #[test]
    fn only_sole_unexposed_handles_freeze() {
        let memory = Memory::allocate(100).unwrap();
        memory.whole().copy_from(0, b"frozen").unwrap();
        let slice = memory.slice(0, 1).unwrap();
        let memory = memory.try_into_bytes(6).unwrap_err();
        drop(slice);
        let memory = memory.try_into_bytes(101).unwrap_err();
        assert_eq!(&memory.try_into_bytes(6).unwrap()[..], b"frozen");

        let exposed = Memory::allocate(100).unwrap();
        exposed.expose();
        assert!(exposed.try_into_bytes(1).is_err());
    }

    #[test]
    fn foreign_memory_is_released_with_its_last_handle() {
        let owner = Arc::new(());
        let bytes = Box::leak(vec![7u8; 64].into_boxed_slice());
        let base = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the leaked bytes live for ever and are not used by reference again.
        let memory = unsafe { Memory::from_raw(base, 64, Arc::clone(&owner)) };
        let slice = memory.slice(1, 2).unwrap();
        drop(memory.try_into_bytes(1).unwrap_err());
        assert_eq!(slice.to_vec(), [7, 7]);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(slice);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    proptest! {
        #[test]
        fn copies_match_a_vector(
            len in 0usize..20_000, at in 0usize..20_000, bytes in prop::collection::vec(any::<u8>(), 0..20_000)
        ) {
            let memory = Memory::allocate(len).unwrap();
            let mut model = vec![0; len];
            let fits = at + bytes.len() <= len;
            prop_assert_eq!(memory.whole().copy_from(at, &bytes).is_ok(), fits);
            if fits {
                model[at..at + bytes.len()].copy_from_slice(&bytes);
                let mut out = vec![0; bytes.len()];
                memory.whole().copy_to(at, &mut out).unwrap();
                prop_assert_eq!(&out, &bytes);
            }
            prop_assert_eq!(memory.whole().checksum(), crate::checksum(&model));
            prop_assert_eq!(memory.whole().to_vec(), model);
        }

        #[test]
        fn overlapping_copies_move(from in 0usize..500, to in 0usize..500, len in 0usize..500) {
            let memory = Memory::allocate(1000).unwrap();
            let mut model: Vec<u8> = (0..1000).map(|at| at as u8).collect();
            memory.whole().copy_from(0, &model).unwrap();
            let source = memory.slice(from, len).unwrap();
            source.copy_to_slice(&memory.slice(to, len).unwrap()).unwrap();
            model.copy_within(from..from + len, to);
            prop_assert_eq!(memory.whole().to_vec(), model);
        }
    }
}
