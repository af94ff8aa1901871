//! The executor of calls that take long: on blocking threads, a bounded number at a time, so
//! that they leave CPUs to the threads that read sockets and answer short calls.

use std::io;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mc_environment::Environment;
use tokio::sync::{Semaphore, oneshot};

use crate::method::{Method, Pace};

/// Calls of administrators that run at a time. They share no lane with batches, so that
/// one can look at a master that is busy.
const ADMIN_THREADS: usize = 2;

/// Half of the CPUs, and at least one.
pub(super) fn default_bulk_threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).div_ceil(2)
}

/// A request with more bytes than this takes long, as do the calls that look at every object.
const MAX_INLINE: usize = 64 << 10;

/// Returns whether a call does not run where it was read.
pub(super) fn takes_long(method: Option<Method>, payload_len: usize) -> bool {
    let slow = method.is_some_and(|method| method.pace() == Pace::Long);
    slow || payload_len > MAX_INLINE
}

/// A call panicked.
#[derive(Debug)]
pub(super) struct Panicked;

/// Turns for calls that take long.
#[derive(Debug)]
pub(super) struct Executor {
    bulk: Arc<Semaphore>,
    admin: Arc<Semaphore>,
    /// `None` for the blocking threads of Tokio.
    environment: Option<Arc<dyn Environment>>,
}

impl Executor {
    pub(super) fn new(bulk_threads: usize, environment: Option<Arc<dyn Environment>>) -> Self {
        Self {
            bulk: Arc::new(Semaphore::new(bulk_threads)),
            admin: Arc::new(Semaphore::new(ADMIN_THREADS)),
            environment,
        }
    }

    /// Runs `work` where it holds up no task. Nothing waits for it.
    pub(super) fn run_detached(&self, work: impl FnOnce() + Send + 'static) {
        match &self.environment {
            None => drop(tokio::task::spawn_blocking(work)),
            // A panic is reported by its hook.
            Some(environment) => environment.run_blocking(Box::new(move || {
                let _ = catch_unwind(AssertUnwindSafe(work));
            })),
        }
    }

    /// Runs `work` for a call of this method when it is its turn. Turns are given in the
    /// order in which they are asked for.
    ///
    /// Cancelling gives up the turn, or what comes of work that has begun.
    ///
    /// # Errors
    /// When the work panicked, or the runtime ends.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        method: Option<Method>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let long = method.is_some_and(|method| method.pace() == Pace::Long);
        let lane = if long { &self.admin } else { &self.bulk };
        let turn = Arc::clone(lane).acquire_owned().await.map_err(io::Error::other)?;
        let (done, result) = oneshot::channel();
        self.run_detached(move || {
            // Held by the work and not by the call that waits for it, which may be gone
            // before.
            let _turn = turn;
            // The call that waited for it may be gone.
            let _ = done.send(work());
        });
        result.await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn administrators_do_not_wait_for_batches() {
        let executor = Arc::new(Executor::new(1, None));
        let (release, held) = mpsc::channel::<()>();
        let busy = Arc::clone(&executor);
        let batch = tokio::spawn(async move {
            busy.run(Some(Method::BatchExistKey), move || held.recv()).await.unwrap()
        });
        assert_eq!(executor.run(Some(Method::ClusterReport), || 7).await.unwrap(), 7);
        release.send(()).unwrap();
        batch.await.unwrap().unwrap();
        assert!(executor.run(None, || panic!("on purpose")).await.is_err());
        // A panic gives its turn back.
        assert_eq!(executor.run(None, || 8).await.unwrap(), 8);
    }
}
