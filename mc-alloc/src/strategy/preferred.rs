//! The preferred segments, which every strategy tries first.

use super::Request;

/// The position in the list of preferred segments.
#[derive(Clone, Debug, Default)]
pub(super) struct Preferred {
    passed: usize,
}

impl Preferred {
    /// The next one that may be used; each comes once, in their order.
    pub(super) fn next(&mut self, request: &Request<'_>) -> Option<usize> {
        let preferred = request.preferred;
        while let Some(&segment) = preferred.get(self.passed) {
            let repeated = preferred[..self.passed].contains(&segment);
            self.passed += 1;
            if !repeated && request.permits(segment) {
                return Some(segment);
            }
        }
        None
    }
}
