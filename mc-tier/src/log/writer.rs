//! Changes of a log.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::sync::atomic::Ordering::Relaxed;

use mc_types::ByteSize;

use super::LogTier;
use super::footer;
use super::index::Location;
use super::moved::Moves;
use super::record::{BLOCK, Layout, encode_record, header_len, padded, seal_first_blocks};
use super::space::{Space, is_full};
use super::table::{DeadBlocks, SegmentHead, table_len};
use crate::error::TierError;
use crate::object::{ObjectId, StoredObject};

/// The longest write.
const MAX_WRITE: u64 = 1 << 20;

/// Segments that a put tries at most: each has less space of the medium than it was thought to have.
const TRIES: usize = 4;

/// A segment that is used.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) head: SegmentHead,
    pub(super) dead: DeadBlocks,
    /// Where the next record begins, counted from the first byte of the log.
    pub(super) end: u64,
    /// The bytes of records whose objects are there.
    pub(super) live: u64,
    /// Whether a compaction could not read it.
    pub(super) is_unreadable: bool,
    /// Records that are being written.
    pub(super) puts: usize,
    /// Whether a thread compacts it or evicts from it, without the lock for the most part: no other one does,
    /// and it stays used until then.
    pub(super) is_claimed: bool,
    /// Whether its objects that were read have moved away before its eviction.
    pub(super) is_spared: bool,
    /// The footer to be, while more records may come.
    pub(super) footer: Vec<u8>,
    /// Its length with those of the puts that are writing.
    pub(super) footer_len: usize,
}

impl Segment {
    pub(super) fn new(head: SegmentHead, dead: DeadBlocks, end: u64) -> Self {
        let (is_unreadable, is_claimed, is_spared) = (false, false, false);
        let (live, puts, footer, footer_len) = (0, 0, Vec::new(), 0);
        Self {
            head,
            dead,
            end,
            live,
            is_unreadable,
            puts,
            is_claimed,
            is_spared,
            footer,
            footer_len,
        }
    }

    /// Returns whether a record is being written to it, or a thread has claimed it.
    pub(super) const fn is_busy(&self) -> bool {
        self.puts > 0 || self.is_claimed
    }
}

/// The state for changes of a log.
#[derive(Debug)]
pub(super) struct Writer {
    /// `None` for those that are free.
    pub(super) segments: Vec<Option<Segment>>,
    /// The segment that records are appended to.
    pub(super) head: Option<usize>,
    pub(super) next_sequence: u64,
    /// Hashes of the objects that puts are writing, one for each put.
    pub(super) writing: Vec<u64>,
    pub(super) moves: Moves,
    /// The objects that the current compaction has yet to move. There is one at most.
    pub(super) compaction: Option<Unmoved>,
    /// Segments whose tables are yet to be written. They are written before the next change: a record
    /// that is dead must not be found when the log is opened again.
    pub(super) stale: BTreeSet<usize>,
    /// Segments to which no more records are appended and whose footers are yet to be written.
    pub(super) unsealed: BTreeSet<usize>,
    pub(super) space: Space,
}

/// Records that are yet to move.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unmoved {
    /// The bytes that they take.
    pub(super) space: u64,
    /// The bytes that they take of a footer.
    pub(super) entries: usize,
}

impl Writer {
    /// The bytes of all records whose objects are there.
    pub(super) fn live(&self) -> u64 {
        self.segments.iter().flatten().map(|segment| segment.live).sum()
    }

    /// The segments that are used and not busy, with their numbers.
    pub(super) fn idle(&self) -> impl Iterator<Item = (usize, &Segment)> {
        let used = self.segments.iter().enumerate();
        let used = used.filter_map(|(number, segment)| Some((number, segment.as_ref()?)));
        used.filter(|(_, segment)| !segment.is_busy())
    }

    /// Returns whether a single segment is free, with or without space of the medium.
    pub(super) fn has_one_free(&self) -> bool {
        self.segments.iter().filter(|segment| segment.is_none()).take(2).count() == 1
    }

    /// Returns whether a segment is busy. When that ends, waiting threads are told.
    pub(super) fn has_busy(&self) -> bool {
        self.segments.iter().flatten().any(Segment::is_busy)
    }

    pub(super) fn segment(&mut self, number: usize) -> &mut Segment {
        self.segments[number].as_mut().expect("records are in segments that are used")
    }

    /// Marks a record as dead, in memory; with the other one where its object is moving or has moved.
    pub(super) fn kill(&mut self, record: &Location) {
        let other = self.moves.other_of(record);
        for record in [Some(*record), other].into_iter().flatten() {
            self.mark(&record);
        }
    }

    /// Marks one record as dead, in memory.
    pub(super) fn mark(&mut self, record: &Location) {
        self.segment(record.segment()).dead.insert(record.block.into());
        self.stale.insert(record.segment());
    }

    /// Returns whether a put of this object is writing, or of another one with its hash.
    pub(super) fn is_writing(&self, id: &ObjectId) -> bool {
        !self.writing.is_empty() && self.writing.contains(&hash(id))
    }

    /// Returns whether one record counts and not the other, if both are of one object.
    pub(super) fn is_later(&mut self, one: &Location, other: &Location) -> bool {
        let mut place = |of: &Location| (self.segment(of.segment()).head.sequence, of.block);
        place(one) > place(other)
    }
}

fn hash(id: &ObjectId) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

/// A put that has its place in the log, and is writing. When it is dropped, the object is stored or the
/// place is abandoned.
struct Put<'a> {
    log: &'a LogTier,
    id: &'a ObjectId,
    place: Location,
    is_written: bool,
    /// Why it could not be written, where the medium is full.
    full: Option<io::Error>,
}

impl Drop for Put<'_> {
    fn drop(&mut self) {
        let mut writer = self.log.writer.lock();
        let hash = hash(self.id);
        let mine = writer.writing.iter().position(|writing| *writing == hash);
        writer.writing.swap_remove(mine.expect("each put is noted"));
        writer.segment(self.place.segment()).puts -= 1;
        if self.is_written {
            self.log.publish(&mut writer, self.id, self.place);
        } else {
            writer.kill(&self.place);
        }
        if let Some(error) = &self.full {
            self.log.give_up_segment(&mut writer, self.place.segment(), error);
        }
        self.log.seal_all(&mut writer);
        // What fails here is done before the next change.
        let _ = self.log.write_tables(&mut writer);
        self.log.changed.notify_all();
    }
}

impl LogTier {
    /// The offset of a segment's table.
    pub(super) const fn begin_of(&self, segment: usize) -> u64 {
        BLOCK + segment as u64 * self.segment_len
    }

    /// Where a segment's first record begins, counted from the segment's first byte.
    pub(super) const fn table_len(&self) -> u64 {
        table_len(self.segment_len) as u64
    }

    /// The bytes of a segment that one record may take. An entry of a footer fits into a block.
    pub(super) const fn usable(&self) -> u64 {
        self.segment_len - self.table_len() - BLOCK
    }

    /// Stores an object, in place of the one that may be there. Where there is no room, the oldest objects
    /// make some if their ids are wanted; these have gone also when this fails.
    pub(super) fn append(
        &self,
        object: &StoredObject,
        parts: &[&[u8]],
        mut evicted: Option<&mut Vec<ObjectId>>,
    ) -> Result<(), TierError> {
        let space = padded(header_len(object) as u64 + object.object_len());
        if space > self.usable() {
            let (len, limit) = (ByteSize::bytes(space), ByteSize::bytes(self.usable()));
            return Err(TierError::ObjectTooLong { len, limit });
        }
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let Some(full) = self.try_append(object, parts, evicted.as_deref_mut())? else {
                self.compact_ahead(evicted.is_some());
                return Ok(());
            };
            // The next try has another segment.
            if tries == 0 {
                return Err(full);
            }
        }
    }

    /// Returns the error where the medium was found full.
    fn try_append(
        &self,
        object: &StoredObject,
        parts: &[&[u8]],
        evicted: Option<&mut Vec<ObjectId>>,
    ) -> Result<Option<TierError>, TierError> {
        let mut writer = self.writer.lock();
        self.write_tables(&mut writer)?;
        match evicted {
            None => self.make_room(&mut writer, object)?,
            Some(evicted) => self.make_room_evicting(&mut writer, object, evicted)?,
        }
        let place = self.reserve(&mut writer, object);
        writer.writing.push(hash(object.id()));
        drop(writer);
        let mut put = Put { log: self, id: object.id(), place, is_written: false, full: None };
        match self.write_record(&place, object, parts).and_then(|()| self.sync_change()) {
            Ok(()) => {
                put.is_written = true;
                Ok(None)
            }
            Err(source) if is_full(&source) => {
                put.full = Some(source.kind().into());
                Ok(Some(self.failure("write", source)))
            }
            Err(source) => Err(self.failure("write", source)),
        }
    }

    /// Appends no more to a segment for which the medium has no space left.
    pub(super) fn give_up_segment(&self, writer: &mut Writer, number: usize, error: &io::Error) {
        self.note_full(writer, number, error);
        if writer.head == Some(number) {
            writer.unsealed.extend(writer.head.take());
        }
    }

    /// Takes the next place in the head, which has room, for a record that is to be written.
    pub(super) fn reserve(&self, writer: &mut Writer, object: &StoredObject) -> Location {
        let number = writer.head.expect("the caller has made room");
        let begin = self.begin_of(number);
        let layout = Layout::of(object);
        let segment = writer.segment(number);
        let block = (segment.end - begin) / BLOCK;
        segment.end += padded(layout.len());
        segment.footer_len += footer::entry_len(object.id());
        segment.puts += 1;
        Location::new(number, segment.head.nonce, block, layout)
    }

    /// Writes a record. The blocks of its header are the last: without them there is no record.
    pub(super) fn write_record(
        &self,
        place: &Location,
        object: &StoredObject,
        parts: &[&[u8]],
    ) -> io::Result<()> {
        let offset = self.offset_of(place);
        let header = encode_record(place.nonce, object);
        let mut bytes = Gather { part: &header, parts: parts.iter() };
        let mut first = self.pool.take(padded(header.len() as u64) as usize);
        bytes.fill(&mut first);
        seal_first_blocks(&mut first, header.len());
        let (mut at, end) = (first.len() as u64, padded(place.len()));
        while at < end {
            let mut next = self.pool.take((end - at).min(MAX_WRITE) as usize);
            bytes.fill(&mut next);
            self.backend.write(offset + at, &next)?;
            at += next.len() as u64;
        }
        self.backend.write(offset, &first)
    }

    /// Makes a record that was written the one of its object.
    pub(super) fn publish(&self, writer: &mut Writer, id: &ObjectId, place: Location) {
        let segment = writer.segment(place.segment());
        footer::push(&mut segment.footer, place.block, &place.layout, id);
        let mut index = self.index.write();
        let before = index.find(id);
        if before.is_some_and(|before| writer.is_later(&before, &place)) {
            // Another put of the object has begun after this one and is stored already.
            return writer.kill(&place);
        }
        index.insert(id, place);
        drop(index);
        self.add(writer, &place);
        if let Some(before) = before {
            self.subtract(writer, &before);
            writer.kill(&before);
        }
    }

    /// Removes objects, and writes the table of each of their segments once. Returns which were there.
    pub(super) fn remove_records(&self, ids: &[ObjectId]) -> Result<Vec<bool>, TierError> {
        let mut writer = self.writer.lock();
        self.write_tables(&mut writer)?;
        let mut removed = Vec::with_capacity(ids.len());
        for id in ids {
            let place = self.index.write().remove(id);
            if let Some(place) = &place {
                self.subtract(&mut writer, place);
                writer.kill(place);
            }
            removed.push(place.is_some());
        }
        self.write_tables(&mut writer)?;
        drop(writer);
        // Also where they were not there: another removal may not be durable yet.
        self.sync_change().map_err(|source| self.failure("sync", source))?;
        Ok(removed)
    }

    /// Counts an object that is there.
    pub(super) fn add(&self, writer: &mut Writer, place: &Location) {
        writer.segment(place.segment()).live += place.space();
        self.live.fetch_add(place.space(), Relaxed);
    }

    /// Counts an object no more.
    pub(super) fn subtract(&self, writer: &mut Writer, place: &Location) {
        writer.segment(place.segment()).live -= place.space();
        self.live.fetch_sub(place.space(), Relaxed);
    }

    /// Makes a change durable where the settings want it.
    fn sync_change(&self) -> io::Result<()> {
        if self.sync_each_change { self.sync_all() } else { Ok(()) }
    }

    pub(super) fn sync_all(&self) -> io::Result<()> {
        self.shared_sync.run(|| self.backend.sync())
    }
}

/// Bytes in several parts.
pub(super) struct Gather<'a, I> {
    pub(super) part: &'a [u8],
    pub(super) parts: I,
}

impl<'a, I: Iterator<Item = &'a &'a [u8]>> Gather<'a, I> {
    /// Fills a buffer with the next bytes, and with zeros behind the last one.
    pub(super) fn fill(&mut self, mut buffer: &mut [u8]) {
        while !buffer.is_empty() {
            let len = self.part.len().min(buffer.len());
            let (filled, rest) = buffer.split_at_mut(len);
            let (now, later) = self.part.split_at(len);
            filled.copy_from_slice(now);
            (self.part, buffer) = (later, rest);
            if self.part.is_empty() {
                let Some(part) = self.parts.next() else { return buffer.fill(0) };
                self.part = part;
            }
        }
    }
}
