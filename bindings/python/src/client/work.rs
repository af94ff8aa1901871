//! Work on a client's threads that can be ended at once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;

use crate::traces;

/// The work's future; `None` once it has ended. Locked while a thread polls it.
type Slot = Arc<Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>>;

/// Work that threads of a client do.
pub(super) struct Work {
    task: AbortHandle,
    future: Slot,
}

/// A task whose future is not touched by other threads: it ends some time after it is told to.
impl From<AbortHandle> for Work {
    fn from(task: AbortHandle) -> Self {
        Self { task, future: Slot::default() }
    }
}

impl Work {
    pub(super) fn spawn(
        threads: &Runtime,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let future: Slot = Arc::new(Mutex::new(Some(Box::pin(traces::carried(future)))));
        let slot = Arc::clone(&future);
        let task = std::future::poll_fn(move |cx| {
            let mut slot = slot.lock();
            let Some(future) = slot.as_mut() else { return Poll::Ready(()) };
            std::task::ready!(future.as_mut().poll(cx));
            *slot = None;
            Poll::Ready(())
        });
        Self { task: threads.spawn(task).abort_handle(), future }
    }

    /// Ends the work, after the step that a thread may be taking at this moment. When this returns
    /// the work reads and writes no memory of its caller: what a transfer still has of it is left
    /// alone.
    pub(super) fn end(self) {
        let future = self.future.lock().take();
        drop(future);
        self.task.abort();
    }
}
