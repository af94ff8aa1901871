//! The contract of tiers.

use core::fmt;
use core::num::NonZeroUsize;
use core::ops::Range;

use bytes::Bytes;
use mc_types::{ByteSize, Generation};

use crate::error::TierError;
use crate::object::{MAX_OBJECT_LEN, ObjectBytes, ObjectId, StoredObject};
use crate::oldest::Oldest;

/// Objects that one page of an eviction's scan has.
const SCAN_PAGE: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");

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

    /// Stores objects as [`put`](Self::put) does; by default one after the other. A tier for which a file or a request
    /// costs more than bytes keeps those of one [run](Generation::run) together, in a
    /// [pack](crate::pack_file), which goes as a whole when it is evicted; what is removed from it goes when half of
    /// it is.
    ///
    /// # Errors
    /// As of [`put`](Self::put), for the first that cannot be stored. Any of the others may be.
    fn put_many(&self, objects: &[(ObjectId, ObjectBytes)]) -> Result<(), TierError> {
        objects.iter().try_for_each(|(id, object)| self.put(id, object))
    }

    /// Returns how many objects [`put_many`](Self::put_many) stores by one operation of the medium; by default 1.
    fn put_at_once(&self) -> usize {
        1
    }

    /// Stores an object as [`put`](Self::put) does, and evicts the oldest objects where there is no room
    /// for it: by default a sixteenth of all. Calls `evicted` with the id of each object after its removal.
    ///
    /// # Errors
    /// As of [`put`](Self::put) and [`evict`](Self::evict). Objects that `evicted` was called with are gone.
    fn put_making_room(
        &self,
        id: &ObjectId,
        object: &ObjectBytes,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<(), TierError> {
        match self.put(id, object) {
            Err(TierError::Full { .. }) => {
                let used = self.usage()?.bytes;
                let low = ByteSize::bytes(used - used.div_ceil(16));
                self.evict(Watermarks { high: low, low }, evicted)?;
                self.put(id, object)
            }
            put => put,
        }
    }

    /// Returns an object; `None` when there is no such object.
    ///
    /// # Errors
    /// [`TierError::Damaged`] and what the medium says.
    fn get(&self, id: &ObjectId) -> Result<Option<ObjectBytes>, TierError>;

    /// Returns each of these objects, in their order, as [`get`](Self::get) does; by default one after
    /// the other. Holds all of them in memory.
    ///
    /// # Errors
    /// Each object has a result of its own, as of [`get`](Self::get).
    fn get_many(&self, ids: &[ObjectId]) -> Vec<Result<Option<ObjectBytes>, TierError>> {
        ids.iter().map(|id| self.get(id)).collect()
    }

    /// Returns a range of an object, counted from the first byte of its first slice; `None` when there
    /// is no such object. Reads and compares the slices that the range touches, and no others.
    ///
    /// # Errors
    /// [`TierError::Range`] for an empty range and a range that exceeds the object,
    /// [`TierError::Damaged`] and what the medium says.
    fn get_range(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError>;

    /// Returns a range of an object as [`get_range`](Self::get_range) does, for a caller that compares the
    /// checksums: a tier reads no more than the range, and need not compare them. Long objects are read by
    /// many such calls, so that a tier whose slices are long should have this method; by default it is
    /// `get_range`.
    ///
    /// # Errors
    /// As of [`get_range`](Self::get_range).
    fn get_unverified(&self, id: &ObjectId, range: Range<u64>) -> Result<Option<Bytes>, TierError> {
        self.get_range(id, range)
    }

    /// Removes an object. Returns whether it was there.
    ///
    /// # Errors
    /// What the medium says. The object may be removed.
    fn remove(&self, id: &ObjectId) -> Result<bool, TierError>;

    /// Removes objects; by default one after the other. Returns how many of them were there; a tier that
    /// removes many by one request counts those that were not, too, for it cannot tell.
    ///
    /// # Errors
    /// As of [`remove`](Self::remove). Any of the objects may be removed.
    fn remove_many(&self, ids: &[ObjectId]) -> Result<u64, TierError> {
        ids.iter().try_fold(0, |removed, id| Ok(removed + u64::from(self.remove(id)?)))
    }

    /// Returns how many objects [`remove_many`](Self::remove_many) removes by one operation of the medium; by
    /// default 1.
    fn removed_at_once(&self) -> usize {
        1
    }

    /// Lists up to `limit` objects after the place of `after`, in an order of the tier's own. A scan
    /// begins without a cursor, continues with the cursor of each page, and ends with the page that has
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

    /// Returns the bytes that objects can take now, with what the tier keeps beside them; `None` where the
    /// tier does not know. It may change, and does not block.
    fn capacity(&self) -> Option<ByteSize> {
        None
    }

    /// Evicts the oldest objects when all of them together take more than the high watermark, until
    /// they take no more than the low one. Calls `evicted` with the id of each object after its
    /// removal, and returns what was removed.
    ///
    /// Unless a tier knows better, the oldest objects are those with the lowest generations. That scans
    /// all objects, and takes memory in the number of those that are evicted.
    ///
    /// An object that cannot be removed keeps no other.
    ///
    /// # Errors
    /// What the medium says when it removes none. Objects that `evicted` was called with are gone, also when
    /// there is an error.
    fn evict(
        &self,
        watermarks: Watermarks,
        evicted: &mut dyn FnMut(ObjectId),
    ) -> Result<TierUsage, TierError> {
        let mut removed = TierUsage::default();
        let Some(wanted) = watermarks.excess(self.usage()?) else { return Ok(removed) };
        let mut failure = None;
        for ((_, id), len) in oldest(self, wanted)? {
            match self.remove(&id) {
                Ok(true) => {
                    removed.objects += 1;
                    removed.bytes += len;
                    evicted(id);
                }
                Ok(false) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.filter(|_| removed.objects == 0).map_or(Ok(removed), Err)
    }

    /// Removes what writers that died have left behind, and what removed objects have left in files that they
    /// shared. Returns the number of files or the like; 0 unless a tier has any.
    ///
    /// # Errors
    /// What the medium says.
    fn clean_up(&self) -> Result<u64, TierError> {
        Ok(0)
    }

    /// Returns whether objects that this process removed have left something to [clean up](Self::clean_up).
    /// Does not block.
    fn wants_clean_up(&self) -> bool {
        false
    }

    /// Returns the length of the longest object that it can take, in bytes. Those a little shorter may
    /// still be refused as too long.
    fn max_object_len(&self) -> u64 {
        MAX_OBJECT_LEN.as_u64()
    }

    /// Returns the bytes of the medium; `None` where it has no limit of its own, or none that is known.
    ///
    /// # Errors
    /// What the medium says.
    fn medium(&self) -> Result<Option<MediumSpace>, TierError> {
        Ok(None)
    }
}

/// An object in the order of its age.
type Aged = (Generation, ObjectId);

/// The oldest objects that have the wanted bytes together, and the bytes of each.
fn oldest<T: Tier + ?Sized>(tier: &T, wanted: u64) -> Result<Vec<(Aged, u64)>, TierError> {
    let mut oldest = Oldest::new(wanted);
    let mut after = None;
    loop {
        let page = tier.scan(after.as_ref(), SCAN_PAGE)?;
        for object in page.objects {
            oldest.add((object.id().generation(), object.id().clone()), object.object_len());
        }
        after = page.next;
        if after.is_none() {
            return Ok(oldest.into_vec());
        }
    }
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

/// When eviction begins, and when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Objects are evicted when they take more than this.
    pub high: ByteSize,
    /// Eviction ends when the others take no more than this.
    pub low: ByteSize,
}

impl Watermarks {
    /// Eviction above 95 % of a quota, down to 90 %: the ratios by which a master evicts from memory.
    #[must_use]
    pub const fn of_quota(quota: ByteSize) -> Self {
        // Divided first, so that no quota is too large.
        let twentieth = quota.as_u64() / 20;
        Self { high: ByteSize::bytes(twentieth * 19), low: ByteSize::bytes(twentieth * 18) }
    }

    /// The bytes that an eviction removes; `None` when the objects take no more than the high one.
    pub(crate) fn excess(self, used: TierUsage) -> Option<u64> {
        let is_high = used.bytes > self.high.as_u64();
        is_high.then(|| used.bytes.saturating_sub(self.low.as_u64()))
    }
}

/// The bytes of a medium, such as a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediumSpace {
    /// All bytes of the medium.
    pub total: ByteSize,
    /// Bytes that can still be written.
    pub free: ByteSize,
}

/// The space that objects take of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierUsage {
    /// Number of objects.
    pub objects: u64,
    /// Bytes of the medium, with what the tier keeps beside the objects' bytes.
    pub bytes: u64,
}
