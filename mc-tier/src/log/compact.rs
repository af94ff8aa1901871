//! Room for new records: free segments, and those that compaction makes free.

use std::io;

use mc_types::ByteSize;
use tracing::warn;

use super::LogTier;
use super::record::{BLOCK, padded};
use super::scan::Records;
use super::writer::{Segment, Writer};
use crate::error::TierError;

impl LogTier {
    /// Makes the head have room for a record of this space.
    ///
    /// One segment is always kept free, so that the objects of another can move there.
    pub(super) fn make_room(&self, writer: &mut Writer, space: u64) -> Result<(), TierError> {
        if writer.free() == 0 {
            // A compaction has failed. What was left of its segment fits into the head.
            self.compact(writer, 0)?;
        }
        if self.fits(writer, space) {
            return Ok(());
        }
        if writer.free() == 1 {
            self.compact(writer, space)?;
        }
        if self.fits(writer, space) { Ok(()) } else { self.begin_segment(writer) }
    }

    /// Moves the objects of the segment that has the fewest bytes, and makes it free. It must have
    /// `space` bytes without objects, and so many that it is worth the moves.
    fn compact(&self, writer: &mut Writer, space: u64) -> Result<(), TierError> {
        let worth = space.max(self.usable() / 8);
        let others = writer.segments.iter().enumerate();
        let others = others.filter(|(number, _)| Some(*number) != writer.head);
        let readable = others.filter_map(|(number, segment)| {
            segment.filter(|segment| !segment.is_unreadable).map(|segment| (segment.live, number))
        });
        let (_, number) = readable
            .min()
            .filter(|(live, _)| self.usable() - live >= worth)
            .ok_or_else(|| self.full())?;
        if let Err(source) = self.move_objects(writer, number)? {
            warn!(segment = number, error = %source, "a segment cannot be read and is not compacted");
            writer.segment(number).is_unreadable = true;
            return Err(self.failure("read", source));
        }
        // What was durable is durable at its new place before the old one is given up.
        self.sync()?;
        self.mark_all(writer)?;
        self.release(writer, number)
    }

    /// Appends the objects of a segment to the head. The inner error is that of a read.
    fn move_objects(
        &self,
        writer: &mut Writer,
        number: usize,
    ) -> Result<io::Result<()>, TierError> {
        let Segment { nonce, end, .. } = *writer.segment(number);
        let mut records = Records::new(&*self.backend, nonce, self.begin_of(number) + BLOCK, end);
        loop {
            let (offset, record) = match records.next() {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(Ok(())),
                Err(source) => return Ok(Err(source)),
            };
            let location = self.index.read().find(record.object.id());
            if location.is_none_or(|location| location.offset != offset) {
                continue;
            }
            let mut bytes = vec![0; record.object.object_len() as usize];
            if let Err(source) = self.backend.read(offset + record.header_len as u64, &mut bytes) {
                return Ok(Err(source));
            }
            if !self.fits(writer, padded(record.len())) {
                self.begin_segment(writer)?;
            }
            // The bytes are compared by their readers.
            self.append_to_head(writer, &record.object, &[&bytes])?;
        }
    }

    /// Makes a segment free whose objects were moved.
    fn release(&self, writer: &mut Writer, number: usize) -> Result<(), TierError> {
        let Segment { live, .. } = *writer.segment(number);
        if live > 0 {
            let objects = self.index.write().forget_segment(number);
            let bytes = ByteSize::bytes(live);
            warn!(objects, %bytes, "objects are lost: their records are damaged");
            writer.segment(number).live = 0;
        }
        let erased = self.backend.write(self.begin_of(number), &[0; BLOCK as usize]);
        erased.map_err(|source| self.failure("write", source))?;
        writer.segments[number] = None;
        Ok(())
    }
}
