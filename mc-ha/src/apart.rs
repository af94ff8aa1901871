//! Work that goes on beside its callers.

use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::io;
use std::sync::Arc;
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::Instant;

use mc_environment::Environment;
use tokio::sync::watch;
use tokio::task::unconstrained;

/// Work that an [`Environment`] runs apart. It goes on when this is dropped.
#[derive(Debug)]
pub struct Apart {
    /// Closed when the work has ended.
    runs: watch::Receiver<()>,
    may_block: bool,
}

impl Apart {
    /// Has the environment run `work` until it ends.
    ///
    /// # Errors
    /// Those of [`Environment::spawn_apart`].
    pub fn start(
        environment: &dyn Environment,
        name: &str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Self> {
        let (running, runs) = watch::channel(());
        let work = async move {
            let _running = running;
            work.await;
        };
        environment.spawn_apart(name, Box::pin(work))?;
        Ok(Self { runs, may_block: environment.may_block() })
    }

    /// Waits until the work has ended, also by a panic or because its runtime has.
    pub async fn ended(&self) {
        let mut runs = self.runs.clone();
        while runs.changed().await.is_ok() {}
    }

    /// Waits on the calling thread until the work has ended. Returns at once where a thread
    /// [may not block](Environment::may_block): the work then ends later.
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
