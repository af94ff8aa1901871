//! Batches of records.

use core::cell::Cell;
use core::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mc_meta::RecordRef;
use mc_types::{Epoch, Generation, KeyRef, Sequence};
use smallvec::SmallVec;

use super::decode::{self, Completion, Decoded, Ids};
use super::varint::Reader;
use crate::position::Position;

/// Bytes before the tables.
pub const HEADER_LEN: usize = 76;

/// Most bytes of a batch.
pub const MAX_BATCH_LEN: usize = 64 << 20;

/// The version of the format.
pub(crate) const FORMAT: u8 = 1;

pub(super) const MAGIC: [u8; 4] = *b"MCJB";

/// No single shard.
pub(super) const ANY_SHARD: u32 = u32::MAX;

/// The content of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// The changes that a master made.
    Effects = 0,
    /// A snapshot.
    Page = 1,
    /// The end of a snapshot.
    End = 2,
}

/// A batch of records: a header whose checksum is right, and records that are looked at when they
/// are [visited](Self::visit). See the module for the format.
///
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch {
    bytes: Bytes,
    header: Header,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: BatchKind,
    pub(super) epoch: Epoch,
    pub(super) first: Sequence,
    pub(super) last: Sequence,
    pub(super) made: u64,
    pub(super) base: Generation,
    pub(super) shard: u32,
    pub(super) shards: u32,
    pub(super) ids: u32,
    pub(super) records: u32,
    pub(super) table_bytes: u32,
    pub(super) record_bytes: u32,
}

/// Why some bytes are no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
#[non_exhaustive]
pub enum BatchError {
    /// The bytes do not begin as a batch does.
    #[error("there is no batch here")]
    NoBatch,
    /// A newer version wrote it.
    #[error("it has format {found} and this version reads format {FORMAT}")]
    Newer { found: u8 },
    /// The bytes end before the batch does.
    #[error("it is cut off after {have} of {len} bytes")]
    CutOff {
        /// The bytes there are.
        have: usize,
        /// The bytes of the batch.
        len: usize,
    },
    /// The checksum of its header or its tables is wrong.
    #[error("its header is damaged")]
    Header,
    /// Effects between two batches are missing.
    #[error("the effects after {after} and before {before} are missing")]
    Missing {
        /// The last effect before the gap.
        after: Position,
        /// The first effect behind the gap.
        before: Position,
    },
}

/// A record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {number} of batch {batch} {reason}")]
pub struct DamagedRecord {
    /// The last effect of its batch.
    pub batch: Position,
    /// Its number in the batch, from 0.
    pub number: u32,
    /// The fault of the record.
    pub reason: &'static str,
    /// Whether its key could be read and was [wanted](RecordVisitor::wants). Of several visitors that
    /// want objects of their own, one alone is told so; other damage is told to all.
    pub is_wanted: bool,
}

/// The length of the batch that begins with these bytes.
///
/// # Errors
/// [`BatchError`] when no batch begins so, as far as it can be told before the rest is there.
pub fn batch_len(header: &[u8; HEADER_LEN]) -> Result<usize, BatchError> {
    let mut reader = Reader(header);
    if reader.array() != Some(MAGIC) {
        return Err(BatchError::NoBatch);
    }
    match reader.byte() {
        Some(FORMAT) => {}
        Some(found) if found > FORMAT => return Err(BatchError::Newer { found }),
        _ => return Err(BatchError::NoBatch),
    }
    let [tables, records] = [64, 68].map(|at| {
        let bytes = header[at..].first_chunk().expect("inside of the header");
        u32::from_le_bytes(*bytes) as usize
    });
    let len = HEADER_LEN.saturating_add(tables).saturating_add(records);
    if len > MAX_BATCH_LEN { Err(BatchError::Header) } else { Ok(len) }
}

impl Header {
    pub(super) fn encode(&self, tables: &[u8]) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..4].copy_from_slice(&MAGIC);
        (out[4], out[5]) = (FORMAT, self.kind as u8);
        let long = [
            self.epoch.as_u64(),
            self.first.as_u64(),
            self.last.as_u64(),
            self.made,
            self.base.as_u64(),
        ];
        for (at, value) in (8..).step_by(8).zip(long) {
            out[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        let short =
            [self.shard, self.shards, self.ids, self.records, self.table_bytes, self.record_bytes];
        for (at, value) in (48..).step_by(4).zip(short) {
            out[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let checksum = checksum(&[&out[..72], tables]);
        out[72..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    fn parse(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let mut reader = Reader(&bytes[5..]);
        let kind = match reader.byte()? {
            0 => BatchKind::Effects,
            1 => BatchKind::Page,
            2 => BatchKind::End,
            _ => return None,
        };
        reader.bytes(2)?;
        let mut long = || reader.array().map(u64::from_le_bytes);
        let (epoch, first, last) = (long()?, long()?, long()?);
        let (made, base) = (long()?, long()?);
        let mut short = || reader.array().map(u32::from_le_bytes);
        Some(Self {
            kind,
            epoch: Epoch::new(epoch),
            first: Sequence::new(first),
            last: Sequence::new(last),
            made,
            base: Generation::new(base),
            shard: short()?,
            shards: short()?,
            ids: short()?,
            records: short()?,
            table_bytes: short()?,
            record_bytes: short()?,
        })
    }
}

pub(crate) fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

impl Batch {
    pub(super) fn from_parts(bytes: Bytes, header: Header) -> Self {
        Self { bytes, header }
    }

    /// Returns the CRC-32C of all its bytes.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        checksum(&[&self.bytes])
    }

    /// Takes bytes that are one batch, whole.
    ///
    /// # Errors
    /// [`BatchError`].
    pub fn parse(bytes: Bytes) -> Result<Self, BatchError> {
        let Some(begin) = bytes.first_chunk() else {
            return Err(BatchError::CutOff { have: bytes.len(), len: HEADER_LEN });
        };
        let len = batch_len(begin)?;
        if bytes.len() != len {
            return Err(BatchError::CutOff { have: bytes.len(), len });
        }
        let header = Header::parse(begin).ok_or(BatchError::Header)?;
        let tables = HEADER_LEN + header.table_bytes as usize;
        let expected = u32::from_le_bytes(*begin.last_chunk().expect("inside of the header"));
        let ids = header.ids as usize * 16;
        let is_whole = expected == checksum(&[&bytes[..72], &bytes[HEADER_LEN..tables]])
            && ids + header.records as usize <= header.table_bytes as usize
            && header.first <= header.last;
        if is_whole { Ok(Self { bytes, header }) } else { Err(BatchError::Header) }
    }

    /// Returns the encoded batch, header included.
    #[must_use]
    pub const fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the kind of the batch's content.
    #[must_use]
    pub const fn kind(&self) -> BatchKind {
        self.header.kind
    }

    /// Returns the term of the leader that wrote the batch.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.header.epoch
    }

    /// Its first effect.
    #[must_use]
    pub const fn first(&self) -> Position {
        Position::new(self.header.epoch, self.header.first)
    }

    /// Its last effect.
    #[must_use]
    pub const fn last(&self) -> Position {
        Position::new(self.header.epoch, self.header.last)
    }

    /// When it was made, by the clock of the master that made it.
    #[must_use]
    pub fn made(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.header.made)
    }

    /// Its number of records.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.header.records as usize
    }

    /// Returns whether it has no record; it may cover effects that have none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.header.records == 0
    }

    /// The shard that all of its objects are in, if it is a snapshot's page and there were
    /// `shards` of them when it was made.
    #[must_use]
    pub fn shard_of(&self, shards: usize) -> Option<usize> {
        let is_known = self.header.shard != ANY_SHARD && self.header.shards as usize == shards;
        is_known.then_some(self.header.shard as usize)
    }

    /// Has its records visited in order, but for those of objects that the visitor does not want. An
    /// object whose put also ends in this batch is visited once, where it ends.
    pub fn visit(&self, visitor: &mut dyn RecordVisitor) {
        let tables = &self.bytes[HEADER_LEN..HEADER_LEN + self.header.table_bytes as usize];
        let (ids, lengths) = tables.split_at(self.header.ids as usize * 16);
        let ids = Ids::new(ids);
        let found = self.find(lengths, HEADER_LEN + tables.len());
        let mut some: SmallVec<[RecordRef<'_>; AT_A_TIME]> = SmallVec::new();
        for (number, record) in (0..).zip(&found) {
            let is_wanted = Cell::new(false);
            let wants = |key: KeyRef<'_>| {
                is_wanted.set(visitor.wants(key));
                is_wanted.get()
            };
            let base = self.header.base;
            let decoded = match *record {
                BatchRecord::Damaged(reason) => Err(reason),
                BatchRecord::Completed(_) => Ok(None),
                BatchRecord::Whole(fields) => decode::record(fields, &ids, base, &wants),
                BatchRecord::Completion(ref completion) => {
                    match found[number as usize - completion.distance] {
                        BatchRecord::Completed(fields) => {
                            decode::completed(fields, completion, &ids, base, &wants)
                        }
                        _ => Err(COMPLETES_NOTHING),
                    }
                }
            };
            match decoded {
                Ok(Some(Decoded::Borrowed(record))) => some.push(record),
                Ok(None) => {}
                Ok(Some(Decoded::Owned(record))) => {
                    visitor.records(&some);
                    some.clear();
                    visitor.records(&[record.as_ref()]);
                }
                Err(reason) => {
                    let (batch, is_wanted) = (self.last(), is_wanted.get());
                    visitor.damaged(DamagedRecord { batch, number, reason, is_wanted });
                }
            }
            if some.len() == AT_A_TIME {
                visitor.records(&some);
                some.clear();
            }
        }
        visitor.records(&some);
    }

    /// Finds its records, and checks their checksums. Behind one whose place is not known there is no
    /// other.
    fn find<'a>(&'a self, lengths: &[u8], start: usize) -> Vec<BatchRecord<'a>> {
        let mut lengths = Reader(lengths);
        let mut records = Reader(&self.bytes[start..]);
        // There is a byte of the tables for each of them.
        let mut found: Vec<BatchRecord<'a>> = Vec::with_capacity(self.len());
        for number in 0..self.len() {
            let len = lengths.varint().and_then(|len| usize::try_from(len).ok());
            let record = len.and_then(|len| Some((records.array()?, records.bytes(len)?)));
            let Some((expected, fields)) = record else {
                found.push(BatchRecord::Damaged("is not there"));
                break;
            };
            if u32::from_le_bytes(expected) != checksum(&[fields]) {
                found.push(BatchRecord::Damaged("has a wrong checksum"));
                continue;
            }
            if !decode::is_completion(fields) {
                found.push(BatchRecord::Whole(fields));
                continue;
            }
            let completed = Completion::parse(fields).and_then(|completion| {
                let at = number.checked_sub(completion.distance)?;
                Some((completion, found.get_mut(at)?))
            });
            let this = match completed {
                Some((completion, object)) => match *object {
                    BatchRecord::Whole(begun) if decode::is_unfinished(begun) => {
                        *object = BatchRecord::Completed(begun);
                        BatchRecord::Completion(completion)
                    }
                    _ => BatchRecord::Damaged(COMPLETES_NOTHING),
                },
                None => BatchRecord::Damaged(COMPLETES_NOTHING),
            };
            found.push(this);
        }
        found
    }
}

const COMPLETES_NOTHING: &str = "completes no object of its batch that can be read";

/// A record of a batch.
#[derive(Clone, Copy, Debug)]
enum BatchRecord<'a> {
    /// Its fields are what was written.
    Whole(&'a [u8]),
    /// An unfinished object that a later record completes.
    Completed(&'a [u8]),
    /// A later record that completes an object.
    Completion(Completion<'a>),
    Damaged(&'static str),
}

/// Receives the records of a batch.
pub trait RecordVisitor {
    /// Returns whether records of this key's object are wanted.
    fn wants(&self, key: KeyRef<'_>) -> bool;

    /// Receives the next records that are wanted, a few at a time.
    fn records(&mut self, records: &[RecordRef<'_>]);

    /// Learns of a record that cannot be read, before the records around it or after them.
    fn damaged(&mut self, record: DamagedRecord);
}

/// Records that a visitor is given at a time, at most.
const AT_A_TIME: usize = 32;

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("kind", &self.kind())
            .field("first", &self.first())
            .field("last", &self.last())
            .field("records", &self.len())
            .finish_non_exhaustive()
    }
}
