//! The file of an object in a directory tier, format 1.
//!
//! All numbers are little-endian. `T` is the length of the tenant's name, `K` that of the key, `N`
//! the number of slices.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `MCTO` |
//! | 4 | 4 | the format: 1 |
//! | 8 | 8 | the object's generation |
//! | 16 | 2 | `T`: 0 to 128, and one more where the name begins with `+` |
//! | 18 | 2 | `K`: 1 to 1024 |
//! | 20 | 4 | `N`: 1 to 1024 |
//! | 24 | `T` | the tenant's name, UTF-8 |
//! | 24 + `T` | `K` | the key, UTF-8 |
//! | 24 + `T` + `K` | 12 `N` | for each slice its length, 8 bytes, not 0, and its CRC-32C, 4 bytes |
//! | 24 + `T` + `K` + 12 `N` | 4 | the CRC-32C of all bytes before |
//! | 28 + `T` + `K` + 12 `N` | | the slices' bytes, one slice behind the other, to the end of the file |
//!
//! The slices have at most 16 GiB together. The CRC-32C is that of iSCSI (RFC 3720).

use mc_types::{Checksum, Generation, MAX_KEY_LEN, ObjectKey};

use crate::error::Damage;
use crate::object::{MAX_SLICES, MAX_TENANT_LEN, ObjectId, SliceInfo, StoredObject, crc32c};

/// The format that this version writes and reads.
pub const FORMAT: u32 = 1;

/// Longest header, in bytes.
pub const MAX_HEADER_LEN: usize =
    FIXED + 1 + MAX_TENANT_LEN + MAX_KEY_LEN + PER_SLICE * MAX_SLICES + 4;

const MAGIC: &[u8; 4] = b"MCTO";
/// Bytes before the tenant's name.
const FIXED: usize = 24;
const PER_SLICE: usize = 12;

/// Writes the header of an object.
#[must_use]
pub fn encode_header(object: &StoredObject) -> Vec<u8> {
    let (tenant, key) = (object.id().tenant(), object.id().key().as_str());
    let mut header = Vec::with_capacity(header_len(object));
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&FORMAT.to_le_bytes());
    header.extend_from_slice(&object.id().generation().as_u64().to_le_bytes());
    // The types' limits are far below those of the fields.
    header.extend_from_slice(&(tenant.len() as u16).to_le_bytes());
    header.extend_from_slice(&(key.len() as u16).to_le_bytes());
    header.extend_from_slice(&(object.slices().len() as u32).to_le_bytes());
    header.extend_from_slice(tenant.as_bytes());
    header.extend_from_slice(key.as_bytes());
    for slice in object.slices() {
        header.extend_from_slice(&slice.len.to_le_bytes());
        header.extend_from_slice(&slice.checksum.as_u32().to_le_bytes());
    }
    let checksum = crc32c(&header);
    header.extend_from_slice(&checksum.as_u32().to_le_bytes());
    header
}

/// The length of what [`encode_header`] writes.
pub(crate) fn header_len(object: &StoredObject) -> usize {
    let id = object.id();
    len_of_header(id.tenant().len(), id.key().as_str().len(), object.slices().len())
}

/// Reads the header that `bytes` begin with. Returns what it describes, and its length.
///
/// The first [`MAX_HEADER_LEN`] bytes of a file, or all of a shorter one, are enough.
///
/// # Errors
/// [`HeaderError`].
pub fn parse_header(bytes: &[u8]) -> Result<(StoredObject, usize), HeaderError> {
    let (fixed, rest) = bytes.split_at_checked(FIXED).ok_or_else(|| too_short(bytes, FIXED))?;
    let mut fields = Fields(fixed);
    if fields.take(4) != MAGIC {
        return Err(Damage::Magic.into());
    }
    let format = fields.u32();
    if format != FORMAT {
        return Err(HeaderError::Newer { found: format });
    }
    let generation = Generation::new(fields.u64());
    let (tenant, key) = (usize::from(fields.u16()), usize::from(fields.u16()));
    let count = fields.u32() as usize;
    let len = len_of_header(tenant, key, count.min(MAX_SLICES));
    let variable = rest.get(..len - FIXED).ok_or_else(|| too_short(bytes, len))?;
    let (checked, checksum) = bytes[..len].split_at(len - 4);
    let (expected, found) = (Fields(checksum).checksum(), crc32c(checked));
    // Before anything else, so that one flipped bit is reported as what it is.
    if expected != found {
        return Err(Damage::HeaderChecksum { expected, found }.into());
    }
    let mut fields = Fields(variable);
    let tenant = text(fields.take(tenant), "tenant")?;
    let key = ObjectKey::new(text(fields.take(key), "key")?)
        .map_err(|_| Damage::Name { field: "key" })?;
    let slices = (0..count.min(MAX_SLICES))
        .map(|_| SliceInfo { len: fields.u64(), checksum: fields.checksum() })
        .collect();
    let id = ObjectId::stored(tenant, key, generation).map_err(Damage::Object)?;
    let object = StoredObject::new(id, slices).map_err(Damage::Object)?;
    Ok((object, len))
}

const fn len_of_header(tenant: usize, key: usize, slices: usize) -> usize {
    FIXED + tenant + key + PER_SLICE * slices + 4
}

fn too_short(bytes: &[u8], expected: usize) -> HeaderError {
    Damage::Length { expected: expected as u64, found: bytes.len() as u64 }.into()
}

fn text<'a>(bytes: &'a [u8], field: &'static str) -> Result<&'a str, Damage> {
    core::str::from_utf8(bytes).map_err(|_| Damage::Name { field })
}

/// Bytes whose number was checked, taken from the front.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("it takes N bytes")
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(crate) fn checksum(&mut self) -> Checksum {
        Checksum::from_crc32c(self.u32())
    }
}

/// Why a header cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum HeaderError {
    /// The header is not the one that was written.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The header has another format, of a newer version.
    #[error("the header has format {found}, and this version reads format {FORMAT}")]
    Newer { found: u32 },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::InvalidObject;

    fn object() -> StoredObject {
        let key = ObjectKey::new("layer0/block7").unwrap();
        let id = ObjectId::new("team", key, Generation::new(9)).unwrap();
        let slices = [(5, 1), (6, 2)]
            .map(|(len, checksum)| SliceInfo { len, checksum: Checksum::from_crc32c(checksum) });
        StoredObject::new(id, slices.into()).unwrap()
    }

    /// Gives a header that was changed the right checksum.
    fn seal(mut header: Vec<u8>) -> Vec<u8> {
        let end = header.len() - 4;
        let checksum = crc32c(&header[..end]).as_u32().to_le_bytes();
        header[end..].copy_from_slice(&checksum);
        header
    }

    #[test]
    fn the_format_is_as_documented() {
        let header = encode_header(&object());
        let mut expected = b"MCTO\x01\0\0\0\x09\0\0\0\0\0\0\0\x04\0\x0d\0\x02\0\0\0".to_vec();
        expected.extend(b"teamlayer0/block7");
        expected.extend(b"\x05\0\0\0\0\0\0\0\x01\0\0\0\x06\0\0\0\0\0\0\0\x02\0\0\0");
        let checksum = crc32c(&expected).as_u32().to_le_bytes();
        expected.extend(checksum);
        assert_eq!(header, expected);
        let with_bytes = [&header[..], b"more"].concat();
        assert_eq!(parse_header(&with_bytes), Ok((object(), header.len())));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let header = encode_header(&object());
        for bit in 0..header.len() * 8 {
            let mut flipped = header.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_header(&flipped).is_err(), "bit {bit}");
        }
        for len in 0..header.len() {
            assert!(parse_header(&header[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn headers_that_describe_nothing_are_rejected() {
        let damage = |at: usize, bytes: &[u8]| {
            let mut header = encode_header(&object());
            header[at..at + bytes.len()].copy_from_slice(bytes);
            parse_header(&seal(header)).unwrap_err()
        };
        assert_eq!(damage(0, b"X"), Damage::Magic.into());
        assert_eq!(damage(4, &[2]), HeaderError::Newer { found: 2 });
        assert_eq!(damage(24, &[0xff]), Damage::Name { field: "tenant" }.into());
        assert_eq!(damage(28, &[0xff]), Damage::Name { field: "key" }.into());
        let empty = Damage::Object(InvalidObject::EmptySlice { index: 0 });
        assert_eq!(damage(41, &[0; 8]), empty.into());
        let long = damage(41, &[0xff; 8]);
        assert!(matches!(
            long,
            HeaderError::Damaged(Damage::Object(InvalidObject::TooLong { .. }))
        ));
    }

    #[test]
    fn the_longest_header_fits() {
        let id = ObjectId::stored(
            format!("+{}", "t".repeat(MAX_TENANT_LEN)),
            ObjectKey::new("k".repeat(MAX_KEY_LEN)).unwrap(),
            Generation::new(u64::MAX),
        );
        let slice = SliceInfo { len: 1, checksum: Checksum::from_crc32c(0) };
        let object = StoredObject::new(id.unwrap(), vec![slice; MAX_SLICES]).unwrap();
        let header = encode_header(&object);
        assert_eq!(header.len(), MAX_HEADER_LEN);
        assert_eq!(parse_header(&header), Ok((object, MAX_HEADER_LEN)));
    }
}
