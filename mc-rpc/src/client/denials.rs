//! When connections are replaced because the master does not allow a call.
//!
//! A connection has the caller and the role of its handshake for as long as it lasts. Once the
//! operator has mended the access list, only a new one has the role that the list gives.

use core::time::Duration;
use std::time::Instant;

use mc_types::ErrorCode;
use parking_lot::Mutex;

use super::config::ClientConfig;
use crate::frame::Kind;

/// How long the connections that follow the first denial are kept at least, each for twice as long as
/// the one before.
const FIRST: Duration = Duration::from_millis(500);

/// The longest of these times: how late a mended access list is noticed, and how often a client
/// shakes hands that stays denied.
const LONGEST: Duration = Duration::from_secs(5);

/// After so long without a denial the next one is the first again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The denials of late, of all connections of a client.
#[derive(Debug, Default)]
pub(super) struct Denials(Mutex<Option<Last>>);

/// The last denial for which connections were replaced.
#[derive(Clone, Copy, Debug)]
struct Last {
    at: Instant,
    /// When a denial is a reason again.
    next: Instant,
    /// Those in a row.
    count: u32,
}

impl Denials {
    /// Returns whether an answer says that the caller's role does not allow the call, and it is time
    /// to replace the connections: the next ones may have another.
    pub(super) fn replaces(
        &self,
        (kind, payload): (Kind, &[u8]),
        config: &ClientConfig,
        now: impl FnOnce() -> Instant,
    ) -> bool {
        let code = ErrorCode::PermissionDenied.code().to_le_bytes();
        kind == Kind::Error && payload.starts_with(&code) && self.is_due(config, now())
    }

    fn is_due(&self, config: &ClientConfig, now: Instant) -> bool {
        let mut last = self.0.lock();
        let count = match *last {
            Some(last) if now < last.next => return false,
            Some(last) if now.saturating_duration_since(last.at) < FORGOTTEN_AFTER => {
                last.count.saturating_add(1)
            }
            _ => 0,
        };
        let full = FIRST.saturating_mul(1 << count.min(16)).min(LONGEST);
        let wait = full.mul_f64(0.5 + config.fraction() / 2.0);
        *last = Some(Last { at: now, next: now + wait, count });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stays_denied_shakes_hands_ever_more_rarely_and_is_never_late() {
        let (denials, config, begun) =
            (Denials::default(), ClientConfig::default(), Instant::now());
        let mut replaced = Vec::new();
        // Asks ten times a second, for ten minutes.
        for tenths in 0..6000 {
            let now = begun + tenths * Duration::from_millis(100);
            if denials.is_due(&config, now) {
                replaced.push(now);
            }
        }
        assert_eq!(replaced[0], begun, "the first one at once");
        let waits: Vec<_> = replaced.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let tick = Duration::from_millis(100);
        assert!(waits.iter().all(|wait| *wait >= FIRST / 2 && *wait <= LONGEST + tick));
        assert!(waits[8..].iter().all(|wait| *wait >= LONGEST / 2));
        let later = begun + Duration::from_secs(600) + FORGOTTEN_AFTER;
        assert!(denials.is_due(&config, later) && !denials.is_due(&config, later + FIRST / 4));
        assert!(denials.is_due(&config, later + FIRST), "as at first");
    }

    #[test]
    fn no_other_answer_is_a_denial() {
        let (denials, config) = (Denials::default(), ClientConfig::default());
        let code = |code: ErrorCode| [&code.code().to_le_bytes()[..], b"why"].concat();
        let replaces =
            |kind, payload: &[u8]| denials.replaces((kind, payload), &config, Instant::now);
        assert!(!replaces(Kind::Reply, &code(ErrorCode::PermissionDenied)));
        assert!(!replaces(Kind::Error, &code(ErrorCode::IllegalClient)));
        assert!(!replaces(Kind::Error, b""));
        assert!(replaces(Kind::Error, &code(ErrorCode::PermissionDenied)));
    }
}
