//! Reading an object.

use core::ops::Range;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::{GetOptions, GetResult, ObjectStoreExt as _};

use super::objects::Objects;
use crate::error::{Damage, TierError};
use crate::object::{ObjectBytes, ObjectId, SliceBytes, StoredObject};
use crate::object_file::{FORMAT, HeaderError, MAX_HEADER_LEN, parse_header};

/// How often a read begins anew because the object was replaced while it was read.
const ATTEMPTS: usize = 4;

/// A stored object whose header and length are right.
struct Opened {
    object: StoredObject,
    header_len: u64,
    /// Its first bytes, the header among them.
    first: Bytes,
    /// Tells it from those that replace it.
    tag: Option<String>,
}

/// Slices that were read, and the bytes of all of them.
struct Slices {
    bytes: Bytes,
    slices: Vec<SliceBytes>,
    /// Where the wanted range is in the bytes.
    within: Range<usize>,
}

impl Objects {
    pub(super) async fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        let read = self.read(id, None).await?;
        Ok(read.map(|read| ObjectBytes::new(read.slices).expect("the header was checked")))
    }

    pub(super) async fn get_range(
        &self,
        id: &ObjectId,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, TierError> {
        let read = self.read(id, Some(range)).await?;
        Ok(read.map(|read| read.bytes.slice(read.within)))
    }

    pub(super) async fn get_unverified(
        &self,
        id: &ObjectId,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, TierError> {
        let place = Self::place(id);
        for _ in 0..ATTEMPTS {
            let opened = self.open_object(&place, id, MAX_HEADER_LEN as u64).await?;
            let Some(opened) = opened else { return Ok(None) };
            let len = opened.object.object_len();
            if range.is_empty() || range.end > len {
                return Err(TierError::Range { range, len });
            }
            if let Some(bytes) = self.bytes(&place, &opened, &range).await? {
                return Ok(Some(bytes));
            }
        }
        Err(self.too_fast(&place))
    }

    /// Reads what is said of the object at `place`; `None` when there is no such object.
    pub(super) async fn describe(&self, place: &str) -> Result<Option<StoredObject>, TierError> {
        let Some(Opened { object, .. }) = self.open(place, MAX_HEADER_LEN as u64).await? else {
            return Ok(None);
        };
        if Self::place(object.id()) != place {
            return Err(self.damaged(place, Damage::OtherObject { found: object.id().clone() }));
        }
        Ok(Some(object))
    }

    /// Reads the slices that a range touches, or all of them.
    async fn read(
        &self,
        id: &ObjectId,
        range: Option<Range<u64>>,
    ) -> Result<Option<Slices>, TierError> {
        let place = Self::place(id);
        // Most objects that are read as a whole are there with the first request.
        let first_len = if range.is_some() { MAX_HEADER_LEN as u64 } else { self.part_len };
        for _ in 0..ATTEMPTS {
            let opened = self.open_object(&place, id, first_len).await?;
            let Some(opened) = opened else { return Ok(None) };
            let len = opened.object.object_len();
            let range = range.clone().unwrap_or(0..len);
            let Some(cover) = opened.object.cover(&range) else {
                return Err(TierError::Range { range, len });
            };
            let Some(bytes) = self.bytes(&place, &opened, &cover.bytes).await? else { continue };
            let slices = opened.object.verify(&cover, &bytes);
            let slices = slices.map_err(|damage| self.damaged(&place, damage))?;
            return Ok(Some(Slices { bytes, slices, within: cover.within(&range) }));
        }
        Err(self.too_fast(&place))
    }

    fn too_fast(&self, place: &str) -> TierError {
        let source = "others replace the object faster than it can be read".into();
        TierError::Unavailable { action: "read", path: self.shown(place), source }
    }

    /// As [`open`](Self::open), of the object of this id.
    async fn open_object(
        &self,
        place: &str,
        id: &ObjectId,
        len: u64,
    ) -> Result<Option<Opened>, TierError> {
        let opened = self.open(place, len).await?;
        match opened {
            Some(opened) if opened.object.id() != id => {
                let found = opened.object.id().clone();
                Err(self.damaged(place, Damage::OtherObject { found }))
            }
            opened => Ok(opened),
        }
    }

    /// Reads the first `len` bytes of a stored object; `None` when there is none.
    async fn open(&self, place: &str, len: u64) -> Result<Option<Opened>, TierError> {
        let path = self.path(place);
        let options = GetOptions { range: Some((0..len).into()), ..GetOptions::default() };
        let result = match self.store.get_opts(&path, options).await {
            Ok(result) => result,
            Err(error) if Self::is_missing(&error) => return Ok(None),
            Err(error) => {
                let failure = self.failure("read", place, error);
                // Of an object without bytes there is no range.
                let is_empty = !failure.is_retryable()
                    && self.store.head(&path).await.is_ok_and(|meta| meta.size == 0);
                if is_empty {
                    return Err(self.damaged(place, Damage::Length { expected: 1, found: 0 }));
                }
                return Err(failure);
            }
        };
        let (found, tag) = (result.meta.size, result.meta.e_tag.clone());
        let first = body(result).await.map_err(|error| self.failure("read", place, error))?;
        let (object, header_len) = parse_header(&first).map_err(|error| match error {
            HeaderError::Damaged(damage) => self.damaged(place, damage),
            HeaderError::Newer { found } => {
                TierError::Newer { path: self.shown(place), found, known: FORMAT }
            }
        })?;
        let header_len = header_len as u64;
        let expected = header_len + object.object_len();
        if found != expected {
            return Err(self.damaged(place, Damage::Length { expected, found }));
        }
        Ok(Some(Opened { object, header_len, first, tag }))
    }

    /// Returns a range of the object's bytes; `None` when the object is not the opened one any more.
    async fn bytes(
        &self,
        place: &str,
        opened: &Opened,
        range: &Range<u64>,
    ) -> Result<Option<Bytes>, TierError> {
        let (start, end) = (opened.header_len + range.start, opened.header_len + range.end);
        let there = (opened.first.len() as u64).clamp(start, end);
        // A range may begin behind the bytes that were read with the header.
        let first = match there > start {
            true => opened.first.slice(start as usize..there as usize),
            false => Bytes::new(),
        };
        if there == end {
            return Ok(Some(first));
        }
        let mut bytes = Vec::new();
        // The length is that of the stored object, and bounded.
        bytes.try_reserve_exact((end - start) as usize).map_err(|error| {
            TierError::from_io("get memory for", &self.shown(place), error.into())
        })?;
        bytes.extend_from_slice(&first);
        let part_len = self.part_len;
        let begins = (there..end).step_by(part_len as usize);
        let mut parts = stream::iter(begins)
            .map(|begin| self.part(place, begin..end.min(begin + part_len), opened.tag.clone()))
            .buffered(self.parts_in_flight);
        while let Some(part) = parts.try_next().await? {
            let Some(part) = part else { return Ok(None) };
            bytes.extend_from_slice(&part);
        }
        Ok(Some(bytes.into()))
    }

    /// Reads a part of a stored object; `None` when it does not have this tag any more.
    async fn part(
        &self,
        place: &str,
        range: Range<u64>,
        tag: Option<String>,
    ) -> Result<Option<Bytes>, TierError> {
        let len = range.end - range.start;
        let options =
            GetOptions { range: Some(range.into()), if_match: tag, ..GetOptions::default() };
        match self.store.get_opts(&self.path(place), options).await {
            // A store without tags has replaced it by a shorter one.
            Ok(result) if result.range.end - result.range.start != len => Ok(None),
            Ok(result) => {
                body(result).await.map(Some).map_err(|error| self.failure("read", place, error))
            }
            Err(object_store::Error::Precondition { .. }) => Ok(None),
            Err(error) if Self::is_missing(&error) => Ok(None),
            Err(error) => Err(self.failure("read", place, error)),
        }
    }

    pub(super) fn damaged(&self, place: &str, source: Damage) -> TierError {
        TierError::Damaged { path: self.shown(place), source }
    }
}

/// Reads the body of an answer, which has the bytes of the answer's range and not more: a server
/// cannot make the reader allocate more than it asked for.
pub(super) async fn body(result: GetResult) -> object_store::Result<Bytes> {
    let len = (result.range.end - result.range.start) as usize;
    let mut chunks = result.into_stream();
    let mut bytes = BytesMut::with_capacity(len);
    while let Some(chunk) = chunks.try_next().await? {
        if chunk.len() > len - bytes.len() {
            return Err(wrong_body(len));
        }
        bytes.extend_from_slice(&chunk);
    }
    if bytes.len() < len {
        return Err(wrong_body(len));
    }
    Ok(bytes.freeze())
}

fn wrong_body(len: usize) -> object_store::Error {
    let source = format!("the answer has not the {len} bytes that it announced").into();
    object_store::Error::Generic { store: "object store", source }
}
