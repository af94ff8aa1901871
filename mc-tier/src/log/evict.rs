//! Eviction in the order of the log: the objects that were written first go first, and whole segments with
//! them. Those that were read since they were written have a second chance: they move to the head, as long as
//! they are no more than a quarter of what goes. So an eviction always makes room, and a log never writes more
//! than a third of what it is given for it.

use std::io;

use parking_lot::MutexGuard;
use tracing::{debug, warn};

use super::LogTier;
use super::footer;
use super::index::Location;
use super::moves::{Halt, Purpose};
use super::record::padded;
use super::scan::Records;
use super::table::SegmentHead;
use super::writer::{Segment, Writer};
use crate::error::TierError;
use crate::object::{ObjectId, StoredObject, crc32c};
use crate::tier::{TierUsage, Watermarks};

/// One in so many of the evicted bytes may stay.
const SECOND_CHANCES: u64 = 4;

/// Objects that are evicted, or looked for, under one lock.
const AT_ONCE: usize = 1024;

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
            if self.has_room(writer, object) {
                if self.spare_oldest(writer) {
                    continue;
                }
                return Ok(());
            }
            let free = self.free_segments(writer, 2);
            let kept = usize::from(writer.compaction.is_some());
            if free > kept {
                // A segment that is half empty costs nothing.
                let sparse = (free == 1).then(|| self.sparse(writer, self.usable() / 2, u64::MAX));
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
                    writer.segment(number).is_claimed = true;
                    let gone = self.evict_from(writer, number, u64::MAX, 0);
                    evicted.extend(gone.into_iter().map(|(id, _)| id));
                    let released = self.release(writer, number);
                    self.give_up_claim(writer, number);
                    released?;
                }
                None if writer.has_busy() => self.changed.wait(writer),
                None => return Err(self.full()),
            }
        }
    }

    /// Moves objects of the segment that goes next, because they were read, to the last quarter of the head:
    /// when that is full, there is no other room for them. Returns whether it has let go of the lock.
    fn spare_oldest(&self, writer: &mut MutexGuard<'_, Writer>) -> bool {
        if self.head_room(writer) > self.usable() / SECOND_CHANCES {
            return false;
        }
        let next = self.oldest_segment(writer).filter(|next| Some(*next) != writer.head);
        let Some(number) = next.filter(|next| !writer.segment(*next).is_spared) else {
            return false;
        };
        if self.free_segments(writer, 1) > 0 {
            return false;
        }
        let segment = writer.segment(number);
        (segment.is_claimed, segment.is_spared) = (true, true);
        let live = segment.live;
        if let Ok(ids) = self.list(writer, number) {
            self.give_second_chances(writer, number, &ids, u64::MAX, live / SECOND_CHANCES);
        }
        self.give_up_claim(writer, number);
        true
    }

    /// Evicts the oldest objects until the others take no more than the low watermark. Holds no lock while it
    /// reads, nor from one segment to the next.
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
            let segment = writer.segment(number);
            segment.is_claimed = true;
            let chances = segment.live.min(left) / SECOND_CHANCES;
            let gone = self.evict_from(&mut writer, number, left, chances);
            let bytes: u64 = gone.iter().map(|(_, bytes)| bytes).sum();
            let is_head = writer.head == Some(number);
            let segment = writer.segment(number);
            // It may have been the head until now.
            let is_empty = !is_head && segment.puts == 0 && segment.live == 0;
            let written = if is_empty {
                self.release(&mut writer, number)
            } else {
                self.settle(&mut writer, number).and_then(|()| self.write_tables(&mut writer))
            };
            self.give_up_claim(&mut writer, number);
            drop(writer);
            removed.objects += gone.len() as u64;
            removed.bytes += bytes;
            gone.into_iter().for_each(|(id, _)| evicted(id));
            written?;
            wanted = Some(left.saturating_sub(bytes));
        }
    }

    /// The segment that was begun first, of those that are neither written nor claimed. One without
    /// objects comes before all others, and the head behind them.
    fn oldest_segment(&self, writer: &Writer) -> Option<usize> {
        let order = |(number, segment): &(usize, &Segment)| {
            (Some(*number) == writer.head, segment.live > 0, segment.head.sequence)
        };
        writer.idle().min_by_key(order).map(|(number, _)| number)
    }

    fn oldest_with_objects(&self, writer: &Writer) -> Option<usize> {
        let idle = writer.idle().filter(|(_, segment)| segment.live > 0);
        idle.min_by_key(|(_, segment)| segment.head.sequence).map(|(number, _)| number)
    }

    /// Evicts the first objects of a claimed segment that have the wanted bytes together. Returns them with
    /// the bytes of each. Those among them that were read move, up to so many bytes as `chances`. Its table is
    /// yet to be written.
    fn evict_from(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        number: usize,
        wanted: u64,
        chances: u64,
    ) -> Vec<(ObjectId, u64)> {
        let mut gone = Gone { wanted, bytes: 0, objects: Vec::new() };
        match self.list(writer, number) {
            Ok(ids) => {
                if chances > 0 && writer.head != Some(number) {
                    self.give_second_chances(writer, number, &ids, wanted, chances);
                }
                self.evict_each(writer, number, &ids, &mut gone);
            }
            Err(error) => {
                warn!(segment = number, %error, "a segment cannot be read; its objects are evicted by the index");
            }
        }
        // Those that no list has.
        if writer.segment(number).live > 0 && !gone.is_enough() {
            let ids = MutexGuard::unlocked(writer, || self.find_ids(number));
            self.evict_each(writer, number, &ids, &mut gone);
        }
        gone.objects
    }

    /// Evicts those of these objects that are in a claimed segment.
    fn evict_each(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        number: usize,
        ids: &[ObjectId],
        gone: &mut Gone,
    ) {
        for ids in ids.chunks(AT_ONCE) {
            // A record that is dead must not be found when a later one of its object is not any more. The caller
            // writes them again and reports the failure.
            if self.write_tables_but(writer, Some(number)).is_err() {
                return;
            }
            for id in ids {
                if gone.is_enough() || writer.segment(number).live == 0 {
                    return;
                }
                let mut index = self.index.write();
                if index.find(id).is_some_and(|place| place.segment() == number)
                    && let Some(place) = index.remove(id)
                {
                    drop(index);
                    self.subtract(writer, &place);
                    writer.kill(&place);
                    gone.bytes += place.space();
                    gone.objects.push((id.clone(), place.space()));
                }
            }
            MutexGuard::bump(writer);
        }
    }

    /// Moves those of a claimed segment's objects that were read and would go with the wanted bytes, up to so
    /// many bytes as `chances`. Those that cannot move stay.
    fn give_second_chances(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        number: usize,
        ids: &[ObjectId],
        wanted: u64,
        chances: u64,
    ) {
        let (mut going, mut staying, mut read) = (0, 0, Vec::new());
        MutexGuard::unlocked(writer, || {
            for ids in ids.chunks(AT_ONCE) {
                let index = self.index.read();
                for id in ids {
                    if going >= wanted {
                        return;
                    }
                    let is_here = |place: &Location| place.segment() == number;
                    let Some(place) = index.find(id).filter(is_here) else { continue };
                    if index.find_read(id).is_some() && staying + place.space() <= chances {
                        staying += place.space();
                        read.push(id.clone());
                    } else {
                        going += place.space();
                    }
                }
            }
        });
        if read.is_empty() {
            return;
        }
        match self.move_objects(writer, number, &read, Purpose::SecondChance) {
            Ok(()) => debug!(segment = number, objects = read.len(), "objects stay that were read"),
            Err(Halt::Read(error)) => {
                warn!(segment = number, %error, "cannot keep objects that were read lately: they cannot be moved");
            }
            Err(Halt::Write(error)) => {
                debug!(segment = number, %error, "cannot keep objects that were read lately: there is no room");
            }
        }
    }

    /// Looks at all objects for those of a segment. Holds the index for some of them at a time.
    pub(super) fn find_ids(&self, number: usize) -> Vec<ObjectId> {
        let (mut ids, mut after) = (Vec::new(), None);
        loop {
            after = self.index.read().ids_of_segment(number, after.as_deref(), &mut ids);
            if after.is_none() {
                return ids;
            }
        }
    }

    /// The ids of a claimed segment's records, in their order. Reads without the lock.
    pub(super) fn list(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        number: usize,
    ) -> io::Result<Vec<ObjectId>> {
        let segment = writer.segment(number);
        let (head, end) = (segment.head, segment.end);
        let footer = head.footer.is_none().then(|| segment.footer.clone());
        MutexGuard::unlocked(writer, || self.read_list(number, head, end, footer))
    }

    fn read_list(
        &self,
        number: usize,
        head: SegmentHead,
        end: u64,
        footer: Option<Vec<u8>>,
    ) -> io::Result<Vec<ObjectId>> {
        let begin = self.begin_of(number);
        let entries = match head.footer {
            None => footer
                .and_then(|footer| footer::parse(&footer, end - begin))
                .filter(|list| !list.is_empty()),
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
        let mut records = Records::new(&*self.backend, &self.pool, range, head.nonce, None);
        let mut ids = Vec::new();
        while let Some((_, record)) = records.next()? {
            ids.push(record.object.id().clone());
        }
        Ok(ids)
    }
}

/// The objects that an eviction has removed from a segment.
struct Gone {
    wanted: u64,
    bytes: u64,
    objects: Vec<(ObjectId, u64)>,
}

impl Gone {
    const fn is_enough(&self) -> bool {
        self.bytes >= self.wanted
    }
}
