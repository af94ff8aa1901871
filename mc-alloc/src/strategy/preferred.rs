//! The preferred segments, which every strategy tries first.

use super::Request;

/// The preferred segments that may be used, each once, in their order.
#[derive(Clone, Debug)]
pub(super) struct Preferred<'a> {
    request: Request<'a>,
    /// How much of the list is behind us.
    passed: usize,
}

impl<'a> Preferred<'a> {
    pub(super) const fn new(request: Request<'a>) -> Self {
        Self { request, passed: 0 }
    }
}

impl Iterator for Preferred<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let preferred = self.request.preferred;
        while let Some(&segment) = preferred.get(self.passed) {
            let repeated = preferred[..self.passed].contains(&segment);
            self.passed += 1;
            if !repeated && self.request.permits(segment) {
                return Some(segment);
            }
        }
        None
    }
}
