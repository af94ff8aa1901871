//! In which order the segments of a cluster are tried for an allocation.
//!
//! A strategy orders candidates and touches nothing: it deals in indices into a list of
//! segments that the caller keeps, asks [`Segments`] about the few it looks at, and
//! yields them one after the other. [`place`] tries to allocate from each until it has
//! as many extents as wanted, in distinct segments and if possible on distinct hosts.
//!
//! | strategy | choose it when | asks about | cost of a placement |
//! |---|---|---|---|
//! | [`RandomStrategy`] | in doubt: even load, no coordination between placers | nothing | candidates taken |
//! | [`RoundRobin`] | objects of one size, one placer: the most even load | nothing | candidates taken |
//! | [`FreeRatioFirst`] | segments differ in size, or nodes come and go | free bytes of a sample | sample |
//! | [`LeastFragmented`] | sizes are mixed, some near that of the free regions | largest free region of a sample | sample |
//! | [`LocalFirst`] | who writes an object also reads it | the segments near the writer | candidates taken |
//!
//! None depends on the number of segments. All try the preferred segments first, never
//! offer an excluded one, and keep no state: equal requests get equal answers, so
//! placements can be made from several threads and replayed from their seeds.
//!
//! ```
//! use mc_alloc::OffsetAllocator;
//! use mc_alloc::strategy::{self, AllocationStrategy, RandomStrategy, Request};
//!
//! let mut segments = [4096, 1 << 20, 1 << 20].map(OffsetAllocator::new);
//! let request = Request::new(segments.len(), 42).wanted(2).preferred(&[0]);
//! let random = RandomStrategy::default();
//! let candidates = random.candidates(request);
//! let placed: Vec<_> =
//!     strategy::place(request, candidates, |at| segments[at].allocate(65_536).ok()).collect();
//! // The preferred segment is too small, so the other two hold a replica each.
//! assert_eq!(placed.len(), 2);
//! assert!(placed.iter().all(|(segment, _)| *segment != 0));
//! ```

mod draw;
mod free_ratio_first;
mod least_fragmented;
mod local_first;
mod place;
mod preferred;
mod random;
mod round_robin;
mod sample;
mod view;

use alloc::boxed::Box;
use core::fmt;

pub use free_ratio_first::FreeRatioFirst;
pub use least_fragmented::LeastFragmented;
pub use local_first::{LocalCandidates, LocalFirst, MAX_DISTANCES};
pub use place::{Placed, place};
pub use random::{DEFAULT_RETRIES, RandomCandidates, RandomStrategy};
pub use round_robin::{RoundRobin, RoundRobinCandidates};
pub use sample::{DEFAULT_SAMPLE, MAX_SAMPLES, SampledCandidates};
pub use view::Segments;

/// The input of a strategy for one placement. Segments are indices into the caller's
/// list.
///
/// The fields are for authors of strategies.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Request<'a> {
    /// The number of segments.
    pub segments: usize,
    /// The caller's view of them.
    pub view: &'a dyn Segments,
    /// Bytes of each replica.
    pub size: u64,
    /// Replicas wanted.
    pub wanted: usize,
    /// Segments to try first.
    pub preferred: &'a [usize],
    /// Segments not to use.
    pub excluded: &'a [usize],
    /// Segments that hold a replica of the object already.
    pub holders: &'a [usize],
    /// The seed of random choices.
    pub seed: u64,
    /// Placements made before this one.
    pub turn: u64,
}

impl<'a> Request<'a> {
    /// A placement of one replica among the segments `0..segments`, of which nothing is
    /// known. Equal requests with equal `seed`s get equal answers; vary it from one
    /// request to the next.
    #[must_use]
    pub const fn new(segments: usize, seed: u64) -> Self {
        Self {
            segments,
            view: &(),
            size: 0,
            wanted: 1,
            preferred: &[],
            excluded: &[],
            holders: &[],
            seed,
            turn: seed,
        }
    }

    /// Tells about the segments.
    #[must_use]
    pub const fn view(mut self, view: &'a dyn Segments) -> Self {
        self.view = view;
        self
    }

    /// Bytes that each replica takes. Strategies that know how much is free put the
    /// segments that have not this much last.
    #[must_use]
    pub const fn size(mut self, bytes: u64) -> Self {
        self.size = bytes;
        self
    }

    /// Replicas wanted. Strategies offer in proportion to it.
    #[must_use]
    pub const fn wanted(mut self, replicas: usize) -> Self {
        self.wanted = replicas;
        self
    }

    /// Segments to try before all others, best first. Indices that repeat, or that
    /// name no segment, are passed over.
    #[must_use]
    pub const fn preferred(mut self, segments: &'a [usize]) -> Self {
        self.preferred = segments;
        self
    }

    /// Segments that must not be used, even when they are preferred: those that are
    /// about to go, or that the writer has found broken.
    #[must_use]
    pub const fn excluded(mut self, segments: &'a [usize]) -> Self {
        self.excluded = segments;
        self
    }

    /// Segments that hold a replica of the object already. They are excluded, and
    /// [`place`] avoids their hosts as well.
    #[must_use]
    pub const fn holders(mut self, segments: &'a [usize]) -> Self {
        self.holders = segments;
        self
    }

    /// The number of placements before this one, for [`RoundRobin`]. It is the seed
    /// when not given.
    #[must_use]
    pub const fn turn(mut self, turn: u64) -> Self {
        self.turn = turn;
        self
    }

    /// Returns whether a replica may go to `segment`: it exists, is not excluded and holds none
    /// yet.
    #[must_use]
    pub fn permits(&self, segment: usize) -> bool {
        segment < self.segments
            && !self.excluded.contains(&segment)
            && !self.holders.contains(&segment)
    }

    /// Returns whether `segment` may be used and is not one of the preferred, which come before.
    fn permits_unpreferred(&self, segment: usize) -> bool {
        self.permits(segment) && !self.preferred.contains(&segment)
    }
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("segments", &self.segments)
            .field("size", &self.size)
            .field("wanted", &self.wanted)
            .field("preferred", &self.preferred)
            .field("excluded", &self.excluded)
            .field("holders", &self.holders)
            .field("seed", &self.seed)
            .field("turn", &self.turn)
            .finish_non_exhaustive()
    }
}

/// Orders the segments that an allocation may come from.
pub trait AllocationStrategy {
    /// The segments in the order in which to try them.
    type Candidates<'a>: Iterator<Item = usize> + 'a
    where
        Self: 'a;

    /// Starts one placement. Yields each index at most once, and only those that the
    /// request [permits](Request::permits), the preferred ones first in their order; the
    /// same for the same request. The work is done as candidates are taken.
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
