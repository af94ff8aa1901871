//! Causes of the removal of objects.

/// Why an object is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Removal {
    /// An administrator or a client removed it.
    Requested,
    /// The object made room for others.
    Evicted,
    /// Its last segment is gone.
    SegmentLost,
    /// Another value was put in its place.
    Replaced,
    /// All that was left of it was on disks, and went.
    DiskLost,
    /// Its time after it was first read was over.
    Expired,
    /// Its last replica had bytes that were not put there.
    Damaged,
}
