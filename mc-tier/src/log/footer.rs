//! The footer of a segment: the records that it has, so that they need not be read one by one when
//! the log is opened.
//!
//! It is written when no more records will come, and is an entry for each record, one behind the other:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | the block that the record begins at, counted from the segment's first |
//! | 4 | 2 | the bytes of the record before those of the object |
//! | 6 | 2 | `T`: the length of the tenant's name, with 0x8000 added where `C` is 4 |
//! | 8 | 2 | `K`: the length of the key |
//! | 10 | 8 | the bytes of the record |
//! | 18 | 8 | the object's generation |
//! | 26 | `C` | the CRC-32C of the object's only slice; `C` is 0 for an object of several, and in older logs |
//! | 26 + `C` | `T` | the tenant's name, UTF-8 |
//! | 26 + `C` + `T` | `K` | the key, UTF-8 |
//!
//! An older version takes a footer with such a checksum for a damaged one. The segment's [`table`](super::table) says where the footer is, and its checksum. A record is
//! compared with its id when it is read; a segment whose footer is damaged is read record by record.

use mc_types::{Checksum, Generation, ObjectKey};

use super::record::{BLOCK, Layout, array};
use crate::object::ObjectId;

const FIXED: usize = 26;

/// Added to the length of the tenant's name, which is at most 128.
const HAS_CHECKSUM: u16 = 0x8000;

/// A record, as a footer describes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Counted from the segment's first.
    pub(super) block: u32,
    pub(super) layout: Layout,
    pub(super) id: ObjectId,
}

/// The most bytes of an entry.
pub(super) fn entry_len(id: &ObjectId) -> usize {
    FIXED + size_of::<u32>() + id.tenant().len() + id.key().as_str().len()
}

/// Appends an entry.
pub(super) fn push(footer: &mut Vec<u8>, block: u32, layout: &Layout, id: &ObjectId) {
    // The types' limits are far below those of the fields.
    let (tenant, key) = (id.tenant(), id.key().as_str());
    let flag = layout.checksum().map_or(0, |_| HAS_CHECKSUM);
    footer.extend_from_slice(&block.to_le_bytes());
    footer.extend_from_slice(&layout.header_len().to_le_bytes());
    footer.extend_from_slice(&(tenant.len() as u16 | flag).to_le_bytes());
    footer.extend_from_slice(&(key.len() as u16).to_le_bytes());
    footer.extend_from_slice(&layout.len().to_le_bytes());
    footer.extend_from_slice(&id.generation().as_u64().to_le_bytes());
    if let Some(checksum) = layout.checksum() {
        footer.extend_from_slice(&checksum.as_u32().to_le_bytes());
    }
    footer.extend_from_slice(tenant.as_bytes());
    footer.extend_from_slice(key.as_bytes());
}

/// Reads all entries; `None` when one of them is none, or does not lie in front of the footer.
pub(super) fn parse(mut bytes: &[u8], footer_offset: u64) -> Option<Vec<Entry>> {
    let mut entries = Vec::with_capacity(bytes.len() / (FIXED + 1));
    while !bytes.is_empty() {
        let (fixed, rest) = bytes.split_at_checked(FIXED)?;
        let short = |at: usize| u16::from_le_bytes([fixed[at], fixed[at + 1]]);
        let long = |at| u64::from_le_bytes(array(&fixed[at..at + 8]));
        let block = u32::from_le_bytes(array(&fixed[..4]));
        let (header_len, len) = (short(4), long(10));
        let has_checksum = short(6) & HAS_CHECKSUM != 0;
        let (checksum, rest) = rest.split_at_checked(if has_checksum { 4 } else { 0 })?;
        let checksum = has_checksum.then(|| u32::from_le_bytes(array(checksum)));
        let (tenant, rest) = rest.split_at_checked((short(6) & !HAS_CHECKSUM).into())?;
        let (key, rest) = rest.split_at_checked(short(8).into())?;
        let key = ObjectKey::new(core::str::from_utf8(key).ok()?).ok()?;
        let tenant = core::str::from_utf8(tenant).ok()?;
        let id = ObjectId::stored(tenant, key, Generation::new(long(18))).ok()?;
        let room = footer_offset.checked_sub(u64::from(block) * BLOCK)?;
        if u64::from(header_len) >= len || len > room {
            return None;
        }
        let checksum = checksum.map(Checksum::from_crc32c);
        let layout = Layout::new(header_len, len, checksum);
        if has_checksum && layout.object(&id).is_none() {
            return None;
        }
        entries.push(Entry { block, layout, id });
        bytes = rest;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(tenant: &str, key: &str) -> ObjectId {
        ObjectId::new(tenant, ObjectKey::new(key).unwrap(), Generation::new(9)).unwrap()
    }

    const SEVERAL: Layout = Layout::new(100, 5000, None);

    /// The record of an object of one slice under a key of three bytes.
    const ONE: Layout = Layout::new(16 + 24 + 3 + 12 + 4, 60, Some(Checksum::from_crc32c(7)));

    #[test]
    fn a_footer_is_read_as_it_was_written() {
        let mut footer = Vec::new();
        push(&mut footer, 2, &SEVERAL, &id("team", "one"));
        let first = footer.len();
        push(&mut footer, 4, &ONE, &id("", "two"));
        assert!(first <= entry_len(&id("team", "one")));
        assert_eq!(footer.len() - first, entry_len(&id("", "two")));
        let entry = |block, layout, id| Entry { block, layout, id };
        let expected = [entry(2, SEVERAL, id("team", "one")), entry(4, ONE, id("", "two"))];
        assert_eq!(parse(&footer, 5 * BLOCK).as_deref(), Some(&expected[..]));
        assert_eq!(parse(&footer, 4 * BLOCK), None, "the last record is behind the footer");
        for len in (1..footer.len()).filter(|len| *len != first) {
            assert_eq!(parse(&footer[..len], 5 * BLOCK), None, "{len}");
        }
        assert_eq!(parse(&[], 8192).as_deref(), Some(&[][..]));
    }

    #[test]
    fn entries_that_cannot_be_are_rejected() {
        let mut footer = Vec::new();
        push(&mut footer, 2, &SEVERAL, &id("team", "one"));
        for (at, byte) in
            [(3, 0xff), (4, 0xff), (7, 0x80), (9, 1), (17, 0xff), (26, 0xff), (30, 0xff)]
        {
            let mut other = footer.clone();
            other[at] = byte;
            // A header as long as the record.
            if at == 4 {
                other[4..6].copy_from_slice(&5000u16.to_le_bytes());
            }
            assert_eq!(parse(&other, 5 * BLOCK), None, "{at}");
        }
        let mut footer = Vec::new();
        push(
            &mut footer,
            2,
            &Layout::new(16 + 24 + 3 + 24 + 4, 90, ONE.checksum()),
            &id("", "two"),
        );
        assert_eq!(parse(&footer, 5 * BLOCK), None, "a header of two slices");
    }
}
