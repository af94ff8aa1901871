//! Memory that peers may reach: allocated, borrowed, and copied without ever
//! forming a reference to it.
//!
//! A byte of registered memory can change at any moment, because a peer writes
//! it. Rust references promise the opposite, so none is ever made to these
//! bytes: they are moved by copies for which a race is defined ([`racy_copy`]), between
//! checked bounds, and nothing here decides anything by looking at them. A copy that races with a peer's write
//! yields a mixture of old and new bytes; leases keep that from happening and
//! checksums find it when it does.

mod attached;
mod available;
mod error;
#[cfg(target_os = "linux")]
mod file;
mod huge;
mod mapping;
#[cfg(target_os = "linux")]
mod numa;
mod options;
mod part;
mod pool;
mod populate;
mod prefault;
mod racy_copy;
#[cfg(target_os = "linux")]
mod shared;
mod slice;
mod staged;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

pub use self::error::MemoryError;
pub use self::huge::{HugePageSize, HugePages};
use self::mapping::{Content, Mapping, page_size};
pub use self::options::{FileLock, MemoryOptions};
pub use self::pool::BufferPool;
use self::prefault::Prefault;
pub use self::slice::{CopyError, MemorySlice, OutOfRange};
pub use self::staged::StagedMemory;
use crate::access::Access;

/// Up to this size the heap is cheaper than mapping pages and faulting them in.
const HEAP_LIMIT: usize = 64 << 10;

/// A block of memory, shared by handle: a clone names the same bytes, and the
/// block lives until the last handle, slice, region or running operation that
/// names it is gone.
///
/// ```
/// use mc_memory::Memory;
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
    /// Set when another process is given the memory and never cleared: it may touch the
    /// memory for as long as it likes.
    lent: AtomicBool,
    writable: bool,
    /// For pages that are populated when they are touched.
    prefault: Option<Prefault>,
    attached: attached::Attached,
    backing: Backing,
}

enum Backing {
    /// No bytes at all.
    Empty,
    /// From the global allocator, with this layout.
    Heap(Layout),
    /// Pages that no other process sees.
    Private { mapping: Mapping },
    /// Pages of a file that other processes may be given.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has such files"))]
    Shared { mapping: Mapping, file: File },
    /// Pages that another process may have, too.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux has such files"))]
    Common {
        mapping: Mapping,
        /// The file whose lock is held; dropped after the mapping.
        _file: Option<File>,
    },
    /// From a pool, which gets it back.
    Part(pool::Part),
    /// Bytes of another block, and what is dropped with the last handle.
    Carved { of: MemorySlice, _owner: Box<dyn Any + Send + Sync> },
    /// Memory of another owner, kept alive by the value inside.
    Foreign { _owner: Box<dyn Any + Send + Sync> },
    /// The same, which its owner leaves to this block alone.
    Exclusive { _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: a block is a range of plain bytes with no tie to a thread; its
// maker keeps the range valid until `drop` (the backing owns it, or `from_raw`'s
// caller promises it).
unsafe impl Send for Block {}
// SAFETY: shared access only ever copies bytes as `racy_copy` does, never by reference, so two
// threads in the same range mix bytes at worst; see the module's introduction.
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
            _ => map_private(len)?,
        };
        Ok(Self::with(base, len, Prefault::of(len), backing))
    }

    /// Memory of no bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self::new(NonNull::dangling(), 0, Backing::Empty)
    }

    /// Ways to allocate memory that has more to it: huge pages, one NUMA node,
    /// pages that are there from the start, bytes that other processes or a file
    /// share.
    pub fn options() -> MemoryOptions {
        MemoryOptions::default()
    }

    /// Maps the first `len` bytes of memory that another process of this host
    /// allocated with [`MemoryOptions::shared`] and passed on as a descriptor
    /// ([`Memory::share`]).
    ///
    /// With [`Access::Read`] the bytes are mapped for reading only: copies into
    /// them are refused, and so is registering them for peers to write.
    /// [`is_writable`](Self::is_writable) tells it to code that fills memory in other
    /// ways. The peer is not trusted: memory that it could shorten is refused,
    /// since touching what is gone would kill this process. It may still write
    /// the bytes at any time, as the owner of every region may. When the memory
    /// consists of explicit huge pages, a peer can punch holes into it, which is
    /// harmless only while the system has huge pages left to fill them again.
    ///
    /// # Errors
    /// [`MemoryError::NotSharedMemory`], [`MemoryError::Shrinkable`] and
    /// [`MemoryError::TooShort`] when the peer offers something else,
    /// [`MemoryError::Empty`] and [`MemoryError::TooLarge`] for impossible
    /// lengths, [`MemoryError::Refused`] when the system does not map it, also
    /// because the descriptor allows less than `access`, and
    /// [`MemoryError::Unsupported`] on systems other than Linux.
    pub fn map_shared(fd: OwnedFd, len: usize, access: Access) -> Result<Self, MemoryError> {
        if len == 0 {
            return Err(MemoryError::Empty);
        }
        if isize::try_from(len).is_err() {
            return Err(MemoryError::TooLarge { len });
        }
        #[cfg(target_os = "linux")]
        {
            let mapping = shared::map(&File::from(fd), len, access)?;
            let (base, backing) = (mapping.base(), Backing::Common { mapping, _file: None });
            let mut block = Block::new(base, len, backing);
            block.writable = access != Access::Read;
            block.prefault = Prefault::of(len).filter(|_| block.writable);
            (*block.exposed.get_mut(), *block.lent.get_mut()) = (true, true);
            Ok(Self { block: Arc::new(block) })
        }
        #[cfg(not(target_os = "linux"))]
        {
            drop((fd, access));
            Err(MemoryError::Unsupported { wanted: "shared memory" })
        }
    }

    /// Names memory of another owner: a mapped file, pinned memory of a
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
        Self::new(base, len, Backing::Foreign { _owner: Box::new(owner) })
    }

    /// [`from_raw`](Self::from_raw) for memory that its owner does not touch until it is dropped: an object
    /// that was made to receive these bytes. It can [become](Self::try_into_bytes) [`Bytes`].
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw). And until `owner` is dropped, no code accesses the bytes except
    /// through handles of this block, and only bytes that were written become [`Bytes`]: memory that was not
    /// initialised may be copied into, and read by reference when it is full.
    #[must_use]
    pub unsafe fn from_raw_exclusive(
        base: NonNull<u8>,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Self {
        Self::new(base, len, Backing::Exclusive { _owner: Box::new(owner) })
    }

    /// [`from_raw`](Self::from_raw) for memory that this process may only read, such as a file
    /// mapped for reading. As with [`map_shared`](Self::map_shared)ped memory of that kind,
    /// copies into it are refused, and so is registering it for peers to write.
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw), but the bytes only have to be readable. References
    /// to them may exist, as long as no code writes through one.
    #[must_use]
    pub unsafe fn from_raw_read_only(
        base: NonNull<u8>,
        len: usize,
        owner: impl Send + Sync + 'static,
    ) -> Self {
        let mut block = Block::new(base, len, Backing::Foreign { _owner: Box::new(owner) });
        block.writable = false;
        Self { block: Arc::new(block) }
    }

    fn new(base: NonNull<u8>, len: usize, backing: Backing) -> Self {
        Self::with(base, len, None, backing)
    }

    fn with(base: NonNull<u8>, len: usize, prefault: Option<Prefault>, backing: Backing) -> Self {
        let mut block = Block::new(base, len, backing);
        block.prefault = prefault;
        Self { block: Arc::new(block) }
    }

    /// Bytes in the block.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.len
    }

    /// Returns whether the block has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.len == 0
    }

    /// Returns whether this process may write the bytes; `false` for memory of another
    /// process that was mapped for reading.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.block.writable
    }

    /// Begins to populate the first `window` bytes, for memory that will be written soon, and
    /// stays at least that far ahead of what is written: the first write to a page costs several
    /// times what copying its bytes does. Asks the system for huge pages (transparent ones, where
    /// they are enabled). The work is done by a thread, with rests, which ends when
    /// less than an eighth of the host's memory, or of the control group's, is available. Does
    /// nothing to memory that is populated or not mapped here, nor on systems other than Linux.
    pub fn populate_ahead(&self, window: usize) {
        self.block.populate_ahead(window);
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
    /// registered for peers (or, for a block of a [`BufferPool`], any block before it was
    /// there), when it is foreign and not [exclusive](Self::from_raw_exclusive) or can be shared with
    /// other processes, and when `len` exceeds it.
    pub fn try_into_bytes(self, len: usize) -> Result<Bytes, Self> {
        let block = &self.block;
        let ours = match &block.backing {
            Backing::Empty
            | Backing::Heap(_)
            | Backing::Private { .. }
            | Backing::Exclusive { .. } => true,
            Backing::Part(part) => !part.was_exposed(),
            _ => false,
        };
        if !ours || len > block.len || block.is_exposed() {
            return Err(self);
        }
        Arc::try_unwrap(self.block)
            .map(|block| Bytes::from_owner(FrozenBlock { block, len }))
            .map_err(|block| Self { block })
    }

    /// The descriptor behind memory that was allocated with
    /// [`MemoryOptions::shared`], with all rights of this process; `None` for
    /// other memory. Its offset zero is the first byte.
    #[must_use]
    pub fn shareable(&self) -> Option<BorrowedFd<'_>> {
        match &self.block.backing {
            Backing::Shared { file, .. } => Some(file.as_fd()),
            _ => None,
        }
    }

    /// A descriptor for another process of this host, with which it can do what
    /// `access` says; it takes it with [`Memory::map_shared`]. [`Access::Write`]
    /// lets it read, too.
    ///
    /// The system enforces [`Access::Read`] against processes of other users. One
    /// of the same user, or of root, can open the memory again with more rights,
    /// as it could with a debugger.
    ///
    /// # Errors
    /// [`MemoryError::NotShareable`] when the memory was not allocated with
    /// [`MemoryOptions::shared`], [`MemoryError::ShareRefused`] when the system
    /// gives no descriptor, and [`MemoryError::Unsupported`] on systems other than
    /// Linux.
    pub fn share(&self, access: Access) -> Result<OwnedFd, MemoryError> {
        let Backing::Shared { file, .. } = &self.block.backing else {
            return Err(MemoryError::NotShareable);
        };
        self.block.lent.store(true, Ordering::Release);
        #[cfg(target_os = "linux")]
        {
            shared::reopen(file, access).map_err(|source| MemoryError::ShareRefused { source })
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (file, access);
            Err(MemoryError::Unsupported { wanted: "shared memory" })
        }
    }

    /// Returns whether the memory was ever [shared](Self::share) with or by another process.
    /// It may touch the bytes for as long as it likes, whatever it was told since.
    #[must_use]
    pub fn was_lent(&self) -> bool {
        match &self.block.backing {
            Backing::Carved { of, .. } => of.memory.was_lent(),
            _ => self.block.lent.load(Ordering::Acquire),
        }
    }

    /// Gives the pages of memory that can be [shared](Self::share) back to the system; its
    /// bytes are zeros from then on. For memory that is of no use any more but that other
    /// processes may go on mapping: what they write takes new pages, which go when they let
    /// go of it. Does nothing to other memory.
    pub fn discard(&self) {
        #[cfg(target_os = "linux")]
        if let Backing::Shared { file, .. } = &self.block.backing
            && let Err(error) = shared::punch(file)
        {
            tracing::debug!(%error, "pages of discarded memory stay until it is unmapped");
        }
    }

    /// Returns whether both handles name the same block.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }

    /// Returns the value that `owner`, a number of its own choice, attached to the block.
    #[must_use]
    pub fn attachment<T: Send + Sync + 'static>(&self, owner: u64) -> Option<Arc<T>> {
        self.block.attached.find(owner)
    }

    /// Returns the value that `owner`, a number of its own choice, attached to the block; attaches a new
    /// one the first time. It is dropped before the memory is released: for registrations with
    /// devices, which let go of pages before these have another use.
    pub fn attached<T: Default + Send + Sync + 'static>(&self, owner: u64) -> Arc<T> {
        self.block.attached.of(owner)
    }

    fn is_exposed(&self) -> bool {
        self.block.is_exposed()
    }

    /// Notes that peers may reach the block from now on, in ways that this crate does not see: it
    /// never [becomes bytes](Self::try_into_bytes) any more. For code that hands out its address.
    pub fn expose(&self) {
        self.block.exposed.store(true, Ordering::Release);
        if let Backing::Carved { of, .. } = &self.block.backing {
            of.memory.expose();
        }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.block.len).finish_non_exhaustive()
    }
}

impl Block {
    /// A block that this process may write and that no other process or peer knows.
    fn new(base: NonNull<u8>, len: usize, backing: Backing) -> Self {
        Self {
            base,
            len,
            exposed: AtomicBool::new(false),
            lent: AtomicBool::new(false),
            writable: true,
            prefault: None,
            attached: attached::Attached::default(),
            backing,
        }
    }

    /// The pages that are mapped for this block alone.
    fn mapping(&self) -> Option<&Mapping> {
        match &self.backing {
            Backing::Private { mapping }
            | Backing::Shared { mapping, .. }
            | Backing::Common { mapping, .. } => Some(mapping),
            _ => None,
        }
    }

    fn is_exposed(&self) -> bool {
        self.exposed.load(Ordering::Acquire)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.attached.clear();
        match &self.backing {
            // SAFETY: `allocate_heap` got this block from the same allocator with
            // this layout, and nothing names it any more.
            Backing::Heap(layout) => unsafe { dealloc(self.base.as_ptr(), *layout) },
            Backing::Part(part) => part.release(self),
            // Everything else releases itself.
            _ => {}
        }
    }
}

/// A block without writers, read by reference.
struct FrozenBlock {
    block: Block,
    len: usize,
}

impl AsRef<[u8]> for FrozenBlock {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `try_into_bytes` checked `len`, took the only handle of a block
        // that we allocated (zeroed, and ever since filled by copies), or that is its maker's promise to be
        // ours alone and written by now (`from_raw_exclusive`), and never
        // exposed, so no pointer to it is left that could write; a part of a pool is
        // given to no other owner until `self` is gone; the block is never moved out of `self`.
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

fn map_private(len: usize) -> Result<(NonNull<u8>, Backing), MemoryError> {
    if isize::try_from(len).is_err() {
        return Err(MemoryError::TooLarge { len });
    }
    let mapping = Mapping::new(len, Content::Private)
        .map_err(|source| MemoryError::Refused { len, source })?;
    Ok((mapping.base(), Backing::Private { mapping }))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn foreign_memory_that_cannot_be_written_is_only_read() {
        static TEXT: &[u8] = b"read only";
        let base = NonNull::from(TEXT).cast();
        // SAFETY: a static that is never written, readable for good.
        let memory = unsafe { Memory::from_raw_read_only(base, TEXT.len(), ()) };
        assert!(!memory.is_writable());
        assert_eq!(memory.whole().copy_from(0, b"x"), Err(CopyError::ReadOnly));
        assert_eq!(memory.whole().to_vec(), TEXT);
        assert!(memory.try_into_bytes(1).is_err());
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
    fn memory_that_its_owner_leaves_alone_freezes() {
        let owner = Arc::new(());
        let bytes = Box::leak(vec![0_u8; 64].into_boxed_slice());
        let base = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the leaked bytes live for ever and are not used by reference again.
        let memory = unsafe { Memory::from_raw_exclusive(base, 64, Arc::clone(&owner)) };
        memory.whole().copy_from(0, b"frozen").unwrap();
        let frozen = memory.try_into_bytes(6).unwrap();
        assert_eq!((frozen.as_ptr(), &frozen[..]), (base.as_ptr().cast_const(), &b"frozen"[..]));
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(frozen);
        assert_eq!(Arc::strong_count(&owner), 1);
    }

    #[test]
    fn a_value_is_attached_once_and_dropped_with_the_block() {
        let memory = Memory::allocate(100).unwrap();
        assert!(memory.attachment::<u8>(1).is_none());
        let first: Arc<u8> = memory.attached(1);
        assert!(Arc::ptr_eq(&first, &memory.attachment(1).unwrap()));
        assert!(Arc::ptr_eq(&first, &memory.attached::<u8>(1)));
        assert!(!Arc::ptr_eq(&first, &memory.attached::<u8>(2)));
        assert_eq!(Arc::strong_count(&first), 2);
        drop(memory);
        assert_eq!(Arc::strong_count(&first), 1);
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
}
