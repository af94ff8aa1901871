//! Lines about peers that do wrong, so many of them and no more: peers must not be able to
//! fill a log.

use core::fmt;
use core::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Lines at a time.
const BURST: u32 = 20;

/// How often one more is allowed.
const REFILL: Duration = Duration::from_millis(500);

/// Counts lines.
#[derive(Debug)]
pub(super) struct LogLimiter {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    left: u32,
    refilled: Instant,
    kept_back: u64,
}

impl LogLimiter {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State { left: BURST, refilled: Instant::now(), kept_back: 0 }) }
    }

    /// Logs that a connection of `peer` ends, unless too much has been logged lately.
    pub(super) fn about(&self, peer: &impl fmt::Display, reason: &impl fmt::Display) {
        if let Some(kept_back) = self.take(Instant::now()) {
            tracing::warn!(%peer, %reason, "rejected connection");
            if kept_back > 0 {
                tracing::warn!(kept_back, "suppressed log lines about closed connections");
            }
        }
    }

    /// Returns whether a line may be written now, and how many have not been since the last.
    fn take(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let refills = now.duration_since(state.refilled).as_nanos() / REFILL.as_nanos();
        let refills = u32::try_from(refills).unwrap_or(u32::MAX);
        if refills > 0 {
            state.left = state.left.saturating_add(refills).min(BURST);
            state.refilled = now;
        }
        if state.left == 0 {
            state.kept_back += 1;
            return None;
        }
        state.left -= 1;
        Some(core::mem::take(&mut state.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_told() {
        let log_limiter = LogLimiter::new();
        let now = Instant::now();
        let told = (0..1000).filter(|_| log_limiter.take(now).is_some()).count();
        assert_eq!(told, BURST as usize);
        assert_eq!(log_limiter.take(now + REFILL), Some(1000 - u64::from(BURST)));
        assert_eq!(log_limiter.take(now + REFILL), None);
    }
}
