//! Blocks cut out of larger ones, for allocators that divide memory.

use std::sync::Arc;

use super::{Backing, Block, Memory, MemorySlice};

impl MemorySlice {
    /// Makes these bytes a block of their own, which keeps `owner` and drops it when the
    /// last handle, slice, region or running operation that names the block is gone.
    ///
    /// This is how memory that an allocator divides is handed out: `owner` is the
    /// allocator's claim, and no byte is given to the next owner while an operation can still
    /// touch it. Nothing is copied, and nothing keeps other handles of the larger block from
    /// these bytes. The block cannot be [shared](Memory::share) on its own; that is for
    /// the [origin](Memory::origin).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use mc_memory::Memory;
    /// let arena = Memory::allocate(1 << 20)?;
    /// let claim = Arc::new("bytes 4096..8192 are taken");
    /// let block = arena.slice(4096, 4096).unwrap().into_memory(Arc::clone(&claim));
    /// block.whole().copy_from(0, b"hello")?;
    /// assert_eq!(arena.slice(4096, 5).unwrap().to_vec(), b"hello");
    /// assert_eq!(block.origin().unwrap().offset(), 4096);
    /// drop(block);
    /// assert_eq!(Arc::strong_count(&claim), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn into_memory(self, owner: impl Send + Sync + 'static) -> Memory {
        let (base, len, writable) = (self.base(), self.len, self.is_writable());
        let backing = Backing::Carved { of: self, _owner: Box::new(owner) };
        let mut block = Block::new(base, len, backing);
        block.writable = writable;
        Memory { block: Arc::new(block) }
    }
}

impl MemorySlice {
    /// The block that the system gave, and where the slice begins in it: blocks that were carved
    /// from another, or come from a pool, are parts of that.
    #[must_use]
    pub fn root(&self) -> Self {
        let mut slice = self.clone();
        loop {
            let (whole, start) = match &slice.memory.block.backing {
                Backing::Carved { of, .. } => (of.memory.clone(), of.offset),
                Backing::Part(part) => {
                    let (ours, theirs) = (slice.memory.block.base, part.whole().block.base);
                    (part.whole().clone(), ours.addr().get() - theirs.addr().get())
                }
                _ => return slice,
            };
            slice.offset += start;
            slice.memory = whole;
        }
    }
}

impl Memory {
    /// Where in another block these bytes are; `None` unless they were made a block by
    /// [`MemorySlice::into_memory`].
    #[must_use]
    pub fn origin(&self) -> Option<&MemorySlice> {
        match &self.block.backing {
            Backing::Carved { of, .. } => Some(of),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::memory::{CopyError, Memory};

    #[test]
    fn the_claim_is_dropped_with_the_last_handle() {
        let claim = Arc::new(());
        let arena = Memory::allocate(100).unwrap();
        let block = arena.slice(10, 20).unwrap().into_memory(Arc::clone(&claim));
        assert_eq!((block.len(), block.whole().offset()), (20, 0));
        let slice = block.slice(5, 5).unwrap();
        drop(block);
        assert_eq!(Arc::strong_count(&claim), 2, "a slice still names the block");
        slice.copy_from(0, b"12345").unwrap();
        drop(slice);
        assert_eq!(Arc::strong_count(&claim), 1);
        assert_eq!(arena.slice(15, 5).unwrap().to_vec(), b"12345");
    }

    #[test]
    fn a_part_keeps_the_whole_and_its_limits() {
        let arena = Memory::allocate(100).unwrap();
        let block = arena.slice(90, 10).unwrap().into_memory(());
        assert!(arena.origin().is_none());
        assert!(block.origin().unwrap().memory().is_same(&arena));
        drop(arena);
        block.whole().copy_from(0, b"0123456789").unwrap();
        assert!(matches!(block.whole().copy_from(1, b"0123456789"), Err(CopyError::OutOfRange(_))));
        assert!(block.slice(9, 2).is_none());
        assert!(block.shareable().is_none());
        let inner = block.slice(4, 4).unwrap().into_memory(());
        drop(block);
        assert_eq!(inner.whole().to_vec(), b"4567");
        assert!(inner.try_into_bytes(1).is_err());
    }

    #[test]
    fn parts_are_found_in_their_whole() {
        let arena = Memory::allocate(1000).unwrap();
        let block = arena.slice(100, 200).unwrap().into_memory(());
        let inner = block.slice(50, 100).unwrap().into_memory(());
        let root = inner.slice(5, 10).unwrap().root();
        assert!(root.memory().is_same(&arena));
        assert_eq!((root.offset(), root.len()), (155, 10));
        let pool = crate::BufferPool::new(1 << 20).unwrap();
        let (one, two) = (pool.take(4096).unwrap(), pool.take(4096).unwrap());
        let (one, two) = (one.whole().root(), two.slice(1, 1).unwrap().root());
        assert!(one.memory().is_same(two.memory()));
        assert_ne!(one.offset(), two.offset() - 1);
        assert_eq!(one.memory().whole().address() as usize % 4096, 0);
    }

    #[test]
    fn memory_whose_part_peers_may_reach_never_becomes_bytes() {
        let arena = Memory::allocate(100).unwrap();
        let block = arena.slice(0, 10).unwrap().into_memory(());
        block.expose();
        drop(block);
        assert!(arena.try_into_bytes(1).is_err());
    }
}
