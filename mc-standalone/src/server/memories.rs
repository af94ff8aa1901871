//! The memories that one thin client shares.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mc_transport::{Access, Memory, MemorySlice};
use mc_types::ErrorCode;
use parking_lot::Mutex;

use super::core::Figures;
use super::limits::Limits;
use crate::wire::{Failure, MAX_PIECES_OF_CALL, Object, Span};

/// Maps what a thin client registers, within limits.
#[derive(Debug)]
pub(super) struct Memories {
    mapped: Mutex<HashMap<u32, Memory>>,
    figures: Arc<Figures>,
    max_memories: usize,
    max_shared: u64,
}

/// Bytes counted as mapped, until the mapping is gone.
struct CountedBytes {
    figures: Arc<Figures>,
    len: u64,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.figures.shared_bytes.fetch_sub(self.len, Ordering::Relaxed);
        self.figures.memories.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Memories {
    pub(super) fn new(limits: &Limits, figures: &Arc<Figures>) -> Self {
        Self {
            mapped: Mutex::default(),
            figures: Arc::clone(figures),
            max_memories: limits.memories,
            max_shared: limits.shared,
        }
    }

    /// Maps `len` bytes under this number, in place of what had it before.
    pub(super) fn register(
        &self,
        number: u32,
        len: u64,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), Failure> {
        let descriptor =
            descriptor.ok_or_else(|| Failure::invalid("memory comes with a descriptor"))?;
        let bytes = usize::try_from(len).map_err(Failure::invalid)?;
        let mut mapped = self.mapped.lock();
        // The old mapping goes when the calls that touch it have ended.
        mapped.remove(&number);
        if mapped.len() >= self.max_memories {
            let text = format!("a thin client may register {} memories", self.max_memories);
            return Err(Failure::invalid(text));
        }
        let counted = self.count(len)?;
        let memory =
            Memory::map_shared(descriptor, bytes, Access::ReadWrite).map_err(Failure::invalid)?;
        mapped.insert(number, memory.whole().into_memory(counted));
        Ok(())
    }

    fn count(&self, len: u64) -> Result<CountedBytes, Failure> {
        let add = |sum: u64| sum.checked_add(len).filter(|&sum| sum <= self.max_shared);
        let shared = &self.figures.shared_bytes;
        if shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            let text = format!(
                "thin clients may share {} bytes with the node agent, all together; \
                 share less, or raise its limit",
                self.max_shared
            );
            return Err(Failure::new(ErrorCode::Overloaded, text, true));
        }
        self.figures.memories.fetch_add(1, Ordering::Relaxed);
        Ok(CountedBytes { figures: Arc::clone(&self.figures), len })
    }

    pub(super) fn unregister(&self, number: u32) -> Result<(), Failure> {
        let gone = self.mapped.lock().remove(&number);
        let unknown = || Failure::invalid(format!("no memory has the number {number}"));
        gone.map(drop).ok_or_else(unknown)
    }

    /// Unmaps everything that no call touches.
    pub(super) fn clear(&self) {
        let gone = std::mem::take(&mut *self.mapped.lock());
        drop(gone);
    }

    /// The bytes of each object.
    pub(super) fn resolve<'o>(
        &self,
        objects: impl Iterator<Item = &'o Object<'static>> + Clone,
    ) -> Result<Vec<Vec<MemorySlice>>, Failure> {
        let pieces: usize = objects.clone().map(|object| object.pieces.len()).sum();
        if pieces > MAX_PIECES_OF_CALL {
            let text = format!("one call may name {MAX_PIECES_OF_CALL} pieces of memory");
            return Err(Failure::invalid(text));
        }
        let mapped = self.mapped.lock();
        let slice = |span: &Span| {
            let memory = mapped.get(&span.memory).ok_or_else(|| {
                Failure::invalid(format!("no memory has the number {}", span.memory))
            })?;
            let (offset, len) = (usize::try_from(span.offset), usize::try_from(span.len));
            let inside = offset.ok().zip(len.ok()).and_then(|(at, len)| memory.slice(at, len));
            inside.ok_or_else(|| {
                let Span { offset, len, .. } = span;
                let available = memory.len();
                let text = format!("{len} bytes at {offset} leave a memory of {available}");
                Failure::invalid(text)
            })
        };
        objects.map(|object| object.pieces.iter().map(slice).collect()).collect()
    }
}
