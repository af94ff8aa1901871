//! Room for new records: free segments, and those that compaction makes free.

use std::io;

use mc_types::ByteSize;
use parking_lot::MutexGuard;
use tracing::warn;

use super::LogTier;
use super::record::{BLOCK, header_len, padded};
use super::scan::Records;
use super::table::table_len;
use super::writer::Writer;
use crate::error::TierError;
use crate::object::StoredObject;

impl LogTier {
    /// Makes the head have room for an object, without an eviction.
    ///
    /// One segment is always kept free, so that the objects of another can move there. They do not
    /// move while puts are writing: where an object is put and moved at once, the put would have the
    /// earlier place.
    pub(super) fn make_room(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        object: &StoredObject,
    ) -> Result<(), TierError> {
        loop {
            let free = self.free_segments(writer, 2);
            if free > 0 && self.fits(writer, object) {
                return Ok(());
            }
            if free > 1 {
                return self.begin_segment(writer);
            }
            if writer.puts > 0 {
                self.no_puts.wait(writer);
                continue;
            }
            if free == 0 {
                // A compaction has failed, or an eviction has used the last one.
                let room = self.head_room(writer);
                let number = self.sparse(writer, 0, room);
                self.compact(writer, number.ok_or_else(|| self.full())?)?;
                continue;
            }
            let space = padded(header_len(object) as u64 + object.object_len());
            let number = self.sparse(writer, space.max(self.usable() / 8), u64::MAX);
            self.compact(writer, number.ok_or_else(|| self.full())?)?;
            let has_room = self.fits(writer, object);
            return if has_room { Ok(()) } else { self.begin_segment(writer) };
        }
    }

    /// The segment that has the fewest bytes of objects, if it has `space` bytes without and at most `most`
    /// with.
    pub(super) fn sparse(&self, writer: &Writer, space: u64, most: u64) -> Option<usize> {
        let others = writer.segments.iter().enumerate();
        let others = others.filter(|(number, _)| Some(*number) != writer.head);
        let readable = others.filter_map(|(number, segment)| {
            let segment = segment.as_ref().filter(|segment| !segment.is_unreadable);
            segment.map(|segment| (segment.live, number))
        });
        let (live, number) = readable.min()?;
        (self.usable().saturating_sub(live) >= space && live <= most).then_some(number)
    }

    /// The bytes that records can take in the head.
    fn head_room(&self, writer: &mut Writer) -> u64 {
        let Some(head) = writer.head else { return 0 };
        let segment = writer.segment(head);
        let footer = padded(segment.footer_len as u64 + BLOCK);
        (self.begin_of(head) + self.segment_len).saturating_sub(segment.end + footer)
    }

    /// Moves the objects of a segment, and makes it free.
    pub(super) fn compact(&self, writer: &mut Writer, number: usize) -> Result<(), TierError> {
        if let Err(source) = self.move_objects(writer, number)? {
            warn!(segment = number, error = %source, "a segment cannot be read and is not compacted");
            writer.segment(number).is_unreadable = true;
            return Err(self.failure("read", source));
        }
        // What was durable is durable at its new place before the old one is given up.
        self.sync()?;
        self.write_tables(writer)?;
        self.release(writer, number)
    }

    /// Appends the objects of a segment to the head. The inner error is that of a read.
    fn move_objects(
        &self,
        writer: &mut Writer,
        number: usize,
    ) -> Result<io::Result<()>, TierError> {
        let begin = self.begin_of(number);
        let segment = writer.segment(number);
        let range = (begin, begin + self.table_len(), segment.end);
        let mut records = Records::new(&*self.backend, &self.pool, range, segment.head.nonce, None);
        loop {
            let (block, record) = match records.next() {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(Ok(())),
                Err(source) => return Ok(Err(source)),
            };
            let id = record.object.id();
            let found = self.index.read().find(id);
            let Some(from) =
                found.filter(|at| (at.segment(), u64::from(at.block)) == (number, block))
            else {
                continue;
            };
            let bytes = match self.read_whole(&from) {
                Ok(bytes) => bytes,
                Err(source) => return Ok(Err(source)),
            };
            if !self.fits(writer, &record.object) {
                self.begin_segment(writer)?;
            }
            let place = self.reserve(writer, &record.object);
            // The bytes are compared by their readers.
            let object = &bytes[record.header_len..record.len() as usize];
            if let Err(source) = self.write_record(&place, &record.object, &[object]) {
                writer.kill(&place);
                return Err(self.failure("write", source));
            }
            self.publish(writer, id, place);
        }
    }

    /// Makes a segment free whose objects were moved.
    pub(super) fn release(&self, writer: &mut Writer, number: usize) -> Result<(), TierError> {
        let live = writer.segment(number).live;
        if live > 0 {
            let objects = self.index.write().forget_segment(number);
            let bytes = ByteSize::bytes(live);
            warn!(objects, %bytes, "objects are lost: their records are damaged");
            writer.segment(number).live = 0;
        }
        let mut zeros = self.pool.take(table_len(self.segment_len));
        zeros.fill(0);
        let erased = self.backend.write(self.begin_of(number), &zeros);
        erased.map_err(|source| self.failure("write", source))?;
        writer.segments[number] = None;
        writer.stale.remove(&number);
        writer.unsealed.remove(&number);
        self.give_back(writer, number);
        Ok(())
    }
}
