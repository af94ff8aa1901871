//! Threads that share long copies with the task that waits for them.
//!
//! One core moves and sums some 10 GB/s, a fraction of what a host's memory can. A long copy is
//! divided into turns, which the waiting task and the helpers take one after the other. The task never
//! waits for a helper to begin: on a host whose cores are all busy it takes every turn itself.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use mc_memory::MemorySlice;
use parking_lot::{Condvar, Mutex};

use crate::completion::{Outcome, Transferred};
use crate::copy::{Permit, copy};
use crate::error::TransferError;
use crate::operation::{Operation, Sums};
use crate::slice_sums::joined;

/// Bytes of one turn.
const TURN: u64 = 256 << 10;

/// The shortest copy that is shared. A shorter one takes hardly longer than waking a helper.
const SHORTEST: u64 = 2 << 20;

/// Most threads of a copy.
const MAX_THREADS: usize = 64;

/// Threads that share long copies: those of values on the same host, of at least 2 MiB, each with the
/// checksum of its bytes.
///
/// Clones are the same threads. They are started by the first long copy, and end with the last clone.
///
/// ```
/// use std::num::NonZeroUsize;
/// use mc_transport::{Copiers, NodeConfig, TcpConfig};
/// let mut config = NodeConfig::new(TcpConfig::default());
/// config.copiers = Copiers::new(NonZeroUsize::MIN); // no thread beside the caller's own
/// assert_eq!(config.copiers.threads(), 1);
/// ```
#[derive(Clone)]
pub struct Copiers(Arc<Crew>);

impl Copiers {
    /// `threads` for one copy, the one that waits for it among them; at most 64.
    #[must_use]
    pub fn new(threads: NonZeroUsize) -> Self {
        let crew = Arc::<Queue>::default();
        Self(Arc::new(Crew { helpers: threads.get().min(MAX_THREADS) - 1, queue: crew }))
    }

    /// The number of threads of one copy, the one that waits for it among them.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.0.helpers + 1
    }

    /// Carries `operation` out as [`copy`] does, with the helpers' aid if it is long.
    ///
    /// # Errors
    /// As [`copy`].
    pub(crate) fn copy(
        &self,
        operation: &Operation,
        remote: &MemorySlice,
        permit: &(impl Permit + Clone),
    ) -> Outcome {
        if self.0.helpers == 0 || !is_divisible(operation) {
            return copy(operation, remote, permit);
        }
        let job = Job::new(operation, remote, permit.clone());
        self.0.offer(&job);
        job.take_turns();
        self.0.queue.withdraw(&job);
        job.outcome(operation.sums())
    }
}

/// Two threads where there are two CPUs.
impl Default for Copiers {
    fn default() -> Self {
        let cpus = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self::new(cpus.min(NonZeroUsize::MIN.saturating_add(1)))
    }
}

impl fmt::Debug for Copiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copiers").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

/// Whether an operation is long, and the checksums of its parts make those of the whole.
fn is_divisible(operation: &Operation) -> bool {
    operation.remote().extent.len() >= SHORTEST
        && (operation.sums() != Sums::Slices || operation.is_one_piece())
}

struct Crew {
    helpers: usize,
    queue: Arc<Queue>,
}

impl Crew {
    /// Asks as many helpers as can be of use, and starts those that are not there yet.
    fn offer(&self, job: &Arc<Job>) {
        let wanted = self.helpers.min(job.turns - 1);
        let mut state = self.queue.state.lock();
        state.jobs.extend(std::iter::repeat_n(job, wanted).cloned());
        while state.helpers < wanted {
            let queue = Arc::clone(&self.queue);
            let started = thread::Builder::new().name("mc-copy".into()).spawn(move || queue.work());
            if started.is_err() {
                break; // the caller takes all turns
            }
            state.helpers += 1;
        }
        drop(state);
        for _ in 0..wanted {
            self.queue.offered.notify_one();
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.queue.state.lock().is_closed = true;
        self.queue.offered.notify_all();
    }
}

/// The copies that helpers are asked for.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    offered: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Arc<Job>>,
    /// Helpers that were started.
    helpers: usize,
    is_closed: bool,
}

impl Queue {
    /// A helper's life.
    fn work(&self) {
        let mut state = self.state.lock();
        while !state.is_closed {
            match state.jobs.pop_front() {
                Some(job) => {
                    drop(state);
                    job.take_turns();
                    drop(job);
                    state = self.state.lock();
                }
                None => self.offered.wait(&mut state),
            }
        }
    }

    /// Asks no further helper for a copy that has no turn left.
    fn withdraw(&self, job: &Arc<Job>) {
        self.state.lock().jobs.retain(|other| !Arc::ptr_eq(other, job));
    }
}

/// One long copy.
struct Job {
    turns: usize,
    state: Mutex<JobState>,
    /// The last turn that a helper had taken has ended.
    ended: Condvar,
}

struct JobState {
    /// What is to be done. Whoever has a turn holds it, and lets it go before the turn counts as ended: the
    /// memory has no other use when the copy's result is known.
    work: Option<Arc<Work>>,
    /// The turn that is next.
    next: usize,
    /// Turns that were taken and have not ended.
    running: usize,
    outcomes: Vec<(u64, Transferred)>,
    failed: Option<TransferError>,
}

impl Job {
    fn new(operation: &Operation, remote: &MemorySlice, permit: impl Permit) -> Arc<Self> {
        let mut at = 0;
        let parts = operation.clone().split(TURN).into_iter().map(|operation| {
            let len = operation.remote().extent.len() as usize; // as `remote` has
            let remote = remote.part(at, len).expect("the lengths were validated to agree");
            at += len;
            Part { operation, remote }
        });
        let parts: Vec<Part> = parts.collect();
        let (turns, outcomes) = (parts.len(), parts.iter().map(Part::unmoved).collect());
        let work = Work { parts, permit: Box::new(permit) };
        let state =
            JobState { work: Some(Arc::new(work)), next: 0, running: 0, outcomes, failed: None };
        Arc::new(Self { turns, state: Mutex::new(state), ended: Condvar::new() })
    }

    /// Takes turns while there are any.
    fn take_turns(&self) {
        while let Some(mut turn) = self.take_turn() {
            turn.outcome = turn.work().carry_out(turn.nth);
        }
    }

    fn take_turn(&self) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        if state.failed.is_some() || state.next == self.turns {
            return None;
        }
        let (nth, work) = (state.next, state.work.clone());
        state.next += 1;
        state.running += 1;
        // What a turn comes to whose thread panics.
        Some(Turn { job: self, nth, work, outcome: Err(TransferError::Closed) })
    }

    /// Waits for the turns that were taken. None is left, or one has failed.
    fn outcome(&self, sums: Sums) -> Outcome {
        let mut state = self.state.lock();
        while state.running > 0 {
            self.ended.wait(&mut state);
        }
        state.work = None;
        match state.failed.take() {
            Some(error) => Err(error),
            None => Ok(joined(&state.outcomes, sums)),
        }
    }
}

/// Part of a copy that one thread carries out.
struct Turn<'a> {
    job: &'a Job,
    nth: usize,
    work: Option<Arc<Work>>,
    outcome: Outcome,
}

impl Turn<'_> {
    fn work(&self) -> &Work {
        self.work.as_deref().expect("a turn has work until it ends")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.work = None;
        let mut state = self.job.state.lock();
        match std::mem::replace(&mut self.outcome, Err(TransferError::Closed)) {
            Ok(moved) => state.outcomes[self.nth].1 = moved,
            Err(error) => state.failed = state.failed.take().or(Some(error)),
        }
        state.running -= 1;
        if state.running == 0 {
            self.job.ended.notify_one();
        }
    }
}

/// The turns of a copy.
struct Work {
    parts: Vec<Part>,
    permit: Box<dyn Permit>,
}

impl Work {
    fn carry_out(&self, nth: usize) -> Outcome {
        let Part { operation, remote } = &self.parts[nth];
        copy(operation, remote, &*self.permit)
    }
}

struct Part {
    operation: Operation,
    remote: MemorySlice,
}

impl Part {
    /// Its length, and a result that is not known yet.
    fn unmoved(&self) -> (u64, Transferred) {
        (self.operation.remote().extent.len(), Transferred::default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use mc_memory::Memory;
    use mc_types::{Extent, RemoteKey};
    use proptest::prelude::*;

    use super::*;
    use crate::cancel::Cancel;
    use crate::operation::RemoteSpan;

    /// Refuses from some check on.
    #[derive(Clone)]
    struct Until(Arc<AtomicUsize>);

    impl Until {
        fn checks(most: usize) -> Self {
            Self(Arc::new(most.into()))
        }
    }

    impl Permit for Until {
        fn check(&self) -> Result<(), TransferError> {
            let spend = |left: usize| left.checked_sub(1);
            let spent = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend);
            spent.map(|_| ()).map_err(|_| TransferError::KeyRefused)
        }
    }

    fn threads(count: usize) -> Copiers {
        Copiers::new(NonZeroUsize::new(count).unwrap())
    }

    fn span(len: usize) -> RemoteSpan {
        RemoteSpan::new(RemoteKey::from_bytes([1; 16]), Extent::new(0, len as u64).unwrap())
    }

    fn pattern(len: usize) -> Bytes {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    fn filled(bytes: &[u8]) -> Memory {
        let memory = Memory::allocate(bytes.len()).unwrap();
        memory.whole().copy_from(0, bytes).unwrap();
        memory
    }

    fn summed(operation: Operation, sums: Sums) -> Operation {
        match sums {
            Sums::None => operation,
            Sums::Whole => operation.checksummed(),
            Sums::Slices => operation.checkpointed(),
        }
    }

    /// The lengths of the pieces: one that is long, or several.
    fn lens() -> impl Strategy<Value = Vec<usize>> {
        let long = SHORTEST as usize - 2..SHORTEST as usize + 700_000;
        let several = prop::collection::vec(0..900_000_usize, 2..5);
        prop_oneof![long.prop_map(|len| vec![len]), several]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn shared_copies_are_copies(
            lens in lens(),
            count in 1..5_usize,
            sums in prop::sample::select(vec![Sums::None, Sums::Whole, Sums::Slices]),
        ) {
            let bytes = pattern(lens.iter().sum());
            let (copiers, always) = (threads(count), Until::checks(usize::MAX));
            let here = filled(&vec![0; bytes.len()]);
            let mut at = 0;
            let pieces: Vec<MemorySlice> = lens.iter().map(|&len| {
                at += len;
                here.slice(at - len, len).unwrap()
            }).collect();
            let far = filled(&bytes);
            let read = summed(Operation::read(span(bytes.len()), pieces.clone()), sums);
            let moved = copiers.copy(&read, &far.whole(), &always).unwrap();
            prop_assert_eq!(here.whole().to_vec(), &bytes[..]);
            prop_assert_eq!(moved, copy(&read, &far.whole(), &always).unwrap());

            let far = filled(&vec![0; bytes.len()]);
            let sources: Vec<_> = pieces.into_iter().map(Into::into).collect();
            let write = summed(Operation::write(sources, span(bytes.len())), sums);
            let moved = copiers.copy(&write, &far.whole(), &always).unwrap();
            prop_assert_eq!(far.whole().to_vec(), &bytes[..]);
            prop_assert_eq!(moved, copy(&write, &far.whole(), &always).unwrap());
        }

        #[test]
        fn a_refusal_ends_it_wherever_it_comes(after in 0..32_usize) {
            let len = 4 << 20; // 32 checks
            let far = filled(&pattern(len));
            let here = filled(&vec![0; len]);
            let read = Operation::read(span(len), here.whole()).checksummed();
            let refused = threads(3).copy(&read, &far.whole(), &Until::checks(after));
            prop_assert!(matches!(refused, Err(TransferError::KeyRefused)), "{:?}", refused);
        }
    }

    #[test]
    fn many_callers_share_the_helpers() {
        let (copiers, bytes) = (threads(3), pattern(3 << 20));
        let far = filled(&bytes);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let here = Memory::allocate(bytes.len()).unwrap();
                        let read = Operation::read(span(bytes.len()), here.whole()).checksummed();
                        let always = Until::checks(usize::MAX);
                        let moved = copiers.copy(&read, &far.whole(), &always).unwrap();
                        assert_eq!(moved.checksum, Some(mc_memory::checksum(&bytes)));
                        assert_eq!(Arc::strong_count(&always.0), 1, "nothing of it is kept");
                    }
                });
            }
        });
        assert_eq!(copiers.0.queue.state.lock().helpers, 2);
        assert!(copiers.0.queue.state.lock().jobs.is_empty());
    }

    #[test]
    fn a_cancelled_read_writes_nothing() {
        let len = 4 << 20;
        let (far, here) = (filled(&pattern(len)), filled(&vec![9; len]));
        let cancel = Cancel::new();
        cancel.cancel();
        let read = Operation::read(span(len), here.whole()).cancelled_by(&cancel);
        let cancelled = threads(2).copy(&read, &far.whole(), &Until::checks(usize::MAX));
        assert!(matches!(cancelled, Err(TransferError::Cancelled)), "{cancelled:?}");
        assert_eq!(here.whole().to_vec(), vec![9; len]);
    }

    /// Panics where it is not the thread that waits.
    #[derive(Clone)]
    struct NoHelp(thread::ThreadId);

    impl Permit for NoHelp {
        fn check(&self) -> Result<(), TransferError> {
            assert_eq!(thread::current().id(), self.0, "a helper that panics");
            Ok(())
        }
    }

    #[test]
    fn a_helper_that_panics_fails_the_copy_or_has_no_part_in_it() {
        let len = 64 << 20;
        let (far, here) = (filled(&vec![5; len]), filled(&vec![0; len]));
        let read = Operation::read(span(len), here.whole());
        let copiers = threads(2);
        for _ in 0..3 {
            match copiers.copy(&read, &far.whole(), &NoHelp(thread::current().id())) {
                Ok(_) => assert_eq!(here.whole().to_vec(), vec![5; len]),
                Err(error) => assert!(matches!(error, TransferError::Closed), "{error:?}"),
            }
        }
    }

    #[test]
    fn the_helpers_end_with_the_last_clone() {
        let (copiers, len) = (threads(2), 2 << 20);
        let (far, here) = (filled(&pattern(len)), filled(&vec![0; len]));
        let read = Operation::read(span(len), here.whole());
        copiers.copy(&read, &far.whole(), &Until::checks(usize::MAX)).unwrap();
        let queue = Arc::downgrade(&copiers.0.queue);
        drop(copiers);
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while queue.upgrade().is_some() {
            assert!(std::time::Instant::now() < give_up, "a helper is left");
            thread::yield_now();
        }
    }
}
