//! The caller's segments as strategies see them.

/// Tells about the caller's segments, each an index into the caller's list.
///
/// Only the segments that a strategy looks at are asked about, so the answers can be
/// read from live segments; no snapshot of all of them is needed. Wrong or outdated
/// answers make for a worse order and nothing else.
///
/// Everything has a default: segments are equally large and empty, each on a host of
/// its own, and none is nearer than another. `()` is the view that knows no more.
pub trait Segments {
    /// Bytes of the segment.
    fn capacity(&self, segment: usize) -> u64 {
        let _ = segment;
        u64::MAX
    }

    /// Free bytes of the segment, in however many regions.
    fn available(&self, segment: usize) -> u64 {
        self.capacity(segment)
    }

    /// Bytes of its largest free region.
    fn largest_free(&self, segment: usize) -> u64 {
        self.available(segment)
    }

    /// The host that the segment is lost with: equal numbers are the same host.
    fn host(&self, segment: usize) -> u64 {
        segment as u64
    }

    /// The segments at this distance from the writer: 0 for its own host, 1 for its
    /// rack, and on as far as the caller tells, up to
    /// [`MAX_DISTANCES`](super::MAX_DISTANCES). `None` ends it: what is farther is all
    /// alike.
    ///
    /// Given by distance, and not as the distance of a segment, because the nearest
    /// among many thousands could only be found by asking about all.
    fn near(&self, distance: u32) -> Option<&[usize]> {
        let _ = distance;
        None
    }
}

impl Segments for () {}
