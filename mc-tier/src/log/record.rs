//! The log's bytes, format 1.
//!
//! All numbers are little-endian. A log consists of a block that describes it and of segments of one
//! length, the first behind that block. A segment begins with a block that describes it; records follow.
//! A block has 512 bytes; records begin at blocks.
//!
//! The log's block:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `MCTS` |
//! | 4 | 4 | the format: 1 |
//! | 8 | 8 | the length of a segment, a multiple of 512 |
//! | 16 | 4 | the CRC-32C of the bytes before |
//!
//! A segment's block; a segment without a valid one is free:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | `MCTSEGMT` |
//! | 8 | 8 | the segment's sequence number: higher than those of all segments begun before |
//! | 16 | 8 | the segment's nonce |
//! | 24 | 4 | the CRC-32C of the bytes before |
//!
//! A record:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | `MCTR` |
//! | 4 | 1 | 0x5A: the object is there; 0xA5: it was removed, replaced or moved |
//! | 5 | 3 | 0 |
//! | 8 | 8 | the segment's nonce |
//! | 16 | | the object as in a file of its own, see [`object_file`](crate::object_file) |
//!
//! A nonce is random and new each time that a segment is used again. A record of another nonce is
//! the remains of a former use, or bytes that a writer has put to look like a record: writers do not
//! know nonces. Of two records of an object the one in the later segment counts, and of two in one
//! segment the one behind; but the one before where the slices of the other do not have their checksums.

use crate::error::Damage;
use crate::object::{StoredObject, crc32c};
use crate::object_file::{self, HeaderError, MAX_HEADER_LEN, encode_header, parse_header};

/// Records begin at multiples of this many bytes.
pub(super) const BLOCK: u64 = 512;

/// The format that this version writes and reads.
pub(super) const FORMAT: u32 = 1;

/// The longest part of a record before the object's bytes.
pub(super) const MAX_RECORD_HEADER_LEN: usize = PREFIX + MAX_HEADER_LEN;

/// Where a record's state is.
pub(super) const STATE: u64 = 4;

/// The state of a record whose object was removed, replaced or moved. All bits differ from those of the
/// other state, so that no few flipped bits make one of the other.
pub(super) const REMOVED: u8 = 0xA5;

const PRESENT: u8 = 0x5A;
const PREFIX: usize = 16;
const LOG_MAGIC: &[u8; 4] = b"MCTS";
const SEGMENT_MAGIC: &[u8; 8] = b"MCTSEGMT";
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

/// What the first block of a medium says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogBlock {
    /// Nothing was written yet.
    New,
    /// A log with segments of this length.
    Log { segment_len: u64 },
    /// A log of another format.
    Newer { found: u32 },
    /// Something else.
    Foreign,
}

/// Reads the block of a log.
pub(super) fn parse_log(block: &[u8; BLOCK as usize]) -> LogBlock {
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

/// Writes the block of a segment.
pub(super) fn encode_segment(sequence: u64, nonce: u64) -> Vec<u8> {
    let numbers = [sequence.to_le_bytes(), nonce.to_le_bytes()].concat();
    sealed([&SEGMENT_MAGIC[..], &numbers].concat())
}

/// Reads the sequence number and the nonce of a segment; `None` when it is free.
pub(super) fn parse_segment(block: &[u8; BLOCK as usize]) -> Option<(u64, u64)> {
    let is_used = block[..8] == *SEGMENT_MAGIC && is_sealed(&block[..28]);
    is_used.then(|| {
        (u64::from_le_bytes(array(&block[8..16])), u64::from_le_bytes(array(&block[16..24])))
    })
}

/// Writes the part of a record before the object's bytes.
pub(super) fn encode_record(nonce: u64, object: &StoredObject) -> Vec<u8> {
    let mut record = [&RECORD_MAGIC[..], &[PRESENT, 0, 0, 0], &nonce.to_le_bytes()].concat();
    record.extend_from_slice(&encode_header(object));
    record
}

/// The length of what [`encode_record`] writes.
pub(super) fn header_len(object: &StoredObject) -> usize {
    PREFIX + object_file::header_len(object)
}

/// The part of a record before the object's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) is_removed: bool,
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
    bytes.len() >= PREFIX && bytes[..4] == *RECORD_MAGIC && bytes[8..16] == nonce.to_le_bytes()
}

/// Reads the record that `bytes` begin with.
pub(super) fn parse_record(bytes: &[u8], nonce: u64) -> Result<Record, HeaderError> {
    if !is_record(bytes, nonce) {
        return Err(Damage::Magic.into());
    }
    let is_removed = match bytes[STATE as usize] {
        PRESENT => false,
        REMOVED => true,
        _ => return Err(Damage::Magic.into()),
    };
    let (object, len) = parse_header(&bytes[PREFIX..])?;
    Ok(Record { is_removed, object, header_len: PREFIX + len })
}

fn sealed(mut fields: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c(&fields);
    fields.extend_from_slice(&checksum.as_u32().to_le_bytes());
    fields
}

fn is_sealed(bytes: &[u8]) -> bool {
    let (fields, checksum) = bytes.split_at(bytes.len() - 4);
    crc32c(fields).as_u32().to_le_bytes() == checksum
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("the caller takes N bytes")
}
