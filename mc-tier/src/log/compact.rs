//! Room for new records: free segments, and those that compaction makes free.
//!
//! A compaction holds the lock to choose its segment, to reserve the new places of the objects and to publish
//! them. So others put, remove and read meanwhile. They leave it the room that it needs: the last free segment,
//! and when it has begun that, what it has yet to move there.

use std::sync::atomic::Ordering::Relaxed;

use mc_types::ByteSize;
use parking_lot::MutexGuard;
use tracing::warn;

use super::LogTier;
use super::footer;
use super::moves::{Halt, Purpose};
use super::record::{header_len, padded};
use super::table::table_len;
use super::writer::{Unmoved, Writer};
use crate::error::TierError;
use crate::object::StoredObject;

/// Compactions of one put at most. Each gains an eighth of a segment, but for what footers take.
const COMPACTIONS: usize = 8;

impl LogTier {
    /// Makes the head have room for an object, without an eviction.
    ///
    /// One segment is always kept free, so that the objects of another can move there.
    pub(super) fn make_room(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        object: &StoredObject,
    ) -> Result<(), TierError> {
        let mut compactions = 0;
        loop {
            let free = self.free_segments(writer, 2);
            let is_compacting = writer.compaction.is_some();
            if (free > 0 || is_compacting) && self.has_room(writer, object) {
                return Ok(());
            }
            if free > 1 || (free > 0 && compactions == COMPACTIONS) {
                return self.begin_segment(writer);
            }
            if is_compacting {
                self.changed.wait(writer);
                continue;
            }
            let number = if free == 0 {
                // A compaction has failed, or an eviction has used the last one.
                let room = self.head_room(writer);
                self.sparse(writer, 0, room)
            } else {
                let space = padded(header_len(object) as u64 + object.object_len());
                self.sparse(writer, space.max(self.usable() / 8), u64::MAX)
            };
            match number {
                Some(number) => self.compact(writer, number)?,
                // One of them may have objects that are being put, or be evicted.
                None if writer.has_busy() => self.changed.wait(writer),
                None => return Err(self.full()),
            }
            compactions += 1;
        }
    }

    /// Returns whether the head has room for an object of a put.
    pub(super) fn has_room(&self, writer: &mut Writer, object: &StoredObject) -> bool {
        let Some(unmoved) = writer.compaction else {
            return self.fits(writer, object, Unmoved::default());
        };
        // With a free segment the compaction has room in any case.
        let has_free = self.free_segments(writer, 1) > 0;
        self.fits(writer, object, if has_free { Unmoved::default() } else { unmoved })
    }

    /// The segment that has the fewest bytes of objects, if it has `space` bytes without and at most `most`
    /// with.
    pub(super) fn sparse(&self, writer: &Writer, space: u64, most: u64) -> Option<usize> {
        let others = writer.segments.iter().enumerate();
        let others = others.filter(|(number, _)| Some(*number) != writer.head);
        let readable = others.filter_map(|(number, segment)| {
            let segment = segment.as_ref().filter(|it| !it.is_unreadable && !it.is_busy());
            segment.map(|segment| (segment.live, number))
        });
        let (live, number) = readable.min()?;
        (self.usable().saturating_sub(live) >= space && live <= most).then_some(number)
    }

    /// Compacts a segment after a put if few are free, before the next puts need room. `evicts` says whether
    /// puts evict where there is none.
    pub(super) fn compact_ahead(&self, evicts: bool) {
        if !self.is_short.load(Relaxed) {
            return;
        }
        let mut writer = self.writer.lock();
        if writer.compaction.is_some() {
            return;
        }
        let is_short = writer.has_one_free();
        let space = self.usable() / if evicts { 2 } else { 8 };
        let sparse = is_short.then(|| self.sparse(&writer, space, u64::MAX));
        let Some(number) = sparse.flatten() else {
            return self.is_short.store(false, Relaxed);
        };
        if let Err(error) = self.compact(&mut writer, number) {
            self.is_short.store(false, Relaxed);
            warn!(segment = number, %error, "a segment is not compacted");
        }
    }

    /// Moves the objects of a segment, and makes it free. No other compaction is under way.
    pub(super) fn compact(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        number: usize,
    ) -> Result<(), TierError> {
        let segment = writer.segment(number);
        segment.is_claimed = true;
        let space = segment.live;
        writer.compaction = Some(Unmoved { space, entries: segment.footer_len });
        let compacted = self.empty(writer, number);
        writer.compaction = None;
        self.give_up_claim(writer, number);
        compacted
    }

    fn empty(&self, writer: &mut MutexGuard<'_, Writer>, number: usize) -> Result<(), TierError> {
        let ids = self.list(writer, number);
        let moved = ids.map_err(Halt::Read).and_then(|ids| {
            let entries = ids.iter().map(footer::entry_len).sum();
            writer.compaction = writer.compaction.map(|unmoved| Unmoved { entries, ..unmoved });
            self.move_objects(writer, number, &ids, Purpose::Compaction)
        });
        match moved {
            Ok(()) => self.release(writer, number),
            Err(Halt::Write(error)) => Err(error),
            Err(Halt::Read(source)) => {
                warn!(segment = number, error = %source, "a segment cannot be read and is not compacted");
                writer.segment(number).is_unreadable = true;
                Err(self.failure("read", source))
            }
        }
    }

    /// Lets others choose a segment again, if it is still used.
    pub(super) fn give_up_claim(&self, writer: &mut Writer, number: usize) {
        if let Some(segment) = &mut writer.segments[number] {
            segment.is_claimed = false;
        }
        self.changed.notify_all();
    }

    /// Makes a claimed segment free, whose objects were moved or evicted.
    pub(super) fn release(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        number: usize,
    ) -> Result<(), TierError> {
        // Durable objects are durable at their new places before the old ones are freed.
        self.settle(writer, number)?;
        // Its own table goes.
        self.write_tables_but(writer, Some(number))?;
        let live = writer.segment(number).live;
        if live > 0 {
            let objects = self.forget(writer, number);
            let bytes = ByteSize::bytes(live);
            warn!(objects, %bytes, "objects are lost: their records are damaged");
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

    /// Forgets the objects that are left in a claimed segment. Returns their number.
    fn forget(&self, writer: &mut MutexGuard<'_, Writer>, number: usize) -> usize {
        let ids = MutexGuard::unlocked(writer, || self.find_ids(number));
        let mut objects = 0;
        for id in ids {
            let mut index = self.index.write();
            if index.find(&id).is_some_and(|place| place.segment() == number)
                && let Some(place) = index.remove(&id)
            {
                drop(index);
                self.subtract(writer, &place);
                objects += 1;
            }
        }
        objects
    }
}
