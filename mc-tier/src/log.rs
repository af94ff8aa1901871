//! A tier of segments on a local disk.

mod compact;
mod index;
pub(crate) mod record;
mod recover;
mod scan;
mod writer;

use core::num::NonZeroUsize;
use core::ops::Range;
use std::io;

use bytes::Bytes;
use mc_types::ByteSize;
use parking_lot::{Mutex, RwLock};

use crate::backend::StorageBackend;
use crate::error::{Damage, TierError};
use crate::object::{Cover, ObjectBytes, ObjectId, SliceBytes, StoredObject};
use crate::object_file::{FORMAT, HeaderError};
use crate::tier::{ScanCursor, ScanPage, Tier, TierUsage};
use index::{Index, Location};
use record::{Record, parse_record};
use writer::Writer;

/// Keeps objects in segments of one range of bytes, such as a file on a local SSD.
///
/// A put appends a record; a removal overwrites one byte of it. When free segments run out, the objects
/// of the segment with the fewest bytes move to another one. An index in memory, of about 150 bytes and
/// the key for each object, is made from the records when the log is opened: nothing that a put or
/// removal returned for is lost with the process. An object's bytes are there before its header, so
/// what a killed process had half written is not found.
///
/// Reads run concurrently with each other and with one change; changes wait for each other, a
/// compaction included. The range is never exceeded: a put fails with [`TierError::Full`] when
/// compaction would gain less than an eighth of a segment.
#[derive(Debug)]
pub struct LogTier {
    backend: Box<dyn StorageBackend>,
    sync_each_change: bool,
    segment_len: u64,
    recovery: Recovery,
    /// Locked before the index.
    writer: Mutex<Writer>,
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
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { segment_len: ByteSize::mib(64), sync_each_change: false }
    }
}

/// What was found when a log was opened.
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
    /// Reads the headers of all records: it takes time in their number.
    ///
    /// # Errors
    /// [`TierError::Foreign`], [`TierError::Newer`], [`TierError::TooShort`] and what the medium says.
    pub fn open(
        backend: impl StorageBackend + 'static,
        settings: LogSettings,
    ) -> Result<Self, TierError> {
        recover::open(Box::new(backend), settings)
    }

    /// What was found when the log was opened.
    #[must_use]
    pub const fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Makes everything durable that was put or removed before.
    ///
    /// # Errors
    /// What the medium says; it is not known then what is durable.
    pub fn sync(&self) -> Result<(), TierError> {
        self.backend.sync().map_err(|source| self.failure("sync", source))
    }

    fn failure(&self, action: &'static str, source: io::Error) -> TierError {
        TierError::from_io(action, self.backend.path(), source)
    }

    fn damaged(&self, source: Damage) -> TierError {
        TierError::Damaged { path: self.backend.path().to_owned(), source }
    }

    /// Reads an object where it is. Reads it again if it has moved in the meantime.
    fn read<T>(
        &self,
        id: &ObjectId,
        read: impl Fn(&Location, Record) -> Result<T, TierError>,
    ) -> Result<Option<T>, TierError> {
        let find = || self.index.read().find(id);
        let mut found = find();
        while let Some(location) = found {
            let result = match self.describe(id, &location) {
                Ok(Some(record)) => read(&location, record).map(Some),
                other => other.map(|_| None),
            };
            found = find();
            if matches!(result, Ok(Some(_)) | Err(TierError::Range { .. }))
                || found == Some(location)
            {
                return result;
            }
        }
        Ok(None)
    }

    /// Reads what is said of an object at its location; `None` when it was removed there.
    fn describe(&self, id: &ObjectId, location: &Location) -> Result<Option<Record>, TierError> {
        let mut header = vec![0; location.header_len];
        self.backend
            .read(location.offset, &mut header)
            .map_err(|source| self.failure("read", source))?;
        let record = parse_record(&header, location.nonce).map_err(|error| match error {
            HeaderError::Damaged(damage) => self.damaged(damage),
            HeaderError::Newer { found } => {
                TierError::Newer { path: self.backend.path().to_owned(), found, known: FORMAT }
            }
        })?;
        if record.object.id() != id {
            return Err(self.damaged(Damage::OtherObject { found: record.object.id().clone() }));
        }
        Ok((!record.is_removed).then_some(record))
    }

    /// Reads consecutive slices: all of their bytes in one piece, and each slice.
    fn read_slices(
        &self,
        location: &Location,
        object: &StoredObject,
        cover: &Cover,
    ) -> Result<(Bytes, Vec<SliceBytes>), TierError> {
        // Not longer than a segment.
        let mut bytes = vec![0; (cover.bytes.end - cover.bytes.start) as usize];
        let offset = location.offset + location.header_len as u64 + cover.bytes.start;
        self.backend.read(offset, &mut bytes).map_err(|source| self.failure("read", source))?;
        let bytes = Bytes::from(bytes);
        let slices = object.verify(cover, &bytes).map_err(|damage| self.damaged(damage))?;
        Ok((bytes, slices))
    }
}

impl Tier for LogTier {
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        let parts: Vec<_> = object.slices().iter().map(|slice| &slice.bytes()[..]).collect();
        let mut writer = self.writer.lock();
        self.append(&mut writer, &StoredObject::of(id.clone(), object), &parts)
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        self.read(id, |location, record| {
            let cover = record.object.cover(&(0..record.object.object_len()));
            let cover = cover.expect("an object is not empty");
            let (_, slices) = self.read_slices(location, &record.object, &cover)?;
            Ok(ObjectBytes::new(slices).expect("the header was checked"))
        })
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.read(id, |location, record| {
            let Some(cover) = record.object.cover(&range) else {
                let range = range.clone();
                return Err(TierError::Range { range, len: record.object.object_len() });
            };
            let (bytes, _) = self.read_slices(location, &record.object, &cover)?;
            Ok(bytes.slice(cover.within(&range)))
        })
    }

    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        self.remove_record(&mut self.writer.lock(), id)
    }

    /// In the order of the ids. Reads the header of each object.
    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        let ids = self.index.read().ids_after(after, limit);
        let next = (ids.len() == limit.get()).then(|| ids.last().map(index::cursor)).flatten();
        let mut page = ScanPage { objects: Vec::new(), unreadable: Vec::new(), next };
        for id in ids {
            match self.read(&id, |_, record| Ok(record.object)) {
                Ok(object) => page.objects.extend(object),
                Err(error) => page.unreadable.push(error),
            }
        }
        Ok(page)
    }

    fn usage(&self) -> Result<TierUsage, TierError> {
        let writer = self.writer.lock();
        let bytes = writer.segments.iter().flatten().map(|segment| segment.live).sum();
        Ok(TierUsage { objects: self.index.read().len() as u64, bytes })
    }
}
