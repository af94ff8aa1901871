//! The report of a master.

use crate::side_tables::local_disk::LocalDiskInfo;
use crate::space::segment::SegmentInfo;
use crate::vocabulary::metrics::Totals;

/// The state of a master in numbers.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MasterReport {
    /// The totals since the master began, and what there is now.
    pub totals: Totals,
    /// Every segment, suspended ones included.
    pub segments: Vec<SegmentInfo>,
    /// Bytes that there is room for on the shared tier; zero without one, `None` when it
    /// has no limit.
    pub files_capacity: Option<u64>,
    /// The clients' local disks.
    pub local_disks: Vec<LocalDiskInfo>,
}
