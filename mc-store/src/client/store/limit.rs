//! The end of a put that its caller sets: by its time limit, or by giving it up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_transport::{BootClock, BootTime};

use crate::error::PutError;

/// When a put must begin nothing new, and read no more of its caller's memory.
#[derive(Clone, Debug)]
pub(super) struct Limit {
    after: Duration,
    at: BootTime,
    /// Whether the caller has given the put up.
    abandoned: Arc<AtomicBool>,
}

impl Limit {
    /// The limit of a put that begins at this moment.
    pub(super) fn new(clock: BootClock, after: Duration, abandoned: Arc<AtomicBool>) -> Self {
        Self { after, at: clock.now() + after, abandoned }
    }

    /// Whether the put is to be revoked.
    pub(super) fn is_over(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed) || self.at.has_passed()
    }

    /// Until when bytes may be read for a grant that ends at `until`.
    pub(super) fn of_grant(&self, until: BootTime) -> BootTime {
        until.min(self.at)
    }

    pub(super) fn error(&self) -> PutError {
        PutError::TimedOut { after: self.after }
    }
}
