//! A tier of segments on a local disk.

mod compact;
mod evict;
mod footer;
mod grow;
mod index;
mod moved;
mod moves;
mod read;
pub(crate) mod record;
mod recover;
mod scan;
mod segments;
mod space;
mod sync;
mod table;
mod writer;

use core::num::NonZeroUsize;
use core::ops::Range;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use mc_types::ByteSize;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::backend::{BufferPool, StorageBackend};
use crate::error::{Damage, TierError};
use crate::object::{ObjectBytes, ObjectId, StoredObject};
use crate::tier::{ScanCursor, ScanPage, Tier, TierUsage, Watermarks};
use index::Index;
use sync::SharedSync;
use writer::Writer;

/// Keeps objects in segments of one range of bytes, such as a file on a local SSD.
///
/// A put appends a record; a removal sets a bit in its segment's table. When free segments run out, the
/// objects of the segment with the fewest bytes move to another one. An index in memory, of about 120
/// bytes and the key for each object, is made from the records when the log is opened: nothing that a
/// put or removal returned for is lost with the process. An object's bytes are there before its
/// header, so what a killed process had half written is not found.
///
/// A get reads an object with its header at once, into memory that the object's bytes then are.
/// [`get_many`](Tier::get_many) has many such reads in flight. Puts write at once, each to a place of its
/// own, and share their syncs. A put that finds few segments free compacts one, while others put, remove and
/// read; they wait for it only where all other room is used.
/// The range is never exceeded: a put fails with [`TierError::Full`] when compaction would gain less
/// than an eighth of a segment.
///
/// [`put_making_room`](Tier::put_making_room) evicts instead of that: the oldest segment goes with its
/// objects. The same keeps a log going whose medium is full, such as a file system that others fill: the
/// log takes the space of a segment before it begins it, does with the segments that it has when there is
/// no more, and grows again later.
///
/// An eviction goes by the order of the log, but that objects which were read since they were written, up to a
/// quarter of what goes, are written again instead. Whether an object was read is in memory only.
///
/// A record takes a multiple of 4096 bytes: up to one block more than the object.
#[derive(Debug)]
pub struct LogTier {
    backend: Box<dyn StorageBackend>,
    /// The alignment of reads.
    alignment: u64,
    pool: BufferPool,
    sync_each_change: bool,
    shared_sync: SharedSync,
    segment_len: u64,
    recovery: Recovery,
    /// The bytes that the log can have now: fewer than the medium's when that is full.
    limit: AtomicU64,
    /// Locked before the index.
    writer: Mutex<Writer>,
    /// The bytes of records whose objects are there.
    live: AtomicU64,
    /// Whether few segments are free, so that a put is to look for one to compact.
    is_short: AtomicBool,
    /// Told when a put, a compaction or an eviction from a segment has ended.
    changed: Condvar,
    index: RwLock<Index>,
}

/// How a log is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogSettings {
    /// The length of a segment of a new log, of which there are at least four; by default 64 MB. An object
    /// fits into one segment. An existing log keeps its own.
    pub segment_len: ByteSize,
    /// Whether each put and removal is durable when it returns, also if the power fails; by default
    /// not. A killed process loses nothing in either case.
    pub sync_each_change: bool,
    /// How long a log that found its medium full waits before it asks for more space than it has; by
    /// default 30 s.
    pub space_pause: Duration,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            segment_len: ByteSize::mib(64),
            sync_each_change: false,
            space_pause: Duration::from_secs(30),
        }
    }
}

/// The findings when a log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Objects.
    pub objects: u64,
    /// Places at which records were damaged, so that their objects are lost. A damaged object, whose
    /// record is not, is found by its reader.
    pub damaged: u64,
}

impl LogTier {
    /// Opens a log, and makes it on a medium of zeros.
    ///
    /// Reads what segments say of their records, and the records of the one that was appended to last.
    ///
    /// # Errors
    /// [`TierError::Foreign`], [`TierError::Newer`], [`TierError::TooShort`] and what the medium says.
    pub fn open(
        backend: impl StorageBackend + 'static,
        settings: LogSettings,
    ) -> Result<Self, TierError> {
        Self::open_with_progress(backend, settings, |_, _| {})
    }

    /// As [`open`](Self::open). Calls `progress` from time to time with the bytes that were read and
    /// those that are to be read, at last with two that are equal.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub fn open_with_progress(
        backend: impl StorageBackend + 'static,
        settings: LogSettings,
        mut progress: impl FnMut(ByteSize, ByteSize),
    ) -> Result<Self, TierError> {
        recover::open(Box::new(backend), settings, &mut progress)
    }

    /// The bytes that a medium must have for the log that is on it; `None` when none is. A log can be cut
    /// to that before it is opened, and has then lost the objects behind.
    ///
    /// # Errors
    /// What the medium says.
    pub fn least_len(backend: &dyn StorageBackend) -> Result<Option<ByteSize>, TierError> {
        recover::least_len(backend)
    }

    /// Returns the findings when the log was opened.
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Returns the bytes that objects can take, with what the log keeps beside them: those of the medium, or
    /// of the segments that have space when the medium is full.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.limit().as_u64()
    }

    /// Makes everything durable that was put or removed before.
    ///
    /// # Errors
    /// What the medium says; it is not known then what is durable.
    pub fn sync(&self) -> Result<(), TierError> {
        self.sync_all().map_err(|source| self.failure("sync", source))
    }

    fn failure(&self, action: &'static str, source: io::Error) -> TierError {
        let path = self.backend.path();
        if source.kind() == io::ErrorKind::UnexpectedEof {
            return TierError::Truncated { path: path.to_owned(), source };
        }
        TierError::from_io(action, path, source)
    }

    fn damaged(&self, source: Damage) -> TierError {
        TierError::Damaged { path: self.backend.path().to_owned(), source }
    }
}

impl Tier for LogTier {
    /// Returns the room of a segment of the log.
    fn max_object_len(&self) -> u64 {
        self.usable()
    }

    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        let parts: Vec<_> = object.slices().iter().map(|slice| &slice.bytes()[..]).collect();
        self.append(&StoredObject::of(id.clone(), object), &parts, None)
    }

    /// Evicts the objects of the oldest segment, and no others.
    fn put_making_room(
        &self,
        id: &ObjectId,
        object: &ObjectBytes,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<(), TierError> {
        let parts: Vec<_> = object.slices().iter().map(|slice| &slice.bytes()[..]).collect();
        let mut gone = Vec::new();
        let put = self.append(&StoredObject::of(id.clone(), object), &parts, Some(&mut gone));
        gone.into_iter().for_each(evicted);
        put
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        self.read_object(id)
    }

    fn get_many(&self, ids: &[ObjectId]) -> Vec<Result<Option<ObjectBytes>, TierError>> {
        self.read_objects(ids)
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.read_object_range(id, &range)
    }

    fn get_unverified(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.read_unverified(id, &range)
    }

    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        Ok(self.remove_records(std::slice::from_ref(id))?.contains(&true))
    }

    /// Writes the table of each segment once.
    fn remove_many(&self, ids: &[ObjectId]) -> Result<u64, TierError> {
        let removed = self.remove_records(ids)?;
        Ok(removed.into_iter().filter(|was_there| *was_there).count() as u64)
    }

    /// In the order of tenants, those with shorter names first, and of keys; of one key, the higher
    /// generations first. Reads the header of each object of several slices, and of those that an older version
    /// has written.
    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        let objects = self.index.read().objects_after(after, limit);
        let last = (objects.len() == limit.get()).then(|| objects.last()).flatten();
        let next = last.map(|(id, _)| index::cursor(id));
        let mut page = ScanPage { objects: Vec::new(), unreadable: Vec::new(), next };
        for described in self.describe(&objects) {
            match described {
                Ok(object) => page.objects.extend(object),
                Err(error) => page.unreadable.push(error),
            }
        }
        Ok(page)
    }

    fn usage(&self) -> Result<TierUsage, TierError> {
        let objects = self.index.read().len() as u64;
        Ok(TierUsage { objects, bytes: self.live.load(Relaxed) })
    }

    fn capacity(&self) -> Option<ByteSize> {
        Some(self.limit())
    }

    /// Evicts in the order of the log: the oldest are those that were written first. Reads the list of each
    /// segment that they are in. Up to a quarter of their bytes are written again instead, where objects were read
    /// and there is room. A log that found its medium full asks for more space first, if it is time
    /// to, and evicts nothing then.
    fn evict(
        &self,
        watermarks: Watermarks,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<TierUsage, TierError> {
        self.evict_oldest(watermarks, evicted)
    }
}
