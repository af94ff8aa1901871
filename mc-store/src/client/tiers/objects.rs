//! Objects of the store as objects of a tier, and back.

use bytes::Bytes;
use mc_rpc::TierJob;
use mc_tier::{InvalidObject, ObjectBytes, ObjectId, SliceBytes};
use mc_types::Checksum;

/// The object of these bytes and slices; `None` when the bytes do not have the slices' checksums.
pub(super) fn object_of(
    mut bytes: Bytes,
    slices: impl Iterator<Item = (u64, Option<Checksum>)> + Clone,
) -> Option<ObjectBytes> {
    if bytes.len() as u64 != slices.clone().map(|(len, _)| len).sum::<u64>() {
        return None;
    }
    verified(slices.map(|slice| (bytes.split_to(slice.0 as usize), slice)))
}

pub(super) fn verified(
    parts: impl Iterator<Item = (Bytes, (u64, Option<Checksum>))>,
) -> Option<ObjectBytes> {
    let slice = |(part, (_, checksum)): (Bytes, (u64, Option<Checksum>))| match checksum {
        Some(checksum) => SliceBytes::verified(part, checksum).ok(),
        None => Some(SliceBytes::new(part)),
    };
    ObjectBytes::new(parts.map(slice).collect::<Option<_>>()?).ok()
}

/// The object of a job.
pub(super) fn id_of(job: &TierJob) -> Result<ObjectId, InvalidObject> {
    ObjectId::new(job.tenant.as_str(), job.key.clone(), job.generation)
}

/// The objects of jobs.
pub(super) fn ids_of(jobs: &[TierJob]) -> Vec<ObjectId> {
    jobs.iter().filter_map(|job| id_of(job).ok()).collect()
}
