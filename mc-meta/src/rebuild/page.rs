//! The state as records in pages: where an export is, and what a page has.

use mc_types::{SegmentId, Time};

use crate::record::Record;
use crate::side_tables::retained::GrantId;

/// Slots of a shard that one page looks at while the shard is locked.
pub(crate) const SLOTS: u32 = 256;

/// Segments in one page, and spaces that are kept.
pub(crate) const PAGE: usize = 256;

/// The position of an export. The default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCursor(pub(crate) At);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum At {
    #[default]
    Start,
    Segments {
        after: SegmentId,
    },
    Objects {
        shard: u32,
        slot: u32,
    },
    /// Space that a [rebuild](crate::Rebuild) keeps from others.
    Noted {
        after: Option<(u32, u64)>,
    },
    /// Space that a shard keeps from others.
    Kept {
        shard: u32,
        after: Option<(Time, GrantId)>,
    },
}

/// Part of an export.
#[derive(Clone, Debug)]
pub struct ExportPage {
    /// The records, in the order in which they are to be applied; may be empty
    /// although more follow.
    pub records: Vec<Record>,
    /// The shard that its objects are in; `None` for a page without objects.
    pub shard: Option<u32>,
    /// The position of the next page; `None` at the end.
    pub next: Option<ExportCursor>,
}

impl ExportPage {
    /// Behind the last page.
    pub(crate) const END: Self = Self { records: Vec::new(), shard: None, next: None };
}
