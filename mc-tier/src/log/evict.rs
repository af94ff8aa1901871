//! Eviction in the order of the log: the objects that were written first go first, and whole segments with
//! them.

use std::io;

use parking_lot::MutexGuard;
use tracing::warn;

use super::LogTier;
use super::footer;
use super::record::padded;
use super::scan::Records;
use super::writer::Writer;
use crate::error::TierError;
use crate::object::{ObjectId, StoredObject, crc32c};
use crate::tier::{TierUsage, Watermarks};

impl LogTier {
    /// Makes the head have room for an object. Where the medium has no more segments, the oldest one gives
    /// its own: no segment is kept free for a compaction, which would cost as much as it saves.
    pub(super) fn make_room_evicting(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        object: &StoredObject,
        evicted: &mut Vec<ObjectId>,
    ) -> Result<(), TierError> {
        loop {
            if self.fits(writer, object) {
                return Ok(());
            }
            let free = self.free_segments(writer, 2);
            if free > 0 {
                // A segment that is half empty costs nothing.
                let sparse = (free == 1 && writer.puts == 0)
                    .then(|| self.sparse(writer, self.usable() / 2, u64::MAX));
                let made = match sparse.flatten() {
                    Some(number) => self.compact(writer, number),
                    None => self.begin_segment(writer),
                };
                match made {
                    Ok(()) => continue,
                    // There was less than it seemed.
                    Err(TierError::Full { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            match self.oldest_segment(writer) {
                Some(number) => {
                    writer.head.take_if(|head| *head == number);
                    let gone = self.evict_from(writer, number, u64::MAX);
                    evicted.extend(gone.into_iter().map(|(id, _)| id));
                    self.release(writer, number)?;
                }
                None if writer.puts > 0 => self.no_puts.wait(writer),
                None => return Err(self.full()),
            }
        }
    }

    /// Evicts the oldest objects until the others take no more than the low watermark. Holds no lock from
    /// one segment to the next.
    pub(super) fn evict_oldest(
        &self,
        watermarks: Watermarks,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<TierUsage, TierError> {
        let mut removed = TierUsage::default();
        let mut wanted = None;
        loop {
            let mut writer = self.writer.lock();
            self.write_tables(&mut writer)?;
            let used = writer.live();
            let left = match wanted {
                Some(left) => left,
                // The caller's watermarks are those of less space.
                None if self.grow(&mut writer) => return Ok(removed),
                None if used <= watermarks.high.as_u64() => return Ok(removed),
                None => used.saturating_sub(watermarks.low.as_u64()),
            };
            let oldest = (left > 0).then(|| self.oldest_with_objects(&writer)).flatten();
            let Some(number) = oldest else { return Ok(removed) };
            let gone = self.evict_from(&mut writer, number, left);
            let bytes: u64 = gone.iter().map(|(_, bytes)| bytes).sum();
            let is_empty = writer.segment(number).live == 0 && writer.head != Some(number);
            let written = if is_empty {
                self.release(&mut writer, number)
            } else {
                self.write_tables(&mut writer)
            };
            drop(writer);
            removed.objects += gone.len() as u64;
            removed.bytes += bytes;
            gone.into_iter().for_each(|(id, _)| evicted(id));
            written?;
            wanted = Some(left.saturating_sub(bytes));
        }
    }

    /// The segment that was begun first, of those that no put writes to. One without objects comes before
    /// all others, and the head behind them.
    fn oldest_segment(&self, writer: &Writer) -> Option<usize> {
        let used = writer.segments.iter().enumerate();
        let used = used.filter_map(|(number, segment)| Some((number, segment.as_ref()?)));
        let idle = used.filter(|(_, segment)| segment.puts == 0);
        let order = |(number, segment): &(usize, &super::writer::Segment)| {
            (Some(*number) == writer.head, segment.live > 0, segment.head.sequence)
        };
        idle.min_by_key(order).map(|(number, _)| number)
    }

    fn oldest_with_objects(&self, writer: &Writer) -> Option<usize> {
        let used = writer.segments.iter().enumerate();
        let used = used.filter_map(|(number, segment)| Some((number, segment.as_ref()?)));
        let idle = used.filter(|(_, segment)| segment.puts == 0 && segment.live > 0);
        idle.min_by_key(|(_, segment)| segment.head.sequence).map(|(number, _)| number)
    }

    /// Evicts the first objects of a segment that have the wanted bytes together. Returns them with the
    /// bytes of each. Its table is yet to be written.
    fn evict_from(&self, writer: &mut Writer, number: usize, wanted: u64) -> Vec<(ObjectId, u64)> {
        let mut evicted = Vec::new();
        let mut bytes = 0;
        let mut evict = |writer: &mut Writer, ids: Vec<ObjectId>| {
            let mut index = self.index.write();
            for id in ids {
                if bytes >= wanted || writer.segment(number).live == 0 {
                    break;
                }
                if index.find(&id).is_some_and(|place| place.segment() == number)
                    && let Some(place) = index.remove(&id)
                {
                    writer.segment(number).live -= place.space();
                    writer.kill(&place);
                    bytes += place.space();
                    evicted.push((id, place.space()));
                }
            }
        };
        match self.ids_in(writer, number) {
            Ok(ids) => evict(writer, ids),
            Err(error) => {
                warn!(segment = number, %error, "a segment cannot be read; its objects are evicted by the index");
            }
        }
        // Those that no list has.
        if writer.segment(number).live > 0 {
            let ids = self.index.read().ids_of_segment(number);
            evict(writer, ids);
        }
        evicted
    }

    /// The ids of a segment's records, in their order.
    fn ids_in(&self, writer: &mut Writer, number: usize) -> io::Result<Vec<ObjectId>> {
        let begin = self.begin_of(number);
        let segment = writer.segment(number);
        let (nonce, end) = (segment.head.nonce, segment.end);
        let entries = match segment.head.footer {
            None => footer::parse(&segment.footer, end - begin).filter(|list| !list.is_empty()),
            Some(place) => {
                let mut bytes = self.pool.take(padded(place.len) as usize);
                self.backend.read(begin + place.offset, &mut bytes)?;
                let bytes = &bytes[..place.len as usize];
                let is_whole = crc32c(bytes).as_u32() == place.checksum;
                is_whole.then(|| footer::parse(bytes, place.offset)).flatten()
            }
        };
        if let Some(entries) = entries {
            return Ok(entries.into_iter().map(|entry| entry.id).collect());
        }
        let range = (begin, begin + self.table_len(), end);
        let mut records = Records::new(&*self.backend, &self.pool, range, nonce, None);
        let mut ids = Vec::new();
        while let Some((_, record)) = records.next()? {
            ids.push(record.object.id().clone());
        }
        Ok(ids)
    }
}
