//! The begin and the end of segments: their tables and footers.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use tracing::warn;

use super::LogTier;
use super::footer;
use super::record::{BLOCK, header_len, padded};
use super::space::is_full;
use super::table::{self, DeadBlocks, FooterPlace, SegmentHead, table_len};
use super::writer::{Gather, Segment, Unmoved, Writer};
use crate::error::TierError;
use crate::object::{StoredObject, crc32c};

/// The error number of a failed read or write on Unix systems.
const EIO: i32 = 5;

/// Segments in a row that cannot be begun before the disk counts as broken.
const MAX_BROKEN: usize = 3;

impl LogTier {
    /// Writes the tables that have changed.
    pub(super) fn write_tables(&self, writer: &mut Writer) -> Result<(), TierError> {
        self.write_tables_but(writer, None)
    }

    /// Writes the tables that have changed, but for one.
    pub(super) fn write_tables_but(
        &self,
        writer: &mut Writer,
        but: Option<usize>,
    ) -> Result<(), TierError> {
        while let Some(number) = writer.stale.iter().copied().find(|number| Some(*number) != but) {
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
                    self.is_short.store(writer.has_one_free(), Relaxed);
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

    /// Returns the error that there is no room, and that compaction would not make any.
    pub(super) fn full(&self) -> TierError {
        self.failure("append to", io::ErrorKind::StorageFull.into())
    }

    /// Returns whether an object and its entry in the footer fit into the head, beside what a compaction has
    /// yet to move there.
    pub(super) fn fits(&self, writer: &mut Writer, object: &StoredObject, beside: Unmoved) -> bool {
        let Some(head) = writer.head else { return false };
        let segment = writer.segment(head);
        let space = padded(header_len(object) as u64 + object.object_len()) + beside.space;
        let entry = footer::entry_len(object.id()) + beside.entries;
        let footer_len = (segment.footer_len + entry) as u64;
        segment.end + space + padded(footer_len) <= self.begin_of(head) + self.segment_len
    }

    /// The bytes that records can take in the head.
    pub(super) fn head_room(&self, writer: &mut Writer) -> u64 {
        let Some(head) = writer.head else { return 0 };
        let segment = writer.segment(head);
        let footer = padded(segment.footer_len as u64 + BLOCK);
        (self.begin_of(head) + self.segment_len).saturating_sub(segment.end + footer)
    }
}

/// Returns whether an error may be that of one place, and not of the medium.
fn is_broken(error: &io::Error) -> bool {
    error.raw_os_error() == Some(EIO)
}
