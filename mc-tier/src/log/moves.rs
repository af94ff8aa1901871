//! Records that move: those of a segment that is compacted, and of one that is evicted, if they were read.
//!
//! The lock is held to reserve the new places and to publish them; reads and writes run without it.
//! Meanwhile objects may be put, removed and read:
//!
//! * An object whose put is writing does not move: of two records of an object the one with the later place
//!   counts, and the put has the earlier one. A put that begins while its object moves has a later one.
//! * An object that was removed or replaced is not published. Both of its records are dead then, on the
//!   medium before the change is acknowledged: the new one may be there already.
//! * The old record of an object that has moved is not dead before the new one is durable, for the power may
//!   fail; until then there are two with the same bytes.

use std::io;

use bytes::Bytes;
use parking_lot::MutexGuard;

use super::LogTier;
use super::footer;
use super::index::Location;
use super::space::is_full;
use super::writer::{Unmoved, Writer};
use crate::error::TierError;
use crate::object::{ObjectId, StoredObject};

/// Records that are read, written and published together, and their bytes if they are several.
const BATCH: usize = 32;
const BATCH_LEN: u64 = 4 << 20;

/// Bytes between two records that are rather read with them than skipped.
const GAP: u64 = 64 << 10;

/// The purpose for which objects move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The segment of the objects becomes free. It is the log's compaction that is under way.
    Compaction,
    /// The objects stay when their segment is evicted, because they were read. They need to be read
    /// again to stay another time.
    SecondChance,
}

/// Why objects were not moved.
#[derive(Debug)]
pub(super) enum Halt {
    /// Their segment cannot be read.
    Read(io::Error),
    /// There is no room for them, or they cannot be written.
    Write(TierError),
}

/// Returns whether a record follows another one so closely that both are read at once.
fn is_near(one: &Location, next: &Location) -> bool {
    let end = one.offset() + one.space();
    next.offset().checked_sub(end).is_some_and(|gap| gap <= GAP)
}

/// A record that moves.
#[derive(Debug)]
struct Move {
    id: ObjectId,
    from: Location,
    to: Location,
    is_written: bool,
}

impl LogTier {
    /// Publishes those of these records that are written, and gives the places of the others up.
    fn publish_moves(&self, writer: &mut Writer, moves: Vec<Move>, purpose: Purpose) {
        for Move { id, from, to, is_written } in moves {
            writer.moves.moving.remove(&from.number());
            writer.segment(to.segment()).puts -= 1;
            if !is_written {
                writer.mark(&to);
                continue;
            }
            let segment = writer.segment(to.segment());
            footer::push(&mut segment.footer, to.block, &to.layout, &id);
            let stays_read = purpose == Purpose::Compaction;
            // Not before: where the process is killed now, a put behind the new place keeps it from being used
            // again, and the object moves once more.
            if purpose == Purpose::Compaction
                && let Some(left) = &mut writer.compaction
            {
                left.space = left.space.saturating_sub(from.space());
                left.entries = left.entries.saturating_sub(footer::entry_len(&id));
            }
            // Otherwise it was removed or replaced, and both records are dead.
            if self.index.write().relocate(&id, &from, to, stays_read) {
                self.subtract(writer, &from);
                self.add(writer, &to);
                writer.moves.moved.insert(to.number(), from);
            }
        }
        self.seal_all(writer);
    }

    /// Appends those of these objects that are in a claimed segment to the head. Those whose records are
    /// damaged stay.
    pub(super) fn move_objects(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        segment: usize,
        ids: &[ObjectId],
        purpose: Purpose,
    ) -> Result<(), Halt> {
        // A record may move again when nothing else is known of it.
        self.settle(writer, segment).map_err(Halt::Write)?;
        let mut rest = ids.to_vec();
        loop {
            let mut deferred = Vec::new();
            let mut ids = rest.as_slice();
            while !ids.is_empty() {
                let read = MutexGuard::unlocked(writer, || self.read_batch(segment, &mut ids));
                let batch = read.map_err(Halt::Read)?;
                self.move_batch(writer, batch, purpose, &mut deferred)?;
            }
            if deferred.is_empty() || purpose == Purpose::SecondChance {
                return Ok(());
            }
            while deferred.iter().any(|id| writer.is_writing(id)) {
                self.changed.wait(writer);
            }
            rest = deferred;
        }
    }

    /// Reads the first of these objects, and takes them off the list.
    fn read_batch(
        &self,
        segment: usize,
        ids: &mut &[ObjectId],
    ) -> io::Result<Vec<(StoredObject, Location, Bytes)>> {
        let (mut places, mut len, mut taken) = (Vec::new(), 0, 0);
        let index = self.index.read();
        for id in *ids {
            // A segment may have several records of an object, of which one counts.
            let is_new = |place: &Location| places.iter().all(|(_, other)| other != place);
            let place = index.find(id).filter(|at| at.segment() == segment && is_new(at));
            let space = place.map_or(0, |place| place.space());
            if !places.is_empty() && (len + space > BATCH_LEN || places.len() == BATCH) {
                break;
            }
            places.extend(place.map(|place| (taken, place)));
            (len, taken) = (len + space, taken + 1);
        }
        drop(index);
        // The order of a list is that in which puts ended.
        places.sort_unstable_by_key(|(_, place)| place.block);
        let (first, rest) = ids.split_at(taken);
        *ids = rest;
        let mut batch = Vec::with_capacity(places.len());
        for run in places.chunk_by(|(_, one), (_, next)| is_near(one, next)) {
            for ((number, place), bytes) in run.iter().zip(self.read_run(run)?) {
                // The bytes of the object are compared by its readers.
                let object = self.parse_header(&first[*number], place, &bytes).ok();
                batch.extend(object.map(|object| (object, *place, bytes)));
            }
        }
        Ok(batch)
    }

    /// Reads records that are near each other: by one read, if no part of the medium is broken there.
    fn read_run(&self, run: &[(usize, Location)]) -> io::Result<Vec<Bytes>> {
        let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) else {
            return Ok(Vec::new());
        };
        let (begin, end) = (first.offset(), last.offset() + self.aligned(last.len()) as u64);
        let mut buffer = self.pool.take((end - begin) as usize);
        if run.len() > 1 && self.backend.read(self.offset_of(first), &mut buffer).is_ok() {
            let bytes = Bytes::from_owner(buffer);
            let at = |place: &Location| (place.offset() - begin) as usize;
            let record = |(_, place): &(usize, Location)| {
                bytes.slice(at(place)..at(place) + place.len() as usize)
            };
            return Ok(run.iter().map(record).collect());
        }
        run.iter().map(|(_, place)| Ok(Bytes::from_owner(self.read_whole(place)?))).collect()
    }

    fn move_batch(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        records: Vec<(StoredObject, Location, Bytes)>,
        purpose: Purpose,
        deferred: &mut Vec<ObjectId>,
    ) -> Result<(), Halt> {
        let mut moves = Vec::new();
        let (mut sources, mut halt, mut broken) = (Vec::new(), None, None);
        for (object, from, bytes) in records {
            let id = object.id().clone();
            if self.index.read().find(&id) != Some(from) {
                continue;
            }
            if writer.is_writing(&id) {
                deferred.push(id);
                continue;
            }
            if let Err(error) = self.make_room_to_move(writer, &object, purpose) {
                halt = Some(Halt::Write(error));
                break;
            }
            let to = self.reserve(writer, &object);
            writer.moves.moving.insert(from.number(), to);
            moves.push(Move { id, from, to, is_written: false });
            sources.push((object, bytes));
        }
        MutexGuard::unlocked(writer, || {
            for (moving, (object, bytes)) in moves.iter_mut().zip(&sources) {
                let bytes = &bytes[moving.from.header_len()..moving.from.len() as usize];
                if let Err(error) = self.write_record(&moving.to, object, &[bytes]) {
                    broken = Some((moving.to.segment(), error));
                    break;
                }
                moving.is_written = true;
            }
        });
        self.publish_moves(writer, moves, purpose);
        if let Some((segment, error)) = broken {
            if is_full(&error) {
                self.give_up_segment(writer, segment, &error);
            }
            halt = Some(Halt::Write(self.failure("write", error)));
        }
        halt.map_or(Ok(()), Err)
    }

    /// Makes the head have room for a record that moves. A compaction may use the last free segment; an object
    /// that was read leaves it to compactions and puts.
    fn make_room_to_move(
        &self,
        writer: &mut Writer,
        object: &StoredObject,
        purpose: Purpose,
    ) -> Result<(), TierError> {
        let (has_room, may_begin) = match purpose {
            Purpose::Compaction => {
                let fits = self.fits(writer, object, Unmoved::default());
                (fits, fits || self.free_segments(writer, 1) > 0)
            }
            Purpose::SecondChance => {
                let kept = 1 + usize::from(writer.compaction.is_some());
                let free = self.free_segments(writer, kept + 1);
                (self.has_room(writer, object), free > kept)
            }
        };
        match (has_room, may_begin) {
            (true, _) => Ok(()),
            (false, true) => self.begin_segment(writer),
            (false, false) => Err(self.full()),
        }
    }

    /// Marks the old records of the objects that have moved to or from this segment as dead, once the new ones
    /// are durable.
    pub(super) fn settle(
        &self,
        writer: &mut MutexGuard<'_, Writer>,
        segment: usize,
    ) -> Result<(), TierError> {
        if !writer.moves.has(segment) {
            return Ok(());
        }
        let written: Vec<_> = writer.moves.moved.iter().map(|(to, from)| (*to, *from)).collect();
        MutexGuard::unlocked(writer, || self.sync())?;
        for (to, from) in written {
            // Otherwise the object was removed or replaced meanwhile, and the record is dead.
            if writer.moves.moved.get(&to) == Some(&from) {
                writer.moves.moved.remove(&to);
                writer.mark(&from);
            }
        }
        Ok(())
    }
}
