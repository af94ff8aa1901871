//! Many short-lived blocks out of one.

use std::fmt;
use std::ptr::NonNull;

use mc_alloc::{AllocatedBuffer, OffsetAllocator, SharedAllocator};

use super::{Backing, Block, Memory, MemoryError};

/// Bytes that are populated before they are used, and before anything is used.
const AHEAD: usize = 32 << 20;

/// Blocks of a pool begin at multiples of this, and those of at least a page at multiples
/// of a page.
const ALIGN: u64 = 64;

/// Gives out parts of one block of memory as blocks of their own, which come back when
/// their last handle is gone.
///
/// A block fresh from the system costs a page fault for each of its pages, which takes
/// longer than reading into it from a peer of this host. Blocks of a pool were used
/// before, and fault no more. Like [`Memory::allocate`]d ones they can be turned into
/// [`Bytes`](bytes::Bytes), which then borrow from the pool until they are dropped. Unlike
/// those they are not zeroed: they hold what their last user left.
///
/// Clones share the pool.
///
/// ```
/// use mc_memory::BufferPool;
/// let pool = BufferPool::new(1 << 20)?;
/// let block = pool.take(5).ok_or("there is room")?;
/// block.whole().copy_from(0, b"hello")?;
/// let text = block.try_into_bytes(5).map_err(|_| "nobody else has it")?;
/// assert_eq!(&text[..], b"hello");
/// assert!(pool.take(1 << 20).is_none(), "part of it is in use");
/// drop(text);
/// assert!(pool.take(1 << 20).is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct BufferPool {
    whole: Memory,
    space: SharedAllocator,
}

/// Keeps a part of a pool from being given out again.
pub(super) struct Part {
    whole: Memory,
    _place: AllocatedBuffer<OffsetAllocator>,
}

impl BufferPool {
    /// A pool of `capacity` bytes. Its pages are populated in the background, up to 32 MiB before
    /// they are used ([`Memory::populate_ahead`]).
    ///
    /// # Errors
    /// [`MemoryError`] when the system has no such room.
    pub fn new(capacity: usize) -> Result<Self, MemoryError> {
        let whole = Memory::allocate(capacity)?;
        whole.populate_ahead(AHEAD);
        Ok(Self::of(whole))
    }

    /// A pool of the memory of a block, which nothing else uses: pinned memory, for example.
    #[must_use]
    pub fn of(whole: Memory) -> Self {
        let space = SharedAllocator::new(OffsetAllocator::new(whole.len() as u64));
        Self { whole, space }
    }

    /// A block of `len` bytes of unspecified content; `None` when there is no room for it
    /// now. Its first byte is aligned to 64 bytes, and that of at least a page to a page.
    #[must_use]
    pub fn take(&self, len: usize) -> Option<Memory> {
        let page = super::page_size();
        let align = if len < page { ALIGN } else { page as u64 };
        let size = (len as u64).checked_next_multiple_of(ALIGN)?;
        let place = self.space.allocate(size, align).ok()?;
        let offset = usize::try_from(place.extent().offset()).expect("inside of a block in memory");
        let slice = self.whole.slice(offset, len)?;
        slice.populate_behind();
        let base = NonNull::new(slice.address())?;
        let part = Part { whole: self.whole.clone(), _place: place };
        Some(Memory::new(base, len, Backing::Part(part)))
    }

    /// Bytes of the pool.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.whole.len()
    }

    /// Bytes that are in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.space.used()
    }
}

impl Part {
    /// The memory of the pool.
    pub(super) fn whole(&self) -> &Memory {
        &self.whole
    }

    /// Returns whether peers may still reach the place, because this or an earlier block there was
    /// registered for them.
    pub(super) fn was_exposed(&self) -> bool {
        self.whole.is_exposed()
    }

    /// Called when the block at this place is dropped.
    pub(super) fn release(&self, block: &Block) {
        // A peer that remembers the address may yet write what is here next.
        if block.is_exposed() {
            self.whole.expose();
        }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("capacity", &self.capacity())
            .field("used", &self.used())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::page_size;
    use super::*;

    #[test]
    fn blocks_neither_overlap_nor_get_lost() {
        let pool = BufferPool::new(1 << 20).unwrap();
        let lens = [1, 63, 64, 65, 4095, 4096, 4097, 100_000];
        let blocks: Vec<Memory> = lens.iter().map(|&len| pool.take(len).unwrap()).collect();
        for (n, block) in blocks.iter().enumerate() {
            let address = block.whole().address() as usize;
            let align = if block.len() < page_size() { 64 } else { page_size() };
            assert_eq!(address % align, 0, "{}", block.len());
            block.whole().copy_from(0, &vec![n as u8; block.len()]).unwrap();
        }
        for (n, block) in blocks.iter().enumerate() {
            assert!(block.whole().to_vec().iter().all(|&byte| byte == n as u8), "{n}");
        }
        assert!(pool.take(1 << 20).is_none());
        drop(blocks);
        assert_eq!(pool.used(), 0);
        assert!(pool.take(1 << 20).is_some());
        assert!(pool.take((1 << 20) + 1).is_none());
        assert!(pool.take(usize::MAX).is_none());
    }

    #[test]
    fn a_slice_keeps_its_block() {
        let pool = BufferPool::new(4096).unwrap();
        let slice = pool.take(4096).unwrap().slice(7, 1).unwrap();
        assert!(pool.take(1).is_none());
        drop(slice);
        assert!(pool.take(1).is_some());
    }

    #[test]
    fn bytes_outlive_the_pool() {
        let pool = BufferPool::new(4096).unwrap();
        let block = pool.take(4).unwrap();
        block.whole().copy_from(0, b"stay").unwrap();
        let bytes = block.try_into_bytes(4).unwrap();
        drop(pool);
        assert_eq!(&bytes[..], b"stay");
    }

    #[test]
    fn what_peers_may_write_never_freezes() {
        let pool = BufferPool::new(4096).unwrap();
        let block = pool.take(4096).unwrap();
        block.expose();
        drop(block);
        let next = pool.take(10).unwrap();
        assert!(next.try_into_bytes(10).is_err());
    }
}
