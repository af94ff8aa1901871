//! How long to wait, for an answer and before another attempt.

use core::time::Duration;

use super::config::ClientConfig;

/// As long as any wait can be; later times cannot be told.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// A configured wait, such that it can be added to the time of the day.
pub(super) fn bounded(wait: Duration) -> Duration {
    wait.min(FOREVER)
}

/// Capped exponential backoff with equal jitter: between half of the full wait
/// and all of it.
pub(super) fn backoff(config: &ClientConfig, failures: u32) -> Duration {
    backoff_up_to(config.max_backoff, config, failures)
}

/// The same with this as its longest full wait.
pub(super) fn backoff_up_to(max: Duration, config: &ClientConfig, failures: u32) -> Duration {
    let full = config.min_backoff.saturating_mul(1 << failures.min(16)).min(max);
    bounded(full).mul_f64(0.5 + config.fraction() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_its_limit() {
        let config = ClientConfig::default();
        for failures in 0..200 {
            let wait = backoff(&config, failures);
            assert!(wait >= config.min_backoff / 2 && wait <= config.max_backoff, "{wait:?}");
        }
        assert!(backoff(&config, 199) >= config.max_backoff / 2);
    }
}
