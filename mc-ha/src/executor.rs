//! Executors for work of this crate that blocks, or runs beside its callers.

use core::fmt;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::Instant;

use tokio::sync::{oneshot, watch};
use tokio::task::unconstrained;

/// Work that runs until it ends.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs the work of journals, standbys and elections: [`Threads`], unless they live in another
/// environment.
///
/// All of that work takes the time from [`tokio::time`] and waits in no other way than as futures do,
/// except for what a [`MetadataJournal`](crate::MetadataJournal) does. So a simulation, whose journals
/// are in memory, runs it in one thread on virtual time: with an executor that spawns tasks on a
/// current-thread runtime whose clock is paused, and runs what blocks where it is called.
pub trait Executor: fmt::Debug + Send + Sync + 'static {
    /// Runs `work` until it ends, on a runtime with tokio's time. It blocks while a journal does,
    /// and holds up nothing else: the system gives it a thread of this name.
    ///
    /// # Errors
    /// When it cannot be started.
    fn spawn_apart(&self, name: &str, work: Work) -> io::Result<()>;

    /// Runs `work`, which reads a journal, now or later, where it holds up no task. It may be dropped
    /// without being run when the runtime ends. It does not panic.
    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>);

    /// Returns whether a thread may block until work that runs apart has ended; not where both run on
    /// one thread.
    fn may_block(&self) -> bool;
}

/// The system's threads: the default. What blocks runs on those of the tokio runtime that it is
/// called in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threads;

impl Executor for Threads {
    fn spawn_apart(&self, name: &str, work: Work) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let thread = thread::Builder::new().name(name.into());
        thread.spawn(move || runtime.block_on(work)).map(drop)
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        drop(tokio::task::spawn_blocking(work));
    }

    fn may_block(&self) -> bool {
        true
    }
}

impl dyn Executor {
    /// Begins `work`, which may block, and returns where its result comes, or what it panicked with;
    /// nothing comes when it was dropped because the runtime ends.
    pub(crate) fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<thread::Result<T>> {
        let (done, result) = oneshot::channel();
        self.run_blocking(Box::new(move || {
            // The caller may have stopped waiting.
            let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
        }));
        result
    }
}

/// Work that an [`Executor`] runs apart. It continues when this is dropped.
#[derive(Debug)]
pub struct Apart {
    /// Closed when the work has ended.
    runs: watch::Receiver<()>,
    may_block: bool,
}

impl Apart {
    /// Has the executor run `work` until it ends.
    ///
    /// # Errors
    /// Those of [`Executor::spawn_apart`].
    pub fn start(
        executor: &dyn Executor,
        name: &str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Self> {
        let (running, runs) = watch::channel(());
        let work = async move {
            let _running = running;
            work.await;
        };
        executor.spawn_apart(name, Box::pin(work))?;
        Ok(Self { runs, may_block: executor.may_block() })
    }

    /// Waits until the work has ended, also by a panic or because its runtime has.
    pub async fn ended(&self) {
        let mut runs = self.runs.clone();
        while runs.changed().await.is_ok() {}
    }

    /// Waits on the calling thread until the work has ended. Returns at once where a thread
    /// [may not block](Executor::may_block): the work then ends later.
    pub fn wait(&self) {
        if self.may_block {
            block_on(self.ended(), None);
        }
    }
}

/// Waits on this thread for `future`, which needs no runtime, until `deadline` at the latest.
pub(crate) fn block_on<T>(future: impl Future<Output = T>, deadline: Option<Instant>) -> Option<T> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    // In a task that has used up its budget, tokio's channels would never be ready.
    let mut future = pin!(unconstrained(future));
    loop {
        if let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(outcome);
        }
        match deadline {
            None => thread::park(),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                thread::park_timeout(left);
            }
        }
    }
}
