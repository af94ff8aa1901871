//! Values that live as long as a block of memory, such as its registrations with devices.

use std::any::Any;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Backing, Memory, MemorySlice};

/// The values of one block, by the number of the owner that attached them. They are dropped
/// before the memory is released: a device lets go of pages before they have another use.
#[derive(Default)]
pub(super) struct Attached(Mutex<Vec<(u64, Arc<dyn Any + Send + Sync>)>>);

impl Attached {
    pub(super) fn clear(&mut self) {
        self.0.get_mut().clear();
    }
}

impl Memory {
    /// Returns the value that `owner` attached to the block; attaches a new one the first time.
    pub(crate) fn attached<T: Default + Send + Sync + 'static>(&self, owner: u64) -> Arc<T> {
        let mut attached = self.block.attached.0.lock();
        let known = attached.iter().find(|(known, _)| *known == owner);
        if let Some(known) = known.and_then(|(_, value)| Arc::clone(value).downcast().ok()) {
            return known;
        }
        let new = Arc::<T>::default();
        attached.push((owner, Arc::clone(&new) as Arc<dyn Any + Send + Sync>));
        new
    }
}

impl MemorySlice {
    /// The block that the system gave, and where the slice begins in it: blocks that were carved
    /// from another, or come from a pool, are parts of that.
    pub(crate) fn root(&self) -> Self {
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

#[cfg(test)]
mod tests {
    use super::super::BufferPool;
    use super::*;

    #[test]
    fn a_value_is_attached_once_and_dropped_with_the_block() {
        let memory = Memory::allocate(100).unwrap();
        let first: Arc<u8> = memory.attached(1);
        assert!(Arc::ptr_eq(&first, &memory.attached::<u8>(1)));
        assert!(!Arc::ptr_eq(&first, &memory.attached::<u8>(2)));
        assert_eq!(Arc::strong_count(&first), 2);
        drop(memory);
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn parts_are_found_in_their_whole() {
        let arena = Memory::allocate(1000).unwrap();
        let block = arena.slice(100, 200).unwrap().into_memory(());
        let inner = block.slice(50, 100).unwrap().into_memory(());
        let root = inner.slice(5, 10).unwrap().root();
        assert!(root.memory().is_same(&arena));
        assert_eq!((root.offset(), root.len()), (155, 10));
        let pool = BufferPool::new(1 << 20).unwrap();
        let (one, two) = (pool.take(4096).unwrap(), pool.take(4096).unwrap());
        let (one, two) = (one.whole().root(), two.slice(1, 1).unwrap().root());
        assert!(one.memory().is_same(two.memory()));
        assert_ne!(one.offset(), two.offset() - 1);
        assert_eq!(one.memory().whole().address() as usize % 4096, 0);
    }
}
