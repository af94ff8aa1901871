//! Encryption at rest: a tier whose objects are sealed with the key of their tenant.
//!
//! An object of a tenant with a key is stored under the tenant's name with [`SEALED`] before it, so that it
//! can be told from one in clear, and removed, without any key. Its bytes are those of
//! [`stream`]; keys, generations and the names of tenants stay readable.

mod keys;
mod source;
mod stream;

use core::num::NonZeroUsize;
use core::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use mc_types::ByteSize;

use crate::error::{Damage, TierError};
use crate::object::{ObjectBytes, ObjectId, SEALED, StoredObject};
use crate::tier::{MediumSpace, ScanCursor, ScanPage, Tier, TierUsage, Watermarks};

pub use keys::{KeysError, TierKeys};
pub use source::{KeySource, SourceError};
use stream::{HEADER_LEN, Header, overhead, read_header, stored_len};

/// A range that ends in front of this is read with the header in one piece: a second read would take longer
/// than the bytes.
const WITH_HEADER: u64 = 256 << 10;

type SealedResult<T> = Result<Option<T>, TierError>;

/// A tier that seals what it puts into another one.
///
/// Objects of tenants without a key are stored in clear, and those that are there in clear can be read. Sealed
/// objects need the key that they were sealed with to be read, and none to be listed, counted, evicted and
/// removed. Their entries in a scan have [no checksums](StoredObject::has_checksums).
///
/// Every range is authenticated, also by [`get_unverified`](Tier::get_unverified): without the key
/// no byte can be changed or exchanged unnoticed.
#[derive(Debug)]
pub struct SealedTier {
    inner: Arc<dyn Tier>,
    keys: Arc<TierKeys>,
}

impl SealedTier {
    /// Seals what is put into `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Tier>, keys: Arc<TierKeys>) -> Self {
        Self { inner, keys }
    }

    /// Where an object may be: sealed, and in clear. The likelier place comes first.
    fn places(&self, id: &ObjectId) -> [ObjectId; 2] {
        let (sealed, clear) = (sealed(id), id.clone());
        if self.keys.has_key_of(id.tenant()) { [sealed, clear] } else { [clear, sealed] }
    }

    /// The object to put, and where.
    fn to_put(
        &self,
        id: &ObjectId,
        object: &ObjectBytes,
    ) -> Result<Option<(ObjectId, ObjectBytes)>, TierError> {
        let Some(key) = self.keys.sealing(id.tenant()) else { return Ok(None) };
        Ok(Some((sealed(id), stream::seal(&key, id, object)?)))
    }

    /// The key of a sealed object.
    fn key_of(&self, id: &ObjectId, header: &Header) -> Result<stream::ObjectKey, TierError> {
        let key = self.keys.opening(id.tenant(), header.key_name());
        let key = key.ok_or_else(|| TierError::NoKey {
            tenant: id.tenant().into(),
            key: header.key_name().to_string(),
        })?;
        Ok(key.of_object(id, header))
    }

    fn open(&self, id: &ObjectId, stored: &ObjectBytes) -> Result<ObjectBytes, TierError> {
        let header =
            read_header(stored.slices()[0].bytes()).map_err(|source| damaged(id, source))?;
        let key = self.key_of(id, &header)?;
        stream::open(&key, &header, stored).map_err(|source| damaged(id, source))
    }

    fn open_range(
        &self,
        id: &ObjectId,
        place: &ObjectId,
        range: &Range<u64>,
    ) -> SealedResult<Bytes> {
        let in_one = !range.is_empty() && range.end <= WITH_HEADER;
        // If that is the whole object.
        let first = if in_one { stored_len(range.end) } else { HEADER_LEN };
        let head = match self.inner.get_unverified(place, 0..first) {
            Err(TierError::Range { .. }) if in_one => {
                self.inner.get_unverified(place, 0..HEADER_LEN)?
            }
            head => head?,
        };
        let Some(head) = head else { return Ok(None) };
        let header = read_header(&head).map_err(|source| damaged(id, source))?;
        let len = header.object_len();
        if range.is_empty() || range.end > len {
            return Err(TierError::Range { range: range.clone(), len });
        }
        let key = self.key_of(id, &header)?;
        let chunks = header.chunks(range);
        let sealed = match head.len() as u64 >= chunks.end {
            true => Some(head.slice(chunks.start as usize..chunks.end as usize)),
            false => self.inner.get_unverified(place, chunks)?,
        };
        let Some(sealed) = sealed else { return Ok(None) };
        let opened = stream::open_range(&key, &header, range, &sealed);
        opened.map(Some).map_err(|source| damaged(id, source))
    }

    fn get_part(
        &self,
        id: &ObjectId,
        range: &Range<u64>,
        in_clear: impl Fn() -> SealedResult<Bytes>,
    ) -> SealedResult<Bytes> {
        for place in self.places(id) {
            let found = match place == *id {
                true => in_clear(),
                false => self.open_range(id, &place, range),
            };
            if !matches!(found, Ok(None)) {
                return found;
            }
        }
        Ok(None)
    }
}

impl TierKeys {
    /// The id that an object is stored under in the inner tier of a [`SealedTier`] with these keys, if it is put now.
    #[must_use]
    pub fn stored_id(&self, id: ObjectId) -> ObjectId {
        if self.has_key_of(id.tenant()) { sealed(&id) } else { id }
    }
}

/// The id that an object is stored under when it is sealed.
fn sealed(id: &ObjectId) -> ObjectId {
    id.with_tenant(format!("{SEALED}{}", id.tenant()))
}

/// The object's id, and whether it is sealed, by the id that it is stored under.
fn clear(stored: &ObjectId) -> (ObjectId, bool) {
    match stored.tenant().strip_prefix(SEALED) {
        Some(tenant) => (stored.with_tenant(tenant), true),
        None => (stored.clone(), false),
    }
}

fn damaged(id: &ObjectId, source: Damage) -> TierError {
    TierError::Damaged { path: PathBuf::from(format!("the sealed object {id}")), source }
}

/// Returns the description of an object, by that of the inner tier.
fn described(stored: &StoredObject) -> Result<StoredObject, TierError> {
    let (id, is_sealed) = clear(stored.id());
    if !is_sealed {
        return Ok(stored.clone());
    }
    let beside = overhead(stored.object_len());
    let described = beside.and_then(|beside| stored.opened(id.clone(), beside));
    described.ok_or_else(|| damaged(&id, Damage::Seal))
}

impl Tier for SealedTier {
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        match self.to_put(id, object)? {
            Some((id, object)) => self.inner.put(&id, &object),
            None => self.inner.put(id, object),
        }
    }

    /// Holds all of the sealed objects in memory.
    fn put_many(&self, objects: &[(ObjectId, ObjectBytes)]) -> Result<(), TierError> {
        let to_put = |(id, object): &(ObjectId, ObjectBytes)| {
            Ok(self.to_put(id, object)?.unwrap_or_else(|| (id.clone(), object.clone())))
        };
        self.inner.put_many(&objects.iter().map(to_put).collect::<Result<Vec<_>, TierError>>()?)
    }

    fn put_at_once(&self) -> usize {
        self.inner.put_at_once()
    }

    fn put_making_room(
        &self,
        id: &ObjectId,
        object: &ObjectBytes,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<(), TierError> {
        let evicted = &mut |stored| evicted(clear(&stored).0);
        match self.to_put(id, object)? {
            Some((id, object)) => self.inner.put_making_room(&id, &object, evicted),
            None => self.inner.put_making_room(id, object, evicted),
        }
    }

    fn get(&self, id: &ObjectId) -> SealedResult<ObjectBytes> {
        for place in self.places(id) {
            if let Some(found) = self.inner.get(&place)? {
                return if place == *id {
                    Ok(Some(found))
                } else {
                    self.open(id, &found).map(Some)
                };
            }
        }
        Ok(None)
    }

    fn get_many(&self, ids: &[ObjectId]) -> Vec<SealedResult<ObjectBytes>> {
        let likely: Vec<ObjectId> = ids.iter().map(|id| self.likely(id)).collect();
        let found = self.inner.get_many(&likely).into_iter().zip(ids).zip(&likely);
        let opened = found.map(|((found, id), place)| match found? {
            None => self.get(id),
            Some(found) if place == id => Ok(Some(found)),
            Some(found) => self.open(id, &found).map(Some),
        });
        opened.collect()
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> SealedResult<Bytes> {
        self.get_part(id, &range, || self.inner.get_range(id, range.clone()))
    }

    fn get_unverified(&self, id: &ObjectId, range: Range<u64>) -> SealedResult<Bytes> {
        self.get_part(id, &range, || self.inner.get_unverified(id, range.clone()))
    }

    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        let [likely, other] = self.places(id);
        Ok(self.inner.remove(&likely)? || self.inner.remove(&other)?)
    }

    fn remove_many(&self, ids: &[ObjectId]) -> Result<u64, TierError> {
        let (likely, others): (Vec<_>, Vec<_>) =
            ids.iter().map(|id| self.places(id)).map(|[likely, other]| (likely, other)).unzip();
        let removed = self.inner.remove_many(&likely)?;
        // Where many are removed by one request, the number of those that were there is unknown.
        let is_known = self.inner.removed_at_once() == 1;
        if is_known && removed == ids.len() as u64 {
            return Ok(removed);
        }
        let others = self.inner.remove_many(&others)?;
        Ok(if is_known { removed + others } else { removed })
    }

    fn removed_at_once(&self) -> usize {
        self.inner.removed_at_once()
    }

    /// Sealed objects whose lengths cannot be are among the unreadable ones.
    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        let ScanPage { objects: stored, mut unreadable, next } = self.inner.scan(after, limit)?;
        let mut objects = Vec::with_capacity(stored.len());
        for stored in &stored {
            match described(stored) {
                Ok(object) => objects.push(object),
                Err(error) => unreadable.push(error),
            }
        }
        Ok(ScanPage { objects, unreadable, next })
    }

    fn usage(&self) -> Result<TierUsage, TierError> {
        self.inner.usage()
    }

    fn capacity(&self) -> Option<ByteSize> {
        self.inner.capacity()
    }

    fn evict(
        &self,
        watermarks: Watermarks,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<TierUsage, TierError> {
        self.inner.evict(watermarks, &mut |stored| evicted(clear(&stored).0))
    }

    fn clean_up(&self) -> Result<u64, TierError> {
        self.inner.clean_up()
    }

    fn wants_clean_up(&self) -> bool {
        self.inner.wants_clean_up()
    }

    fn max_object_len(&self) -> u64 {
        stream::longest_within(self.inner.max_object_len())
    }

    fn medium(&self) -> Result<Option<MediumSpace>, TierError> {
        self.inner.medium()
    }
}

impl SealedTier {
    fn likely(&self, id: &ObjectId) -> ObjectId {
        let [likely, _] = self.places(id);
        likely
    }
}
