//! Eviction from a directory.

use std::fs;

use tracing::warn;

use super::DirectoryTier;
use crate::error::TierError;
use crate::object::ObjectId;
use crate::oldest::Oldest;
use crate::tier::{Tier as _, TierUsage, Watermarks};

impl DirectoryTier {
    /// See [`evict`](crate::Tier::evict).
    pub(super) fn evict_oldest(
        &self,
        watermarks: Watermarks,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<TierUsage, TierError> {
        let used = self.usage()?.bytes;
        let mut removed = TierUsage::default();
        if used <= watermarks.high.as_u64() {
            return Ok(removed);
        }
        let wanted = used.saturating_sub(watermarks.low.as_u64());
        let mut oldest = Oldest::new(wanted);
        self.for_each_file(&mut |file| {
            let len = file.len;
            oldest.add(file, len);
        })?;
        for (file, len) in oldest.into_vec() {
            let object = self.describe(&file.place);
            let path = self.directory.join(&file.place);
            if self.found("remove", &path, fs::remove_file(&path))?.is_none() {
                // Another process was faster.
                continue;
            }
            removed.objects += 1;
            removed.bytes += len;
            match object {
                Ok(Some(object)) => evicted(object.id().clone()),
                Ok(None) => {}
                Err(error) => warn!(%error, "an object that could not be read was evicted"),
            }
        }
        Ok(removed)
    }
}
