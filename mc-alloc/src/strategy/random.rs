//! Preferred segments first, then others at random.

use core::iter::FusedIterator;

use super::draw::Draw;
use super::preferred::Preferred;
use super::{AllocationStrategy, Request};

/// Segments that are tried beyond the preferred ones, per replica wanted, unless told
/// otherwise.
pub const DEFAULT_RETRIES: usize = 10;

/// Tries the preferred segments in their order, then others at random, evenly.
///
/// At most [`retries`](Self::retries) segments per replica wanted are tried beyond the
/// preferred ones. A segment that is excluded, or was tried as preferred, does not
/// count: when at most that many remain, every one of them is tried.
///
/// A placement costs time and memory in the candidates that are taken and the lengths
/// of the preferred and excluded lists, whatever the number of segments.
#[derive(Clone, Debug)]
pub struct RandomStrategy {
    retries: usize,
}

impl RandomStrategy {
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

impl Default for RandomStrategy {
    fn default() -> Self {
        Self::new(DEFAULT_RETRIES)
    }
}

impl AllocationStrategy for RandomStrategy {
    type Candidates<'a> = RandomCandidates<'a>;

    fn candidates<'a>(&'a self, request: Request<'a>) -> RandomCandidates<'a> {
        RandomCandidates {
            request,
            preferred: Preferred::default(),
            retries: self.retries.saturating_mul(request.wanted),
            draw: Draw::new(request.segments, request.seed),
        }
    }
}

/// The candidates of a [`RandomStrategy`].
#[derive(Clone, Debug)]
pub struct RandomCandidates<'a> {
    request: Request<'a>,
    preferred: Preferred,
    retries: usize,
    draw: Draw,
}

impl RandomCandidates<'_> {
    fn next_other(&mut self) -> Option<usize> {
        self.retries = self.retries.checked_sub(1)?;
        let request = &self.request;
        self.draw.find(|segment| request.permits_unpreferred(*segment))
    }
}

impl Iterator for RandomCandidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.preferred.next(&self.request).or_else(|| self.next_other())
    }
}

impl FusedIterator for RandomCandidates<'_> {}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use super::*;
    use crate::strategy::DynAllocationStrategy;

    fn candidates(strategy: &RandomStrategy, request: Request<'_>) -> Vec<usize> {
        strategy.candidates(request).collect()
    }

    #[test]
    fn preferred_segments_come_first_and_in_their_order() {
        let request = Request::new(20, 1).preferred(&[7, 3, 99, 7, 11]).excluded(&[3]);
        let all = candidates(&RandomStrategy::default(), request);
        assert_eq!(all[..2], [7, 11]);
        assert_eq!(all.len(), 2 + DEFAULT_RETRIES);
        assert!(!all.contains(&3));
    }

    #[test]
    fn without_retries_only_the_preferred_are_tried() {
        let request = Request::new(20, 1).preferred(&[7]);
        assert_eq!(candidates(&RandomStrategy::new(0), request), [7]);
    }

    #[test]
    fn excluded_segments_do_not_use_up_retries() {
        let excluded: Vec<usize> = (0..1000).filter(|segment| segment % 100 != 0).collect();
        let request = Request::new(1000, 5).excluded(&excluded);
        let mut all = candidates(&RandomStrategy::new(10), request);
        all.sort_unstable();
        assert_eq!(all, (0..10).map(|n| n * 100).collect::<Vec<_>>());
    }

    #[test]
    fn no_segments_no_candidates() {
        assert_eq!(candidates(&RandomStrategy::default(), Request::new(0, 1)), []);
        let request = Request::new(2, 1).excluded(&[0, 1]);
        assert_eq!(candidates(&RandomStrategy::default(), request), []);
    }

    #[test]
    fn many_segments_cost_no_more_than_few() {
        // Storing or walking this many would not end.
        let all = candidates(&RandomStrategy::new(100), Request::new(usize::MAX, 9));
        assert_eq!(all.len(), 100);
    }

    #[test]
    fn every_order_of_four_is_about_equally_likely() {
        let mut seen = BTreeMap::new();
        for seed in 0..24_000 {
            let order = candidates(&RandomStrategy::default(), Request::new(4, seed));
            *seen.entry(order).or_insert(0_u32) += 1;
        }
        assert_eq!(seen.len(), 24);
        // Six standard deviations (31 each) around 1000.
        assert!(seen.values().all(|&count| (814..1186).contains(&count)), "{seen:?}");
    }

    #[test]
    fn a_strategy_chosen_at_run_time_gives_the_same_candidates() {
        let strategy = RandomStrategy::default();
        let request = Request::new(50, 3).preferred(&[4]);
        let dynamic: &dyn DynAllocationStrategy = &strategy;
        let boxed: Vec<usize> = dynamic.candidates_boxed(request).collect();
        assert_eq!(boxed, candidates(&strategy, request));
    }
}
