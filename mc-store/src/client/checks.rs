//! The second look at replicas that somebody reported as damaged: this client holds them, and
//! compares their bytes with the checksums that the master has.

use mc_meta::{ReplicaCheck, Slices, Verdict};
use tracing::warn;

use super::checksums::match_checksums;
use super::segments::{Held, Segments};
use crate::environment::Blocking;

/// Checks under way, and what those before them found. They run on a thread of their own, one
/// after the other, so that they take no more than that from the client.
#[derive(Debug, Default)]
pub(super) struct Checks {
    running: Option<Blocking<Vec<(u64, Verdict)>>>,
    outcomes: Vec<(u64, Verdict)>,
}

impl Checks {
    /// Whether the client has time for more.
    pub(super) const fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// What was found and the master has not been told.
    pub(super) fn outcomes(&self) -> &[(u64, Verdict)] {
        &self.outcomes
    }

    /// The master has been told.
    pub(super) fn told(&mut self) {
        self.outcomes.clear();
    }

    /// Begins to look.
    pub(super) fn begin(&mut self, segments: &Segments, checks: Vec<ReplicaCheck>) {
        if checks.is_empty() || !self.is_idle() {
            return;
        }
        let held = checks
            .into_iter()
            .map(|check| (check.id, segments.held(check.segment, check.extent), check.slices));
        let held: Vec<_> = held.collect();
        self.running = Some(segments.environment().blocking(move || look_at_all(&held)));
    }

    /// Waits until checks that are under way have ended; for ever when there are none.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub(super) async fn ended(&mut self) {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        // There are none when the runtime ends, and the heartbeat with it.
        self.outcomes = running.await.and_then(Result::ok).unwrap_or_default();
        self.running = None;
    }
}

fn look_at_all(held: &[(u64, Option<Held>, Slices)]) -> Vec<(u64, Verdict)> {
    let looks = held.iter().map(|(id, held, slices)| {
        // What cannot be looked at, because its device fails, may be intact.
        let memory = held.as_ref().and_then(|held| held.on_host().ok());
        let Some(memory) = memory else { return (*id, Verdict::Unknown) };
        let sums = slices.as_slice().iter().map(|slice| (slice.len, slice.checksum));
        let intact = match_checksums(std::slice::from_ref(&memory), sums);
        if !intact {
            warn!(
                bytes = memory.len(),
                "this client holds a damaged replica; its memory may be bad"
            );
        }
        (*id, if intact { Verdict::Intact } else { Verdict::Damaged })
    });
    looks.collect()
}
