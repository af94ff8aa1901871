//! The disk as a region that peers read.

use std::io;
use std::sync::Arc;

use mc_tier::Tier;
use mc_transport::{MemorySlice, StagedMemory};
use tokio::time::Instant;

use super::places::Places;
use crate::client::metrics::TierCounters;

/// The disk's objects at their [places](Places). A reader compares the checksums: it was told them with
/// the object's place.
pub(in crate::client) struct LocalDiskRegion {
    tier: Arc<dyn Tier>,
    places: Arc<Places>,
    counters: Arc<TierCounters>,
}

impl LocalDiskRegion {
    pub(in crate::client) fn new(
        tier: Arc<dyn Tier>,
        places: Arc<Places>,
        counters: Arc<TierCounters>,
    ) -> Self {
        Self { tier, places, counters }
    }
}

impl StagedMemory for LocalDiskRegion {
    /// More than there will ever be addresses of objects.
    fn size(&self) -> usize {
        usize::MAX / 2
    }

    fn read(&self, at: usize, into: &MemorySlice) -> io::Result<()> {
        let begun = Instant::now();
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no object is there any more");
        let Some((id, range)) = self.places.find(at as u64, into.len() as u64) else {
            self.counters.read(begun.elapsed(), Ok(None));
            return Err(missing());
        };
        let read = self.tier.get_unverified(&id, range).map_err(io::Error::other);
        self.counters.read(
            begun.elapsed(),
            match &read {
                Ok(bytes) => Ok(bytes.as_ref().map(|bytes| bytes.len() as u64)),
                Err(_) => Err(()),
            },
        );
        into.copy_from(0, &read?.ok_or_else(missing)?).map_err(io::Error::other)
    }

    /// Peers do not write to the disk.
    fn write(&self, _: usize, _: &MemorySlice) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}
