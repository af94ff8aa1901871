//! A pack: a file of many objects that were put one after the other, format 1.
//!
//! All numbers are little-endian. `N` is the number of objects, `H` the bytes of their headers.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `MCTP` |
//! | 4 | 4 | the format: 1 |
//! | 8 | 8 | the [run](mc_types::Generation::run) of the objects' generations |
//! | 16 | 4 | `N`: 1 to 4096 |
//! | 20 | 4 | `H` |
//! | 24 | 16 `N` | for each object where its bytes begin in the file, 8 bytes; where its header begins among the headers, 4 bytes; and its [place in the run](mc_types::Generation::place_in_run), 4 bytes. The places ascend |
//! | 24 + 16 `N` | `H` | the headers of all objects, as of an [`object_file`](crate::object_file) |
//! | 24 + 16 `N` + `H` | 4 | the CRC-32C of all bytes before |
//! | 28 + 16 `N` + `H` | `N` | for each object 0; any other byte says that the object was removed |
//! | 28 + 17 `N` + `H` | | the objects' bytes, one behind the other, to the end of the file |
//!
//! The index is in front, so that a reader that does not know how long a pack is reads it by one request.

use core::ops::Range;

use bytes::Bytes;
use mc_types::ByteSize;

use crate::error::Damage;
use crate::object::{ObjectBytes, ObjectId, StoredObject, crc32c};
use crate::object_file::{Fields, HeaderError, MAX_HEADER_LEN, encode_header, parse_header};

/// The format that this version writes and reads.
pub const PACK_FORMAT: u32 = 1;

/// The longest object that is packed: reading its neighbours takes longer than an operation of the medium.
pub const MAX_PACKED_LEN: ByteSize = ByteSize::mib(8);

/// Objects below which no pack is written.
pub const LEAST: usize = 4;

/// The most objects of a pack.
pub const MOST: usize = 4096;

/// The longest index of a pack, in bytes.
pub const MAX_INDEX_LEN: usize = 4 << 20;

const MAGIC: &[u8; 4] = b"MCTP";
/// Bytes before the entries.
const FIXED: usize = 24;
const PER_ENTRY: usize = 16;
const CHECKSUM: usize = 4;

/// The index of a pack's objects.
#[derive(Clone, Debug)]
pub struct PackIndex {
    bytes: Bytes,
    count: usize,
    /// Where the headers begin.
    headers: usize,
    /// Where the bytes that say what was removed begin.
    removed: usize,
    pack_len: u64,
}

/// An object of a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedObject {
    /// The object.
    pub object: StoredObject,
    /// Where its bytes begin in the pack.
    pub at: u64,
}

impl PackIndex {
    /// Returns how many of a pack's first bytes are its index, by the first [`Self::LEN_KNOWN_AFTER`].
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn len_of(first: &[u8]) -> Result<usize, HeaderError> {
        let (_, count, headers) = fixed(first)?;
        Ok(index_len(count, headers))
    }

    /// Returns how many objects a pack has, by the first [`Self::LEN_KNOWN_AFTER`] bytes.
    pub(crate) fn count_of(first: &[u8]) -> Result<usize, HeaderError> {
        fixed(first).map(|(_, count, _)| count)
    }

    /// Bytes that say how long the index is.
    pub const LEN_KNOWN_AFTER: usize = FIXED;

    /// Reads the index of a pack of this run and length, which `bytes` are.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn parse(bytes: Bytes, run: u64, pack_len: u64) -> Result<Self, HeaderError> {
        let (found_run, count, headers_len) = fixed(&bytes)?;
        let len = index_len(count, headers_len);
        let too_short = |expected: u64, found: u64| Damage::Length { expected, found };
        if bytes.len() != len {
            return Err(too_short(len as u64, bytes.len() as u64).into());
        }
        let checked = len - count - CHECKSUM;
        let mut sum = Fields(&bytes[checked..checked + CHECKSUM]);
        let (expected, found) = (sum.checksum(), crc32c(&bytes[..checked]));
        if expected != found {
            return Err(Damage::HeaderChecksum { expected, found }.into());
        }
        if found_run != run {
            return Err(Damage::Index.into());
        }
        let headers = FIXED + PER_ENTRY * count;
        let removed = checked + CHECKSUM;
        let index = Self { bytes, count, headers, removed, pack_len };
        // They are one behind the other.
        let (mut end, mut last) = (len as u64, None);
        for number in 0..count {
            let entry = index.entry(number);
            let PackedObject { object, at } = index.object(number)?;
            let generation = object.id().generation();
            let is_right = at == end
                && last < Some(entry.place)
                && (generation.run(), generation.place_in_run()) == (Some(run), entry.place)
                && object.object_len() <= MAX_PACKED_LEN.as_u64();
            if !is_right {
                return Err(Damage::Index.into());
            }
            (end, last) = (at + object.object_len(), Some(entry.place));
        }
        if end != pack_len {
            return Err(too_short(end, pack_len).into());
        }
        Ok(index)
    }

    /// The length of the pack.
    pub(crate) const fn pack_len(&self) -> u64 {
        self.pack_len
    }

    /// The bytes that it takes of memory.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Objects, those that were removed included.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The place in the run of the object of this number.
    pub(crate) fn place_of(&self, number: usize) -> u32 {
        self.entry(number).place
    }

    /// The number of the object with this id; `None` when the pack was written without it.
    pub(crate) fn number_of(&self, id: &ObjectId) -> Option<usize> {
        let number = self.number_at(id.generation().place_in_run())?;
        (self.object(number).ok()?.object.id() == id).then_some(number)
    }

    /// The number of the object at this place in the run.
    pub(crate) fn number_at(&self, place: u32) -> Option<usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match self.place_of(middle).cmp(&place) {
                core::cmp::Ordering::Less => low = middle + 1,
                core::cmp::Ordering::Greater => high = middle,
                core::cmp::Ordering::Equal => return Some(middle),
            }
        }
        None
    }

    /// The object of this number.
    ///
    /// # Errors
    /// [`HeaderError`]; none when the index was parsed.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn object(&self, number: usize) -> Result<PackedObject, HeaderError> {
        let PackEntry { at, header, .. } = self.entry(number);
        let headers = &self.bytes[self.headers..self.removed - CHECKSUM];
        let header = headers.get(header as usize..).ok_or(Damage::Index)?;
        let (object, _) = parse_header(header)?;
        Ok(PackedObject { object, at })
    }

    /// Returns whether the object of this number was removed when the index was read.
    pub(crate) fn was_removed(&self, number: usize) -> bool {
        self.bytes[self.removed + number] != 0
    }

    /// Where the pack says that the object of this number was removed.
    pub(crate) const fn removal(&self, number: usize) -> u64 {
        (self.removed + number) as u64
    }

    fn entry(&self, number: usize) -> PackEntry {
        let begin = FIXED + PER_ENTRY * number;
        let mut fields = Fields(&self.bytes[begin..begin + PER_ENTRY]);
        PackEntry { at: fields.u64(), header: fields.u32(), place: fields.u32() }
    }
}

struct PackEntry {
    at: u64,
    header: u32,
    place: u32,
}

/// The run, the number of objects and the bytes of the headers.
fn fixed(first: &[u8]) -> Result<(u64, usize, usize), HeaderError> {
    let found = first.len() as u64;
    let fixed = first.get(..FIXED).ok_or(Damage::Length { expected: FIXED as u64, found })?;
    let mut fields = Fields(fixed);
    if fields.take(4) != MAGIC {
        return Err(Damage::Magic.into());
    }
    let format = fields.u32();
    if format != PACK_FORMAT {
        return Err(HeaderError::Newer { found: format });
    }
    let (run, count, headers) = (fields.u64(), fields.u32() as usize, fields.u32() as usize);
    let is_right = (1..=MOST).contains(&count)
        && headers <= MAX_INDEX_LEN
        && index_len(count, headers) <= MAX_INDEX_LEN;
    if is_right { Ok((run, count, headers)) } else { Err(Damage::Index.into()) }
}

const fn index_len(count: usize, headers: usize) -> usize {
    FIXED + (PER_ENTRY + 1) * count + headers + CHECKSUM
}

/// Packs and their runs, and what is in none.
pub(crate) type Sorted<'a> = (Vec<(u64, Gathered<'a>)>, Vec<&'a (ObjectId, ObjectBytes)>);

/// Objects that are gathered for a pack.
#[derive(Debug, Default)]
pub(crate) struct Gathered<'a> {
    objects: Vec<(&'a ObjectId, &'a ObjectBytes, Vec<u8>)>,
    headers_len: usize,
}

impl<'a> Gathered<'a> {
    /// Sorts objects by what they can be packed with: the packs, and what is in none.
    pub(crate) fn sort(objects: &'a [(ObjectId, ObjectBytes)]) -> Sorted<'a> {
        let mut packs: std::collections::BTreeMap<u64, Self> = Default::default();
        let mut alone = Vec::new();
        let mut in_order: Vec<_> = objects.iter().collect();
        in_order.sort_by_key(|(id, _)| id.generation());
        for object in in_order {
            let pack = object.0.generation().run().map(|run| packs.entry(run).or_default());
            if !pack.is_some_and(|pack| pack.add(&object.0, &object.1)) {
                alone.push(object);
            }
        }
        packs.retain(|_, pack| !pack.objects.is_empty());
        (packs.into_iter().collect(), alone)
    }

    /// Adds an object, whose generation comes after those of the others. Returns whether it can be.
    fn add(&mut self, id: &'a ObjectId, object: &'a ObjectBytes) -> bool {
        let place = id.generation().place_in_run();
        let last = self.objects.last().map(|(id, ..)| id.generation().place_in_run());
        let described = StoredObject::of(id.clone(), object);
        let is_short = described.object_len() <= MAX_PACKED_LEN.as_u64();
        let most = MAX_INDEX_LEN - MAX_HEADER_LEN;
        let is_full =
            self.objects.len() == MOST || index_len(self.objects.len(), self.headers_len) > most;
        if last >= Some(place) || !is_short || is_full {
            return false;
        }
        let header = encode_header(&described);
        self.headers_len += header.len();
        self.objects.push((id, object, header));
        true
    }

    pub(crate) const fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = (&'a ObjectId, &'a ObjectBytes)> {
        self.objects.iter().map(|(id, object, _)| (*id, *object))
    }

    /// The bytes of the pack.
    pub(crate) fn encode(&self, run: u64) -> Vec<Bytes> {
        let len = index_len(self.objects.len(), self.headers_len);
        let mut index = Vec::with_capacity(len);
        index.extend_from_slice(MAGIC);
        index.extend_from_slice(&PACK_FORMAT.to_le_bytes());
        index.extend_from_slice(&run.to_le_bytes());
        // The limits are far below those of the fields.
        index.extend_from_slice(&(self.objects.len() as u32).to_le_bytes());
        index.extend_from_slice(&(self.headers_len as u32).to_le_bytes());
        let (mut at, mut header_at) = (len as u64, 0_u32);
        for (id, object, header) in &self.objects {
            index.extend_from_slice(&at.to_le_bytes());
            index.extend_from_slice(&header_at.to_le_bytes());
            index.extend_from_slice(&id.generation().place_in_run().to_le_bytes());
            at += object.slices().iter().map(|slice| slice.info().len).sum::<u64>();
            header_at += header.len() as u32;
        }
        self.objects.iter().for_each(|(.., header)| index.extend_from_slice(header));
        let checksum = crc32c(&index);
        index.extend_from_slice(&checksum.as_u32().to_le_bytes());
        index.resize(len, 0);
        let bytes = self.objects.iter().flat_map(|(_, object, _)| object.slices());
        let bytes = bytes.map(|slice| slice.bytes().clone());
        core::iter::once(Bytes::from(index)).chain(bytes).collect()
    }
}

impl PackedObject {
    /// Where a range of the object is in the pack.
    pub(crate) const fn within(&self, range: &Range<u64>) -> Range<u64> {
        self.at + range.start..self.at + range.end
    }
}

#[cfg(test)]
mod tests {
    use mc_types::{Generation, ObjectKey};
    use proptest::prelude::*;

    use super::*;
    use crate::object::SliceBytes;

    const RUN: u64 = 0x9_0003;

    fn objects() -> Vec<(ObjectId, ObjectBytes)> {
        let object = |(place, len): (u32, usize)| {
            let key = ObjectKey::new(format!("key-{place}")).unwrap();
            let id = ObjectId::new("team", key, Generation::in_run(RUN, place)).unwrap();
            let bytes = Bytes::from(mc_testkit::content("pack", len));
            (id, ObjectBytes::new(vec![SliceBytes::new(bytes)]).unwrap())
        };
        [(0, 5), (7, 100), (8, 1), ((1 << 20) - 1, 40)].map(object).to_vec()
    }

    fn pack() -> Vec<u8> {
        let objects = objects();
        let (packs, alone) = Gathered::sort(&objects);
        assert!(alone.is_empty());
        assert_eq!(packs.len(), 1);
        packs[0].1.encode(RUN).concat()
    }

    /// Gives an index that was changed the right checksum, if it says where that is.
    fn seal(index: &mut [u8]) {
        let Ok((_, count, headers)) = fixed(index) else { return };
        let checked = index_len(count, headers) - count - CHECKSUM;
        if checked + CHECKSUM <= index.len() {
            let checksum = crc32c(&index[..checked]).as_u32().to_le_bytes();
            index[checked..checked + CHECKSUM].copy_from_slice(&checksum);
        }
    }

    #[test]
    fn the_format_is_as_documented() {
        let (pack, objects) = (Bytes::from(pack()), objects());
        let headers: Vec<u8> = objects
            .iter()
            .flat_map(|(id, object)| encode_header(&StoredObject::of(id.clone(), object)))
            .collect();
        let mut expected = b"MCTP\x01\0\0\0\x03\0\x09\0\0\0\0\0\x04\0\0\0".to_vec();
        expected.extend((headers.len() as u32).to_le_bytes());
        let len = 28 + 17 * 4 + headers.len();
        let mut header_at = 0_u32;
        for (at, (id, object)) in [0_u64, 5, 105, 106].into_iter().zip(&objects) {
            expected.extend((len as u64 + at).to_le_bytes());
            expected.extend(header_at.to_le_bytes());
            expected.extend(id.generation().place_in_run().to_le_bytes());
            header_at += encode_header(&StoredObject::of(id.clone(), object)).len() as u32;
        }
        expected.extend(&headers);
        let checksum = crc32c(&expected).as_u32().to_le_bytes();
        expected.extend(checksum);
        expected.extend([0; 4]);
        objects.iter().for_each(|(_, object)| expected.extend(object.slices()[0].bytes()));
        assert_eq!(pack, expected);

        assert_eq!(PackIndex::len_of(&pack[..PackIndex::LEN_KNOWN_AFTER]), Ok(len));
        let index = PackIndex::parse(pack.slice(..len), RUN, pack.len() as u64).unwrap();
        for (number, (id, object)) in objects.iter().enumerate() {
            assert_eq!(index.number_of(id), Some(number));
            let stored = StoredObject::of(id.clone(), object);
            assert_eq!(index.object(number).unwrap().object, stored);
            assert!(!index.was_removed(number));
            let mut removed = pack.to_vec();
            removed[index.removal(number) as usize] = 1;
            let removed = Bytes::from(removed).slice(..len);
            let removed = PackIndex::parse(removed, RUN, pack.len() as u64).unwrap();
            assert!((0..4).all(|other| removed.was_removed(other) == (other == number)));
        }
        let other = ObjectKey::new("other").unwrap();
        let other = ObjectId::new("team", other, Generation::in_run(RUN, 7)).unwrap();
        assert_eq!(index.number_of(&other), None);
        let another_run = PackIndex::parse(pack.slice(..len), RUN + 1, pack.len() as u64);
        assert_eq!(another_run.unwrap_err(), Damage::Index.into());
    }

    proptest! {
        #[test]
        fn whatever_an_index_says_its_objects_are_within_the_pack(
            changes in prop::collection::vec((0usize..400, any::<u8>()), 0..12),
            cut in prop::option::of(0usize..400),
            is_sealed in any::<bool>(),
        ) {
            let whole = pack();
            let mut index = whole.clone();
            for (at, byte) in changes {
                let len = index.len();
                index[at % len] = byte;
            }
            index.truncate(cut.unwrap_or(usize::MAX));
            if is_sealed {
                seal(&mut index);
            }
            let pack_len = whole.len() as u64;
            if let Ok(len) = PackIndex::len_of(&index)
                && len <= index.len()
                && let Ok(index) = PackIndex::parse(Bytes::from(index).slice(..len), RUN, pack_len)
            {
                let mut end = len as u64;
                for number in 0..index.count() {
                    let PackedObject { object, at } = index.object(number).unwrap();
                    prop_assert_eq!(at, end);
                    end += object.object_len();
                    prop_assert_eq!(index.number_of(object.id()), Some(number));
                }
                prop_assert_eq!(end, pack_len);
            }
        }
    }
}
