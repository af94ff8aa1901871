//! Operations that are cut: one result of several.

use std::sync::Arc;

use parking_lot::Mutex;

use mc_transport::backend::joined;
use mc_transport::{Completion, Outcome, Sums, TransferError, Transferred};

/// Where the outcome of an operation goes, or of a part of one.
pub(super) enum Completer {
    Operation(Completion),
    Part(Part),
}

impl Completer {
    pub(super) fn complete(self, outcome: Outcome) {
        match self {
            Self::Operation(completion) => completion.complete(outcome),
            Self::Part(part) => part.complete(outcome),
        }
    }
}

/// One of the parts of an operation. When it is dropped it fails.
pub(super) struct Part {
    /// `None` once it is complete.
    split: Option<Arc<Mutex<SplitOperation>>>,
    index: usize,
}

/// The state of an operation that was cut.
struct SplitOperation {
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

/// Completers for parts of the given lengths, in the order of their bytes, of one
/// operation. It is complete when every one of them is, so that its memory is left
/// alone by then.
pub(super) fn completers(
    completion: Completion,
    lens: Vec<u64>,
    sums: Sums,
) -> impl Iterator<Item = Completer> {
    let missing = lens.len();
    let parts = lens.into_iter().map(|len| (len, Transferred::default())).collect();
    let split = SplitOperation { missing, parts, sums, error: None, completion: Some(completion) };
    let split = Arc::new(Mutex::new(split));
    (0..missing).map(move |index| Completer::Part(Part { split: Some(Arc::clone(&split)), index }))
}

impl Part {
    fn complete(mut self, outcome: Outcome) {
        if let Some(split) = self.split.take() {
            finish(&split, self.index, outcome);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Some(split) = self.split.take() {
            finish(&split, self.index, Err(TransferError::Closed));
        }
    }
}

fn finish(split: &Mutex<SplitOperation>, index: usize, outcome: Outcome) {
    let mut split = split.lock();
    match outcome {
        Ok(transferred) => split.parts[index].1 = transferred,
        Err(error) => {
            split.error.get_or_insert(error);
        }
    }
    split.missing -= 1;
    if split.missing > 0 {
        return;
    }
    let outcome = match split.error.take() {
        Some(error) => Err(error),
        None => Ok(joined(&split.parts, split.sums)),
    };
    let completion = split.completion.take();
    drop(split);
    if let Some(completion) = completion {
        completion.complete(outcome);
    }
}

#[cfg(test)]
mod tests {
    use mc_transport::{Completions, checksum};

    use super::*;

    fn cut(lens: &[u64]) -> (Vec<Option<Completer>>, Completions) {
        let (mut to_complete, completions) = Completions::pending(1);
        let completion = to_complete.next().expect("there is one");
        (completers(completion, lens.to_vec(), Sums::Whole).map(Some).collect(), completions)
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
