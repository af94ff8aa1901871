//! The memory of a segment: the host's, or a device's that is copied through stages.

use std::io;
use std::path::Path;

use mc_cuda::{Cuda, CudaError};
use mc_transport::{
    Access, FileLock, Memory, MemoryError, MemoryOptions, MemorySlice, Node, Region, RegisterError,
    Staging, Tickets, Transport as _,
};
use mc_types::{ByteSize, Extent};

use super::record::RecordPath;
use crate::error::SegmentError;

/// Most bytes of a segment that are populated before they are written.
const AHEAD: usize = 512 << 20;

/// Where the memory of a segment comes from.
#[derive(Clone, Debug)]
pub(super) enum MemorySource {
    Host(MemoryOptions),
    /// The GPU of this number.
    Gpu(u32),
    Staged(Staging),
}

impl MemorySource {
    /// Takes the memory. Blocks: pages may be populated, which takes seconds for many gigabytes.
    pub(super) fn take(self, size: ByteSize) -> Result<SegmentMemory, SegmentError> {
        let len = usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
        match self {
            Self::Host(options) => {
                // The memory of a segment that is kept is no one else's.
                let options = options.lock(FileLock::Shared);
                let memory = allocate(&options, len);
                let memory = memory.map_err(|source| SegmentError::Memory { size, source })?;
                if let Some(file) = options.path() {
                    remove_stale_record(file)?;
                }
                Ok(SegmentMemory::Host { memory, options })
            }
            Self::Gpu(device) => {
                let taken = take_gpu(device, len);
                let taken = taken.map_err(|source| SegmentError::Gpu { size, device, source })?;
                Ok(SegmentMemory::Staged(taken))
            }
            Self::Staged(staging) => Ok(SegmentMemory::Staged(staging)),
        }
    }
}

/// Removes the record of a file that is used without being kept: its bytes begin another life.
fn remove_stale_record(file: &Path) -> Result<(), SegmentError> {
    let record = RecordPath::beside(file);
    let failed = |source| SegmentError::Record { path: record.as_path().to_owned(), source };
    record.remove_stale().map_err(failed)
}

fn take_gpu(device: u32, len: usize) -> Result<Staging, CudaError> {
    let buffer = Cuda::load()?.device(device as usize)?.allocate(len)?;
    let stages = buffer.stages()?;
    Ok(Staging::new(buffer, stages))
}

/// Takes memory of the host, and begins to populate it: a quarter of it at most, because other
/// segments may get all the puts.
fn allocate(options: &MemoryOptions, len: usize) -> Result<Memory, MemoryError> {
    let memory = options.allocate(len)?;
    memory.populate_ahead((len / 4).min(AHEAD));
    Ok(memory)
}

/// The memory of a segment.
#[derive(Clone, Debug)]
pub(super) enum SegmentMemory {
    Host { memory: Memory, options: MemoryOptions },
    Staged(Staging),
}

impl SegmentMemory {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Host { memory, .. } => memory.len(),
            Self::Staged(staging) => staging.size(),
        }
    }

    pub(super) const fn is_staged(&self) -> bool {
        matches!(self, Self::Staged(_))
    }

    /// Whether processes of this host may touch it without asking.
    pub(super) fn was_lent(&self) -> bool {
        match self {
            Self::Host { memory, .. } => memory.was_lent(),
            Self::Staged(_) => false,
        }
    }

    /// Takes memory of the same kind for the next life of the segment. The old pages go back to
    /// the system first: there may not be enough for both. Blocks.
    pub(super) fn renewed(&self) -> Result<Self, MemoryError> {
        Ok(match self {
            Self::Host { memory, options } => {
                memory.discard();
                let memory = allocate(options, memory.len())?;
                Self::Host { memory, options: options.clone() }
            }
            Self::Staged(staging) => Self::Staged(staging.clone()),
        })
    }

    /// Opens it to peers.
    pub(super) fn register(
        &self,
        node: &Node,
        tickets: Option<Tickets>,
    ) -> Result<Region, RegisterError> {
        let access = Access::ReadWrite;
        match (self, tickets) {
            (Self::Host { memory, .. }, None) => node.register(memory, access),
            (Self::Host { memory, .. }, Some(tickets)) => {
                node.register_with_tickets(memory, access, tickets)
            }
            (Self::Staged(staging), tickets) => node.register_staged(staging, access, tickets),
        }
    }

    /// The bytes at `extent`.
    pub(super) fn part(&self, extent: Extent) -> Option<Held> {
        let at = usize::try_from(extent.offset()).ok()?;
        let len = usize::try_from(extent.len()).ok()?;
        match self {
            Self::Host { memory, .. } => memory.slice(at, len).map(Held::Host),
            Self::Staged(memory) => {
                let is_inside = at.checked_add(len).is_some_and(|end| end <= memory.size());
                is_inside.then(|| Held::Staged { memory: memory.clone(), at, len })
            }
        }
    }
}

/// Bytes of a segment of this client.
#[derive(Clone, Debug)]
pub(in crate::client) enum Held {
    Host(MemorySlice),
    Staged { memory: Staging, at: usize, len: usize },
}

impl Held {
    /// Whether [`on_host`](Self::on_host) copies, and so may block.
    pub(in crate::client) const fn is_staged(&self) -> bool {
        matches!(self, Self::Staged { .. })
    }

    /// The bytes, or a copy of them, in memory of the host.
    ///
    /// # Errors
    /// When the device fails, or the host has no memory for the copy.
    pub(in crate::client) fn on_host(&self) -> io::Result<MemorySlice> {
        match self {
            Self::Host(slice) => Ok(slice.clone()),
            Self::Staged { memory, at, len } => {
                let copy = Memory::allocate(*len).map_err(io::Error::other)?.whole();
                memory.device().read(*at, &copy)?;
                Ok(copy)
            }
        }
    }
}
