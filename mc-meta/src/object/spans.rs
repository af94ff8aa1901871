//! Parts of objects that can be verified.
//!
//! A writer that sums a slice takes the running checksum at every [`CHECKPOINT`] bytes. A
//! reader of a range widens it to the checkpoints around it, continues from the checksum at
//! the first one over the bytes in between, and must come to the one at the last.

use core::ops::Range;

use mc_types::Checksum;
use smallvec::SmallVec;

use crate::vocabulary::request::{CHECKPOINT, Slice, Slices, VerifiedSpan};

/// The longest slice that is read whole to verify a part of it, when there are no
/// checkpoints inside.
const MAX_WHOLE_SLICE: u64 = 4 << 20;

/// Checkpoints inside the slices of an object.
pub(crate) fn checkpoints(slices: &Slices) -> u64 {
    // Lengths are checked not to overflow when they are added up.
    slices.as_slice().iter().map(checkpoints_in).sum()
}

/// Checkpoints inside one slice.
const fn checkpoints_in(slice: &Slice) -> u64 {
    slice.len.saturating_sub(1) / CHECKPOINT
}

/// For each of `ranges` the smallest part of the object that can be verified and that
/// contains the range; `None` for ranges that have no byte of the object.
pub(crate) fn spans(
    slices: &Slices,
    prefixes: &[Checksum],
    ranges: &[Range<u64>],
) -> Vec<Option<VerifiedSpan>> {
    if ranges.is_empty() {
        return Vec::new();
    }
    let layout = Layout::of(slices.as_slice(), prefixes);
    ranges.iter().map(|range| layout.span(range)).collect()
}

/// An object's slices with where they begin.
struct Layout<'a> {
    slices: SmallVec<[Placed<'a>; 1]>,
    len: u64,
}

/// A slice and its place in the object.
#[derive(Clone, Copy)]
struct Placed<'a> {
    begin: u64,
    slice: &'a Slice,
    /// The checksums at its checkpoints; none when they are not known.
    prefixes: &'a [Checksum],
}

impl<'a> Layout<'a> {
    fn of(slices: &'a [Slice], mut prefixes: &'a [Checksum]) -> Self {
        let mut begin = 0;
        let placed = slices.iter().map(|slice| {
            let count = usize::try_from(checkpoints_in(slice)).unwrap_or(usize::MAX);
            let (own, others) = prefixes.split_at_checked(count).unwrap_or_default();
            prefixes = others;
            let placed = Placed { begin, slice, prefixes: own };
            begin += slice.len;
            placed
        });
        let slices = placed.collect();
        Self { slices, len: begin }
    }

    fn span(&self, range: &Range<u64>) -> Option<VerifiedSpan> {
        let end = range.end.min(self.len);
        if range.start >= end {
            return None;
        }
        let (first, last) = (self.slice_of(range.start), self.slice_of(end - 1));
        // All slices but the last one are verified to their ends.
        let mut before_last = self.slices[first..last].iter();
        if before_last.any(|placed| placed.slice.checksum.is_none()) {
            return None;
        }
        let (start, head) = self.slices[first].edge_before(range.start)?;
        let (end, tail) = self.slices[last].edge_after(end)?;
        Some(VerifiedSpan { start, end, head, tail })
    }

    /// The number of the slice that contains a byte of the object.
    fn slice_of(&self, at: u64) -> usize {
        self.slices.partition_point(|placed| placed.begin <= at) - 1
    }
}

impl Placed<'_> {
    /// The last place not behind `at` up to which the slice's checksum is known, with that
    /// checksum.
    fn edge_before(&self, at: u64) -> Option<(u64, Checksum)> {
        let offset = at - self.begin;
        let checkpoint = match offset / CHECKPOINT {
            0 => None,
            number => self.prefixes.get(number as usize - 1).map(|sum| (number, *sum)),
        };
        match checkpoint {
            Some((number, sum)) => Some((self.begin + number * CHECKPOINT, sum)),
            None if offset == 0 || self.has_edges() => Some((self.begin, OF_NOTHING)),
            None => None,
        }
    }

    /// The first place not before `at` up to which the slice's checksum is known, with that
    /// checksum.
    fn edge_after(&self, at: u64) -> Option<(u64, Checksum)> {
        let (offset, len) = (at - self.begin, self.slice.len);
        let number = offset.div_ceil(CHECKPOINT);
        if number * CHECKPOINT < len
            && let Some(sum) = self.prefixes.get(number as usize - 1)
        {
            return Some((self.begin + number * CHECKPOINT, *sum));
        }
        let is_near = offset == len || self.has_edges();
        self.slice.checksum.filter(|_| is_near).map(|sum| (self.begin + len, sum))
    }

    /// Returns whether the slice's ends are near enough to verify a part of it, or its checkpoints
    /// are known.
    const fn has_edges(&self) -> bool {
        self.slice.len <= MAX_WHOLE_SLICE || !self.prefixes.is_empty()
    }
}

/// The CRC-32C of no bytes.
const OF_NOTHING: Checksum = Checksum::from_crc32c(0);
