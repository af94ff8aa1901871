//! Changes of a log.

use std::collections::BTreeSet;
use std::io;

use mc_types::ByteSize;
use tracing::warn;

use super::LogTier;
use super::footer;
use super::index::Location;
use super::record::{BLOCK, Layout, encode_record, header_len, padded, seal_first_blocks};
use super::space::{Space, is_full};
use super::table::{self, DeadBlocks, FooterPlace, SegmentHead, table_len};
use crate::error::TierError;
use crate::object::{ObjectId, StoredObject, crc32c};

/// The longest write.
const MAX_WRITE: u64 = 1 << 20;

/// By its number on Unix systems.
const EIO: i32 = 5;

/// Segments that a put tries at most: each has less space of the medium than it was thought to have.
const TRIES: usize = 4;

/// Segments in a row that cannot be begun before the disk counts as broken.
const MAX_BROKEN: usize = 3;

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
    /// Puts that are writing.
    pub(super) puts: usize,
    /// The footer to be, while more records may come.
    pub(super) footer: Vec<u8>,
    /// Its length with those of the puts that are writing.
    pub(super) footer_len: usize,
}

impl Segment {
    pub(super) fn new(head: SegmentHead, dead: DeadBlocks, end: u64) -> Self {
        let (live, puts, footer, footer_len) = (0, 0, Vec::new(), 0);
        Self { head, dead, end, live, is_unreadable: false, puts, footer, footer_len }
    }
}

/// What changes of a log need to know.
#[derive(Debug)]
pub(super) struct Writer {
    /// `None` for those that are free.
    pub(super) segments: Vec<Option<Segment>>,
    /// The segment that records are appended to.
    pub(super) head: Option<usize>,
    pub(super) next_sequence: u64,
    /// Puts that are writing.
    pub(super) puts: usize,
    /// Segments whose tables are yet to be written. They are written before the next change: a record
    /// that is dead must not be found when the log is opened again.
    pub(super) stale: BTreeSet<usize>,
    /// Segments to which no more records are appended and whose footers are yet to be written.
    pub(super) unsealed: BTreeSet<usize>,
    pub(super) space: Space,
}

impl Writer {
    /// The bytes of all records whose objects are there.
    pub(super) fn live(&self) -> u64 {
        self.segments.iter().flatten().map(|segment| segment.live).sum()
    }

    pub(super) fn segment(&mut self, number: usize) -> &mut Segment {
        self.segments[number].as_mut().expect("records are in segments that are used")
    }

    /// Marks a record as dead, in memory.
    pub(super) fn kill(&mut self, record: &Location) {
        self.segment(record.segment()).dead.insert(record.block.into());
        self.stale.insert(record.segment());
    }

    /// Returns whether one record counts and not the other, if both are of one object.
    pub(super) fn is_later(&mut self, one: &Location, other: &Location) -> bool {
        let mut place = |of: &Location| (self.segment(of.segment()).head.sequence, of.block);
        place(one) > place(other)
    }
}

/// A put that has its place in the log, and is writing. When it is dropped, the object is stored or the
/// place is given up.
struct Put<'a> {
    log: &'a LogTier,
    place: Location,
    /// The object, when it is written.
    written: Option<&'a ObjectId>,
    /// Why it could not be written, where the medium is full.
    full: Option<io::Error>,
}

impl Drop for Put<'_> {
    fn drop(&mut self) {
        let mut writer = self.log.writer.lock();
        writer.puts -= 1;
        writer.segment(self.place.segment()).puts -= 1;
        match self.written {
            Some(id) => self.log.publish(&mut writer, id, self.place),
            None => writer.kill(&self.place),
        }
        if let Some(error) = &self.full {
            self.log.give_up_segment(&mut writer, self.place.segment(), error);
        }
        self.log.seal_all(&mut writer);
        // What fails here is done before the next change.
        let _ = self.log.write_tables(&mut writer);
        if writer.puts == 0 {
            self.log.no_puts.notify_all();
        }
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
        writer.puts += 1;
        writer.segment(place.segment()).puts += 1;
        drop(writer);
        let mut put = Put { log: self, place, written: None, full: None };
        match self.write_record(&place, object, parts).and_then(|()| self.sync_change()) {
            Ok(()) => {
                put.written = Some(object.id());
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
    fn give_up_segment(&self, writer: &mut Writer, number: usize, error: &io::Error) {
        self.note_full(writer, number, error);
        if writer.head == Some(number) {
            writer.unsealed.extend(writer.head.take());
        }
    }

    /// Takes the next place in the head, which has room.
    pub(super) fn reserve(&self, writer: &mut Writer, object: &StoredObject) -> Location {
        let number = writer.head.expect("the caller has made room");
        let begin = self.begin_of(number);
        let layout = Layout::of(object);
        let segment = writer.segment(number);
        let block = (segment.end - begin) / BLOCK;
        segment.end += padded(layout.len());
        segment.footer_len += footer::entry_len(object.id());
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
        writer.segment(place.segment()).live += place.space();
        if let Some(before) = before {
            writer.segment(before.segment()).live -= before.space();
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
                writer.segment(place.segment()).live -= place.space();
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

    /// Makes a change durable where the settings want it.
    fn sync_change(&self) -> io::Result<()> {
        if self.sync_each_change { self.sync_all() } else { Ok(()) }
    }

    pub(super) fn sync_all(&self) -> io::Result<()> {
        self.shared_sync.run(|| self.backend.sync())
    }

    /// Writes the tables that have changed.
    pub(super) fn write_tables(&self, writer: &mut Writer) -> Result<(), TierError> {
        while let Some(number) = writer.stale.first().copied() {
            let segment = writer.segment(number);
            let written = self.write_table(number, segment.head, &segment.dead);
            written.map_err(|source| self.failure("write", source))?;
            writer.stale.remove(&number);
        }
        Ok(())
    }

    fn write_table(&self, number: usize, head: SegmentHead, dead: &DeadBlocks) -> io::Result<()> {
        let mut bytes = self.pool.take(table_len(self.segment_len));
        table::encode(head, dead, &mut bytes);
        self.backend.write(self.begin_of(number), &bytes)
    }

    /// Appends to a free segment from now on. One that cannot be written is passed over.
    pub(super) fn begin_segment(&self, writer: &mut Writer) -> Result<(), TierError> {
        let (mut broken, mut tried) = (0, Vec::new());
        while let Some(number) = self.next_segment(writer, &tried) {
            tried.push(number);
            let nonce =
                getrandom::u64().map_err(|error| self.failure("draw a nonce for", error.into()))?;
            let head = SegmentHead { sequence: writer.next_sequence, nonce, footer: None };
            writer.next_sequence += 1;
            let dead = DeadBlocks::none(self.segment_len);
            match self.write_table(number, head, &dead) {
                Ok(()) => {
                    let end = self.begin_of(number) + self.table_len();
                    writer.segments[number] = Some(Segment::new(head, dead, end));
                    writer.unsealed.extend(writer.head.replace(number));
                    self.seal_all(writer);
                    return Ok(());
                }
                Err(source) if is_full(&source) => self.note_full(writer, number, &source),
                Err(source) if broken + 1 < MAX_BROKEN && is_broken(&source) => {
                    warn!(segment = number, error = %source, "a segment cannot be written and is set aside");
                    broken += 1;
                    writer.space.set_aside(number);
                }
                Err(source) => return Err(self.failure("write", source)),
            }
        }
        Err(self.full())
    }

    /// Writes the footers of the segments that are complete. A segment whose footer cannot be written
    /// has none.
    pub(super) fn seal_all(&self, writer: &mut Writer) {
        let unsealed: Vec<_> = writer.unsealed.iter().copied().collect();
        for number in unsealed {
            if writer.segment(number).puts > 0 {
                continue;
            }
            writer.unsealed.remove(&number);
            let segment = writer.segment(number);
            let footer = core::mem::take(&mut segment.footer);
            match self.write_footer(number, segment.end, &footer) {
                Ok(place) => {
                    segment.head.footer = Some(place);
                    writer.stale.insert(number);
                }
                Err(error) => warn!(
                    segment = number, %error,
                    "a segment's footer cannot be written; the next start reads the whole segment"
                ),
            }
        }
    }

    fn write_footer(&self, number: usize, at: u64, footer: &[u8]) -> io::Result<FooterPlace> {
        let (begin, len) = (self.begin_of(number), footer.len() as u64);
        let mut bytes = self.pool.take(padded(len) as usize);
        Gather { part: footer, parts: [].iter() }.fill(&mut bytes);
        if at + padded(len) > begin + self.segment_len {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.backend.write(at, &bytes)?;
        Ok(FooterPlace { offset: at - begin, len, checksum: crc32c(footer).as_u32() })
    }

    /// Says that there is no room, and that compaction would not make any.
    pub(super) fn full(&self) -> TierError {
        self.failure("append to", io::ErrorKind::StorageFull.into())
    }

    /// Returns whether an object and its entry in the footer fit into the head.
    pub(super) fn fits(&self, writer: &mut Writer, object: &StoredObject) -> bool {
        let Some(head) = writer.head else { return false };
        let segment = writer.segment(head);
        let space = padded(header_len(object) as u64 + object.object_len());
        let footer_len = (segment.footer_len + footer::entry_len(object.id())) as u64;
        segment.end + space + padded(footer_len) <= self.begin_of(head) + self.segment_len
    }
}

/// Returns whether an error may be that of one place, and not of the medium.
fn is_broken(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}

/// Bytes in several parts.
struct Gather<'a, I> {
    part: &'a [u8],
    parts: I,
}

impl<'a, I: Iterator<Item = &'a &'a [u8]>> Gather<'a, I> {
    /// Fills a buffer with the next bytes, and with zeros behind the last one.
    fn fill(&mut self, mut buffer: &mut [u8]) {
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
