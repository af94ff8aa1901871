//! Operations that are cut: one result of several.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::completion::{Completion, Outcome, Transferred};
use crate::error::TransferError;
use crate::operation::Sums;
use crate::slice_sums::joined;

/// Where the outcome of an operation goes, or of a part of one.
pub(super) enum Outlet {
    Whole(Completion),
    Part(Part),
}

impl Outlet {
    pub(super) fn complete(self, outcome: Outcome) {
        match self {
            Self::Whole(completion) => completion.complete(outcome),
            Self::Part(part) => part.complete(outcome),
        }
    }
}

/// One of the parts of an operation. When it is dropped it fails.
pub(super) struct Part {
    /// `None` once it is complete.
    joint: Option<Arc<Mutex<Joint>>>,
    index: usize,
}

/// The state of an operation that was cut.
struct Joint {
    missing: usize,
    /// Bytes and result of each part, in order.
    parts: Vec<(u64, Transferred)>,
    /// The checksums that are wanted of all parts together.
    sums: Sums,
    /// Why the first part failed that did.
    error: Option<TransferError>,
    /// `None` once the operation is complete.
    completion: Option<Completion>,
}

/// Outlets for parts of the given lengths, in the order of their bytes, of one
/// operation. It is complete when every one of them is, so that its memory is left
/// alone by then.
pub(super) fn outlets(
    completion: Completion,
    lens: Vec<u64>,
    sums: Sums,
) -> impl Iterator<Item = Outlet> {
    let missing = lens.len();
    let parts = lens.into_iter().map(|len| (len, Transferred::default())).collect();
    let joint = Joint { missing, parts, sums, error: None, completion: Some(completion) };
    let joint = Arc::new(Mutex::new(joint));
    (0..missing).map(move |index| Outlet::Part(Part { joint: Some(Arc::clone(&joint)), index }))
}

impl Part {
    fn complete(mut self, outcome: Outcome) {
        if let Some(joint) = self.joint.take() {
            finish(&joint, self.index, outcome);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(joint) = self.joint.take() {
            finish(&joint, self.index, Err(TransferError::Closed));
        }
    }
}

fn finish(joint: &Mutex<Joint>, index: usize, outcome: Outcome) {
    let mut joint = joint.lock();
    match outcome {
        Ok(transferred) => joint.parts[index].1 = transferred,
        Err(error) => {
            joint.error.get_or_insert(error);
        }
    }
    joint.missing -= 1;
    if joint.missing > 0 {
        return;
    }
    let outcome = match joint.error.take() {
        Some(error) => Err(error),
        None => Ok(joined(&joint.parts, joint.sums)),
    };
    let completion = joint.completion.take();
    drop(joint);
    if let Some(completion) = completion {
        completion.complete(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::checksum;
    use crate::completion::Completions;

    fn cut(lens: &[u64]) -> (Vec<Option<Outlet>>, Completions) {
        let (mut to_complete, completions) = Completions::pending(1);
        let completion = to_complete.next().expect("there is one");
        (outlets(completion, lens.to_vec(), Sums::Whole).map(Some).collect(), completions)
    }

    #[tokio::test]
    async fn the_checksum_is_that_of_all_parts() {
        let bytes = b"a prompt, cut into three parts";
        let ranges = [0..7, 7..20, 20..30];
        let (mut parts, completions) = cut(&[7, 13, 10]);
        for index in [2, 0, 1] {
            let sum = Some(checksum(&bytes[ranges[index].clone()]));
            parts[index].take().unwrap().complete(Ok(Transferred::new(sum)));
        }
        let outcome = completions.await.remove(0).unwrap();
        assert_eq!(outcome.checksum, Some(checksum(bytes)));
    }

    #[tokio::test]
    async fn one_failure_is_that_of_the_operation() {
        let (mut parts, mut completions) = cut(&[1, 1, 1]);
        parts[1].take().unwrap().complete(Err(TransferError::KeyRefused));
        parts[0].take().unwrap().complete(Ok(Transferred::default()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(completions.poll_next(&mut context).is_pending(), "one part is under way");
        drop(parts);
        assert!(matches!(completions.await[0], Err(TransferError::KeyRefused)));
    }
}
