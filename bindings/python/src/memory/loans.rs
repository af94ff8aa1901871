//! Counting who still uses memory that is not ours.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Memory that was lent, and how often.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loans(Arc<Out>);

#[derive(Debug, Default)]
struct Out {
    count: Mutex<usize>,
    back: Condvar,
}

/// Kept with a handle of lent memory, and dropped with the last one.
#[derive(Debug)]
pub(crate) struct Loan(Arc<Out>);

impl Loans {
    /// Notes one more handle.
    pub(crate) fn lend(&self) -> Loan {
        *self.0.count.lock() += 1;
        Loan(Arc::clone(&self.0))
    }

    /// Whether no handle is left.
    pub(crate) fn are_back(&self) -> bool {
        *self.0.count.lock() == 0
    }

    /// Waits until no handle is left, but not longer than `patience`; whether that is so.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let mut count = self.0.count.lock();
        self.0.back.wait_while_for(&mut count, |count| *count > 0, patience);
        *count == 0
    }

    /// Waits until no handle is left, however long that takes.
    pub(crate) fn wait_patiently(&self) {
        self.0.back.wait_while(&mut self.0.count.lock(), |count| *count > 0);
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.back.notify_all();
        }
    }
}
