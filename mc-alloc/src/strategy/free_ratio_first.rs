//! Preferred segments first, then the emptier ones of a random sample.

use super::{AllocationStrategy, DEFAULT_SAMPLE, Request, SampledCandidates};

/// Tries the preferred segments in their order, then the others of a random sample, the
/// one with the highest part of its bytes free first. Segments that have not as many
/// bytes as the request are last in their sample.
///
/// A full segment and a small one are filled at the same rate as the others are, which
/// a choice by free bytes would not do. [`SampledCandidates`] says how samples are
/// drawn, and why a node that comes back empty does not get everything.
#[derive(Clone, Debug)]
pub struct FreeRatioFirst {
    sample: usize,
}

impl FreeRatioFirst {
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

impl Default for FreeRatioFirst {
    fn default() -> Self {
        Self::new(DEFAULT_SAMPLE)
    }
}

impl AllocationStrategy for FreeRatioFirst {
    type Candidates<'a> = SampledCandidates<'a>;

    fn candidates<'a>(&'a self, request: Request<'a>) -> SampledCandidates<'a> {
        SampledCandidates::new(request, self.sample, free_ratio)
    }
}

fn free_ratio(request: &Request<'_>, segment: usize) -> u64 {
    let (available, capacity) = (request.view.available(segment), request.view.capacity(segment));
    if available < request.size || capacity == 0 {
        return 0;
    }
    // Bits of floats that are not negative order as the floats do. Ratios that agree in
    // 53 bits pass for equal.
    1 + (available as f64 / capacity as f64).to_bits()
}
