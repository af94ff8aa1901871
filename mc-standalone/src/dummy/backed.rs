//! Shared memory whose pages belong to this process.
//!
//! The system charges a page of shared memory to the process that touches it first. A get
//! writes to memory that the application may never have touched, so that the node agent
//! would pay for the buffers of all its applications, up to the limit of its container. A
//! thin client therefore takes the pages itself before it names them to the node agent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mc_transport::Memory;

use crate::error::DummyError;

/// Bytes that are taken at a time: few enough that a small value takes little, and many
/// enough that looking whether they are there costs nothing beside a copy.
const UNIT: usize = 64 << 10;

const BITS: usize = u64::BITS as usize;

/// A memory, and which of its pages this process has taken.
#[derive(Debug)]
pub(super) struct Backed {
    memory: Memory,
    /// A bit for each [`UNIT`].
    taken: Box<[AtomicU64]>,
}

impl Backed {
    pub(super) fn new(memory: Memory) -> Self {
        let words = memory.len().div_ceil(UNIT).div_ceil(BITS);
        Self { memory, taken: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Takes the pages of the `len` bytes at `offset`, unless they are there.
    ///
    /// # Errors
    /// [`DummyError::Memory`] when the system has none left.
    pub(super) fn ensure(&self, offset: usize, len: usize) -> Result<(), DummyError> {
        let end = (offset + len).div_ceil(UNIT);
        let mut unit = offset / UNIT;
        while unit < end {
            if self.has(unit) {
                unit += 1;
                continue;
            }
            let first = unit;
            while unit < end && !self.has(unit) {
                unit += 1;
            }
            self.take(first, unit)?;
        }
        Ok(())
    }

    fn has(&self, unit: usize) -> bool {
        self.taken[unit / BITS].load(Ordering::Relaxed) >> (unit % BITS) & 1 == 1
    }

    #[cold]
    fn take(&self, first: usize, end: usize) -> Result<(), DummyError> {
        let start = first * UNIT;
        let len = (end * UNIT).min(self.memory.len()) - start;
        let slice = self.memory.slice(start, len).expect("units lie in the memory");
        slice.populate().map_err(|error| DummyError::Memory(Arc::new(error)))?;
        for unit in first..end {
            self.taken[unit / BITS].fetch_or(1 << (unit % BITS), Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt as _;

    use mc_transport::Access;

    use super::*;

    #[test]
    fn pages_are_taken_once_and_no_others() {
        let memory = Memory::options().shared().allocate(10 * UNIT + 1).unwrap();
        let file = File::from(memory.share(Access::Read).unwrap());
        let there = || file.metadata().unwrap().blocks() as usize * 512;
        let backed = Backed::new(memory);
        for (offset, len, expected) in
            [(0, 0, 0), (UNIT - 1, 2, 2), (0, 2 * UNIT, 2), (4 * UNIT, 1, 3), (0, 6 * UNIT, 6)]
        {
            backed.ensure(offset, len).unwrap();
            assert_eq!(there(), expected * UNIT, "{len} at {offset}");
        }
        backed.ensure(10 * UNIT, 1).unwrap();
        assert_eq!(there(), 6 * UNIT + 4096);
    }
}
