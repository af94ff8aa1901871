//! Changes of a log.

use std::io;

use mc_types::ByteSize;

use super::LogTier;
use super::index::Location;
use super::record::{BLOCK, REMOVED, STATE, encode_record, encode_segment, header_len, padded};
use crate::error::TierError;
use crate::object::{ObjectId, StoredObject};

/// A segment that is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) nonce: u64,
    /// Where the next record begins, counted from the first byte of the log.
    pub(super) end: u64,
    /// The bytes of records whose objects are there.
    pub(super) live: u64,
    /// Whether a compaction could not read it.
    pub(super) is_unreadable: bool,
}

/// What changes of a log need to know.
#[derive(Debug)]
pub(super) struct Writer {
    /// `None` for those that are free.
    pub(super) segments: Vec<Option<Segment>>,
    /// The segment that records are appended to.
    pub(super) head: Option<usize>,
    pub(super) next_sequence: u64,
    /// Records that must not be found when the log is opened again, but may be, because a write has
    /// failed. They are marked before the next change.
    pub(super) unmarked: Vec<u64>,
}

impl Writer {
    pub(super) fn free(&self) -> usize {
        self.segments.iter().filter(|segment| segment.is_none()).count()
    }

    pub(super) fn segment(&mut self, number: usize) -> &mut Segment {
        self.segments[number].as_mut().expect("records are in segments that are used")
    }
}

impl LogTier {
    /// The offset of a segment's block.
    pub(super) const fn begin_of(&self, segment: usize) -> u64 {
        BLOCK + segment as u64 * self.segment_len
    }

    /// The bytes of a segment that records may take.
    pub(super) const fn usable(&self) -> u64 {
        self.segment_len - BLOCK
    }

    /// Stores an object, in place of the one that may be there.
    pub(super) fn append(
        &self,
        writer: &mut Writer,
        object: &StoredObject,
        parts: &[&[u8]],
    ) -> Result<(), TierError> {
        let header_len = header_len(object);
        let len = header_len as u64 + object.object_len();
        if padded(len) > self.usable() {
            let (len, limit) = (ByteSize::bytes(padded(len)), ByteSize::bytes(self.usable()));
            return Err(TierError::ObjectTooLong { len, limit });
        }
        self.mark_all(writer)?;
        self.make_room(writer, padded(len))?;
        self.append_to_head(writer, object, parts)?;
        // The object is stored. What fails here is done before the next change.
        let _ = self.mark_all(writer);
        Ok(())
    }

    /// As [`append`](Self::append), where the head has room. The record that the object had before is
    /// yet to be marked.
    pub(super) fn append_to_head(
        &self,
        writer: &mut Writer,
        object: &StoredObject,
        parts: &[&[u8]],
    ) -> Result<(), TierError> {
        let number = writer.head.expect("the caller has made room");
        let Segment { nonce, end: offset, .. } = *writer.segment(number);
        let header = encode_record(nonce, object);
        let header_len = header.len();
        // The header last: without it there is no record.
        let mut at = offset + header_len as u64;
        for part in parts {
            self.backend.write(at, part).map_err(|source| self.failure("write", source))?;
            at += part.len() as u64;
        }
        let written = self.backend.write(offset, &header).and_then(|()| self.sync_change());
        if let Err(source) = written {
            writer.unmarked.push(offset);
            return Err(self.failure("write", source));
        }
        let len = header_len as u64 + object.object_len();
        let location = Location { segment: number, nonce, offset, header_len, len };
        let segment = writer.segment(number);
        segment.end += location.space();
        segment.live += location.space();
        let before = self.index.write().insert(object.id().clone(), location);
        if let Some(before) = before {
            writer.segment(before.segment).live -= before.space();
            writer.unmarked.push(before.offset);
        }
        Ok(())
    }

    /// Removes an object. Returns whether it was there.
    pub(super) fn remove_record(
        &self,
        writer: &mut Writer,
        id: &ObjectId,
    ) -> Result<bool, TierError> {
        self.mark_all(writer)?;
        let Some(location) = self.index.read().find(id) else { return Ok(false) };
        self.mark(location.offset).map_err(|source| self.failure("write", source))?;
        self.index.write().remove(id);
        writer.segment(location.segment).live -= location.space();
        self.sync_change().map_err(|source| self.failure("sync", source))?;
        Ok(true)
    }

    /// Makes a change durable where the settings want it.
    fn sync_change(&self) -> io::Result<()> {
        if self.sync_each_change { self.backend.sync() } else { Ok(()) }
    }

    fn mark(&self, record: u64) -> io::Result<()> {
        self.backend.write(record + STATE, &[REMOVED])
    }

    pub(super) fn mark_all(&self, writer: &mut Writer) -> Result<(), TierError> {
        while let Some(record) = writer.unmarked.last() {
            self.mark(*record).map_err(|source| self.failure("write", source))?;
            writer.unmarked.pop();
        }
        Ok(())
    }

    /// Appends to a free segment from now on.
    pub(super) fn begin_segment(&self, writer: &mut Writer) -> Result<(), TierError> {
        let Some(number) = writer.segments.iter().position(Option::is_none) else {
            return Err(self.full());
        };
        let nonce =
            getrandom::u64().map_err(|error| self.failure("draw a nonce for", error.into()))?;
        let sequence = writer.next_sequence;
        writer.next_sequence += 1;
        let begin = self.begin_of(number);
        let written = self.backend.write(begin, &encode_segment(sequence, nonce));
        written.map_err(|source| self.failure("write", source))?;
        writer.segments[number] =
            Some(Segment { nonce, end: begin + BLOCK, live: 0, is_unreadable: false });
        writer.head = Some(number);
        Ok(())
    }

    /// Says that there is no room, and that compaction would not make any.
    pub(super) fn full(&self) -> TierError {
        self.failure("append to", io::ErrorKind::StorageFull.into())
    }

    /// Returns whether a record fits into the head.
    pub(super) fn fits(&self, writer: &mut Writer, space: u64) -> bool {
        let Some(head) = writer.head else { return false };
        writer.segment(head).end + space <= self.begin_of(head) + self.segment_len
    }
}
