//! The clock of histories.

use std::time::Duration;

use crate::Moment;

/// The time since the start of this host, `CLOCK_MONOTONIC`: the same for all its processes, so that
/// their logs can be checked together.
#[must_use]
pub fn now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // It is never negative, and a second has fewer nanoseconds than fit.
    Moment::from(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_go_back() {
        let (one, next) = (now(), now());
        assert!(Moment::ZERO < one && one <= next);
    }
}
