//! Random samples, the best of each first.

use alloc::vec::{self, Vec};
use core::cmp::Reverse;
use core::fmt;
use core::iter::FusedIterator;

use super::Request;
use super::draw::Draw;
use super::preferred::Preferred;

/// Segments that a sampling strategy compares, per replica wanted, unless told
/// otherwise: those of Mooncake.
pub const DEFAULT_SAMPLE: usize = 6;

/// Samples that a sampling strategy draws before it gives up.
pub const MAX_SAMPLES: usize = 4;

/// The candidates of [`FreeRatioFirst`](super::FreeRatioFirst) and
/// [`LeastFragmented`](super::LeastFragmented).
///
/// After the preferred segments, a sample of the others is drawn and offered from the
/// best to the worst; when all of it is refused, the next, at most [`MAX_SAMPLES`] in
/// all and no segment twice.
///
/// A sample is no more than half of the segments (but two where there are more than
/// one). So a node that comes back empty is compared in at most about every second
/// placement, and gets at most as many times its share as the sample has segments,
/// instead of everything that is put until it is as full as the others.
#[derive(Clone)]
pub struct SampledCandidates<'a> {
    request: Request<'a>,
    preferred: Preferred,
    draw: Draw,
    sample: vec::IntoIter<(Reverse<u64>, usize)>,
    sample_size: usize,
    samples: usize,
    rank: Rank,
}

/// The score of a segment for a request: more is better.
pub(super) type Rank = fn(&Request<'_>, usize) -> u64;

impl<'a> SampledCandidates<'a> {
    pub(super) fn new(request: Request<'a>, per_replica: usize, rank: Rank) -> Self {
        let half = request.segments.div_ceil(2).max(2);
        Self {
            request,
            preferred: Preferred::default(),
            draw: Draw::new(request.segments, request.seed),
            sample: Vec::new().into_iter(),
            sample_size: per_replica.saturating_mul(request.wanted).min(half),
            samples: MAX_SAMPLES,
            rank,
        }
    }

    fn next_other(&mut self) -> Option<usize> {
        if self.sample.len() == 0 {
            self.samples = self.samples.checked_sub(1)?;
            self.sample = self.next_sample().into_iter();
        }
        self.sample.next().map(|(_, segment)| segment)
    }

    fn next_sample(&mut self) -> Vec<(Reverse<u64>, usize)> {
        let (request, rank) = (&self.request, self.rank);
        let others = self.draw.by_ref().filter(|segment| request.permits_unpreferred(*segment));
        let ranked = others.map(|segment| (Reverse(rank(request, segment)), segment));
        let mut sample: Vec<_> = ranked.take(self.sample_size).collect();
        // Stable, so that equals stay in the random order in which they were drawn.
        sample.sort_by_key(|(rank, _)| *rank);
        sample
    }
}

impl Iterator for SampledCandidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.preferred.next(&self.request).or_else(|| self.next_other())
    }
}

impl FusedIterator for SampledCandidates<'_> {}

impl fmt::Debug for SampledCandidates<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SampledCandidates")
            .field("request", &self.request)
            .field("sample", &self.sample.as_slice())
            .field("sample_size", &self.sample_size)
            .field("samples", &self.samples)
            .finish_non_exhaustive()
    }
}
