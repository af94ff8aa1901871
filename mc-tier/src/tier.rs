//! The contract of tiers.

use core::fmt;
use core::num::NonZeroUsize;
use core::ops::Range;

use bytes::Bytes;

use crate::error::TierError;
use crate::object::{ObjectBytes, ObjectId, StoredObject};

/// Keeps objects below memory.
///
/// An object is there as a whole or not at all. Its bytes are compared with its checksums on every
/// read: a tier returns the bytes of the put, or an error.
///
/// The methods block, because file systems do; they may be called by several threads at once. Call
/// them from threads that may block: in an async program by `tokio::task::spawn_blocking`, whose
/// caller may be cancelled while the operation itself runs to its end. The ids and bytes that
/// a call takes are cheap to move into such a task.
///
/// With the feature `conformance`, the module of this name tests implementations.
pub trait Tier: Send + Sync + fmt::Debug {
    /// Stores an object. Replaces the object that has this id already, as a whole.
    ///
    /// # Errors
    /// What the medium says. The tier then holds the object as it was before, or the new one.
    fn put(&self, id: &ObjectId, object: &ObjectBytes) -> Result<(), TierError>;

    /// Returns an object; `None` when there is no such object.
    ///
    /// # Errors
    /// [`TierError::Damaged`] and what the medium says.
    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError>;

    /// Returns a range of an object, counted from the first byte of its first slice; `None` when there
    /// is no such object. Reads and compares the slices that the range touches, and no others.
    ///
    /// # Errors
    /// [`TierError::Range`] for an empty range and a range that exceeds the object,
    /// [`TierError::Damaged`] and what the medium says.
    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError>;

    /// Removes an object. Returns whether it was there.
    ///
    /// # Errors
    /// What the medium says. The object may be removed.
    fn remove(&self, id: &ObjectId) -> Result<bool, TierError>;

    /// Lists up to `limit` objects after the place of `after`, in an order of the tier's own. A scan
    /// begins without a cursor, goes on with the cursor of each page, and ends with the page that has
    /// none; the page before may be empty. An object that is there from the begin to the end of the
    /// scan is listed exactly once.
    ///
    /// # Errors
    /// What the medium says when nothing can be listed at all. Single objects that cannot be read are
    /// in [`ScanPage::unreadable`].
    fn scan(&self, after: Option<&ScanCursor>, limit: NonZeroUsize) -> Result<ScanPage, TierError>;

    /// Counts the objects and the bytes that they take of the medium.
    ///
    /// # Errors
    /// What the medium says.
    fn usage(&self) -> Result<TierUsage, TierError>;
}

/// A part of a scan.
#[derive(Debug)]
pub struct ScanPage {
    /// Objects that can be read, as far as a tier knows without reading their bytes.
    pub objects: Vec<StoredObject>,
    /// Why others cannot be read.
    pub unreadable: Vec<TierError>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<ScanCursor>,
}

/// A place in a scan. Only the tier that made it knows its meaning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanCursor(Box<str>);

impl ScanCursor {
    /// Makes a cursor of a tier's own text.
    #[must_use]
    pub fn new(place: impl Into<Box<str>>) -> Self {
        Self(place.into())
    }

    /// The tier's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What objects take of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUsage {
    /// Number of objects.
    pub objects: u64,
    /// Bytes of the medium, with what the tier keeps beside the objects' bytes.
    pub bytes: u64,
}
