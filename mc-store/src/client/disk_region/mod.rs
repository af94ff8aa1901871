//! The local disk as memory that peers read: where objects are in it, and looks at what is there.

mod look;
mod places;
mod region;

pub(super) use look::LocalDiskLook;
pub(super) use places::Places;
pub(super) use region::LocalDiskRegion;
