//! Opens a log: makes the index from what segments say of their records, and from the records.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};

use mc_types::ByteSize;
use parking_lot::{Condvar, Mutex, RwLock};
use tracing::warn;

use super::footer;
use super::index::Location;
use super::moved::Moves;
use super::record::{BLOCK, FORMAT, Layout, LogBlock, encode_log, padded, parse_log};
use super::scan::Records;
use super::space::Space;
use super::sync::SharedSync;
use super::table::{self, DeadBlocks, SegmentHead};
use super::writer::{Segment, Writer};
use super::{LogSettings, LogTier, Recovery};
use crate::backend::{BufferPool, IoBuffer, StorageBackend};
use crate::error::TierError;
use crate::object::{ObjectId, crc32c};

/// Fewest segments: one to append to, one to move objects to, and others to take them from.
const MIN_SEGMENTS: u64 = 4;

/// Shortest segment: the longest header and some bytes fit.
const MIN_SEGMENT_LEN: u64 = 64 << 10;

/// Longest segment: its blocks have numbers of 32 bits, and its table is written as a whole.
const MAX_SEGMENT_LEN: u64 = 64 << 30;

/// Tables and footers that are read at once.
const AT_ONCE: usize = 32;

/// Bytes of a segment between two calls of the progress function.
const STEP: u64 = 4 << 20;

type ProgressFn<'a> = &'a mut dyn FnMut(ByteSize, ByteSize);

pub(super) fn open(
    backend: Box<dyn StorageBackend>,
    settings: LogSettings,
    progress: ProgressFn<'_>,
) -> Result<LogTier, TierError> {
    let pool = BufferPool::default();
    let segment_len = segment_len(&*backend, &pool, settings)?;
    let segments = backend.len().saturating_sub(BLOCK) / segment_len;
    if segments < MIN_SEGMENTS {
        return Err(TierError::TooShort {
            path: backend.path().to_owned(),
            len: ByteSize::bytes(backend.len()),
            least: ByteSize::bytes(segment_len.saturating_mul(MIN_SEGMENTS).saturating_add(BLOCK)),
        });
    }
    let len = backend.len();
    let mut log = LogTier {
        alignment: (backend.alignment() as u64).clamp(1, BLOCK),
        backend,
        pool,
        sync_each_change: settings.sync_each_change,
        shared_sync: SharedSync::default(),
        segment_len,
        recovery: Recovery::default(),
        writer: Mutex::new(Writer {
            segments: (0..segments).map(|_| None).collect(),
            head: None,
            next_sequence: 1,
            writing: Vec::new(),
            moves: Moves::default(),
            compaction: None,
            stale: BTreeSet::new(),
            unsealed: BTreeSet::new(),
            space: Space::new(segments as usize, settings.space_pause),
        }),
        limit: AtomicU64::new(len),
        live: AtomicU64::new(0),
        is_short: AtomicBool::new(true),
        changed: Condvar::new(),
        index: RwLock::default(),
    };
    log.recovery = log.recover(progress).map_err(|source| log.failure("read", source))?;
    // What was read at once is longer than most objects.
    log.pool = BufferPool::default();
    if log.recovery.damaged > 0 {
        let path = log.backend.path().display();
        warn!(%path, places = log.recovery.damaged, "objects are lost: their records are damaged");
    }
    Ok(log)
}

/// The bytes of the fewest segments of the log that is on a medium, if one is.
pub(super) fn least_len(backend: &dyn StorageBackend) -> Result<Option<ByteSize>, TierError> {
    if backend.len() < BLOCK {
        return Ok(None);
    }
    let mut block = BufferPool::default().take(BLOCK as usize);
    let read = backend.read(0, &mut block);
    read.map_err(|source| TierError::from_io("read", backend.path(), source))?;
    Ok(match parse_log(&block) {
        LogBlock::Log { segment_len } => {
            let least =
                segment_len.checked_mul(MIN_SEGMENTS).and_then(|len| len.checked_add(BLOCK));
            least.map(ByteSize::bytes)
        }
        _ => None,
    })
}

/// Reads the length of a log's segments. Makes the log where nothing was written yet.
fn segment_len(
    backend: &dyn StorageBackend,
    pool: &BufferPool,
    settings: LogSettings,
) -> Result<u64, TierError> {
    let path = || backend.path().to_owned();
    let least = ByteSize::bytes(BLOCK + MIN_SEGMENTS * MIN_SEGMENT_LEN);
    if backend.len() < least.as_u64() {
        let len = ByteSize::bytes(backend.len());
        return Err(TierError::TooShort { path: path(), len, least });
    }
    let mut block = pool.take(BLOCK as usize);
    let read = backend.read(0, &mut block);
    read.map_err(|source| TierError::from_io("read", backend.path(), source))?;
    match parse_log(&block) {
        LogBlock::New => {
            let wanted = settings.segment_len.as_u64().max(MIN_SEGMENT_LEN);
            let len = wanted - wanted % BLOCK;
            if len > MAX_SEGMENT_LEN {
                let (len, least) = (backend.len(), len.saturating_mul(MIN_SEGMENTS));
                let (len, least) = (ByteSize::bytes(len), ByteSize::bytes(least));
                return Err(TierError::TooShort { path: path(), len, least });
            }
            let fields = encode_log(len);
            block.fill(0);
            block[..fields.len()].copy_from_slice(&fields);
            let written = backend.write(0, &block);
            written.map_err(|source| TierError::from_io("write", backend.path(), source))?;
            Ok(len)
        }
        LogBlock::Log { segment_len }
            if (MIN_SEGMENT_LEN..=MAX_SEGMENT_LEN).contains(&segment_len)
                && segment_len.is_multiple_of(BLOCK) =>
        {
            Ok(segment_len)
        }
        LogBlock::Newer { found } => Err(TierError::Newer { path: path(), found, known: FORMAT }),
        LogBlock::Log { .. } | LogBlock::Foreign => Err(TierError::Foreign { path: path() }),
    }
}

/// A segment that is used, as its table describes it.
struct Used {
    number: usize,
    head: SegmentHead,
    dead: DeadBlocks,
}

/// The records of a segment.
struct SegmentRecords {
    records: Vec<(ObjectId, Location)>,
    /// Where the next one would begin.
    end: u64,
    damaged: u64,
}

/// The progress of reading.
struct Bar<'a> {
    done: u64,
    total: u64,
    progress: ProgressFn<'a>,
}

impl Bar<'_> {
    fn show(&mut self, more: u64) {
        let done = ByteSize::bytes((self.done + more).min(self.total));
        (self.progress)(done, ByteSize::bytes(self.total));
    }
}

impl LogTier {
    fn recover(&self, progress: ProgressFn<'_>) -> io::Result<Recovery> {
        let mut writer = self.writer.lock();
        let mut used = self.read_tables(&mut writer)?;
        used.sort_unstable_by_key(|used| (used.head.sequence, used.number));
        let last = used.last().map(|used| (used.number, used.head));
        writer.next_sequence = last.map_or(1, |(_, head)| head.sequence.saturating_add(1));
        // No more records come to a segment that has a footer.
        writer.head = last.filter(|(_, head)| head.footer.is_none()).map(|(number, _)| number);
        let total = used.iter().map(|used| self.len_to_read(&used.head)).sum();
        let mut bar = Bar { done: 0, total, progress };
        let mut damaged = 0;
        let mut used = used.into_iter().peekable();
        while used.peek().is_some() {
            let batch: Vec<_> = used.by_ref().take(AT_ONCE).collect();
            let footers = self.read_footers(&batch);
            for (used, footer) in batch.into_iter().zip(footers) {
                damaged += self.recover_segment(&mut writer, used, footer, &mut bar)?;
            }
        }
        bar.done = total;
        bar.show(0);
        self.seal_all(&mut writer);
        Ok(Recovery { objects: self.index.read().len() as u64, damaged })
    }

    /// Reads the tables of all segments. A segment whose table cannot be read is not used.
    fn read_tables(&self, writer: &mut Writer) -> io::Result<Vec<Used>> {
        let (mut used, mut failed) = (Vec::new(), Vec::new());
        let numbers: Vec<_> = (0..writer.segments.len()).collect();
        for numbers in numbers.chunks(AT_ONCE) {
            let len = self.table_len() as usize;
            let table = |number: &usize| (self.begin_of(*number), self.pool.take(len));
            let reads = numbers.iter().map(table).collect();
            self.backend.read_many(reads, &mut |place, read| {
                let number = numbers[place];
                match read {
                    Ok(bytes) => {
                        let table = table::parse(&bytes, self.segment_len);
                        used.extend(table.map(|(head, dead)| Used { number, head, dead }));
                    }
                    Err(error) => failed.push((number, error)),
                }
            });
            // A medium without a part that can be read is no log.
            let all = numbers[0] == 0 && failed.len() == numbers.len();
            if let Some((_, error)) = failed.pop_if(|_| all) {
                return Err(error);
            }
            for (number, error) in failed.drain(..) {
                self.leave_out(writer, number, &error);
            }
        }
        Ok(used)
    }

    /// Does not use a segment that cannot be read, until the log is opened again.
    fn leave_out(&self, writer: &mut Writer, number: usize, error: &io::Error) {
        warn!(
            path = %self.backend.path().display(), segment = number, %error,
            "a segment cannot be read and is not used; its objects are lost. Check the disk"
        );
        writer.space.leave_out(number);
    }

    /// The bytes of a segment that are read, if it is not damaged.
    fn len_to_read(&self, head: &SegmentHead) -> u64 {
        head.footer.map_or(self.segment_len, |footer| footer.len)
    }

    /// Reads the footers of segments; `None` for those that have no valid one.
    fn read_footers(&self, segments: &[Used]) -> Vec<Option<IoBuffer>> {
        let mut footers = Vec::with_capacity(segments.len());
        footers.resize_with(segments.len(), || None);
        let (mut places, mut reads) = (Vec::new(), Vec::new());
        for (place, used) in segments.iter().enumerate() {
            let Some(footer) = used.head.footer else { continue };
            let end = footer.len.checked_next_multiple_of(BLOCK);
            let end = end.and_then(|len| len.checked_add(footer.offset));
            let is_within = footer.offset >= self.table_len()
                && footer.offset.is_multiple_of(BLOCK)
                && end.is_some_and(|end| end <= self.segment_len);
            if is_within {
                let buffer = self.pool.take(padded(footer.len) as usize);
                reads.push((self.begin_of(used.number) + footer.offset, buffer));
                places.push((place, footer));
            }
        }
        self.backend.read_many(reads, &mut |read, result| {
            let (place, footer) = places[read];
            let is_whole = |bytes: &IoBuffer| {
                crc32c(&bytes[..footer.len as usize]).as_u32() == footer.checksum
            };
            footers[place] = result.ok().filter(is_whole);
        });
        footers
    }

    /// Returns the number of damaged places.
    fn recover_segment(
        &self,
        writer: &mut Writer,
        mut used: Used,
        footer: Option<IoBuffer>,
        bar: &mut Bar<'_>,
    ) -> io::Result<u64> {
        let found = footer.and_then(|footer| self.records_of_footer(&used, &footer));
        let to_read = self.len_to_read(&used.head);
        let has_footer = found.is_some();
        let mut found = match found {
            Some(found) => found,
            None => match self.scan_records(&used, bar) {
                Ok(found) => found,
                Err(error) => {
                    self.leave_out(writer, used.number, &error);
                    writer.head.take_if(|head| *head == used.number);
                    return Ok(1);
                }
            },
        };
        bar.done += to_read;
        bar.show(0);
        let Used { number, ref mut head, ref dead } = used;
        if !has_footer {
            head.footer = None;
        }
        if dead.is_damaged {
            let lost =
                found.records.iter().filter(|(_, record)| dead.contains(record.block.into()));
            found.damaged += lost.count() as u64;
        }
        let mut segment = Segment::new(*head, used.dead.clone(), found.end);
        if !has_footer {
            for (id, record) in &found.records {
                footer::push(&mut segment.footer, record.block, &record.layout, id);
            }
            segment.footer_len = segment.footer.len();
            if writer.head != Some(number) {
                writer.unsealed.insert(number);
            }
        }
        writer.segments[number] = Some(segment);
        // It was written. If not to its end, the medium says so.
        writer.space.give(number);
        if used.dead.is_torn {
            writer.stale.insert(number);
        }
        for (id, record) in found.records {
            if !used.dead.contains(record.block.into()) {
                self.recover_record(writer, &id, record);
            }
        }
        Ok(found.damaged)
    }

    /// The records that a footer lists; `None` when it is none.
    fn records_of_footer(&self, used: &Used, bytes: &[u8]) -> Option<SegmentRecords> {
        let place = used.head.footer?;
        let entries = footer::parse(&bytes[..place.len as usize], place.offset)?;
        let record = |entry: footer::Entry| {
            let block = entry.block.into();
            (entry.id, Location::new(used.number, used.head.nonce, block, entry.layout))
        };
        let end = self.begin_of(used.number) + place.offset;
        Some(SegmentRecords { records: entries.into_iter().map(record).collect(), end, damaged: 0 })
    }

    fn scan_records(&self, used: &Used, bar: &mut Bar<'_>) -> io::Result<SegmentRecords> {
        let (begin, nonce) = (self.begin_of(used.number), used.head.nonce);
        let first = begin + self.table_len();
        let range = (begin, first, begin + self.segment_len);
        let mut found = SegmentRecords { records: Vec::new(), end: first, damaged: 0 };
        let mut records = Records::new(&*self.backend, &self.pool, range, nonce, Some(&used.dead));
        let mut shown = begin;
        while let Some((block, record)) = records.next()? {
            let place = Location::new(used.number, nonce, block, Layout::of(&record.object));
            found.end = begin + block * BLOCK + place.space();
            found.records.push((record.object.id().clone(), place));
            if records.at() - shown >= STEP {
                shown = records.at();
                bar.show(shown - begin);
            }
        }
        // The place of a put that failed is not used again: its bit stays.
        found.end = found.end.max(begin + used.dead.end().min(self.segment_len / BLOCK) * BLOCK);
        found.damaged = records.damaged;
        Ok(found)
    }

    /// Takes a record into the index. Of two records of an object the earlier one counts only where the
    /// other is not whole: the power has failed then before the object had moved or was replaced.
    fn recover_record(&self, writer: &mut Writer, id: &ObjectId, record: Location) {
        let before = self.index.read().find(id);
        let Some(before) = before else {
            self.add(writer, &record);
            return self.index.write().insert(id, record);
        };
        let is_later = writer.is_later(&record, &before);
        let (earlier, later) = if is_later { (before, record) } else { (record, before) };
        let (stays, goes) =
            if self.is_whole(id, &later) { (later, earlier) } else { (earlier, later) };
        writer.kill(&goes);
        self.subtract(writer, &before);
        self.add(writer, &stays);
        self.index.write().insert(id, stays);
    }

    fn is_whole(&self, id: &ObjectId, record: &Location) -> bool {
        self.read_whole(record).is_ok_and(|bytes| self.parse_object(id, record, bytes).is_ok())
    }
}
