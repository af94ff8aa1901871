//! Memory for direct I/O.

use core::fmt;
use core::ops::{Deref, DerefMut};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use mc_types::ByteSize;
use parking_lot::Mutex;

/// The alignment of buffers in memory: that of pages, which every device takes.
const ALIGN: usize = 4096;

/// The most memory that a pool keeps for later buffers.
const POOL_LIMIT: ByteSize = ByteSize::mib(64);

/// Bytes whose address is a multiple of 4096, as direct I/O wants it.
pub struct IoBuffer {
    /// Longer than the buffer, so that an aligned part is in it.
    memory: Vec<u8>,
    start: usize,
    len: usize,
    pool: Weak<Kept>,
}

impl IoBuffer {
    /// A buffer of `len` zeros.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self::over(vec![0; len + ALIGN], len, Weak::new())
    }

    fn over(memory: Vec<u8>, len: usize, pool: Weak<Kept>) -> Self {
        let start = memory.as_ptr().align_offset(ALIGN);
        Self { memory, start, len, pool }
    }
}

impl Deref for IoBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for IoBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for IoBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for IoBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a buffer of {} bytes", self.len)
    }
}

impl Drop for IoBuffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.keep(core::mem::take(&mut self.memory));
        }
    }
}

/// Keeps the memory of buffers that are not used any more, so that it is cleared and mapped once
/// and not for each read. Clones are the same pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct BufferPool(Arc<Kept>);

#[derive(Debug, Default)]
struct Kept(Mutex<Free>);

#[derive(Debug, Default)]
struct Free {
    by_len: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl BufferPool {
    /// A buffer of `len` bytes, whose content is that of some earlier buffer.
    pub(crate) fn take(&self, len: usize) -> IoBuffer {
        let class = class(len) + ALIGN;
        let mut free = self.0.0.lock();
        let kept = free.by_len.get_mut(&class).and_then(Vec::pop);
        free.bytes -= kept.as_ref().map_or(0, Vec::len);
        drop(free);
        let memory = kept.unwrap_or_else(|| vec![0; class]);
        IoBuffer::over(memory, len, Arc::downgrade(&self.0))
    }
}

impl Kept {
    fn keep(&self, memory: Vec<u8>) {
        let mut free = self.0.lock();
        if free.bytes + memory.len() <= POOL_LIMIT.as_u64() as usize {
            free.bytes += memory.len();
            free.by_len.entry(memory.len()).or_default().push(memory);
        }
    }
}

/// The length that is allocated: of eight in each power of two, so that lengths that differ little
/// share memory.
fn class(len: usize) -> usize {
    len.next_multiple_of((len.next_power_of_two() / 16).max(ALIGN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_their_memory_is_used_again() {
        let pool = BufferPool::default();
        for len in [1, 4096, 4097, 65_536 + 512, (1 << 20) + 4096] {
            let mut buffer = pool.take(len);
            assert_eq!((buffer.len(), buffer.as_ptr().align_offset(ALIGN)), (len, 0));
            buffer[len - 1] = 7;
            let address = buffer.as_ptr();
            drop(buffer);
            assert_eq!(pool.take(len).as_ptr(), address, "{len}");
            assert!(class(len) < len + len / 8 + ALIGN, "{len}");
        }
    }

    #[test]
    fn a_pool_keeps_a_bounded_number_of_bytes() {
        let pool = BufferPool::default();
        drop((0..100).map(|_| pool.take(1 << 20)).collect::<Vec<_>>());
        let bytes = pool.0.0.lock().bytes;
        assert!(bytes > 60 << 20 && bytes <= 64 << 20, "{bytes}");
        let buffer = pool.take(10);
        drop(pool);
        drop(buffer);
    }
}
