//! Preferred segments first, then the others in turn.

use core::iter::FusedIterator;

use super::preferred::Preferred;
use super::{AllocationStrategy, DEFAULT_RETRIES, Request};

/// Tries the preferred segments in their order, then the others one after the other,
/// beginning where the placement before left off.
///
/// The position is not kept here: it is [`Request::turn`] times the replicas wanted, so
/// that a counter of the caller's is the only thing that placements share. With equal
/// objects and no failures every segment gets the same number of replicas, give or take
/// one. Placers that do not share a counter should use
/// [`RandomStrategy`](super::RandomStrategy), or their rounds coincide.
///
/// At most [`retries`](Self::retries) segments per replica wanted are tried beyond the
/// preferred ones; those that are excluded do not count.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    retries: usize,
}

impl RoundRobin {
    /// A strategy that tries at most `retries` segments beyond the preferred ones for
    /// each replica wanted.
    #[must_use]
    pub const fn new(retries: usize) -> Self {
        Self { retries }
    }

    /// The number of segments that are tried beyond the preferred ones for each replica wanted.
    #[must_use]
    pub const fn retries(&self) -> usize {
        self.retries
    }
}

impl Default for RoundRobin {
    fn default() -> Self {
        Self::new(DEFAULT_RETRIES)
    }
}

impl AllocationStrategy for RoundRobin {
    type Candidates<'a> = RoundRobinCandidates<'a>;

    fn candidates<'a>(&'a self, request: Request<'a>) -> RoundRobinCandidates<'a> {
        RoundRobinCandidates {
            request,
            preferred: Preferred::default(),
            retries: self.retries.saturating_mul(request.wanted),
            next: first(request),
            left: request.segments,
        }
    }
}

/// Where the placement begins.
fn first(request: Request<'_>) -> usize {
    if request.segments == 0 {
        return 0;
    }
    let before = u128::from(request.turn) * request.wanted as u128;
    // Below a usize, so it fits one.
    (before % request.segments as u128) as usize
}

/// The candidates of a [`RoundRobin`].
#[derive(Clone, Debug)]
pub struct RoundRobinCandidates<'a> {
    request: Request<'a>,
    preferred: Preferred,
    retries: usize,
    next: usize,
    /// Segments that the round has not come to.
    left: usize,
}

impl RoundRobinCandidates<'_> {
    fn next_other(&mut self) -> Option<usize> {
        self.retries = self.retries.checked_sub(1)?;
        while self.left > 0 {
            self.left -= 1;
            let segment = self.next;
            self.next += 1;
            if self.next == self.request.segments {
                self.next = 0;
            }
            if self.request.permits_unpreferred(segment) {
                return Some(segment);
            }
        }
        None
    }
}

impl Iterator for RoundRobinCandidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.preferred.next(&self.request).or_else(|| self.next_other())
    }
}

impl FusedIterator for RoundRobinCandidates<'_> {}
