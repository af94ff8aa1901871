//! Counts the operations that touch a region's memory, so that a withdrawal can wait for them.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

/// Counts the operations that touch one region.
#[derive(Default)]
pub(super) struct Gate {
    users: AtomicUsize,
    closed: AtomicBool,
    /// Tasks that wait until there is no user.
    waiting: Mutex<Vec<Waker>>,
}

/// An operation that may touch the region. While it lives the region's memory has no other
/// use.
pub(super) struct Pass(Arc<Gate>);

impl Gate {
    /// Lets an operation in. The caller excludes that the gate is being
    /// [closed](Self::close) at the same time.
    pub(super) fn enter(self: &Arc<Self>) -> Pass {
        self.users.fetch_add(1, SeqCst);
        Pass(Arc::clone(self))
    }

    /// Asks the operations inside to end.
    pub(super) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    /// Returns whether no operation is inside.
    pub(super) fn is_empty(&self) -> bool {
        self.users.load(SeqCst) == 0
    }

    /// Waits until no operation is inside of a gate that is closed.
    pub(super) async fn emptied(&self) {
        poll_fn(|cx| {
            self.waiting.lock().push(cx.waker().clone());
            // Looked at after the waker is there: an operation that ends from now on wakes it.
            if self.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Pass {
    /// Returns whether the operation is to end.
    pub(super) fn is_closed(&self) -> bool {
        self.0.closed.load(SeqCst)
    }
}

impl Clone for Pass {
    fn clone(&self) -> Self {
        self.0.enter()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, SeqCst) == 1 && self.is_closed() {
            let waiting = std::mem::take(&mut *self.0.waiting.lock());
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn it_is_emptied_when_the_last_has_left() {
        let gate = Arc::new(Gate::default());
        let (one, two) = (gate.enter(), gate.enter());
        let three = two.clone();
        gate.close();
        assert!(one.is_closed() && three.is_closed());
        let mut context = Context::from_waker(Waker::noop());
        let mut emptied = pin!(gate.emptied());
        for pass in [one, two, three] {
            assert!(emptied.as_mut().poll(&mut context).is_pending());
            drop(pass);
        }
        assert!(emptied.as_mut().poll(&mut context).is_ready());
    }
}
