//! Objects as tiers keep them: an id, and slices with checksums.

use core::fmt;
use core::ops::Range;

use bytes::Bytes;
use mc_types::{ByteSize, Checksum, Generation, ObjectKey};

use crate::error::Damage;

/// Longest name of a tenant, in bytes.
pub const MAX_TENANT_LEN: usize = 128;

/// The names of tenants under which sealed objects are stored begin with it.
pub(crate) const SEALED: char = '+';

/// Most slices of an object.
pub const MAX_SLICES: usize = 1024;

/// Longest object. A damaged length of a stored object cannot make a reader allocate more.
pub const MAX_OBJECT_LEN: ByteSize = ByteSize::gib(16);

/// Identifies the bytes of one put: tenant, key and generation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    tenant: Box<str>,
    key: ObjectKey,
    generation: Generation,
}

impl ObjectId {
    /// Checks the tenant's name, which may be empty and have any characters, but does not begin with `+`.
    ///
    /// # Errors
    /// [`InvalidObject::TenantTooLong`] and [`InvalidObject::ReservedTenant`].
    pub fn new(
        tenant: impl Into<Box<str>>,
        key: ObjectKey,
        generation: Generation,
    ) -> Result<Self, InvalidObject> {
        let id = Self::stored(tenant, key, generation)?;
        if id.tenant.starts_with(SEALED) {
            return Err(InvalidObject::ReservedTenant);
        }
        Ok(id)
    }

    /// An id as a tier has stored it, for implementations of [`Tier`](crate::Tier) that read ids back: under the
    /// names of tenants that begin with `+` are sealed objects.
    ///
    /// # Errors
    /// [`InvalidObject::TenantTooLong`].
    pub fn stored(
        tenant: impl Into<Box<str>>,
        key: ObjectKey,
        generation: Generation,
    ) -> Result<Self, InvalidObject> {
        let tenant = tenant.into();
        let name = tenant.strip_prefix(SEALED).unwrap_or(&tenant);
        if name.len() > MAX_TENANT_LEN {
            return Err(InvalidObject::TenantTooLong { len: name.len() });
        }
        Ok(Self { tenant, key, generation })
    }

    /// The same put of the key of another tenant.
    #[cfg(feature = "encryption")]
    pub(crate) fn with_tenant(&self, tenant: impl Into<Box<str>>) -> Self {
        Self { tenant: tenant.into(), key: self.key.clone(), generation: self.generation }
    }

    /// The owner of the key.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The key.
    #[must_use]
    pub const fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The number of the put.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} of tenant {:?}", self.key, self.generation, self.tenant)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The length and checksum of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceInfo {
    /// Its length in bytes.
    pub len: u64,
    /// Their CRC-32C.
    pub checksum: Checksum,
}

/// The bytes of a slice, which have its checksum.
#[derive(Clone, PartialEq, Eq)]
pub struct SliceBytes {
    bytes: Bytes,
    checksum: Checksum,
}

impl SliceBytes {
    /// Computes the checksum of `bytes`.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        let checksum = crc32c(&bytes);
        Self { bytes, checksum }
    }

    /// Returns the slice when `bytes` have the checksum that their writer computed, and otherwise
    /// the checksum that they have.
    ///
    /// # Errors
    /// The checksum of `bytes`.
    pub fn verified(bytes: Bytes, checksum: Checksum) -> Result<Self, Checksum> {
        let slice = Self::new(bytes);
        if slice.checksum == checksum { Ok(slice) } else { Err(slice.checksum) }
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Length and checksum.
    #[must_use]
    pub const fn info(&self) -> SliceInfo {
        SliceInfo { len: self.bytes.len() as u64, checksum: self.checksum }
    }
}

impl fmt::Debug for SliceBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {}", self.bytes.len(), self.checksum)
    }
}

/// The bytes of an object: 1 to [`MAX_SLICES`] slices, none of them empty, of at most
/// [`MAX_OBJECT_LEN`] together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectBytes(Vec<SliceBytes>);

impl ObjectBytes {
    /// Checks the number of slices and their lengths.
    ///
    /// # Errors
    /// [`InvalidObject`].
    pub fn new(slices: Vec<SliceBytes>) -> Result<Self, InvalidObject> {
        check_lengths(slices.iter().map(|slice| slice.info().len))?;
        Ok(Self(slices))
    }

    /// The slices.
    #[must_use]
    pub fn slices(&self) -> &[SliceBytes] {
        &self.0
    }
}

/// A description of an object, known without reading its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredObject {
    id: ObjectId,
    slices: Vec<SliceInfo>,
    has_checksums: bool,
}

impl StoredObject {
    /// Checks the number of slices and their lengths, as [`ObjectBytes::new`] does.
    ///
    /// # Errors
    /// [`InvalidObject`].
    pub fn new(id: ObjectId, slices: Vec<SliceInfo>) -> Result<Self, InvalidObject> {
        check_lengths(slices.iter().map(|slice| slice.len))?;
        Ok(Self { id, slices, has_checksums: true })
    }

    /// Describes the object of this id with these bytes.
    #[must_use]
    pub fn of(id: ObjectId, object: &ObjectBytes) -> Self {
        let slices = object.0.iter().map(SliceBytes::info).collect();
        Self { id, slices, has_checksums: true }
    }

    /// Returns the description of an object that is stored sealed: its first slice has so many
    /// bytes fewer. `None` when it has none then.
    #[cfg(feature = "encryption")]
    pub(crate) fn opened(&self, id: ObjectId, beside: u64) -> Option<Self> {
        let mut slices = self.slices.clone();
        let first = slices.first_mut()?;
        first.len = first.len.checked_sub(beside).filter(|len| *len > 0)?;
        Some(Self { id, slices, has_checksums: false })
    }

    /// The object's id.
    #[must_use]
    pub const fn id(&self) -> &ObjectId {
        &self.id
    }

    /// Lengths and checksums, in order. The checksums are those of the object's bytes only if it
    /// [has some](Self::has_checksums).
    #[must_use]
    pub fn slices(&self) -> &[SliceInfo] {
        &self.slices
    }

    /// Returns whether the checksums of the object's bytes are known: those of a sealed object are not.
    #[must_use]
    pub const fn has_checksums(&self) -> bool {
        self.has_checksums
    }

    /// The bytes of all slices.
    #[must_use]
    pub fn object_len(&self) -> u64 {
        self.slices.iter().map(|slice| slice.len).sum()
    }

    /// The slices that a range touches, which have to be read to compare their checksums; `None` when
    /// the range is empty or exceeds the object.
    pub(crate) fn cover(&self, range: &Range<u64>) -> Option<Cover> {
        if range.is_empty() || range.end > self.object_len() {
            return None;
        }
        let mut cover = Cover { slices: 0..0, bytes: 0..0 };
        for slice in &self.slices {
            let end = cover.bytes.end + slice.len;
            if end <= range.start {
                cover.slices.start += 1;
                cover.bytes.start = end;
            }
            if cover.bytes.end < range.end {
                cover.slices.end += 1;
                cover.bytes.end = end;
            }
        }
        Some(cover)
    }

    /// Cuts the bytes of consecutive slices, and compares each slice with its checksum.
    pub(crate) fn verify(&self, cover: &Cover, bytes: &Bytes) -> Result<Vec<SliceBytes>, Damage> {
        let mut rest = bytes.clone();
        let mut slices = Vec::with_capacity(cover.slices.len());
        for index in cover.slices.clone() {
            let SliceInfo { len, checksum: expected } = self.slices[index];
            let slice = SliceBytes::verified(rest.split_to(len as usize), expected);
            slices.push(slice.map_err(|found| Damage::Slice { index, expected, found })?);
        }
        Ok(slices)
    }
}

/// Consecutive slices of an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cover {
    /// The slices' places.
    pub(crate) slices: Range<usize>,
    /// Their bytes, counted from the object's first.
    pub(crate) bytes: Range<u64>,
}

impl Cover {
    /// Where a range lies in the bytes of these slices, which are in memory.
    pub(crate) fn within(&self, range: &Range<u64>) -> Range<usize> {
        let start = self.bytes.start;
        (range.start - start) as usize..(range.end - start) as usize
    }
}

fn check_lengths(lengths: impl ExactSizeIterator<Item = u64>) -> Result<(), InvalidObject> {
    let count = lengths.len();
    if !(1..=MAX_SLICES).contains(&count) {
        return Err(InvalidObject::SliceCount { count });
    }
    let mut total = 0u64;
    for (index, len) in lengths.enumerate() {
        if len == 0 {
            return Err(InvalidObject::EmptySlice { index });
        }
        total = total.saturating_add(len);
    }
    if total > MAX_OBJECT_LEN.as_u64() {
        return Err(InvalidObject::TooLong { len: ByteSize::bytes(total) });
    }
    Ok(())
}

/// The CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> Checksum {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    Checksum::from_crc32c(crc as u32)
}

/// Why an object cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum InvalidObject {
    /// The tenant's name is too long.
    #[error("the tenant's name has {len} bytes; the limit is {MAX_TENANT_LEN}")]
    TenantTooLong { len: usize },
    /// The tenant's name is one of those for sealed objects.
    #[error("the tenant's name begins with {SEALED}, as those of sealed objects do; use another")]
    ReservedTenant,
    /// There are no slices, or too many.
    #[error("the object has {count} slices; it must have 1 to {MAX_SLICES}")]
    SliceCount { count: usize },
    /// A slice has no bytes.
    #[error("slice {index} is empty; leave it out")]
    EmptySlice {
        /// Its place, from 0.
        index: usize,
    },
    /// The slices have too many bytes together.
    #[error("the object has {len}; the limit is {MAX_OBJECT_LEN}")]
    TooLong { len: ByteSize },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_covered_by_the_slices_that_it_touches() {
        let id = ObjectId::new("", ObjectKey::new("k").unwrap(), Generation::new(1)).unwrap();
        let slices = [10, 20, 30].map(|len| SliceInfo { len, checksum: crc32c(b"") });
        let object = StoredObject::new(id, slices.into()).unwrap();
        for (range, slices, bytes) in [
            (0..60, 0..3, 0..60),
            (0..1, 0..1, 0..10),
            (9..10, 0..1, 0..10),
            (10..11, 1..2, 10..30),
            (9..11, 0..2, 0..30),
            (10..30, 1..2, 10..30),
            (29..31, 1..3, 10..60),
            (59..60, 2..3, 30..60),
        ] {
            let cover = object.cover(&range);
            assert_eq!(cover, Some(Cover { slices, bytes }), "{range:?}");
        }
        #[allow(clippy::reversed_empty_ranges, reason = "it is rejected")]
        for range in [0..0, 60..60, 0..61, 60..61, 7..3, u64::MAX - 1..u64::MAX] {
            assert_eq!(object.cover(&range), None, "{range:?}");
        }
    }

    #[test]
    fn objects_that_cannot_be_are_rejected() {
        let slice = SliceBytes::new(Bytes::from_static(b"x"));
        let count = |count| ObjectBytes::new(vec![slice.clone(); count]).err();
        assert_eq!(count(0), Some(InvalidObject::SliceCount { count: 0 }));
        assert_eq!(count(MAX_SLICES), None);
        assert!(count(MAX_SLICES + 1).is_some());
        let empty = vec![slice.clone(), SliceBytes::new(Bytes::new())];
        let expected = Some(InvalidObject::EmptySlice { index: 1 });
        assert_eq!(ObjectBytes::new(empty).err(), expected);
        let other = Checksum::from_crc32c(7);
        assert_eq!(SliceBytes::verified(slice.bytes().clone(), other), Err(slice.checksum));
    }
}
