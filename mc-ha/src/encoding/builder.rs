//! Makes batches of records.

use core::mem;
use std::time::{Duration, SystemTime};

use bytes::{BufMut, BytesMut};
use mc_meta::{ObjectRecordRef, RecordRef};
use mc_types::{Epoch, Generation, Sequence};

use super::batch::{ANY_SHARD, Batch, BatchKind, HEADER_LEN, Header, checksum};
use super::encode;
use super::table::Table;
use super::varint::put;

/// Puts whose beginnings are remembered until their ends, by their generations: how far these are
/// apart at most.
const MAX_BEGUN: usize = 1 << 14;

/// Bytes of records from which on a batch [is full](BatchBuilder::is_full).
const FULL: usize = 128 << 10;

/// The shard that the objects of a snapshot's page are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOf {
    /// The shard.
    pub shard: u32,
    /// The number of shards.
    pub shards: u32,
}

/// Collects records to a [`Batch`], again and again.
#[derive(Debug)]
pub struct BatchBuilder {
    epoch: Epoch,
    /// The effects of the batch that is being made.
    range: Option<(Sequence, Sequence)>,
    table: Table,
    lengths: Vec<u8>,
    records: Vec<u8>,
    count: u32,
    /// The unfinished objects of the batch, by the distance of their generations from its base.
    begun: Vec<Option<Begun>>,
}

/// Where an unfinished object stands.
#[derive(Clone, Copy, Debug)]
struct Begun {
    number: u32,
    start: usize,
    end: usize,
}

impl BatchBuilder {
    /// A builder of batches of this term.
    #[must_use]
    pub fn new(epoch: Epoch) -> Self {
        Self {
            epoch,
            range: None,
            table: Table::default(),
            lengths: Vec::new(),
            records: Vec::new(),
            count: 0,
            begun: Vec::new(),
        }
    }

    /// Adds what an effect comes to; most have a record. Effects are added in the order of their
    /// numbers, without leaving one out.
    pub fn effect(&mut self, sequence: Sequence, record: Option<RecordRef<'_>>) {
        let first = self.range.map_or(sequence, |(first, _)| first);
        self.range = Some((first, sequence));
        if let Some(record) = record {
            self.record(&record);
        }
    }

    /// Adds a record of a snapshot.
    pub fn record(&mut self, record: &RecordRef<'_>) {
        let start = self.records.len();
        self.records.put_u32_le(0);
        match record {
            RecordRef::Object(object) if self.is_completion(object) => {}
            record => encode::record(record, &mut self.table, &mut self.records),
        }
        if let RecordRef::Object(object) = record
            && !object.complete
        {
            self.remember(object, start + 4);
        }
        let fields = &self.records[start + 4..];
        let (len, checksum) = (fields.len(), checksum(&[fields]));
        self.records[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
        put(&mut self.lengths, len as u64);
        self.count += 1;
    }

    /// Adds the end of a put as no more than that, if its beginning is in the batch and nothing else has
    /// changed the object.
    fn is_completion(&mut self, object: &ObjectRecordRef<'_>) -> bool {
        let checksums = object.slices.as_slice().iter().filter(|slice| slice.checksum.is_some());
        if !object.complete || ![0, object.slices.as_slice().len()].contains(&checksums.count()) {
            return false;
        }
        let begun = self.place(object).and_then(|at| self.begun.get_mut(at)?.take());
        let Some(Begun { number, start, end }) = begun else { return false };
        let from = self.records.len();
        encode::begun(object, &mut self.table, &mut self.records);
        let is_same = self.records[start..end] == self.records[from..];
        self.records.truncate(from);
        if is_same {
            encode::completion(object, self.count - number, &mut self.records);
        }
        is_same
    }

    /// Remembers the object that begins at `start` and ends the records.
    fn remember(&mut self, object: &ObjectRecordRef<'_>, start: usize) {
        if let Some(at) = self.place(object) {
            if at >= self.begun.len() {
                self.begun.resize(at + 1, None);
            }
            let (number, end) = (self.count, self.records.len());
            self.begun[at] = Some(Begun { number, start, end });
        }
    }

    /// Where an unfinished object is remembered.
    fn place(&self, object: &ObjectRecordRef<'_>) -> Option<usize> {
        let base = self.table.base?;
        let distance = object.generation.as_u64().checked_sub(base.as_u64())?;
        usize::try_from(distance).ok().filter(|at| *at < MAX_BEGUN)
    }

    /// Returns whether nothing was added since the last batch.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.range.is_none() && self.count == 0
    }

    /// Bytes of the records that were added since the last batch.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.records.len()
    }

    /// Returns whether the batch should be [sealed](Self::seal) now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.records.len() >= FULL
    }

    /// Makes a batch of the effects that were added, and begins the next one. `None` when there
    /// are none.
    pub fn seal(&mut self) -> Option<Batch> {
        let range = self.range.take()?;
        Some(self.batch(BatchKind::Effects, range, None))
    }

    /// Makes a page of a snapshot that begins with the effect `at`.
    pub fn page(&mut self, at: Sequence, of: Option<PageOf>) -> Batch {
        self.range = None;
        self.batch(BatchKind::Page, (at, at), of)
    }

    /// Makes the end of a snapshot that began with the effect `at`; the effects up to `last` may be
    /// in it.
    pub fn end(&mut self, at: Sequence, last: Sequence) -> Batch {
        self.range = None;
        self.batch(BatchKind::End, (at, last), None)
    }

    fn batch(
        &mut self,
        kind: BatchKind,
        (first, last): (Sequence, Sequence),
        of: Option<PageOf>,
    ) -> Batch {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let tables = self.table.ids.len() + self.lengths.len();
        let header = Header {
            kind,
            epoch: self.epoch,
            first,
            last,
            made: now.as_ref().map_or(0, Duration::as_millis) as u64,
            base: self.table.base.unwrap_or(Generation::new(0)),
            shard: of.map_or(ANY_SHARD, |of| of.shard),
            shards: of.map_or(0, |of| of.shards),
            ids: self.table.places.len() as u32,
            records: mem::take(&mut self.count),
            table_bytes: tables as u32,
            record_bytes: self.records.len() as u32,
        };
        let mut bytes = BytesMut::with_capacity(HEADER_LEN + tables + self.records.len());
        bytes.put_bytes(0, HEADER_LEN);
        bytes.put_slice(&self.table.ids);
        bytes.put_slice(&self.lengths);
        let encoded = header.encode(&bytes[HEADER_LEN..]);
        bytes[..HEADER_LEN].copy_from_slice(&encoded);
        bytes.put_slice(&self.records);
        self.table.clear();
        self.lengths.clear();
        self.records.clear();
        self.begun.clear();
        Batch::from_parts(bytes.freeze(), header)
    }
}
