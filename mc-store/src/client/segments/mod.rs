//! Segments: memory that a client contributes, mounted and unmounted while it runs.

mod commands;
mod error;
mod set;

use std::time::Duration;

use mc_transport::{Memory, MemoryOptions};
use mc_types::{ByteSize, Endpoint, MediaType, SegmentId};

pub(super) use self::error::MountFailure;
pub use self::error::SegmentError;
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
    memory: MemoryOptions,
    medium: MediaType,
}

impl SegmentOptions {
    /// A segment of this size, in plain memory.
    pub fn new(size: ByteSize) -> Self {
        Self { size, name: None, memory: Memory::options(), medium: MediaType::Dram }
    }

    /// The name by which puts can prefer the segment, of at most 256 bytes. The default is
    /// the address where it is served; for further segments with `/2`, `/3` … after it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What memory it is made of; see
    /// [`ClientBuilder::segment_memory`](super::ClientBuilder::segment_memory).
    pub fn memory(mut self, options: MemoryOptions) -> Self {
        self.memory = options;
        self
    }

    /// What lies beneath the memory: puts that
    /// [ask for a medium](crate::ReplicateConfig::medium) go to segments of that medium. The
    /// default is DRAM; another medium needs memory of a
    /// [file](mc_transport::MemoryOptions::file) on it.
    pub fn medium(mut self, medium: MediaType) -> Self {
        self.medium = medium;
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
    /// What lies beneath its memory.
    pub medium: MediaType,
    /// Where it is served.
    pub endpoint: Endpoint,
    /// When it is to go, if it is.
    pub leaves_in: Option<Duration>,
}
