//! Reads of a log.

use core::ops::Range;
use std::io;

use bytes::Bytes;

use super::LogTier;
use super::index::Location;
use super::record::{Record, parse_record};
use crate::backend::IoBuffer;
use crate::error::{Damage, TierError};
use crate::object::{ObjectBytes, ObjectId, StoredObject};
use crate::object_file::{FORMAT, HeaderError};

/// A record that is not longer is read as a whole also for a part of its object: a second read would
/// take longer than the bytes.
const MAX_WHOLE: u64 = 64 << 10;

/// Headers of a scan that are read at once.
const HEADERS: usize = 256;

type LogResult<T> = Result<Option<T>, TierError>;

impl LogTier {
    /// The offset of a record, a multiple of a block.
    pub(super) fn offset_of(&self, place: &Location) -> u64 {
        self.begin_of(place.segment()) + place.offset()
    }

    pub(super) const fn aligned(&self, len: u64) -> usize {
        len.next_multiple_of(self.alignment) as usize
    }

    /// Reads the whole of a record.
    pub(super) fn read_whole(&self, place: &Location) -> io::Result<IoBuffer> {
        let mut buffer = self.pool.take(self.aligned(place.len()));
        self.backend.read(self.offset_of(place), &mut buffer)?;
        Ok(buffer)
    }

    /// Reads an object where it is, and notes that it was read. Reads it again if it has moved in the meantime.
    fn read<T>(
        &self,
        id: &ObjectId,
        read: impl Fn(&Location) -> Result<T, TierError>,
    ) -> LogResult<T> {
        let first = self.index.read().find_to_read(id);
        self.read_from(first, id, read)
    }

    /// Reads something of an object at this place, or where it has moved.
    fn read_from<T>(
        &self,
        first: Option<Location>,
        id: &ObjectId,
        read: impl Fn(&Location) -> Result<T, TierError>,
    ) -> LogResult<T> {
        let find = || self.index.read().find(id);
        let mut place = first;
        while let Some(tried) = place {
            let result = read(&tried);
            if matches!(result, Ok(_) | Err(TierError::Range { .. })) {
                return result.map(Some);
            }
            place = find();
            if place == Some(tried) {
                return result.map(Some);
            }
        }
        Ok(None)
    }

    pub(super) fn read_object(&self, id: &ObjectId) -> LogResult<ObjectBytes> {
        self.read(id, |place| {
            let read = self.read_whole(place);
            self.parse_object(id, place, read.map_err(|source| self.failure("read", source))?)
        })
    }

    /// As [`read_object`](Self::read_object) for each, many at once.
    pub(super) fn read_objects(&self, ids: &[ObjectId]) -> Vec<LogResult<ObjectBytes>> {
        let mut results = Vec::with_capacity(ids.len());
        results.resize_with(ids.len(), || Ok(None));
        let whole = Location::len;
        self.read_each(ids, whole, |number, place, read| {
            let object = read.map_err(|source| self.failure("read", source));
            let object = object.and_then(|read| self.parse_object(&ids[number], place, read));
            results[number] = match object {
                // It may have moved.
                Err(_) => self.read_object(&ids[number]),
                object => object.map(Some),
            };
        });
        results
    }

    /// Reads the first `len` bytes of the record of each object that is there, many at once.
    fn read_each(
        &self,
        ids: &[ObjectId],
        len: impl Fn(&Location) -> u64,
        done: impl FnMut(usize, &Location, io::Result<IoBuffer>),
    ) {
        let index = self.index.read();
        let places = ids.iter().enumerate();
        let places: Vec<_> =
            places.filter_map(|(number, id)| Some((number, index.find_to_read(id)?))).collect();
        drop(index);
        self.read_places(&places, len, done);
    }

    /// Reads the first `len` bytes of each record, many at once. Each comes with a number.
    fn read_places(
        &self,
        places: &[(usize, Location)],
        len: impl Fn(&Location) -> u64,
        mut done: impl FnMut(usize, &Location, io::Result<IoBuffer>),
    ) {
        let buffer = |place: &Location| self.pool.take(self.aligned(len(place)));
        let reads =
            places.iter().map(|(_, place)| (self.offset_of(place), buffer(place))).collect();
        self.backend.read_many(reads, &mut |read, result| {
            let (number, place) = &places[read];
            done(*number, place, result);
        });
    }

    /// Takes an object out of its record, without a copy.
    pub(super) fn parse_object(
        &self,
        id: &ObjectId,
        place: &Location,
        record: IoBuffer,
    ) -> Result<ObjectBytes, TierError> {
        let object = self.parse_header(id, place, &record)?;
        let cover = object.cover(&(0..object.object_len())).expect("an object is not empty");
        let bytes = Bytes::from_owner(record);
        let bytes = bytes.slice(place.header_len()..place.len() as usize);
        let slices = object.verify(&cover, &bytes).map_err(|damage| self.damaged(damage))?;
        Ok(ObjectBytes::new(slices).expect("the header was checked"))
    }

    /// Reads the header of a record, which must be that of this object.
    pub(super) fn parse_header(
        &self,
        id: &ObjectId,
        place: &Location,
        record: &[u8],
    ) -> Result<StoredObject, TierError> {
        let record = parse_record(record, place.nonce).map_err(|error| match error {
            HeaderError::Damaged(damage) => self.damaged(damage),
            HeaderError::Newer { found } => {
                TierError::Newer { path: self.backend.path().to_owned(), found, known: FORMAT }
            }
        })?;
        let (len, header_len) = (record.len(), record.header_len);
        let Record { object, .. } = record;
        if object.id() != id {
            return Err(self.damaged(Damage::OtherObject { found: object.id().clone() }));
        }
        if (len, header_len) != (place.len(), place.header_len()) {
            return Err(self.damaged(Damage::Length { expected: place.len(), found: len }));
        }
        Ok(object)
    }

    pub(super) fn read_object_range(&self, id: &ObjectId, range: &Range<u64>) -> LogResult<Bytes> {
        self.read(id, |place| {
            let offset = self.offset_of(place);
            let header_len = place.header_len() as u64;
            let is_short = place.len() <= MAX_WHOLE;
            let header = self.aligned(if is_short { place.len() } else { header_len });
            let header = self.read_at(offset, header)?;
            let object = self.parse_header(id, place, &header)?;
            let Some(cover) = object.cover(range) else {
                let (range, len) = (range.clone(), object.object_len());
                return Err(TierError::Range { range, len });
            };
            // Of the record.
            let (start, end) = (header_len + cover.bytes.start, header_len + cover.bytes.end);
            let (bytes, skipped) = if end <= header.len() as u64 {
                (header, 0)
            } else {
                let skipped = start - start % self.alignment;
                (self.read_at(offset + skipped, self.aligned(end - skipped))?, skipped)
            };
            let bytes = Bytes::from_owner(bytes);
            let bytes = bytes.slice((start - skipped) as usize..(end - skipped) as usize);
            object.verify(&cover, &bytes).map_err(|damage| self.damaged(damage))?;
            Ok(bytes.slice(cover.within(range)))
        })
    }

    /// Reads a range of an object, without its header and without comparing checksums. What was read is
    /// of this object if its record is still there.
    pub(super) fn read_unverified(&self, id: &ObjectId, range: &Range<u64>) -> LogResult<Bytes> {
        self.read(id, |place| {
            let header_len = place.header_len() as u64;
            let len = place.len() - header_len;
            if range.is_empty() || range.end > len {
                return Err(TierError::Range { range: range.clone(), len });
            }
            let (start, end) = (header_len + range.start, header_len + range.end);
            let skipped = start - start % self.alignment;
            let bytes =
                self.read_at(self.offset_of(place) + skipped, self.aligned(end - skipped))?;
            if self.index.read().find(id).as_ref() != Some(place) {
                // The record has moved, and its segment may have another one.
                return Err(self.damaged(Damage::Magic));
            }
            let bytes = Bytes::from_owner(bytes);
            Ok(bytes.slice((start - skipped) as usize..(end - skipped) as usize))
        })
    }

    fn read_at(&self, offset: u64, len: usize) -> Result<IoBuffer, TierError> {
        let mut buffer = self.pool.take(len);
        let read = self.backend.read(offset, &mut buffer);
        read.map_err(|source| self.failure("read", source))?;
        Ok(buffer)
    }

    /// Describes each of these objects, in this order. Reads the headers of those that the index does not
    /// know whole.
    pub(super) fn describe(
        &self,
        objects: &[(ObjectId, Location)],
    ) -> Vec<LogResult<StoredObject>> {
        let known = objects.iter().map(|(id, place)| Ok(place.layout.object(id)));
        let mut results: Vec<LogResult<StoredObject>> = known.collect();
        let is_unknown = |number: &usize| matches!(results[*number], Ok(None));
        let unknown: Vec<_> = (0..objects.len()).filter(is_unknown).collect();
        for numbers in unknown.chunks(HEADERS) {
            let places: Vec<_> =
                numbers.iter().map(|number| (*number, objects[*number].1)).collect();
            let header = |place: &Location| place.header_len() as u64;
            self.read_places(&places, header, |number, place, read| {
                let id = &objects[number].0;
                let header = read.map_err(|source| self.failure("read", source));
                let object = header.and_then(|read| self.parse_header(id, place, &read));
                results[number] = match object {
                    // It may have moved.
                    Err(_) => self.read_from(self.index.read().find(id), id, |place| {
                        let len = self.aligned(place.header_len() as u64);
                        let header = self.read_at(self.offset_of(place), len)?;
                        self.parse_header(id, place, &header)
                    }),
                    object => object.map(Some),
                };
            });
        }
        results
    }
}
