//! The local buffer: one shared memory, divided.

use std::sync::Arc;

use mc_alloc::{AllocateError, AllocatedBuffer, OffsetAllocator, SharedAllocator};
use mc_transport::Memory;
use mc_types::ByteSize;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::backed::Backed;
use crate::error::DummyError;

/// Blocks begin at cache lines, so that two processes that use neighbours do not slow each
/// other down.
const ALIGN: u64 = 64;

/// Memory that the node agent reaches, and who has which part of it.
#[derive(Debug)]
pub(super) struct Arena {
    backed: Backed,
    space: SharedAllocator,
    freed: Arc<Notify>,
}

/// A block's place, given back when the block is gone.
struct Claim {
    place: Option<AllocatedBuffer>,
    freed: Arc<Notify>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.place.take();
        self.freed.notify_waiters();
    }
}

impl Arena {
    pub(super) fn new(size: ByteSize) -> Result<Self, DummyError> {
        let len = usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
        let memory = Memory::options().shared().allocate(len);
        let memory = memory.map_err(|error| DummyError::Memory(Arc::new(error)))?;
        let space = SharedAllocator::new(OffsetAllocator::new(size.as_u64()));
        Ok(Self { backed: Backed::new(memory), space, freed: Arc::default() })
    }

    /// The whole of it.
    pub(super) fn memory(&self) -> &Memory {
        self.backed.memory()
    }

    /// The same, with what is known of its pages.
    pub(super) fn backed(&self) -> &Backed {
        &self.backed
    }

    pub(super) fn capacity(&self) -> u64 {
        self.memory().len() as u64
    }

    /// A block of `len` bytes.
    pub(super) fn allocate(&self, len: usize) -> Result<Memory, DummyError> {
        let needed = len as u64;
        let capacity = ByteSize::bytes(self.capacity());
        if needed > self.capacity() {
            return Err(DummyError::TooLarge { needed, capacity });
        }
        // A block without bytes has a place, too.
        let place = match self.space.allocate(needed.max(1), ALIGN) {
            Ok(place) => place,
            Err(AllocateError::LargerThanCapacity { .. }) => {
                return Err(DummyError::TooLarge { needed, capacity });
            }
            Err(_) => return Err(DummyError::BufferFull { needed, capacity }),
        };
        let at = place.extent().offset() as usize; // inside the memory
        let slice = self.memory().slice(at, len).expect("the allocator stays inside the memory");
        let claim = Claim { place: Some(place), freed: Arc::clone(&self.freed) };
        Ok(slice.into_memory(claim))
    }

    /// A block of `len` bytes, as soon as others have given back what it takes.
    pub(super) async fn wait_for(
        &self,
        len: usize,
        deadline: Instant,
    ) -> Result<Memory, DummyError> {
        loop {
            let freed = self.freed.notified();
            match self.allocate(len) {
                Err(full @ DummyError::BufferFull { .. }) => {
                    if timeout_at(deadline, freed).await.is_err() {
                        return Err(full);
                    }
                }
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn blocks_are_waited_for() {
        let arena = Arena::new(ByteSize::kib(64)).unwrap();
        let whole = arena.allocate(64 << 10).unwrap();
        let slice = whole.slice(5, 5).unwrap();
        drop(whole);
        assert!(matches!(arena.allocate(1), Err(DummyError::BufferFull { .. })), "still named");
        let soon = Instant::now() + Duration::from_millis(10);
        assert!(matches!(arena.wait_for(1, soon).await, Err(DummyError::BufferFull { .. })));
        let later = Instant::now() + Duration::from_secs(20);
        let waiting = arena.wait_for(64 << 10, later);
        let (block, ()) = tokio::join!(waiting, async { drop(slice) });
        assert!(block.unwrap().origin().unwrap().memory().is_same(arena.memory()));
        assert!(matches!(arena.allocate((64 << 10) + 1), Err(DummyError::TooLarge { .. })));
        assert_eq!(arena.allocate(0).unwrap().len(), 0);
    }
}
