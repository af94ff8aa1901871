//! Segments: memory that a client contributes, mounted and unmounted while it runs.

mod contribute;
mod error;
mod keep;
mod memory;
mod record;
mod set;

use std::time::Duration;

use mc_transport::{Memory, MemoryOptions, Staging};
use mc_types::{ByteSize, Endpoint, MediaType, SegmentId};

pub(super) use self::keep::KeptMemory;
pub(super) use self::memory::Held;
use self::memory::MemorySource;
pub(super) use self::set::Segments;

/// Describes a segment to mount.
///
/// ```
/// use mc_store::{ByteSize, SegmentOptions};
/// let segment = SegmentOptions::new(ByteSize::gib(4)).name("rack-7/node-3");
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SegmentOptions {
    size: ByteSize,
    name: Option<String>,
    memory: MemorySource,
    medium: MediaType,
    device: u32,
}

impl SegmentOptions {
    /// A segment of this size, in plain memory.
    pub fn new(size: ByteSize) -> Self {
        let memory = MemorySource::Host(Memory::options());
        Self { size, name: None, memory, medium: MediaType::Dram, device: 0 }
    }

    /// A segment over memory that is not the host's, such as that of a device of your own; its
    /// [medium](Self::medium) is VRAM unless you say otherwise. Its bytes take a step on the way,
    /// through the stages, also those that this client itself reads and writes.
    pub fn staged(memory: Staging) -> Self {
        let size = ByteSize::bytes(memory.size() as u64);
        let memory = MemorySource::Staged(memory);
        Self { memory, medium: MediaType::Vram, ..Self::new(size) }
    }

    /// The name by which puts can prefer the segment, of at most 256 bytes. The default is
    /// the address where it is served; for further segments with `/2`, `/3` … after it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets the kind of memory; see
    /// [`ClientBuilder::segment_memory`](super::ClientBuilder::segment_memory).
    pub fn memory(mut self, options: MemoryOptions) -> Self {
        self.memory = MemorySource::Host(options);
        self
    }

    /// Sets the medium of the memory: puts that [ask for a medium](crate::ReplicateConfig::medium)
    /// go to segments of that medium. The default is DRAM. VRAM is taken from a [GPU](Self::device)
    /// of NVIDIA's; an SSD needs memory of a [file](mc_transport::MemoryOptions::file) on it, and
    /// with a file the segment is that whatever the medium.
    pub fn medium(mut self, medium: MediaType) -> Self {
        self.medium = medium;
        self
    }

    /// The number of the GPU whose memory a segment of VRAM takes, when it has no file. The
    /// default is 0, the first.
    pub fn device(mut self, number: u32) -> Self {
        self.device = number;
        self
    }
}

/// A segment that a client contributes now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountedSegment {
    /// The master's id for it. It is another one after a master that had forgotten the
    /// segment was given it anew.
    pub id: SegmentId,
    /// Its name.
    pub name: Box<str>,
    /// Its size.
    pub size: ByteSize,
    /// The medium of its memory.
    pub medium: MediaType,
    /// Where it is served.
    pub endpoint: Endpoint,
    /// When it is to go, if it is.
    pub leaves_in: Option<Duration>,
}
