//! The bytes of a sealed object, format 1.
//!
//! All numbers are little-endian. `L` is the number of the object's bytes, of all slices together.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `MCTE` |
//! | 4 | 4 | the format: 1 |
//! | 8 | 8 | the name of the key |
//! | 16 | 16 | the salt, random for each object |
//! | 32 | 8 | `L` |
//! | 40 | | the object's bytes in chunks of 65,536, each encrypted and followed by a tag of 16 bytes |
//!
//! They are cut into as many slices as the object has. The first has 40 bytes and all tags more than that of the
//! object, and the others are as long as the object's.
//!
//! Chunks are encrypted by AES-256-GCM (NIST SP 800-38D). Each object has a key of its own, so that nonces are
//! the chunks' numbers: 4 zero bytes and 8 bytes, big-endian. It is expanded by HKDF-SHA256 (RFC 5869) from the
//! tenant's secret; the info is `mc-tier object 1`, the salt, `L`, the generation, the lengths of tenant and
//! key, 2 bytes each, and both names. An object that is stored in the place of another, or
//! with another length, is therefore found damaged. The name of a key is expanded from its secret with the info
//! `mc-tier name 1`.

use core::fmt;
use core::ops::Range;

use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256, Prk, Salt};

use crate::error::{Damage, TierError};
use crate::object::{InvalidObject, MAX_OBJECT_LEN, ObjectBytes, ObjectId, SliceBytes};

/// Bytes before the first chunk.
pub(super) const HEADER_LEN: u64 = 40;

const MAGIC: &[u8; 4] = b"MCTE";
const FORMAT: u32 = 1;
const SALT_LEN: usize = 16;
const NAME_LEN: usize = 8;
const CHUNK: u64 = 64 << 10;
const TAG: u64 = 16;

/// Tells sealed objects of this store from whatever else uses a secret.
const APPLICATION: &[u8] = b"mc-tier";
const OF_OBJECT: &[u8] = b"mc-tier object 1";
const OF_NAME: &[u8] = b"mc-tier name 1";

/// Names a key without telling anything of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyName([u8; NAME_LEN]);

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key of a tenant.
pub(super) struct TenantKey {
    name: KeyName,
    secret: Prk,
}

impl fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantKey").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The key of one object.
pub(super) struct ObjectKey(LessSafeKey);

/// The length of a key's name, for HKDF.
struct NameLen;

impl hkdf::KeyType for NameLen {
    fn len(&self) -> usize {
        NAME_LEN
    }
}

impl TenantKey {
    pub(super) fn new(secret: &[u8; 32]) -> Self {
        let secret = Salt::new(HKDF_SHA256, APPLICATION).extract(secret);
        let mut name = [0; NAME_LEN];
        let expanded = secret.expand(&[OF_NAME], NameLen);
        expanded.and_then(|okm| okm.fill(&mut name)).expect("8 bytes can be expanded");
        Self { name: KeyName(name), secret }
    }

    pub(super) const fn name(&self) -> KeyName {
        self.name
    }

    pub(super) fn of_object(&self, id: &ObjectId, header: &Header) -> ObjectKey {
        let (tenant, key) = (id.tenant().as_bytes(), id.key().as_str().as_bytes());
        // The types' limits are far below those of the fields.
        let lengths = [(tenant.len() as u16).to_le_bytes(), (key.len() as u16).to_le_bytes()];
        let info = [
            OF_OBJECT,
            &header.salt,
            &header.len.to_le_bytes(),
            &id.generation().as_u64().to_le_bytes(),
            lengths.as_flattened(),
            tenant,
            key,
        ];
        let key = self.secret.expand(&info, &AES_256_GCM).expect("32 bytes can be expanded");
        ObjectKey(LessSafeKey::new(UnboundKey::from(key)))
    }
}

impl ObjectKey {
    /// Encrypts a chunk, and appends its tag.
    fn seal(&self, number: u64, buffer: &mut Vec<u8>, begin: usize) {
        let chunk = &mut buffer[begin..];
        let sealed = self.0.seal_in_place_separate_tag(nonce(number), Aad::empty(), chunk);
        let tag = sealed.expect("a chunk is far below the limit of the cipher");
        buffer.extend_from_slice(tag.as_ref());
    }

    /// Appends the bytes of a chunk to `opened`.
    fn open(&self, number: u64, sealed: &[u8], opened: &mut Vec<u8>) -> Result<(), Damage> {
        let split = sealed.split_last_chunk::<{ TAG as usize }>();
        let (bytes, tag) = split.filter(|(bytes, _)| !bytes.is_empty()).ok_or(Damage::Seal)?;
        let begin = opened.len();
        opened.extend_from_slice(bytes);
        let (nonce, tag) = (nonce(number), Tag::from(*tag));
        let chunk = &mut opened[begin..];
        let checked = self.0.open_in_place_separate_tag(nonce, Aad::empty(), tag, chunk, 0..);
        checked.map_err(|_| Damage::Seal).map(|_| ())
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// The header of a sealed object.
#[derive(Debug)]
pub(super) struct Header {
    key: KeyName,
    salt: [u8; SALT_LEN],
    len: u64,
}

impl Header {
    pub(super) const fn key_name(&self) -> KeyName {
        self.key
    }

    /// The object's bytes.
    pub(super) const fn object_len(&self) -> u64 {
        self.len
    }

    /// The sealed bytes of the chunks that a range of the object touches.
    pub(super) fn chunks(&self, range: &Range<u64>) -> Range<u64> {
        let at = |chunk: u64| HEADER_LEN + chunk * (CHUNK + TAG);
        at(range.start / CHUNK)..at(range.end.div_ceil(CHUNK)).min(stored_len(self.len))
    }
}

/// Reads the header that `bytes` begin with.
pub(super) fn read_header(bytes: &[u8]) -> Result<Header, Damage> {
    let bytes = bytes.first_chunk::<{ HEADER_LEN as usize }>().ok_or(Damage::Seal)?;
    let (begin, rest) = bytes.split_first_chunk::<8>().expect("a header is longer");
    let (key, rest) = rest.split_first_chunk::<NAME_LEN>().expect("a header is longer");
    let (salt, len) = rest.split_first_chunk::<SALT_LEN>().expect("a header is longer");
    let len = u64::from_le_bytes(len.try_into().expect("8 bytes are left"));
    if begin[..4] != *MAGIC || begin[4..] != FORMAT.to_le_bytes() || len > MAX_OBJECT_LEN.as_u64() {
        return Err(Damage::Seal);
    }
    Ok(Header { key: KeyName(*key), salt: *salt, len })
}

/// The bytes of a sealed object of so many.
pub(super) const fn stored_len(len: u64) -> u64 {
    HEADER_LEN + len + len.div_ceil(CHUNK) * TAG
}

/// How many of the bytes of a sealed object are not those of the object; `None` when none has so many.
pub(super) fn overhead(stored: u64) -> Option<u64> {
    let beside = HEADER_LEN + stored.checked_sub(HEADER_LEN)?.div_ceil(CHUNK + TAG) * TAG;
    let len = stored.checked_sub(beside)?;
    (len > 0 && stored_len(len) == stored).then_some(beside)
}

/// The longest object that takes no more than `stored` bytes, sealed.
pub(super) const fn longest_within(stored: u64) -> u64 {
    let room = stored.saturating_sub(HEADER_LEN);
    room.saturating_sub(room.div_ceil(CHUNK + TAG) * TAG)
}

/// Seals an object.
///
/// # Errors
/// When the object is too long to be sealed, and when there is no randomness.
pub(super) fn seal(
    key: &TenantKey,
    id: &ObjectId,
    object: &ObjectBytes,
) -> Result<ObjectBytes, TierError> {
    let lengths = object.slices().iter().map(|slice| slice.info().len);
    let len: u64 = lengths.clone().sum();
    let (stored, most) = (stored_len(len), MAX_OBJECT_LEN);
    if stored > most.as_u64() {
        return Err(TierError::ObjectTooLong {
            len: mc_types::ByteSize::bytes(stored),
            limit: most,
        });
    }
    let mut salt = [0; SALT_LEN];
    getrandom::fill(&mut salt).map_err(|error| TierError::File {
        action: "draw a random number to seal",
        path: id.to_string().into(),
        source: error.into(),
    })?;
    let header = Header { key: key.name(), salt, len };
    let key = key.of_object(id, &header);
    let mut buffer = Vec::with_capacity(stored as usize);
    buffer.extend_from_slice(MAGIC);
    buffer.extend_from_slice(&FORMAT.to_le_bytes());
    buffer.extend_from_slice(&header.key.0);
    buffer.extend_from_slice(&header.salt);
    buffer.extend_from_slice(&header.len.to_le_bytes());
    let (mut begin, mut number) = (buffer.len(), 0);
    for slice in object.slices() {
        let mut rest = &slice.bytes()[..];
        while !rest.is_empty() {
            let room = begin + CHUNK as usize - buffer.len();
            let (now, later) = rest.split_at(rest.len().min(room));
            buffer.extend_from_slice(now);
            rest = later;
            if now.len() == room {
                key.seal(number, &mut buffer, begin);
                (begin, number) = (buffer.len(), number + 1);
            }
        }
    }
    if buffer.len() > begin {
        key.seal(number, &mut buffer, begin);
    }
    let first = lengths.clone().next().map_or(0, |first| first + stored - len);
    let slices = cut(Bytes::from(buffer), std::iter::once(first).chain(lengths.skip(1)));
    Ok(slices.expect("as many slices as the object has, and longer ones"))
}

/// Opens all of an object.
pub(super) fn open(
    key: &ObjectKey,
    header: &Header,
    stored: &ObjectBytes,
) -> Result<ObjectBytes, Damage> {
    let lengths = stored.slices().iter().map(|slice| slice.info().len);
    let beside = stored_len(header.len) - header.len;
    if lengths.clone().sum::<u64>() != stored_len(header.len) {
        return Err(Damage::Seal);
    }
    let first = lengths.clone().next().and_then(|first| first.checked_sub(beside));
    let lengths = std::iter::once(first.ok_or(Damage::Seal)?).chain(lengths.skip(1));
    let sealed = match stored.slices() {
        [only] => only.bytes().clone(),
        slices => slices.iter().flat_map(|slice| slice.bytes()).copied().collect(),
    };
    let opened = open_range(key, header, &(0..header.len), &sealed.slice(HEADER_LEN as usize..))?;
    cut(opened, lengths).map_err(Damage::Object)
}

/// Opens the chunks that a range touches. Returns the range.
pub(super) fn open_range(
    key: &ObjectKey,
    header: &Header,
    range: &Range<u64>,
    sealed: &[u8],
) -> Result<Bytes, Damage> {
    let (first, chunks) = (range.start / CHUNK, header.chunks(range));
    if sealed.len() as u64 != chunks.end - chunks.start {
        return Err(Damage::Seal);
    }
    let mut opened = Vec::with_capacity(sealed.len());
    for (number, chunk) in (first..).zip(sealed.chunks((CHUNK + TAG) as usize)) {
        key.open(number, chunk, &mut opened)?;
    }
    let begin = (range.start - first * CHUNK) as usize;
    let end = (range.end - first * CHUNK) as usize;
    Ok(Bytes::from(opened).slice(begin..end))
}

/// Cuts bytes into slices of these lengths, which are as many together.
fn cut(mut bytes: Bytes, lengths: impl Iterator<Item = u64>) -> Result<ObjectBytes, InvalidObject> {
    ObjectBytes::new(lengths.map(|len| SliceBytes::new(bytes.split_to(len as usize))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_told_from_those_that_are_stored() {
        let mut lengths: Vec<u64> = (1..200).collect();
        for chunks in [1, 2, 3, 1000] {
            lengths.extend((chunks * CHUNK).saturating_sub(40)..chunks * CHUNK + 40);
        }
        for len in lengths {
            let stored = stored_len(len);
            assert_eq!(overhead(stored), Some(stored - len), "{len}");
            assert_eq!(longest_within(stored), len);
        }
        for stored in (0..=HEADER_LEN + TAG).chain(stored_len(CHUNK) + 1..=stored_len(CHUNK) + TAG)
        {
            assert_eq!(overhead(stored), None, "{stored}");
        }
        assert_eq!(longest_within(HEADER_LEN + TAG), 0);
    }
}
