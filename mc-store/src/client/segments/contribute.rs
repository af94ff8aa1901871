//! Memory for a segment, and its first mount.

use mc_transport::Transport as _;
use mc_types::{ByteSize, MediaType, SegmentId};

use super::SegmentOptions;
use super::memory::MemorySource;
use super::set::{SegmentSetup, Segments};
use crate::client::master_link::MasterLink;
use crate::client::settings::Settings;
use crate::error::SegmentError;

impl Segments {
    /// Takes memory, serves it and mounts it. Nothing is left of it when that fails.
    pub(in crate::client) async fn contribute(
        &self,
        link: &MasterLink,
        settings: &Settings,
        options: SegmentOptions,
    ) -> Result<SegmentId, SegmentError> {
        let SegmentOptions { size, name, memory, medium, device } = options;
        if size == ByteSize::bytes(0) {
            return Err(SegmentError::Empty);
        }
        let memory = match memory {
            MemorySource::Host(options) if medium == MediaType::Dram || options.is_file() => {
                MemorySource::Host(settings.shareable(options))
            }
            MemorySource::Host(_) if medium == MediaType::Vram => MemorySource::Gpu(device),
            MemorySource::Host(_) => return Err(SegmentError::Medium { medium }),
            staged => staged,
        };
        if self.transport.endpoint().is_none() {
            return Err(SegmentError::NotListening);
        }
        let taken = self.environment().blocking(move || memory.take(size)).await;
        let memory = match taken {
            Some(Ok(memory)) => memory?,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            // The runtime ends.
            None => return Err(SegmentError::Closed),
        };
        self.add(&link.master, link.id, SegmentSetup { name, medium, memory, kept: None }).await
    }
}
