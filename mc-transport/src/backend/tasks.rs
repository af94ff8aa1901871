//! The tasks of one transport: counted, and ended with it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};

/// Every task that a transport spawned. Dropping it ends them all.
pub struct Tasks {
    runtime: Handle,
    /// `None` once they were ended.
    running: Mutex<Option<JoinSet<()>>>,
    alive: Arc<AtomicUsize>,
}

impl Tasks {
    /// No tasks yet; they will run on `runtime`.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        Self { runtime, running: Mutex::new(Some(JoinSet::new())), alive: Arc::default() }
    }

    /// Runs `task` until it ends or the transport does. After the end of the
    /// transport it is dropped at once.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let mut running = self.running.lock();
        let set = running.as_mut()?;
        // Finished tasks leave their results behind; take them as we go.
        while set.try_join_next().is_some() {}
        let alive = Counted::new(&self.alive);
        let counted = async move {
            let _alive = alive;
            task.await;
        };
        Some(set.spawn_on(counted, &self.runtime))
    }

    /// Ends every task, and waits until each has dropped what it held.
    pub async fn end(&self) {
        let running = self.running.lock().take();
        if let Some(mut set) = running {
            set.shutdown().await;
        }
    }

    /// Ends every task without waiting for it.
    pub fn abort(&self) {
        let running = self.running.lock().take();
        drop(running);
    }

    /// Returns whether they were ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.running.lock().is_none()
    }

    /// Tasks that have not ended.
    #[must_use]
    pub fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }
}

/// Adds one to a gauge for as long as it lives.
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// Adds one to `gauge`.
    #[must_use]
    pub fn new(gauge: &Arc<AtomicUsize>) -> Self {
        gauge.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(gauge))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
