//! Results of one batch, gathered as they come.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::error::TransferError;

pub(super) type Outcome = Result<(), TransferError>;

/// Where the results of a batch are put; the last one wakes whoever waits.
pub(super) struct Batch {
    progress: Mutex<Progress>,
}

struct Progress {
    outcomes: Vec<Outcome>,
    missing: usize,
    waiting: Option<Waker>,
}

impl Batch {
    /// A batch whose operations were refused (`Err`) or are under way (`Ok`, and
    /// `missing` in number).
    pub(super) fn new(outcomes: Vec<Outcome>, missing: usize) -> Arc<Self> {
        Arc::new(Self { progress: Mutex::new(Progress { outcomes, missing, waiting: None }) })
    }

    /// Puts the result of the operation at `index`. Called once for each.
    pub(super) fn complete(&self, index: usize, outcome: Outcome) {
        let mut progress = self.progress.lock();
        progress.outcomes[index] = outcome;
        progress.missing -= 1;
        if progress.missing > 0 {
            return;
        }
        let waiting = progress.waiting.take();
        drop(progress);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Every result, once all are there.
    pub(super) fn outcomes(self: Arc<Self>) -> Outcomes {
        Outcomes { batch: self }
    }
}

/// Waits for a [`Batch`].
pub(super) struct Outcomes {
    batch: Arc<Batch>,
}

impl Future for Outcomes {
    type Output = Vec<Outcome>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<Outcome>> {
        let mut progress = self.batch.progress.lock();
        if progress.missing == 0 {
            return Poll::Ready(std::mem::take(&mut progress.outcomes));
        }
        match &mut progress.waiting {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}
