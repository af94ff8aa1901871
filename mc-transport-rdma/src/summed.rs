//! Checksums of operations that network cards carried out: a card takes none.

use std::mem;
use std::task::{Context, Poll, ready};

use mc_transport::backend::{Drive, Summing};
use mc_transport::{Completions, Operation, Outcome, Source};

/// Bytes that are summed before other tasks get a turn: less than a tenth of a millisecond.
const YIELD_AFTER: usize = 1 << 20;

/// Takes the checksums of operations that are done, in the task that waits for the results.
pub(super) struct Summed {
    completions: Completions,
    to_sum: Vec<Option<Operation>>,
    under_way: Option<UnderWay>,
    /// Bytes that may be summed before the next turn of others.
    left: usize,
}

impl Summed {
    /// Sums each of `to_sum` once it is done, by its place in the batch.
    pub(super) fn new(completions: Completions, to_sum: Vec<Option<Operation>>) -> Self {
        Self { completions, to_sum, under_way: None, left: YIELD_AFTER }
    }
}

impl Drive for Summed {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Outcome)> {
        loop {
            if let Some(under_way) = &mut self.under_way {
                if !under_way.add(&mut self.left) {
                    self.left = YIELD_AFTER;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let done = self.under_way.take().expect("one is under way");
                return Poll::Ready((done.index, Ok(done.summing.finish())));
            }
            let Some((index, outcome)) = ready!(self.completions.poll_next(cx)) else {
                // As its contract says, this is not polled again.
                return Poll::Pending;
            };
            let operation = self.to_sum[index].take().filter(|_| outcome.is_ok());
            self.under_way = operation.and_then(|operation| UnderWay::new(index, operation));
            if self.under_way.is_none() {
                return Poll::Ready((index, outcome));
            }
        }
    }
}

/// An operation that is done and is being summed.
struct UnderWay {
    index: usize,
    pieces: Vec<Source>,
    summing: Summing,
    /// The piece that is being added, and the bytes of it that were.
    piece: usize,
    at: usize,
}

impl UnderWay {
    /// `None` if `operation` asks for no sums.
    fn new(index: usize, operation: Operation) -> Option<Self> {
        let summing = Summing::of(&operation)?;
        let pieces = match operation {
            Operation::Read { into, .. } => into.iter().cloned().map(Source::Memory).collect(),
            Operation::Write { from, .. } => from.to_vec(),
        };
        Some(Self { index, pieces, summing, piece: 0, at: 0 })
    }

    /// Adds as many bytes as are `left`, and takes them from it; returns whether all were added.
    fn add(&mut self, left: &mut usize) -> bool {
        while let Some(source) = self.pieces.get(self.piece) {
            let end = self.at + (source.len() - self.at).min(*left);
            match source {
                Source::Bytes(bytes) => self.summing.update(&bytes[self.at..end]),
                Source::Memory(slice) => self.summing.update_part(slice, self.at, end - self.at),
            }
            *left -= end - mem::replace(&mut self.at, end);
            if end < source.len() {
                return false;
            }
            (self.piece, self.at) = (self.piece + 1, 0);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use bytes::Bytes;
    use mc_transport::{Memory, RemoteSpan, SliceSums, TransferError, Transferred};
    use mc_types::{Extent, RemoteKey};

    use super::*;

    /// Counts how often it woke.
    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn span(len: usize) -> RemoteSpan {
        let extent = Extent::new(0, len as u64).unwrap();
        RemoteSpan::new(RemoteKey::from_bytes([1; 16]), extent)
    }

    /// The results of `batch`, all of which `outcome` is, and how often other tasks had a turn.
    fn sum(batch: Vec<Operation>, outcome: &Outcome) -> (Vec<Outcome>, usize) {
        let count = batch.len();
        let done = Completions::ready(vec![outcome.clone(); count]);
        let mut driven =
            Completions::driven(count, Summed::new(done, batch.into_iter().map(Some).collect()));
        let turns = Arc::new(Counter::default());
        let waker = Waker::from(Arc::clone(&turns));
        let mut cx = Context::from_waker(&waker);
        let mut outcomes = vec![Err(TransferError::Closed); count];
        for _ in 0..10_000 {
            let before = turns.0.load(Ordering::Relaxed);
            match driven.poll_next(&mut cx) {
                Poll::Ready(Some((index, outcome))) => outcomes[index] = outcome,
                Poll::Ready(None) => return (outcomes, turns.0.load(Ordering::Relaxed)),
                Poll::Pending => {
                    assert_eq!(turns.0.load(Ordering::Relaxed), before + 1, "it is polled again");
                }
            }
        }
        panic!("it never ends");
    }

    #[test]
    fn a_long_operation_is_summed_in_turns_with_other_tasks() {
        let len = 5 * YIELD_AFTER + 1;
        let memory = Memory::allocate(len).unwrap();
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        memory.whole().copy_from(0, &bytes).unwrap();
        let expected = mc_transport::checksum(&bytes);
        let read = Operation::read(span(len), memory.whole()).checksummed();
        let write = Operation::write(Bytes::from(bytes), span(len)).checksummed();
        for operation in [read, write] {
            let (outcomes, turns) = sum(vec![operation], &Ok(Transferred::default()));
            assert_eq!(outcomes[0].as_ref().unwrap().checksum, Some(expected));
            assert_eq!(turns, 5);
        }
    }

    #[test]
    fn short_operations_are_summed_in_turns_together() {
        let slices = [Bytes::from(vec![3; 70_000]), Bytes::new(), Bytes::from(vec![4; 100])];
        let sources: Vec<Source> = slices.map(Source::Bytes).into();
        let expected = SliceSums::of(&sources);
        let one = || Operation::write(sources.clone(), span(70_100)).checkpointed();
        let (outcomes, turns) = sum((0..64).map(|_| one()).collect(), &Ok(Transferred::default()));
        for outcome in outcomes {
            assert_eq!(outcome.unwrap().slices.as_deref(), Some(&expected));
        }
        assert_eq!(turns, 64 * 70_100 / YIELD_AFTER);
    }

    #[test]
    fn an_operation_that_failed_is_not_summed() {
        let write = Operation::write(Bytes::from_static(b"x"), span(1)).checksummed();
        let (outcomes, turns) = sum(vec![write], &Err(TransferError::GrantEnded));
        assert!(matches!(outcomes[0], Err(TransferError::GrantEnded)), "{outcomes:?}");
        assert_eq!(turns, 0);
    }
}
