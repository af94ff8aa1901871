//! The record of a master that clients cannot connect to.

use core::time::Duration;
use std::time::Instant;

use parking_lot::Mutex;

use super::address::Route;
use super::backoff::bounded;
use super::config::ClientConfig;
use super::dial::FailedRounds;
use crate::error::RpcError;

/// How long calls wait for the only master that there is: it may be starting again.
const SINGLE_MASTER_TIMEOUT: Duration = Duration::from_secs(4);

/// How long a round may last that a caller of the blocking client makes while the master is known to be
/// down.
pub(super) const ROUND: Duration = Duration::from_secs(1);

/// For how long after a round was due what is known holds.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// The rounds of attempts to connect that have failed since the last one that did not, of all who ask
/// one master: a client and the blocking one beside it.
///
/// Calls wait for the first rounds, and are made as soon as one connects. When the master has been away
/// for the [outage timeout](ClientConfig::outage_timeout), it is *known to be down*: calls fail at once,
/// and attempts go on beside them.
#[derive(Debug)]
pub(super) struct Outage {
    timeout: Duration,
    rounds: Mutex<FailedRounds>,
}

impl Outage {
    pub(super) fn new(config: &ClientConfig, route: &Route) -> Self {
        // Where others may take over, they do so in less time than a call has.
        let usual = if route.names_one() { SINGLE_MASTER_TIMEOUT } else { config.call_timeout };
        let timeout = bounded(config.outage_timeout.unwrap_or(usual.min(config.call_timeout)));
        Self { timeout, rounds: Mutex::default() }
    }

    /// Notes that a round that began then has failed. Returns when the next one may begin.
    pub(super) fn failed(
        &self,
        error: &RpcError,
        config: &ClientConfig,
        begun: Instant,
        now: Instant,
    ) -> Instant {
        let mut rounds = self.rounds.lock();
        if is_forgotten(&rounds, begun) {
            *rounds = FailedRounds::default();
        }
        rounds.add(error, config, begun, now)
    }

    /// Notes that a connection was made.
    pub(super) fn ended(&self) {
        *self.rounds.lock() = FailedRounds::default();
    }

    /// Returns why the last round failed, and when the next one may begin.
    pub(super) fn last(&self) -> Option<(RpcError, Instant)> {
        self.rounds.lock().last().map(|(error, next)| (error.clone(), next))
    }

    /// Returns when the master is known to be down if it stays away; `None` when it is not known to be
    /// away.
    pub(super) fn known_from(&self, now: Instant) -> Option<Instant> {
        let rounds = self.rounds.lock();
        let is_away = rounds.last().is_some_and(|(error, _)| is_away(error));
        let first = rounds.first().filter(|_| is_away && !is_forgotten(&rounds, now));
        first.map(|first| first + self.timeout)
    }

    /// Returns why the master cannot be reached, if it is known to be down.
    pub(super) fn known(&self, now: Instant) -> Option<RpcError> {
        self.known_from(now).filter(|from| *from <= now)?;
        self.last().map(|(error, _)| error)
    }

    /// Returns whether the next round is due, which the caller is to make: no other caller is told so
    /// while it may last.
    pub(super) fn takes_round(&self, now: Instant) -> bool {
        let mut rounds = self.rounds.lock();
        let is_due = rounds.last().is_none_or(|(_, next)| next <= now);
        if is_due {
            rounds.put_off(now + ROUND);
        }
        is_due
    }
}

/// Returns whether no client has tried to connect for long: the master may be back since, and an
/// outage that begins is another one.
fn is_forgotten(rounds: &FailedRounds, now: Instant) -> bool {
    rounds.last().is_some_and(|(_, next)| now.saturating_duration_since(next) > KNOWN_FOR)
}

/// Returns whether no master answered at all, not even one that is overloaded or does not lead.
fn is_away(error: &RpcError) -> bool {
    matches!(error, RpcError::Unreachable { .. } | RpcError::Unresolved { .. })
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;
    use crate::client::address::Resolvers;
    use crate::refusal::Refusal;

    fn outage(config: &ClientConfig, target: &str) -> Outage {
        Outage::new(config, &Route::new(target, &Resolvers::default()))
    }

    fn refused() -> RpcError {
        let source = Arc::new(io::ErrorKind::ConnectionRefused.into());
        RpcError::Unreachable { addr: "a:1".into(), source }
    }

    #[test]
    fn a_master_is_known_to_be_down_when_the_timeout_is_over_since_the_first_attempt() {
        let config = ClientConfig::default();
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        for (target, timeout) in [("a:1", SINGLE_MASTER_TIMEOUT), ("a:1,b:2", config.call_timeout)]
        {
            let outage = outage(&config, target);
            assert!(outage.known_from(start).is_none() && outage.known(after(99_999)).is_none());
            // The first attempt took two seconds.
            outage.failed(&refused(), &config, start, after(2_000));
            outage.failed(&refused(), &config, after(2_050), after(2_051));
            assert_eq!(outage.known_from(start), Some(start + timeout), "{target}");
            assert!(outage.known(start + timeout - Duration::from_nanos(1)).is_none());
            assert!(outage.known(start + timeout).is_some());
            outage.ended();
            assert_eq!(outage.known_from(start), None);
        }
    }

    #[test]
    fn a_master_that_refuses_is_not_away() {
        let config = ClientConfig::default();
        let outage = outage(&config, "a:1");
        let now = Instant::now();
        let full = RpcError::from(Refusal::new(mc_types::ErrorCode::Overloaded, "full"));
        outage.failed(&full, &config, now, now);
        assert!(outage.known_from(now).is_none() && outage.last().is_some());
    }

    #[test]
    fn one_caller_makes_the_next_attempt() {
        let config = ClientConfig::default();
        let outage = outage(&config, "a:1");
        let now = Instant::now();
        let next = outage.failed(&refused(), &config, now, now);
        assert!(!outage.takes_round(now));
        assert!(outage.takes_round(next));
        assert!(!outage.takes_round(next) && outage.takes_round(next + ROUND));
    }

    #[test]
    fn the_timeout_is_a_setting_and_no_more_than_a_call_has() {
        let now = Instant::now();
        let known = |config: &ClientConfig| {
            let outage = outage(config, "a:1");
            outage.failed(&refused(), config, now, now);
            outage.known_from(now).map(|from| from - now)
        };
        let mut config =
            ClientConfig { call_timeout: Duration::from_secs(1), ..Default::default() };
        assert_eq!(known(&config), Some(Duration::from_secs(1)));
        config.outage_timeout = Some(Duration::ZERO);
        assert_eq!(known(&config), Some(Duration::ZERO));
        config.outage_timeout = Some(Duration::MAX);
        assert!(known(&config) > Some(Duration::from_secs(86_400)));
    }
}
