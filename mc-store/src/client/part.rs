//! The part of an object that is read for one item, and its checksums.

use std::ops::Range;
use std::sync::Arc;

use mc_meta::{Slices, VerifiedSpan};
use mc_transport::{BufferPool, Memory, MemorySlice, Operation, Transferred, combined};
use mc_types::Checksum;
use smallvec::SmallVec;

use super::checksums::{Pieces, match_checksums};
use crate::error::GetError;

/// A part of an object that is read for an item.
pub(super) struct Part {
    pub(super) item: usize,
    /// The bytes that the item wants.
    wanted: Range<u64>,
    /// Those that are read: more, where only more can be verified.
    read: Range<u64>,
    /// Where the wanted bytes go.
    target: Pieces,
    /// Where the bytes around them go, while they are read.
    edges: Option<Memory>,
    /// The checksums of what is read, slice by slice; none where nothing verifies the bytes.
    runs: SmallVec<[(u64, Option<Checksum>); 1]>,
    pub(super) failure: Option<GetError>,
    pub(super) verified: bool,
}

impl Part {
    /// The bytes `wanted` of an object, into a `target` of as many bytes. Slices that they have
    /// whole are verified.
    pub(super) fn new(item: usize, wanted: Range<u64>, target: Pieces, slices: &Slices) -> Self {
        let whole = |run: Run| run.checksum.filter(|_| run.here == run.slice);
        let runs = runs(slices, &wanted).map(|run| (run.len(), whole(run))).collect();
        let read = wanted.clone();
        Self { item, wanted, read, target, edges: None, runs, failure: None, verified: false }
    }

    /// The same, but all of `span` is read, and every byte verified.
    pub(super) fn verified_by(mut self, span: VerifiedSpan, slices: &Slices) -> Self {
        let VerifiedSpan { start, end, head, tail } = span;
        if self.wanted.is_empty() || start > self.wanted.start || end < self.wanted.end {
            return self; // no span of these bytes
        }
        self.runs = runs(slices, &(start..end))
            .map(|run| {
                let is_last = run.here.end == end;
                let whole = if is_last { Some(tail) } else { run.checksum };
                let expected = match run.here.start == run.slice.start {
                    true => whole,
                    false => whole.map(|whole| remainder(head, whole, run.len())),
                };
                (run.len(), expected)
            })
            .collect();
        self.read = start..end;
        self
    }

    /// Makes room, in memory from `pool`, for the bytes around those that the item wants.
    ///
    /// # Errors
    /// When there is no memory.
    pub(super) fn prepare(&mut self, pool: &BufferPool) -> Result<(), GetError> {
        // At most a checkpoint's distance on each side, or a slice that is short enough to be
        // read whole.
        let len = (self.before() + self.behind()) as usize;
        if len > 0 && self.edges.is_none() {
            let taken = pool.take(len).map_or_else(|| Memory::allocate(len), Ok);
            self.edges = Some(taken.map_err(|error| GetError::Memory(Arc::new(error)))?);
        }
        Ok(())
    }

    /// Gives that room back.
    pub(super) fn release(&mut self) {
        self.edges = None;
    }

    fn before(&self) -> u64 {
        self.wanted.start - self.read.start
    }

    fn behind(&self) -> u64 {
        self.read.end - self.wanted.end
    }

    /// Where the bytes that are read go, in their order. No piece has bytes of two slices, so
    /// that each slice can be verified. The part is [prepared](Self::prepare).
    pub(super) fn pieces(&self) -> Pieces {
        let (before, behind) = (self.before() as usize, self.behind() as usize);
        let edge = |at, len| {
            let edge = self.edges.as_ref().and_then(|edges| edges.slice(at, len));
            edge.filter(|edge| !edge.is_empty())
        };
        let (front, back) = (edge(0, before), edge(before, behind));
        let pieces = front.into_iter().chain(self.target.iter().cloned()).chain(back);
        match self.runs.len() {
            0 | 1 => pieces.collect(),
            _ => self.cut(pieces),
        }
    }

    /// `pieces`, cut where slices end.
    fn cut(&self, pieces: impl Iterator<Item = MemorySlice>) -> Pieces {
        let mut runs = self.runs.iter().map(|&(len, _)| len as usize); // all are in memory
        let (mut left, mut cut) = (0, Pieces::new());
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() {
                if left == 0 {
                    left = runs.next().unwrap_or(usize::MAX);
                }
                let len = left.min(piece.len() - at);
                cut.extend(piece.part(at, len));
                at += len;
                left -= len;
            }
        }
        cut
    }

    /// Where the wanted bytes go.
    pub(super) fn target(&self) -> &[MemorySlice] {
        &self.target
    }

    /// How many bytes the item wants.
    pub(super) fn len(&self) -> u64 {
        self.wanted.end - self.wanted.start
    }

    /// The checksums of what is read, slice by slice.
    pub(super) fn expected(&self) -> &[(u64, Option<Checksum>)] {
        &self.runs
    }

    /// The object's bytes that are read.
    pub(super) fn read(&self) -> Range<u64> {
        self.read.clone()
    }

    /// `operation`, which reads the part, with the checksums that verify it.
    pub(super) fn summed(&self, operation: Operation) -> Operation {
        match self.runs[..] {
            [(_, Some(_))] => operation.checksummed(),
            ref runs if runs.iter().any(|(_, expected)| expected.is_some()) => {
                operation.checkpointed()
            }
            _ => operation,
        }
    }

    /// Whether the bytes that were read have the checksums that their writer gave. Those that
    /// were not taken while the bytes came are taken here.
    pub(super) fn is_intact(&self, done: &Transferred) -> bool {
        match (&self.runs[..], done.checksum, &done.slices) {
            ([(_, Some(expected))], Some(found), _) => *expected == found,
            (_, _, Some(sums)) => self.match_pieces(&sums.checksums),
            _ => match_checksums(&self.pieces(), self.runs.iter().copied()),
        }
    }

    /// Whether the runs have their checksums when the pieces have these.
    fn match_pieces(&self, sums: &[Checksum]) -> bool {
        let pieces = self.pieces();
        let mut pieces = pieces.iter().filter(|piece| !piece.is_empty()).zip(sums);
        self.runs.iter().all(|&(mut left, expected)| {
            let mut found: Option<Checksum> = None;
            while left > 0 {
                let Some((piece, &sum)) = pieces.next() else { return false };
                let len = piece.len() as u64;
                found = Some(found.map_or(sum, |front| combined(front, sum, len)));
                left = left.saturating_sub(len);
            }
            expected.is_none_or(|expected| found == Some(expected))
        })
    }
}

/// The part of one slice that lies in a range.
struct Run {
    /// The slice, in the object.
    slice: Range<u64>,
    /// The part, in the object.
    here: Range<u64>,
    /// The checksum of the slice.
    checksum: Option<Checksum>,
}

impl Run {
    fn len(&self) -> u64 {
        self.here.end - self.here.start
    }
}

/// The parts of `slices` that lie in `range`.
fn runs<'a>(slices: &'a Slices, range: &Range<u64>) -> impl Iterator<Item = Run> + use<'a> {
    let (start, end) = (range.start, range.end);
    let mut at = 0;
    slices.as_slice().iter().filter_map(move |slice| {
        let whole = at..at + slice.len;
        at = whole.end;
        let here = whole.start.max(start)..whole.end.min(end);
        let run = Run { here: here.clone(), slice: whole, checksum: slice.checksum };
        (here.start < here.end).then_some(run)
    })
}

/// The checksum of the last `len` bytes of those that have the checksum `whole`, when those
/// before them have `front`.
fn remainder(front: Checksum, whole: Checksum, len: u64) -> Checksum {
    // A CRC of a concatenation is that of its back, changed in the bits that its front alone
    // decides.
    let change = combined(front, Checksum::from_crc32c(0), len);
    Checksum::from_crc32c(whole.as_u32() ^ change.as_u32())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mc_transport::checksum;

    #[test]
    fn the_remainder_is_what_is_left_of_a_checksum() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
        for cut in [0, 1, 63, 65_536, 131_072, 199_999, 200_000] {
            let (front, back) = bytes.split_at(cut);
            let found = remainder(checksum(front), checksum(&bytes), back.len() as u64);
            assert_eq!(found, checksum(back), "{cut}");
        }
    }
}
