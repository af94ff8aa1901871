//! Preferred segments first, then the nearest to the writer.

use alloc::collections::BTreeSet;
use core::iter::FusedIterator;

use super::draw::Draw;
use super::preferred::Preferred;
use super::{AllocationStrategy, DEFAULT_RETRIES, Request};

/// Distances that [`LocalFirst`] asks about; beyond, all segments are equally far.
pub const MAX_DISTANCES: u32 = 16;

/// Tries the preferred segments in their order, then those at distance 0 from the
/// writer at random, then those at distance 1, and so on as far as
/// [`Segments::near`](super::Segments::near) tells, and in the end all others at random.
///
/// At most [`retries`](Self::retries) segments per replica wanted are tried at each
/// distance, so that a full rack does not hold a put up. Those that the rack had left
/// untried are among the others in the end.
#[derive(Clone, Debug)]
pub struct LocalFirst {
    retries: usize,
}

impl LocalFirst {
    /// A strategy that tries at most `retries` segments at each distance for each
    /// replica wanted.
    #[must_use]
    pub const fn new(retries: usize) -> Self {
        Self { retries }
    }

    /// The number of segments that are tried at each distance for each replica wanted.
    #[must_use]
    pub const fn retries(&self) -> usize {
        self.retries
    }
}

impl Default for LocalFirst {
    fn default() -> Self {
        Self::new(DEFAULT_RETRIES)
    }
}

impl AllocationStrategy for LocalFirst {
    type Candidates<'a> = LocalCandidates<'a>;

    fn candidates<'a>(&'a self, request: Request<'a>) -> LocalCandidates<'a> {
        LocalCandidates {
            request,
            preferred: Preferred::default(),
            retries: self.retries.saturating_mul(request.wanted),
            distance: 0,
            ring: None,
            offered: BTreeSet::new(),
        }
    }
}

/// The candidates of a [`LocalFirst`].
#[derive(Clone, Debug)]
pub struct LocalCandidates<'a> {
    request: Request<'a>,
    preferred: Preferred,
    retries: usize,
    /// The distance of the next ring.
    distance: u32,
    ring: Option<Ring<'a>>,
    /// The segments that the rings have offered: the caller's rings may overlap, and the others in
    /// the end are drawn from all.
    offered: BTreeSet<usize>,
}

/// Segments at one distance, or in the end all.
#[derive(Clone, Debug)]
struct Ring<'a> {
    members: Option<&'a [usize]>,
    retries: usize,
    draw: Draw,
}

impl<'a> LocalCandidates<'a> {
    fn open(&mut self) -> Ring<'a> {
        let request = self.request;
        let members = match self.distance {
            ..MAX_DISTANCES => request.view.near(self.distance),
            _ => None,
        };
        let len = members.map_or(request.segments, <[usize]>::len);
        let seed = request.seed.wrapping_add(u64::from(self.distance));
        self.distance += 1;
        Ring { members, retries: self.retries, draw: Draw::new(len, seed) }
    }

    fn next_other(&mut self) -> Option<usize> {
        loop {
            let mut ring = self.ring.take().unwrap_or_else(|| self.open());
            while ring.retries > 0
                && let Some(drawn) = ring.draw.next()
            {
                let segment = ring.members.map_or(drawn, |members| members[drawn]);
                let fresh = self.request.permits_unpreferred(segment)
                    && match ring.members {
                        Some(_) => self.offered.insert(segment),
                        None => !self.offered.contains(&segment),
                    };
                if fresh {
                    ring.retries -= 1;
                    self.ring = Some(ring);
                    return Some(segment);
                }
            }
            if ring.members.is_none() {
                // Kept, so that an exhausted iterator stays so.
                self.ring = Some(ring);
                return None;
            }
        }
    }
}

impl Iterator for LocalCandidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.preferred.next(&self.request).or_else(|| self.next_other())
    }
}

impl FusedIterator for LocalCandidates<'_> {}
