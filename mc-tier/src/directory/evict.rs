//! Eviction from a directory.

use std::collections::BTreeSet;
use std::fs;

use tracing::warn;

use super::DirectoryTier;
use crate::error::TierError;
use crate::object::ObjectId;
use crate::oldest::Oldest;
use crate::place::run_of_pack;
use crate::tier::{Tier as _, TierUsage, Watermarks};

/// Files that one eviction passes over since they cannot be removed. It ends when there are more.
const MAX_STUCK: usize = 1024;

impl DirectoryTier {
    /// See [`evict`](crate::Tier::evict).
    pub(super) fn evict_oldest(
        &self,
        watermarks: Watermarks,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<TierUsage, TierError> {
        let mut removed = TierUsage::default();
        let Some(wanted) = watermarks.excess(self.usage()?) else { return Ok(removed) };
        // Files of other users, immutable ones, those that a host has open over SMB.
        let mut stuck = Stuck::default();
        while removed.bytes < wanted {
            let before = stuck.places.len();
            self.evict_round(wanted - removed.bytes, &mut removed, &mut stuck, evicted)?;
            if stuck.places.len() == before || before > MAX_STUCK {
                break;
            }
        }
        match stuck.failure {
            Some(error) if removed.objects == 0 => Err(error),
            Some(error) => {
                let files = stuck.places.len();
                warn!(%error, files, "files that cannot be removed are passed over by eviction");
                Ok(removed)
            }
            None => Ok(removed),
        }
    }

    /// Removes the oldest files that have so many bytes together, without those that are stuck.
    fn evict_round(
        &self,
        wanted: u64,
        removed: &mut TierUsage,
        stuck: &mut Stuck,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<(), TierError> {
        let mut oldest = Oldest::new(wanted);
        self.for_each_file(&mut |file| {
            let len = file.len;
            if !stuck.places.contains(&file.place) {
                oldest.add(file, len);
            }
        })?;
        for (file, len) in oldest.into_vec() {
            let objects = self.ids_in(&file.place);
            let path = self.directory.join(&file.place);
            match self.found("remove", &path, fs::remove_file(&path)) {
                Ok(Some(())) => {}
                // Another process was faster.
                Ok(None) => continue,
                Err(error @ TierError::Vanished { .. }) => return Err(error),
                Err(error) => {
                    stuck.places.insert(file.place);
                    stuck.failure.get_or_insert(error);
                    continue;
                }
            }
            if let Some(run) = run_of_pack(&file.place) {
                self.packs.is_gone(run);
            }
            removed.bytes += len;
            match objects {
                Ok(ids) => {
                    removed.objects += (ids.len() as u64).max(1);
                    ids.into_iter().for_each(&mut *evicted);
                }
                Err(error) => {
                    removed.objects += 1;
                    warn!(%error, "an object that could not be read was evicted");
                }
            }
        }
        Ok(())
    }
}

/// The places that cannot be removed, and the failure of the first.
#[derive(Default)]
struct Stuck {
    places: BTreeSet<String>,
    failure: Option<TierError>,
}
