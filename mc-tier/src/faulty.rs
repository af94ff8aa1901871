//! A tier that fails when a test wants it to.

use core::num::NonZeroUsize;
use core::ops::Range;
use core::time::Duration;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use mc_types::{ByteSize, Checksum};

use crate::chances::{Chances, broken_disk};
use crate::error::{Damage, TierError};
use crate::object::{ObjectBytes, ObjectId};
use crate::tier::{MediumSpace, ScanCursor, ScanPage, Tier, TierUsage};

/// Wraps a tier that fails at random, as a disk does that is full, broken or slow. The same seed and
/// operations give the same faults.
#[derive(Debug)]
pub struct FaultyTier<T> {
    inner: T,
    chances: Chances<Faults>,
}

/// The faults of a [`FaultyTier`]. Chances are from 0, never, to 1, always.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Faults {
    /// The chance that a put finds the medium full.
    pub full: f64,
    /// The chance that a put or a removal fails as on a broken disk. Half of those that fail have
    /// stored or removed the object.
    pub write_fails: f64,
    /// The chance that a get, a scan or a count fails as on a broken disk.
    pub read_fails: f64,
    /// The chance that a get finds a flipped bit in an object that is there.
    pub flipped_bit: f64,
    /// The time that every operation takes longer.
    pub delay: Duration,
}

impl<T: Tier> FaultyTier<T> {
    /// A tier without faults yet.
    #[must_use]
    pub fn new(inner: T, seed: u64) -> Self {
        Self { inner, chances: Chances::new(seed) }
    }

    /// Has these faults from now on.
    pub fn set(&self, faults: Faults) {
        self.chances.set(faults);
    }

    /// Fails before, after or instead of a change.
    fn change<R>(&self, change: impl FnOnce() -> Result<R, TierError>) -> Result<R, TierError> {
        self.chances.wait(|faults| faults.delay);
        if !self.chances.happens(|faults| faults.write_fails) {
            return change();
        }
        if self.chances.happens(|_| 0.5) {
            change()?;
        }
        Err(broken("write"))
    }

    /// Fails instead of a read.
    fn read<R>(&self, read: impl FnOnce() -> Result<R, TierError>) -> Result<R, TierError> {
        self.chances.wait(|faults| faults.delay);
        if self.chances.happens(|faults| faults.read_fails) {
            return Err(broken("read"));
        }
        read()
    }

    /// Fails when a bit of the object was flipped.
    fn flip(&self, id: &ObjectId) -> Result<(), TierError> {
        if !self.chances.happens(|faults| faults.flipped_bit) {
            return Ok(());
        }
        let Some(object) = self.inner.get(id)? else { return Ok(()) };
        let expected = object.slices()[0].info().checksum;
        let found = Checksum::from_crc32c(!expected.as_u32());
        let source = Damage::Slice { index: 0, expected, found };
        Err(TierError::Damaged { path: PathBuf::from(PLACE), source })
    }
}

/// The path in errors.
const PLACE: &str = "faulty";

fn broken(action: &'static str) -> TierError {
    TierError::File { action, path: PathBuf::from(PLACE), source: broken_disk() }
}

impl<T: Tier> Tier for FaultyTier<T> {
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError> {
        if self.chances.happens(|faults| faults.full) {
            let (path, source) = (PathBuf::from(PLACE), io::ErrorKind::StorageFull.into());
            return Err(TierError::Full { action: "write", path, source });
        }
        self.change(|| self.inner.put(id, object))
    }

    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError> {
        self.read(|| {
            self.flip(id)?;
            self.inner.get(id)
        })
    }

    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.read(|| {
            self.flip(id)?;
            self.inner.get_range(id, range)
        })
    }

    fn get_unverified(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.read(|| {
            self.flip(id)?;
            self.inner.get_unverified(id, range)
        })
    }

    fn remove(&self, id: &ObjectId) -> Result<bool, TierError> {
        self.change(|| self.inner.remove(id))
    }

    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError> {
        self.read(|| self.inner.scan(after, limit))
    }

    fn usage(&self) -> Result<TierUsage, TierError> {
        self.read(|| self.inner.usage())
    }

    fn clean_up(&self) -> Result<u64, TierError> {
        self.change(|| self.inner.clean_up())
    }

    fn capacity(&self) -> Option<ByteSize> {
        self.inner.capacity()
    }

    fn medium(&self) -> Result<Option<MediumSpace>, TierError> {
        self.read(|| self.inner.medium())
    }
}
