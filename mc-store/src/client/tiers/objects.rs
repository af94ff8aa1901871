//! Objects of the store as objects of a tier, and back.

use bytes::Bytes;
use mc_meta::{Slice, Slices};
use mc_rpc::TierJob;
use mc_tier::{InvalidObject, ObjectBytes, ObjectId, SliceBytes, StoredObject};
use mc_types::Checksum;

/// The object of these bytes and slices; `None` when the bytes do not have the slices' checksums.
pub(in crate::client) fn object_of(
    mut bytes: Bytes,
    slices: impl Iterator<Item = (u64, Option<Checksum>)> + Clone,
) -> Option<ObjectBytes> {
    if bytes.len() as u64 != slices.clone().map(|(len, _)| len).sum::<u64>() {
        return None;
    }
    verified(slices.map(|slice| (bytes.split_to(slice.0 as usize), slice)))
}

pub(in crate::client) fn verified(
    parts: impl Iterator<Item = (Bytes, (u64, Option<Checksum>))>,
) -> Option<ObjectBytes> {
    let slice = |(part, (_, checksum)): (Bytes, (u64, Option<Checksum>))| match checksum {
        Some(checksum) => SliceBytes::verified(part, checksum).ok(),
        None => Some(SliceBytes::new(part)),
    };
    ObjectBytes::new(parts.map(slice).collect::<Option<_>>()?).ok()
}

/// The object of a job.
pub(in crate::client) fn id_of(job: &TierJob) -> Result<ObjectId, InvalidObject> {
    ObjectId::new(job.tenant.as_str(), job.key.clone(), job.generation)
}

/// The objects of jobs.
pub(in crate::client) fn ids_of(jobs: &[TierJob]) -> Vec<ObjectId> {
    jobs.iter().filter_map(|job| id_of(job).ok()).collect()
}

/// The slices of a stored object, as the master knows them.
pub(in crate::client) fn slices_of(object: &StoredObject) -> Slices {
    let are_known = object.has_checksums();
    let slice = |info: &mc_tier::SliceInfo| {
        let checksum = are_known.then_some(info.checksum);
        Slice { len: info.len, checksum }
    };
    match object.slices() {
        [only] => Slices::One(slice(only)),
        many => Slices::Many(many.iter().map(slice).collect()),
    }
}
