//! Results of a batch, one for each operation, as they come.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use mc_types::Checksum;
use parking_lot::Mutex;

use crate::error::TransferError;
use crate::operation::Operation;
use crate::slice_sums::SliceSums;

/// Bytes that a batch moves in the caller's task before other tasks get a turn;
/// about a millisecond of copying.
const YIELD_AFTER: u64 = 8 << 20;

/// The result of one operation.
pub type Outcome = Result<Transferred, TransferError>;

/// An operation that is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transferred {
    /// CRC-32C of the bytes that moved, taken while they did, when the operation
    /// [asked for it](Operation::checksummed).
    pub checksum: Option<Checksum>,
    /// Checksums of the pieces of the local side, when the operation
    /// [asked for them](Operation::checkpointed).
    pub slices: Option<Arc<SliceSums>>,
}

impl Transferred {
    /// Done, with the checksum of the bytes if it was asked for.
    #[must_use]
    pub const fn new(checksum: Option<Checksum>) -> Self {
        Self { checksum, slices: None }
    }

    /// Done, with the checksums of the pieces of the local side.
    #[must_use]
    pub fn with_slices(slices: SliceSums) -> Self {
        Self { checksum: None, slices: Some(Arc::new(slices)) }
    }
}

/// The results of a batch that was submitted.
///
/// Await it for all of them, in the order of the operations; or take them one by
/// one with [`next`](Self::next), in the order in which they come.
///
/// # Cancellation
/// Dropping it abandons the results, not the operations: those that were started
/// may still run to their end, and keep the memory they touch alive until then.
#[must_use = "an operation may not run before somebody waits for its result"]
pub struct Completions {
    results: Results,
    /// Results that `next` has given out.
    given: usize,
}

enum Results {
    /// Another task completes the operations.
    Shared(Arc<Batch>),
    /// The waiting task carries them out.
    Own(Own),
    /// The waiting task watches operations that others carry out.
    Driven(Driven),
}

impl Completions {
    /// Results that are known already.
    pub fn ready(outcomes: Vec<Outcome>) -> Self {
        let finished = (0..outcomes.len()).collect();
        let own = Own { waiting: VecDeque::new(), execute: None, outcomes, finished };
        Self { results: Results::Own(own), given: 0 }
    }

    /// Results of `count` operations that are to come, each by its
    /// [`Completion`]: for implementations of [`Link`](crate::Link) whose
    /// operations are carried out elsewhere.
    ///
    /// ```
    /// use mc_transport::{Completions, TransferError, Transferred};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let (mut to_complete, completions) = Completions::pending(2);
    /// let (first, second) = (to_complete.next().unwrap(), to_complete.next().unwrap());
    /// second.complete(Ok(Transferred::default()));
    /// drop(first); // the task that was to complete it is gone
    /// let results = completions.await;
    /// assert!(matches!(results[0], Err(TransferError::Closed)) && results[1].is_ok());
    /// # });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn pending(count: usize) -> (ToComplete, Self) {
        let batch = Arc::new(Batch {
            progress: Mutex::new(Progress {
                outcomes: vec![Ok(Transferred::default()); count],
                finished: Vec::with_capacity(count),
                waiting: None,
            }),
        });
        let to_complete = ToComplete { batch: Arc::clone(&batch), next: 0, count };
        (to_complete, Self { results: Results::Shared(batch), given: 0 })
    }

    /// Operations that `execute` carries out one after the other, in the task
    /// that waits for them: for implementations that copy. Other tasks get a
    /// turn now and then.
    pub fn inline(
        operations: Vec<Operation>,
        execute: impl FnMut(&Operation) -> Outcome + Send + 'static,
    ) -> Self {
        let count = operations.len();
        let own = Own {
            waiting: operations.into(),
            execute: Some(Box::new(execute)),
            outcomes: Vec::with_capacity(count),
            finished: Vec::with_capacity(count),
        };
        Self { results: Results::Own(own), given: 0 }
    }

    /// Results of `count` operations that `drive` gathers when it is polled: for links
    /// made of links.
    pub fn driven(count: usize, drive: impl Drive) -> Self {
        let outcomes = vec![Ok(Transferred::default()); count];
        let driven = Driven { drive: Box::new(drive), outcomes, finished: Vec::new() };
        Self { results: Results::Driven(driven), given: 0 }
    }

    /// The next operation that is done or failed: its place in the batch, and what
    /// it came to. `None` after the last.
    ///
    /// # Cancellation
    /// Dropping the future loses no result.
    pub async fn next(&mut self) -> Option<(usize, Outcome)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The number of operations that are known to be done or failed. Operations that run in the
    /// waiting task make progress only while it waits.
    #[must_use]
    pub fn finished(&self) -> usize {
        match &self.results {
            Results::Own(own) => own.finished.len(),
            Results::Driven(driven) => driven.finished.len(),
            Results::Shared(batch) => batch.progress.lock().finished.len(),
        }
    }

    /// [`next`](Self::next), polled.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, Outcome)>> {
        let next = match &mut self.results {
            Results::Own(own) => own.poll_next(self.given, cx),
            Results::Shared(batch) => batch.poll_next(self.given, cx),
            Results::Driven(driven) => driven.poll_next(self.given, cx),
        };
        if let Poll::Ready(Some(_)) = next {
            self.given += 1;
        }
        next
    }
}

/// All results, in the order of the operations, also those that
/// [`next`](Completions::next) has given out.
impl Future for Completions {
    type Output = Vec<Outcome>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        match &mut self.results {
            Results::Own(own) => own.poll_all(cx),
            Results::Shared(batch) => batch.poll_all(cx),
            Results::Driven(driven) => driven.poll_all(cx),
        }
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (finished, count) = match &self.results {
            Results::Own(own) => (own.finished.len(), own.outcomes.len() + own.waiting.len()),
            Results::Driven(driven) => (driven.finished.len(), driven.outcomes.len()),
            Results::Shared(batch) => {
                let progress = batch.progress.lock();
                (progress.finished.len(), progress.outcomes.len())
            }
        };
        f.debug_struct("Completions").field("finished", &finished).field("of", &count).finish()
    }
}

/// The operations of a batch that are to be completed, in order. Those that
/// were not taken when it is dropped fail with [`TransferError::Closed`].
pub struct ToComplete {
    batch: Arc<Batch>,
    next: usize,
    count: usize,
}

impl Iterator for ToComplete {
    type Item = Completion;

    fn next(&mut self) -> Option<Completion> {
        let index = self.next;
        (index < self.count).then(|| {
            self.next += 1;
            Completion { batch: Some(Arc::clone(&self.batch)), index }
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.count - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for ToComplete {}

impl Drop for ToComplete {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl fmt::Debug for ToComplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToComplete").field("left", &self.len()).finish_non_exhaustive()
    }
}

/// One operation that is to be completed. When that is dropped the operation
/// fails with [`TransferError::Closed`], so that no caller waits for ever.
#[must_use = "dropping it fails the operation"]
pub struct Completion {
    /// `None` once it is complete.
    batch: Option<Arc<Batch>>,
    index: usize,
}

impl Completion {
    /// Hands the result over. The memory of the operation must be left alone from
    /// here on, and every handle to it dropped: its owner may use it again.
    pub fn complete(mut self, outcome: Outcome) {
        if let Some(batch) = self.batch.take() {
            batch.complete(self.index, outcome);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            batch.complete(self.index, Err(TransferError::Closed));
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Where the results of a batch are put; they wake the waiting task.
struct Batch {
    progress: Mutex<Progress>,
}

struct Progress {
    outcomes: Vec<Outcome>,
    /// Places of those that are there, in the order in which they came.
    finished: Vec<usize>,
    waiting: Option<WaitingTask>,
}

struct WaitingTask {
    waker: Waker,
    /// Wake when so many are there.
    at: usize,
}

impl Batch {
    fn complete(&self, index: usize, outcome: Outcome) {
        let mut progress = self.progress.lock();
        progress.outcomes[index] = outcome;
        progress.finished.push(index);
        let there = progress.finished.len();
        let waiting = progress.waiting.take_if(|waiting| waiting.at <= there);
        drop(progress);
        if let Some(waiting) = waiting {
            waiting.waker.wake();
        }
    }

    fn poll_next(&self, given: usize, cx: &Context<'_>) -> Poll<Option<(usize, Outcome)>> {
        let mut progress = self.progress.lock();
        // None are left either when they were all given out or taken together.
        if given >= progress.outcomes.len() {
            return Poll::Ready(None);
        }
        if let Some(&index) = progress.finished.get(given) {
            return Poll::Ready(Some((index, progress.outcomes[index].clone())));
        }
        progress.wait(cx, given + 1);
        Poll::Pending
    }

    fn poll_all(&self, cx: &Context<'_>) -> Poll<Vec<Outcome>> {
        let mut progress = self.progress.lock();
        let count = progress.outcomes.len();
        if progress.finished.len() == count {
            return Poll::Ready(std::mem::take(&mut progress.outcomes));
        }
        progress.wait(cx, count);
        Poll::Pending
    }
}

impl Progress {
    fn wait(&mut self, cx: &Context<'_>, at: usize) {
        match &mut self.waiting {
            Some(waiting) => {
                waiting.waker.clone_from(cx.waker());
                waiting.at = at;
            }
            none => *none = Some(WaitingTask { waker: cx.waker().clone(), at }),
        }
    }
}

type Execute = Box<dyn FnMut(&Operation) -> Outcome + Send>;

/// A batch that is carried out by polling it.
struct Own {
    waiting: VecDeque<Operation>,
    execute: Option<Execute>,
    /// Outcomes of the operations that were carried out, from the first on.
    outcomes: Vec<Outcome>,
    finished: Vec<usize>,
}

impl Own {
    /// Carries out the next operation; its bytes, or `None` when none is left.
    fn step(&mut self) -> Option<u64> {
        let operation = self.waiting.pop_front()?;
        let execute = self.execute.as_mut().expect("a batch that waits can be carried out");
        let outcome = execute(&operation);
        self.finished.push(self.outcomes.len());
        self.outcomes.push(outcome);
        Some(operation.remote().extent.len())
    }

    fn poll_next(&mut self, given: usize, cx: &Context<'_>) -> Poll<Option<(usize, Outcome)>> {
        if given == self.finished.len() {
            match self.step() {
                None => return Poll::Ready(None),
                // The next time: its result is there then.
                Some(bytes) if bytes >= YIELD_AFTER => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(_) => {}
            }
        }
        let index = self.finished[given];
        // They are gone once they were taken together.
        Poll::Ready(self.outcomes.get(index).map(|outcome| (index, outcome.clone())))
    }

    fn poll_all(&mut self, cx: &Context<'_>) -> Poll<Vec<Outcome>> {
        let mut moved = 0_u64;
        while let Some(bytes) = self.step() {
            moved = moved.saturating_add(bytes);
            if moved >= YIELD_AFTER && !self.waiting.is_empty() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        // Whatever the operations borrowed is let go with the last of them.
        self.execute = None;
        Poll::Ready(std::mem::take(&mut self.outcomes))
    }
}

/// Gathers the results of a batch when it is polled.
pub trait Drive: Send + 'static {
    /// The next operation that is done or failed, and what it came to. Not called
    /// again once it has returned all of them.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(usize, Outcome)>;
}

/// A batch whose results are gathered by polling.
struct Driven {
    drive: Box<dyn Drive>,
    outcomes: Vec<Outcome>,
    /// Places of those that are there, in the order in which they came.
    finished: Vec<usize>,
}

impl Driven {
    fn poll_next(&mut self, given: usize, cx: &mut Context<'_>) -> Poll<Option<(usize, Outcome)>> {
        if given >= self.outcomes.len() {
            return Poll::Ready(None);
        }
        if given == self.finished.len() {
            let (index, outcome) = ready!(self.drive.poll(cx));
            self.outcomes[index] = outcome;
            self.finished.push(index);
        }
        let index = self.finished[given];
        Poll::Ready(Some((index, self.outcomes[index].clone())))
    }

    fn poll_all(&mut self, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        while self.finished.len() < self.outcomes.len() {
            let (index, outcome) = ready!(self.drive.poll(cx));
            self.outcomes[index] = outcome;
            self.finished.push(index);
        }
        Poll::Ready(std::mem::take(&mut self.outcomes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use mc_types::{Extent, RemoteKey};

    fn write(len: usize) -> Operation {
        let extent = Extent::new(0, len as u64).unwrap();
        let span = crate::RemoteSpan::new(RemoteKey::from_bytes([0; 16]), extent);
        Operation::write(Bytes::from(vec![0; len]), span)
    }

    #[tokio::test]
    async fn results_come_one_by_one_and_all_together() {
        let (to_complete, mut completions) = Completions::pending(3);
        let mut to_complete: Vec<Completion> = to_complete.collect();
        let waiter = async {
            let mut order = Vec::new();
            while let Some((index, outcome)) = completions.next().await {
                order.push((index, outcome.is_ok()));
            }
            (order, completions.await)
        };
        let completer = async {
            for (index, good) in [(2, true), (0, false), (0, true)] {
                let outcome =
                    if good { Ok(Transferred::default()) } else { Err(TransferError::KeyRefused) };
                to_complete.remove(index).complete(outcome);
                tokio::task::yield_now().await;
            }
        };
        let ((order, all), ()) = tokio::join!(waiter, completer);
        assert_eq!(order, [(2, true), (0, false), (1, true)]);
        assert_eq!(all.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, true]);
    }

    #[tokio::test]
    async fn nobody_waits_for_one_who_is_gone() {
        let (mut to_complete, completions) = Completions::pending(3);
        let first = to_complete.next().unwrap();
        assert_eq!(to_complete.len(), 2);
        drop(to_complete);
        first.complete(Ok(Transferred::default()));
        let all = completions.await;
        assert!(all[0].is_ok());
        assert!(all[1..].iter().all(|outcome| matches!(outcome, Err(TransferError::Closed))));
    }

    #[tokio::test]
    async fn what_is_carried_out_by_the_waiter_yields_and_ends() {
        let operations = [10, 5 << 20, 5 << 20, 0].map(write);
        let mut seen = 0;
        let mut completions = Completions::inline(operations.to_vec(), move |operation| {
            seen += 1;
            if operation.remote().extent.is_empty() {
                return Err(TransferError::Closed);
            }
            Ok(Transferred::new(Some(Checksum::from_crc32c(seen))))
        });
        let (index, first) = completions.next().await.unwrap();
        assert_eq!((index, first.unwrap().checksum), (0, Some(Checksum::from_crc32c(1))));
        let mut polls = 0;
        let mut completions = std::pin::pin!(completions);
        let all = poll_fn(|cx| {
            polls += 1;
            completions.as_mut().poll(cx)
        })
        .await;
        assert_eq!(polls, 2, "10 MiB are more than one turn");
        assert_eq!(all.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, true, false]);
        assert!(Completions::ready(Vec::new()).next().await.is_none());
        assert_eq!(Completions::ready(all).await.len(), 4);
    }
}
