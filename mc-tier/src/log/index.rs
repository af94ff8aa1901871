//! Where the objects of a log are.

use core::num::NonZeroUsize;
use core::ops::Bound;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use mc_types::{Checksum, Generation, ObjectKey};

use super::record::{BLOCK, Layout, array, padded};
use crate::object::ObjectId;
use crate::tier::ScanCursor;

/// Objects that are looked at under one lock.
const LOOKED_AT: usize = 4096;

/// The place of an object's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// The segment's nonce when the record was written.
    pub(super) nonce: u64,
    /// The record's first block, counted from the segment's first.
    pub(super) block: u32,
    segment: u32,
    pub(super) layout: Layout,
}

impl Location {
    /// Numbers of segments are far below 2^32, and segments are shorter than 2^32 blocks.
    pub(super) const fn new(segment: usize, nonce: u64, block: u64, layout: Layout) -> Self {
        Self { nonce, block: block as u32, segment: segment as u32, layout }
    }

    /// The offset of the record, counted from the segment's first byte.
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.block) * BLOCK
    }

    /// The bytes of the record.
    pub(super) const fn len(&self) -> u64 {
        self.layout.len()
    }

    /// The bytes of the record before those of the object.
    pub(super) fn header_len(&self) -> usize {
        self.layout.header_len().into()
    }

    /// Tells the record from all others of the log, while its segment is used.
    pub(super) const fn number(&self) -> u64 {
        (self.segment as u64) << 32 | self.block as u64
    }

    pub(super) const fn segment(&self) -> usize {
        self.segment as usize
    }

    /// The bytes that the record takes of its segment.
    pub(super) const fn space(&self) -> u64 {
        padded(self.len())
    }
}

/// The entry of an object: its place, and whether it was read since it was written. That has a byte
/// which the others leave: an object takes no more memory for it.
#[derive(Debug)]
struct Entry {
    nonce: u64,
    len: u64,
    block: u32,
    segment: u32,
    checksum: u32,
    header_len: u16,
    has_checksum: bool,
    was_read: AtomicBool,
}

const _: () = assert!(size_of::<Entry>() == size_of::<Location>());

impl Entry {
    fn new(place: Location, was_read: bool) -> Self {
        let Location { nonce, block, segment, layout } = place;
        let (checksum, header_len) = (layout.checksum(), layout.header_len());
        Self {
            nonce,
            len: layout.len(),
            block,
            segment,
            checksum: checksum.map_or(0, Checksum::as_u32),
            header_len,
            has_checksum: checksum.is_some(),
            was_read: AtomicBool::new(was_read),
        }
    }

    fn place(&self) -> Location {
        let Self { nonce, block, segment, .. } = *self;
        let checksum = self.has_checksum.then(|| Checksum::from_crc32c(self.checksum));
        let layout = Layout::new(self.header_len, self.len, checksum);
        Location { nonce, block, segment, layout }
    }
}

/// The objects by their ids, in the order of a scan. An id is one piece of memory: three would take half
/// as much again as all the rest of an object.
#[derive(Debug, Default)]
pub(super) struct Index(BTreeMap<Box<[u8]>, Entry>);

impl Index {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn find(&self, id: &ObjectId) -> Option<Location> {
        self.0.get(&*packed(id)).map(Entry::place)
    }

    /// As [`find`](Self::find), for one that reads the object.
    pub(super) fn find_to_read(&self, id: &ObjectId) -> Option<Location> {
        let entry = self.0.get(&*packed(id))?;
        // Most were read before: a cache line without writers stays in every processor's cache.
        if !entry.was_read.load(Relaxed) {
            entry.was_read.store(true, Relaxed);
        }
        Some(entry.place())
    }

    /// Where an object is that was read since it was written.
    pub(super) fn find_read(&self, id: &ObjectId) -> Option<Location> {
        let entry = self.0.get(&*packed(id)).filter(|entry| entry.was_read.load(Relaxed));
        entry.map(Entry::place)
    }

    pub(super) fn insert(&mut self, id: &ObjectId, place: Location) {
        self.0.insert(packed(id), Entry::new(place, false));
    }

    /// Notes that an object has moved, if it is still where it was. Returns whether it is.
    pub(super) fn relocate(
        &mut self,
        id: &ObjectId,
        from: &Location,
        to: Location,
        stays_read: bool,
    ) -> bool {
        let Some(entry) = self.0.get_mut(&*packed(id)) else { return false };
        if entry.place() != *from {
            return false;
        }
        *entry = Entry::new(to, stays_read && *entry.was_read.get_mut());
        true
    }

    /// Returns where the object was.
    pub(super) fn remove(&mut self, id: &ObjectId) -> Option<Location> {
        self.0.remove(&*packed(id)).map(|entry| entry.place())
    }

    /// Looks at some objects behind a place of the index, or from its begin on, and adds those of a segment.
    /// Returns where to go on; `None` behind the last one.
    pub(super) fn ids_of_segment(
        &self,
        segment: usize,
        after: Option<&[u8]>,
        ids: &mut Vec<ObjectId>,
    ) -> Option<Box<[u8]>> {
        let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (id, entry) in self.0.range::<[u8], _>((begin, Bound::Unbounded)).take(LOOKED_AT) {
            if entry.segment as usize == segment {
                ids.push(unpacked(id));
            }
            last = Some(id);
        }
        last.cloned()
    }

    /// The objects after the one of a cursor.
    pub(super) fn objects_after(
        &self,
        after: Option<&ScanCursor>,
        limit: NonZeroUsize,
    ) -> Vec<(ObjectId, Location)> {
        let begin = match after {
            None => None,
            Some(cursor) => match parse_cursor(cursor) {
                Some(id) => Some(packed(&id)),
                // A cursor of another tier is behind everything.
                None => return Vec::new(),
            },
        };
        let begin = begin.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let after = self.0.range::<[u8], _>((begin, Bound::Unbounded));
        after.take(limit.get()).map(|(id, entry)| (unpacked(id), entry.place())).collect()
    }
}

/// An id as the index has it: the length of the tenant's name, the name, the key, and the inverted
/// generation, big-endian.
fn packed(id: &ObjectId) -> Box<[u8]> {
    let (tenant, key) = (id.tenant(), id.key().as_str());
    // The type's limit is 128.
    let len = [tenant.len() as u8];
    // The higher come first: of two objects of a key, a master takes the one that is reported first.
    let generation = (!id.generation().as_u64()).to_be_bytes();
    [&len[..], tenant.as_bytes(), key.as_bytes(), &generation].concat().into_boxed_slice()
}

fn unpacked(id: &[u8]) -> ObjectId {
    let (len, rest) = id.split_first().expect("an id was packed");
    let (tenant, rest) = rest.split_at((*len).into());
    let (key, generation) = rest.split_at(rest.len() - 8);
    let text = |bytes| core::str::from_utf8(bytes).expect("it was a text");
    let key = ObjectKey::new(text(key)).expect("it was a key");
    let generation = Generation::new(!u64::from_be_bytes(array(generation)));
    ObjectId::stored(text(tenant), key, generation).expect("it was an id")
}

/// The cursor of an id: its generation, the length of its tenant, both in decimal, and the names.
pub(super) fn cursor(id: &ObjectId) -> ScanCursor {
    let (generation, tenant) = (id.generation().as_u64(), id.tenant());
    ScanCursor::new(format!("{generation} {} {tenant}{}", tenant.len(), id.key()))
}

fn parse_cursor(cursor: &ScanCursor) -> Option<ObjectId> {
    let mut fields = cursor.as_str().splitn(3, ' ');
    let generation = Generation::new(fields.next()?.parse().ok()?);
    let len = fields.next()?.parse().ok()?;
    let (tenant, key) = fields.next()?.split_at_checked(len)?;
    ObjectId::stored(tenant, ObjectKey::new(key).ok()?, generation).ok()
}
