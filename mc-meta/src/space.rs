//! The memory that clients contribute, and where in it the replicas of an object go.
//!
//! A [`Segment`](segment::Segment) is one client's memory with its allocator. The
//! [`SegmentTable`](table::SegmentTable) knows all of them, which take new objects and on which
//! hosts they are. [`place`] chooses segments for a put by the allocation strategy.

pub(crate) mod allocator;
pub(crate) mod place;
pub(crate) mod pool;
pub(crate) mod replica;
pub(crate) mod segment;
pub(crate) mod strategy;
pub(crate) mod table;
