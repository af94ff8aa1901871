//! A copy on its way, and the future that waits for it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

use crate::error::CudaError;

#[derive(Default)]
struct Progress {
    /// Whether the driver has the copy and its signal.
    is_queued: bool,
    outcome: Option<Result<(), CudaError>>,
    wakers: Vec<Waker>,
}

/// A copy that the worker and those that wait for it share.
#[derive(Default)]
pub(super) struct Flight {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Flight {
    /// Ends the copy for those that wait. Returns whether it had not ended yet.
    pub(super) fn complete(&self, outcome: Result<(), CudaError>) -> bool {
        let wakers = {
            let mut progress = self.progress.lock();
            if progress.outcome.is_some() {
                return false;
            }
            progress.outcome = Some(outcome);
            progress.is_queued = true;
            std::mem::take(&mut progress.wakers)
        };
        self.wake(wakers);
        true
    }

    /// Notes that the driver has the copy.
    pub(super) fn queued(&self) {
        let wakers = {
            let mut progress = self.progress.lock();
            progress.is_queued = true;
            std::mem::take(&mut progress.wakers)
        };
        self.wake(wakers);
    }

    pub(super) fn is_over(&self) -> bool {
        self.progress.lock().outcome.is_some()
    }

    fn wake(&self, wakers: Vec<Waker>) {
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll<T>(
        &self,
        context: &Context<'_>,
        found: impl FnOnce(&Progress) -> Option<T>,
    ) -> Poll<T> {
        let mut progress = self.progress.lock();
        if let Some(found) = found(&progress) {
            return Poll::Ready(found);
        }
        if !progress.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            progress.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn wait<T>(&self, found: impl Fn(&Progress) -> Option<T>) -> T {
        let mut progress = self.progress.lock();
        loop {
            if let Some(found) = found(&progress) {
                return found;
            }
            self.changed.wait(&mut progress);
        }
    }
}

/// A copy that has been ordered: a future of any runtime, which ends when the bytes are there.
///
/// A copy whose `Pending` is dropped goes on, and keeps both sides alive until it has ended.
///
/// # Errors
/// The outcome is a [`CudaError`]: [`Hung`](CudaError::Hung) when the copy did not end in time,
/// [`Lost`](CudaError::Lost) when the GPU's context died, and what the driver refused. The target's
/// bytes are undefined then, and may change for as long as a copy hangs.
#[must_use = "the bytes are there when this future ends"]
pub struct Pending {
    flight: Arc<Flight>,
}

impl Pending {
    pub(super) fn new(flight: Arc<Flight>) -> Self {
        Self { flight }
    }

    /// Blocks until the copy has ended.
    ///
    /// # Errors
    /// As the future itself.
    pub fn wait(self) -> Result<(), CudaError> {
        self.flight.wait(|progress| progress.outcome.clone())
    }

    /// Waits until the GPU's driver has the copy, and the signal to the engine's stream after it: from then on the
    /// engine can be given work that relies on it.
    ///
    /// # Errors
    /// As the future itself, when the copy has failed by then.
    pub async fn queued(&self) -> Result<(), CudaError> {
        poll_fn(|context| self.flight.poll(context, queued)).await
    }

    /// [`queued`](Self::queued), which blocks.
    ///
    /// # Errors
    /// As there.
    pub fn wait_queued(&self) -> Result<(), CudaError> {
        self.flight.wait(queued)
    }

    /// Returns whether the copy has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.flight.is_over()
    }
}

fn queued(progress: &Progress) -> Option<Result<(), CudaError>> {
    match &progress.outcome {
        Some(Err(error)) => Some(Err(error.clone())),
        _ => progress.is_queued.then_some(Ok(())),
    }
}

impl Future for Pending {
    type Output = Result<(), CudaError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.flight.poll(context, |progress| progress.outcome.clone())
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("is_over", &self.is_over()).finish()
    }
}
