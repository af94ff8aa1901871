//! A second look at what peers found damaged or missing on the disk.

use std::sync::Arc;

use mc_meta::{Slice, Slices, Verdict};
use mc_tier::{ObjectBytes, SliceBytes, Tier};
use mc_types::Extent;
use tracing::warn;

use super::places::Places;

/// Looks at objects on the local disk for the master.
#[derive(Clone, Debug)]
pub(in crate::client) struct LocalDiskLook {
    pub(in crate::client) tier: Arc<dyn Tier>,
    pub(in crate::client) places: Arc<Places>,
}

impl LocalDiskLook {
    /// Whether the object at a place of the disk's region has these bytes. One that has not, or cannot
    /// be read, is deleted: it would be reported as found after the next start. Blocks.
    pub(in crate::client) fn look(&self, extent: Extent, slices: &Slices) -> Verdict {
        let found = self.places.find(extent.offset(), extent.len());
        let Some((id, _)) = found else { return Verdict::Damaged };
        let problem = match self.tier.get(&id) {
            Ok(Some(object)) if is_of(&object, slices) => return Verdict::Intact,
            Ok(Some(_)) => "others are there".to_owned(),
            Ok(None) => "it is missing".to_owned(),
            Err(error) => error.to_string(),
        };
        warn!(key = %id.key(), problem, "an object on the local disk cannot be read; it is deleted");
        self.places.remove(&id);
        if let Err(error) = self.tier.remove(&id) {
            warn!(key = %id.key(), %error, "a damaged object could not be deleted");
        }
        Verdict::Damaged
    }
}

fn is_of(object: &ObjectBytes, slices: &Slices) -> bool {
    let (found, wanted) = (object.slices(), slices.as_slice());
    let is_same = |(found, wanted): (&SliceBytes, &Slice)| {
        let info = found.info();
        info.len == wanted.len && wanted.checksum.is_none_or(|sum| sum == info.checksum)
    };
    found.len() == wanted.len() && found.iter().zip(wanted).all(is_same)
}
