//! Byte ranges inside a segment.

use core::fmt;

/// A range of bytes `[offset, offset + len)` inside one segment. Its end never
/// overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    offset: u64,
    len: u64,
}

impl Extent {
    /// The range of `len` bytes from `offset`; `None` when its end would pass
    /// `u64::MAX`.
    #[must_use]
    pub const fn new(offset: u64, len: u64) -> Option<Self> {
        match offset.checked_add(len) {
            Some(_) => Some(Self { offset, len }),
            None => None,
        }
    }

    /// First byte.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Bytes in the range.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Returns whether the range has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// One past the last byte.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Returns whether every byte of `inner` is in this range.
    #[must_use]
    pub const fn contains(self, inner: Self) -> bool {
        self.offset <= inner.offset && inner.end() <= self.end()
    }

    /// Returns whether the two ranges share a byte.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.offset < other.end()
            && other.offset < self.end()
            && !self.is_empty()
            && !other.is_empty()
    }

    /// The part `[start, start + len)` counted from this range's first byte;
    /// `None` when it does not fit inside.
    #[must_use]
    pub const fn part(self, start: u64, len: u64) -> Option<Self> {
        match start.checked_add(len) {
            Some(end) if end <= self.len => Some(Self { offset: self.offset + start, len }),
            _ => None,
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}, {:#x})", self.offset, self.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, len: u64) -> Extent {
        Extent::new(offset, len).unwrap()
    }

    #[test]
    fn the_end_cannot_overflow() {
        assert!(Extent::new(u64::MAX, 1).is_none());
        assert_eq!(extent(u64::MAX, 0).end(), u64::MAX);
    }

    #[test]
    fn neighbours_do_not_overlap() {
        assert!(!extent(0, 4).overlaps(extent(4, 4)));
        assert!(extent(0, 5).overlaps(extent(4, 4)));
        assert!(!extent(2, 0).overlaps(extent(0, 4)));
    }

    #[test]
    fn parts_stay_inside() {
        assert_eq!(extent(10, 4).part(1, 3), Some(extent(11, 3)));
        assert_eq!(extent(10, 4).part(1, 4), None);
        assert_eq!(extent(10, 4).part(u64::MAX, 2), None);
        assert!(extent(10, 4).contains(extent(14, 0)));
    }
}
