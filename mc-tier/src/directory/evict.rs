//! Eviction from a directory.

use std::collections::BinaryHeap;
use std::fs;

use mc_types::ByteSize;
use tracing::warn;

use super::DirectoryTier;
use crate::error::TierError;
use crate::object::ObjectId;
use crate::tier::TierUsage;

/// When eviction begins, and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Objects are evicted when they take more than this.
    pub high: ByteSize,
    /// Eviction ends when the others take no more than this.
    pub low: ByteSize,
}

impl Watermarks {
    /// Eviction above 95 % of a quota, down to 90 %: the ratios by which a master evicts from memory.
    #[must_use]
    pub const fn of_quota(quota: ByteSize) -> Self {
        // Divided first, so that no quota is too large.
        let twentieth = quota.as_u64() / 20;
        Self { high: ByteSize::bytes(twentieth * 19), low: ByteSize::bytes(twentieth * 18) }
    }
}

impl DirectoryTier {
    /// Evicts the objects whose files were written first, when all of them together, those of other
    /// processes included, take more than the high watermark. Calls `evicted` with the id of each
    /// object after its removal, and returns what was removed. An object that cannot be read is removed
    /// in its turn and logged, since its id is not known.
    ///
    /// Lists the directory once, and a second time to evict. Takes memory in the number of evicted
    /// objects. The age is that of the file system's clock; where clocks jump, the order of
    /// eviction suffers and nothing else.
    ///
    /// # Errors
    /// What the file system says. Objects that `evicted` was called with are gone.
    pub fn evict(
        &self,
        watermarks: Watermarks,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<TierUsage, TierError> {
        use crate::Tier as _;
        let used = self.usage()?.bytes;
        let mut removed = TierUsage::default();
        if used <= watermarks.high.as_u64() {
            return Ok(removed);
        }
        let wanted = used.saturating_sub(watermarks.low.as_u64());
        // The oldest files that have the wanted bytes together; the youngest of them is the first.
        let (mut oldest, mut bytes) = (BinaryHeap::new(), 0);
        self.for_each_file(&mut |file| {
            bytes += file.len;
            oldest.push(file);
            while let Some(youngest) = oldest.peek()
                && bytes - youngest.len >= wanted
            {
                bytes -= youngest.len;
                oldest.pop();
            }
        })?;
        for file in oldest.into_sorted_vec() {
            let object = self.describe(&file.place);
            let path = self.directory.join(&file.place);
            if self.found("remove", &path, fs::remove_file(&path))?.is_none() {
                // Another process was faster.
                continue;
            }
            removed.objects += 1;
            removed.bytes += file.len;
            match object {
                Ok(Some(object)) => evicted(object.id().clone()),
                Ok(None) => {}
                Err(error) => warn!(%error, "an object that could not be read was evicted"),
            }
        }
        Ok(removed)
    }
}
