//! Preferred segments first, then those of a random sample with the largest free region.

use super::{AllocationStrategy, DEFAULT_SAMPLE, Request, SampledCandidates};

/// Tries the preferred segments in their order, then the others of a random sample, the
/// one with the largest free region first. What does not fit is last in its sample.
///
/// Free bytes in many small pieces count for nothing here, so an object that is large
/// beside the free regions finds one in the first tries. [`SampledCandidates`] says how
/// samples are drawn, and why a node that comes back empty does not get everything.
#[derive(Clone, Debug)]
pub struct LeastFragmented {
    sample: usize,
}

impl LeastFragmented {
    /// A strategy that compares `sample` segments for each replica wanted.
    #[must_use]
    pub const fn new(sample: usize) -> Self {
        Self { sample }
    }

    /// The number of segments that are compared for each replica wanted.
    #[must_use]
    pub const fn sample(&self) -> usize {
        self.sample
    }
}

impl Default for LeastFragmented {
    fn default() -> Self {
        Self::new(DEFAULT_SAMPLE)
    }
}

impl AllocationStrategy for LeastFragmented {
    type Candidates<'a> = SampledCandidates<'a>;

    fn candidates<'a>(&'a self, request: Request<'a>) -> SampledCandidates<'a> {
        SampledCandidates::new(request, self.sample, largest_free)
    }
}

fn largest_free(request: &Request<'_>, segment: usize) -> u64 {
    request.view.largest_free(segment)
}
