//! Counts the borrows of memory that this library does not own.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The number of borrows of some memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Borrows(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    open: Mutex<usize>,
    none_open: Condvar,
}

/// One borrow, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Borrow(Arc<Count>);

impl Borrows {
    /// Begins a borrow.
    pub(crate) fn begin(&self) -> Borrow {
        *self.0.open.lock() += 1;
        Borrow(Arc::clone(&self.0))
    }

    /// Returns whether all borrows have ended.
    pub(crate) fn is_empty(&self) -> bool {
        *self.0.open.lock() == 0
    }

    /// Waits at most `limit` for the end of all borrows; returns whether they have ended.
    pub(crate) fn wait_timeout(&self, limit: Duration) -> bool {
        let mut count = self.0.open.lock();
        self.0.none_open.wait_while_for(&mut count, |count| *count > 0, limit);
        *count == 0
    }

    /// Waits for the end of all borrows without a time limit.
    pub(crate) fn wait(&self) {
        self.0.none_open.wait_while(&mut self.0.open.lock(), |count| *count > 0);
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        let mut count = self.0.open.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none_open.notify_all();
        }
    }
}
