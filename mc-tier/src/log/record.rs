//! The log's bytes, format 1.
//!
//! All numbers are little-endian. A log consists of a block that describes it and of segments of one
//! length, the first behind that block. A block has 4096 bytes, so that everything can be read and
//! written past the page cache on any device; records begin at blocks. A record of a long object
//! takes half a block more than its bytes on average; that of a short one takes a whole block.
//!
//! The log's block:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `MCTS` |
//! | 4 | 4 | the format: 1 |
//! | 8 | 8 | the length of a segment, a multiple of 4096 |
//! | 16 | 4 | the CRC-32C of the bytes before |
//!
//! A segment begins with its [`table`](super::table), which says which records are dead: their objects
//! were removed, replaced or moved. Records follow, and behind the last one the
//! [`footer`](super::footer), when no more records will come.
//!
//! A record:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `MCTR` |
//! | 4 | 4 | the CRC-32C of the bytes behind the header, to the end of its last block |
//! | 8 | 8 | the segment's nonce |
//! | 16 | | the object as in a file of its own, see [`object_file`](crate::object_file) |
//!
//! The bytes behind the blocks of the header are written first: a process that is killed leaves either
//! the whole record or none. So does a write of those blocks that fails in the middle, for they have a
//! checksum. Several records may be written at once, so there may be gaps.
//!
//! A nonce is random and new each time that a segment is used again. A record of another nonce is
//! the remains of a former use, or bytes that a writer has put to look like a record: writers do not
//! know nonces. Of two records of an object the one in the later segment counts, and of two in one
//! segment the one behind; but the one before where the slices of the other do not have their checksums.

use core::ops::Range;

use mc_types::Checksum;

use crate::error::Damage;
use crate::object::{ObjectId, SliceInfo, StoredObject, crc32c};
use crate::object_file::{self, HeaderError, MAX_HEADER_LEN, encode_header, parse_header};

/// Records begin at multiples of this many bytes.
pub(super) const BLOCK: u64 = 4096;

/// The format that this version writes and reads.
pub(super) const FORMAT: u32 = 1;

/// The longest part of a record before the object's bytes.
pub(super) const MAX_RECORD_HEADER_LEN: usize = PREFIX + MAX_HEADER_LEN;

const PREFIX: usize = 16;

/// Where the checksum is of the bytes behind the header.
const FIRST_BLOCKS: Range<usize> = 4..8;

const LOG_MAGIC: &[u8; 4] = b"MCTS";
const RECORD_MAGIC: &[u8; 4] = b"MCTR";

/// The bytes from one record to the next.
pub(super) const fn padded(len: u64) -> u64 {
    len.next_multiple_of(BLOCK)
}

/// Writes the block of a log.
pub(super) fn encode_log(segment_len: u64) -> Vec<u8> {
    let fields = [LOG_MAGIC, &FORMAT.to_le_bytes()[..], &segment_len.to_le_bytes()].concat();
    sealed(fields)
}

/// The content of the first block of a medium.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogBlock {
    /// Nothing was written yet.
    New,
    /// A log with segments of this length.
    Log { segment_len: u64 },
    /// A log of another format.
    Newer { found: u32 },
    /// Another content.
    Foreign,
}

/// Reads the block of a log, which is a whole one.
pub(super) fn parse_log(block: &[u8]) -> LogBlock {
    if block.iter().all(|byte| *byte == 0) {
        return LogBlock::New;
    }
    let found = u32::from_le_bytes(array(&block[4..8]));
    let segment_len = u64::from_le_bytes(array(&block[8..16]));
    if block[..4] != *LOG_MAGIC || !is_sealed(&block[..20]) {
        LogBlock::Foreign
    } else if found != FORMAT {
        LogBlock::Newer { found }
    } else {
        LogBlock::Log { segment_len }
    }
}

/// Writes the part of a record before the object's bytes, without the checksum of what is behind it:
/// see [`seal_first_blocks`].
pub(super) fn encode_record(nonce: u64, object: &StoredObject) -> Vec<u8> {
    let mut record = [&RECORD_MAGIC[..], &[0; 4], &nonce.to_le_bytes()].concat();
    record.extend_from_slice(&encode_header(object));
    record
}

/// The layout of a record, known without reading it, in 16 bytes: the index has one for each
/// object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    len: u64,
    checksum: u32,
    header_len: u16,
    has_checksum: bool,
}

impl Layout {
    /// Lengths of headers are below 2^16.
    pub(super) const fn new(header_len: u16, len: u64, checksum: Option<Checksum>) -> Self {
        let (checksum, has_checksum) = match checksum {
            Some(checksum) => (checksum.as_u32(), true),
            None => (0, false),
        };
        Self { len, checksum, header_len, has_checksum }
    }

    /// The record of an object.
    pub(super) fn of(object: &StoredObject) -> Self {
        let header_len = header_len(object);
        let only = match object.slices() {
            [only] => Some(only.checksum),
            _ => None,
        };
        Self::new(header_len as u16, header_len as u64 + object.object_len(), only)
    }

    /// The bytes of the record.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// The bytes of the record before those of the object.
    pub(super) const fn header_len(&self) -> u16 {
        self.header_len
    }

    /// The checksum of the object's only slice; `None` of several, and where it is not known.
    pub(super) fn checksum(&self) -> Option<Checksum> {
        self.has_checksum.then(|| Checksum::from_crc32c(self.checksum))
    }

    /// The object of this id, if all of it is known.
    pub(super) fn object(&self, id: &ObjectId) -> Option<StoredObject> {
        let len = self.len.checked_sub(self.header_len.into())?;
        let only = SliceInfo { len, checksum: self.checksum()? };
        let object = StoredObject::new(id.clone(), vec![only]).ok()?;
        (header_len(&object) == usize::from(self.header_len)).then_some(object)
    }
}

/// The length of what [`encode_record`] writes.
pub(super) fn header_len(object: &StoredObject) -> usize {
    PREFIX + object_file::header_len(object)
}

/// Writes the checksum of the bytes behind the header. `blocks` are those of the header.
pub(super) fn seal_first_blocks(blocks: &mut [u8], header_len: usize) {
    let checksum = crc32c(&blocks[header_len..]).as_u32();
    blocks[FIRST_BLOCKS].copy_from_slice(&checksum.to_le_bytes());
}

/// Returns whether the blocks of a header, as [`seal_first_blocks`] has left them, are all there.
pub(super) fn has_first_blocks(blocks: &[u8], header_len: usize) -> bool {
    crc32c(&blocks[header_len..]).as_u32().to_le_bytes() == blocks[FIRST_BLOCKS]
}

/// The part of a record before the object's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) object: StoredObject,
    pub(super) header_len: usize,
}

impl Record {
    /// The bytes of the record.
    pub(super) fn len(&self) -> u64 {
        self.header_len as u64 + self.object.object_len()
    }
}

/// Returns whether `bytes` begin as a record of this nonce.
pub(super) fn is_record(bytes: &[u8], nonce: u64) -> bool {
    flipped_bits(bytes, nonce) == Some(0)
}

/// Returns whether a record of this nonce was written here, though some bits may be others now. No
/// other bytes look like that: nonces are random, and half of the bits of another one differ.
pub(super) fn was_record(bytes: &[u8], nonce: u64) -> bool {
    flipped_bits(bytes, nonce).is_some_and(|bits| bits <= 8)
}

/// The number of bits that differ from those that a record begins with; `None` of too few bytes.
fn flipped_bits(bytes: &[u8], nonce: u64) -> Option<u32> {
    let found = u64::from_le_bytes(array(bytes.get(8..PREFIX)?));
    let magic = bytes.iter().zip(RECORD_MAGIC).map(|(found, magic)| (found ^ magic).count_ones());
    Some(magic.sum::<u32>() + (found ^ nonce).count_ones())
}

/// Reads the record that `bytes` begin with.
pub(super) fn parse_record(bytes: &[u8], nonce: u64) -> Result<Record, HeaderError> {
    if !is_record(bytes, nonce) {
        return Err(Damage::Magic.into());
    }
    let (object, len) = parse_header(&bytes[PREFIX..])?;
    Ok(Record { object, header_len: PREFIX + len })
}

/// Appends the checksum.
pub(super) fn sealed(mut fields: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c(&fields);
    fields.extend_from_slice(&checksum.as_u32().to_le_bytes());
    fields
}

/// Returns whether `bytes` end with the checksum of those before.
pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    let (fields, checksum) = bytes.split_at(bytes.len() - 4);
    crc32c(fields).as_u32().to_le_bytes() == checksum
}

pub(super) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the caller takes N bytes")
}
