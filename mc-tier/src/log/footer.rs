//! The footer of a segment: the records that it has, so that they need not be read one by one when
//! the log is opened.
//!
//! It is written when no more records will come, and is an entry for each record, one behind the other:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | the block that the record begins at, counted from the segment's first |
//! | 4 | 2 | the bytes of the record before those of the object |
//! | 6 | 2 | `T`: the length of the tenant's name |
//! | 8 | 2 | `K`: the length of the key |
//! | 10 | 8 | the bytes of the record |
//! | 18 | 8 | the object's generation |
//! | 26 | `T` | the tenant's name, UTF-8 |
//! | 26 + `T` | `K` | the key, UTF-8 |
//!
//! The segment's [`table`](super::table) says where the footer is, and its checksum. A record is
//! compared with its id when it is read; a segment whose footer is damaged is read record by record.

use mc_types::{Generation, ObjectKey};

use super::record::{BLOCK, array};
use crate::object::ObjectId;

const FIXED: usize = 26;

/// A record, as a footer describes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Counted from the segment's first.
    pub(super) block: u64,
    pub(super) header_len: u32,
    pub(super) len: u64,
    pub(super) id: ObjectId,
}

/// The bytes of an entry.
pub(super) fn entry_len(id: &ObjectId) -> usize {
    FIXED + id.tenant().len() + id.key().as_str().len()
}

/// Appends an entry.
pub(super) fn push(footer: &mut Vec<u8>, block: u64, header_len: u32, len: u64, id: &ObjectId) {
    // The types' limits are far below those of the fields, and segments are shorter than 2^32 blocks.
    let (tenant, key) = (id.tenant(), id.key().as_str());
    footer.extend_from_slice(&(block as u32).to_le_bytes());
    footer.extend_from_slice(&(header_len as u16).to_le_bytes());
    footer.extend_from_slice(&(tenant.len() as u16).to_le_bytes());
    footer.extend_from_slice(&(key.len() as u16).to_le_bytes());
    footer.extend_from_slice(&len.to_le_bytes());
    footer.extend_from_slice(&id.generation().as_u64().to_le_bytes());
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
        let block = u64::from(u32::from_le_bytes(array(&fixed[..4])));
        let (header_len, len) = (u32::from(short(4)), long(10));
        let (tenant, rest) = rest.split_at_checked(short(6).into())?;
        let (key, rest) = rest.split_at_checked(short(8).into())?;
        let key = ObjectKey::new(core::str::from_utf8(key).ok()?).ok()?;
        let tenant = core::str::from_utf8(tenant).ok()?;
        let id = ObjectId::new(tenant, key, Generation::new(long(18))).ok()?;
        if u64::from(header_len) >= len || len > footer_offset.checked_sub(block * BLOCK)? {
            return None;
        }
        entries.push(Entry { block, header_len, len, id });
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

    #[test]
    fn a_footer_is_read_as_it_was_written() {
        let mut footer = Vec::new();
        push(&mut footer, 2, 100, 5000, &id("team", "one"));
        push(&mut footer, 4, 90, 91, &id("", "two"));
        assert_eq!(footer.len(), entry_len(&id("team", "one")) + entry_len(&id("", "two")));
        let entry = |block, header_len, len, id| Entry { block, header_len, len, id };
        let expected = [entry(2, 100, 5000, id("team", "one")), entry(4, 90, 91, id("", "two"))];
        assert_eq!(parse(&footer, 5 * BLOCK).as_deref(), Some(&expected[..]));
        assert_eq!(parse(&footer, 4 * BLOCK), None, "the last record is behind the footer");
        for len in (1..footer.len()).filter(|len| *len != entry_len(&id("team", "one"))) {
            assert_eq!(parse(&footer[..len], 5 * BLOCK), None, "{len}");
        }
        assert_eq!(parse(&[], 8192).as_deref(), Some(&[][..]));
    }

    #[test]
    fn entries_that_cannot_be_are_rejected() {
        let mut footer = Vec::new();
        push(&mut footer, 2, 100, 5000, &id("team", "one"));
        for (at, byte) in [(3, 0xff), (4, 0xff), (9, 1), (17, 0xff), (26, 0xff), (30, 0xff)] {
            let mut other = footer.clone();
            other[at] = byte;
            // A header as long as the record.
            if at == 4 {
                other[4..6].copy_from_slice(&5000u16.to_le_bytes());
            }
            assert_eq!(parse(&other, 5 * BLOCK), None, "{at}");
        }
    }
}
