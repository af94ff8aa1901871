//! A tier in memory.

use core::num::NonZeroUsize;
use core::ops::{Bound, Range};
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::RwLock;

use crate::error::TierError;
use crate::object::{ObjectBytes, ObjectId, StoredObject};
use crate::tier::{ScanCursor, ScanPage, Tier, TierUsage};

/// A tier in this process's memory, for tests. Clones are the same tier.
#[derive(Clone, Debug, Default)]
pub struct MemoryTier(Arc<RwLock<StoredObjects>>);

#[derive(Debug, Default)]
struct StoredObjects {
    /// Objects in the order in which they were put.
    by_number: BTreeMap<u64, (ObjectId, ObjectBytes)>,
    numbers: BTreeMap<ObjectId, u64>,
}

impl MemoryTier {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Tier for MemoryTier {
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        let mut objects = self.0.write();
        let next = objects.by_number.last_key_value().map_or(0, |(last, _)| last + 1);
        let number = *objects.numbers.entry(id.clone()).or_insert(next);
        objects.by_number.insert(number, (id.clone(), object.clone()));
        Ok(())
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        let objects = self.0.read();
        let number = objects.numbers.get(id);
        Ok(number.map(|number| objects.by_number[number].1.clone()))
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        let Some(object) = self.get(id)? else { return Ok(None) };
        let stored = StoredObject::of(id.clone(), &object);
        let Some(cover) = stored.cover(&range) else {
            return Err(TierError::Range { range, len: stored.object_len() });
        };
        let mut bytes = BytesMut::new();
        for slice in &object.slices()[cover.slices.clone()] {
            bytes.extend_from_slice(slice.bytes());
        }
        Ok(Some(bytes.freeze().slice(cover.within(&range))))
    }

    fn get_unverified(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        let Some(object) = self.get(id)? else { return Ok(None) };
        if let [only] = object.slices()
            && !range.is_empty()
            && range.end <= only.info().len
        {
            // All of it is in memory.
            return Ok(Some(only.bytes().slice(range.start as usize..range.end as usize)));
        }
        self.get_range(id, range)
    }

    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        let mut objects = self.0.write();
        let number = objects.numbers.remove(id);
        Ok(number.is_some_and(|number| objects.by_number.remove(&number).is_some()))
    }

    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        // A cursor that is not from here is behind everything.
        let number = |cursor: &ScanCursor| cursor.as_str().parse().unwrap_or(u64::MAX);
        let begin = after.map_or(Bound::Unbounded, |cursor| Bound::Excluded(number(cursor)));
        let objects = self.0.read();
        let mut page = ScanPage { objects: Vec::new(), unreadable: Vec::new(), next: None };
        for (number, (id, object)) in objects.by_number.range((begin, Bound::Unbounded)) {
            page.objects.push(StoredObject::of(id.clone(), object));
            if page.objects.len() == limit.get() {
                page.next = Some(ScanCursor::new(number.to_string()));
                break;
            }
        }
        Ok(page)
    }

    fn usage(&self) -> Result<TierUsage, TierError> {
        let objects = self.0.read();
        let stored = objects.by_number.values().flat_map(|(_, object)| object.slices());
        Ok(TierUsage {
            objects: objects.by_number.len() as u64,
            bytes: stored.map(|slice| slice.info().len).sum(),
        })
    }
}
