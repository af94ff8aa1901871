//! Work that goes on when its caller has lost interest.

use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;

/// Work that is done in its caller's task, and that a task of its own takes over when the
/// caller drops it in the middle: what has begun is brought to an end or revoked, and no peer or
/// master is left with half of it. The work is told, so that it begins nothing new.
pub(super) struct Unstoppable<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    begun: bool,
    abandoned: Arc<AtomicBool>,
    runtime: Handle,
}

impl<T: Send + 'static> Unstoppable<T> {
    /// Makes work of the future that `work` returns. `work` receives a flag that is set when the caller
    /// drops it; it then continues as a task on `runtime`.
    pub(super) fn new<F>(runtime: &Handle, work: impl FnOnce(Arc<AtomicBool>) -> F) -> Self
    where
        F: Future<Output = T> + Send + 'static,
    {
        let abandoned = Arc::new(AtomicBool::new(false));
        let work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work(Arc::clone(&abandoned)));
        Self { work: Some(work), begun: false, abandoned, runtime: runtime.clone() }
    }
}

impl<T: Send + 'static> Future for Unstoppable<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let work = self.work.as_mut().expect("a future is not polled after its end");
        let done = core::task::ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for Unstoppable<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take().filter(|_| self.begun) {
            self.abandoned.store(true, Ordering::Relaxed);
            // On a runtime that has ended nothing goes on; the master's time-outs are
            // for that.
            self.runtime.spawn(async move {
                work.await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn what_has_begun_ends_and_what_has_not_never_begins() {
        let (go, wait) = oneshot::channel::<()>();
        let (say, heard) = oneshot::channel();
        let mut work = Unstoppable::new(&Handle::current(), |abandoned| async move {
            wait.await.unwrap();
            say.send(abandoned.load(Ordering::Relaxed)).unwrap();
        });
        let begun = core::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut work).poll(cx)));
        assert!(begun.await.is_pending());
        drop(work);
        go.send(()).unwrap();
        assert!(heard.await.unwrap(), "it ran to its end, and was told");

        let (say, heard) = oneshot::channel::<()>();
        drop(Unstoppable::new(&Handle::current(), |_| async move { say.send(()) }));
        assert!(heard.await.is_err());
    }
}
