//! Replicas on distinct segments and, when possible, distinct hosts.

use alloc::vec::{self, Vec};
use core::fmt;
use core::iter::Fuse;

use super::Request;

/// Allocates from `candidates` until [`Request::wanted`] replicas are placed; yields the
/// segment and the allocation of each. What is not taken is not allocated.
///
/// No two replicas are in one segment. Candidates on a host that has a replica are set
/// aside, and tried in their order once no other candidate is left: fewer hosts than
/// replicas make for replicas on the same host, not for fewer replicas. A preferred
/// segment is tried in its place whatever its host. Hosts are avoided among the
/// candidates alone: a strategy that offers ten segments of two hosts hides the third.
///
/// The placement is best effort: fewer replicas than wanted come when the candidates
/// end. `allocate` is called at most once with a candidate, and never with one that the
/// request does not [permit](Request::permits). The work is in the number of candidates
/// times the replicas placed.
///
/// `candidates` usually come from a strategy, but may be any indices.
pub fn place<C, A, T>(
    request: Request<'_>,
    candidates: C,
    allocate: A,
) -> Placed<'_, C::IntoIter, A>
where
    C: IntoIterator<Item = usize>,
    A: FnMut(usize) -> Option<T>,
{
    Placed {
        request,
        candidates: candidates.into_iter().fuse(),
        allocate,
        left: request.wanted,
        placed: Vec::new(),
        aside: Aside::Filling(Vec::new()),
    }
}

/// The replicas that [`place`] places, one by one.
#[must_use = "replicas are placed as they are taken"]
pub struct Placed<'a, C, A> {
    request: Request<'a>,
    candidates: Fuse<C>,
    allocate: A,
    /// Replicas still wanted.
    left: usize,
    /// Segments with a replica, and their hosts.
    placed: Vec<(usize, u64)>,
    aside: Aside,
}

/// Candidates on hosts that have a replica.
enum Aside {
    Filling(Vec<usize>),
    Trying(vec::IntoIter<usize>),
}

impl<C, A, T> Placed<'_, C, A>
where
    C: Iterator<Item = usize>,
    A: FnMut(usize) -> Option<T>,
{
    fn try_in(&mut self, segment: usize) -> Option<(usize, T)> {
        let allocation = (self.allocate)(segment)?;
        self.left -= 1;
        if self.left > 0 {
            self.placed.push((segment, self.request.view.host(segment)));
        }
        Some((segment, allocation))
    }

    fn is_used(&self, segment: usize) -> bool {
        self.placed.iter().any(|(placed, _)| *placed == segment)
    }

    fn is_host_used(&self, segment: usize) -> bool {
        let Request { view, holders, .. } = self.request;
        if self.placed.is_empty() && holders.is_empty() {
            return false;
        }
        let host = view.host(segment);
        self.placed.iter().any(|(_, placed)| *placed == host)
            || holders.iter().any(|holder| view.host(*holder) == host)
    }
}

impl<C, A, T> Iterator for Placed<'_, C, A>
where
    C: Iterator<Item = usize>,
    A: FnMut(usize) -> Option<T>,
{
    type Item = (usize, T);

    fn next(&mut self) -> Option<(usize, T)> {
        if self.left == 0 {
            return None;
        }
        while let Some(segment) = self.candidates.next() {
            if !self.request.permits(segment) || self.is_used(segment) {
                continue;
            }
            if self.is_host_used(segment) && !self.request.preferred.contains(&segment) {
                if let Aside::Filling(aside) = &mut self.aside {
                    aside.push(segment);
                }
            } else if let Some(placed) = self.try_in(segment) {
                return Some(placed);
            }
        }
        if let Aside::Filling(aside) = &mut self.aside {
            self.aside = Aside::Trying(core::mem::take(aside).into_iter());
        }
        loop {
            let Aside::Trying(aside) = &mut self.aside else { return None };
            let segment = aside.next()?;
            if !self.is_used(segment)
                && let Some(placed) = self.try_in(segment)
            {
                return Some(placed);
            }
        }
    }
}

impl<C, A> fmt::Debug for Placed<'_, C, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed")
            .field("request", &self.request)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
