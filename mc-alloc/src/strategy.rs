//! In which order the segments of a cluster are tried for an allocation.
//!
//! A strategy orders candidates and touches nothing: it sees indices into a list of
//! segments that the caller keeps, and yields them one after the other. The caller
//! tries to allocate from each until it has as many extents as it wants. No index
//! comes twice, so replicas that are taken from different candidates lie in different
//! segments.
//!
//! ```
//! use mc_alloc::OffsetAllocator;
//! use mc_alloc::strategy::{AllocationStrategy, RandomStrategy, Request};
//!
//! let mut segments = [OffsetAllocator::new(4096), OffsetAllocator::new(1 << 20)];
//! let request = Request::new(segments.len(), 42).preferred(&[0]);
//! let placed = RandomStrategy::default()
//!     .candidates(request)
//!     .find_map(|segment| Some((segment, segments[segment].allocate(65_536).ok()?)));
//! // The preferred segment is too small, so the other one is next.
//! assert_eq!(placed.map(|(segment, _)| segment), Some(1));
//! ```

mod random;

use alloc::boxed::Box;

pub use random::{DEFAULT_RETRIES, RandomCandidates, RandomStrategy};

/// What a strategy is told about one placement. Segments are indices into the caller's
/// list.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    segments: usize,
    preferred: &'a [usize],
    excluded: &'a [usize],
    seed: u64,
}

impl<'a> Request<'a> {
    /// A placement among the segments `0..segments`. Equal requests with equal `seed`s
    /// get equal answers; vary it from one request to the next.
    #[must_use]
    pub const fn new(segments: usize, seed: u64) -> Self {
        Self { segments, preferred: &[], excluded: &[], seed }
    }

    /// Segments to try before all others, best first. Indices that repeat, or that
    /// name no segment, are passed over.
    #[must_use]
    pub const fn preferred(mut self, segments: &'a [usize]) -> Self {
        self.preferred = segments;
        self
    }

    /// Segments that must not be used, even when they are preferred: those that hold a
    /// replica already, or that are about to go.
    #[must_use]
    pub const fn excluded(mut self, segments: &'a [usize]) -> Self {
        self.excluded = segments;
        self
    }
}

/// Orders the segments that an allocation may come from.
pub trait AllocationStrategy {
    /// The segments in the order in which to try them.
    type Candidates<'a>: Iterator<Item = usize> + 'a
    where
        Self: 'a;

    /// Starts one placement. Yields each index at most once, each below the number of
    /// segments, and none that is excluded; the same for the same request. The work is
    /// done as candidates are taken.
    fn candidates<'a>(&'a self, request: Request<'a>) -> Self::Candidates<'a>;
}

/// [`AllocationStrategy`] for strategies that are chosen at run time; every strategy
/// is one. It costs an allocation per placement.
pub trait DynAllocationStrategy {
    /// As [`AllocationStrategy::candidates`].
    fn candidates_boxed<'a>(&'a self, request: Request<'a>)
    -> Box<dyn Iterator<Item = usize> + 'a>;
}

impl<S: AllocationStrategy> DynAllocationStrategy for S {
    fn candidates_boxed<'a>(
        &'a self,
        request: Request<'a>,
    ) -> Box<dyn Iterator<Item = usize> + 'a> {
        Box::new(self.candidates(request))
    }
}
