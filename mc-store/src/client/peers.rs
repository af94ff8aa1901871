//! Which peers are worth trying.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mc_types::Endpoint;
use parking_lot::Mutex;

/// How long a peer that failed is tried last.
const SUSPICION: Duration = Duration::from_secs(2);

/// Most peers remembered as failing. Beyond that some are forgotten, which costs
/// a try, not correctness.
const MAX_SUSPECTS: usize = 1024;

/// Remembers peers that failed a moment ago, so that one dead node costs one
/// time-out and not one for each object on it.
#[derive(Debug, Default)]
pub(super) struct Peers {
    suspects: Mutex<HashMap<Endpoint, Instant>>,
}

impl Peers {
    pub(super) fn failed(&self, endpoint: &Endpoint) {
        let now = Instant::now();
        let mut suspects = self.suspects.lock();
        if suspects.len() >= MAX_SUSPECTS {
            suspects.retain(|_, since| now.duration_since(*since) < SUSPICION);
        }
        if suspects.len() < MAX_SUSPECTS {
            suspects.insert(endpoint.clone(), now);
        }
    }

    pub(super) fn is_suspect(&self, endpoint: &Endpoint) -> bool {
        let mut suspects = self.suspects.lock();
        match suspects.get(endpoint) {
            Some(since) if since.elapsed() < SUSPICION => true,
            Some(_) => {
                suspects.remove(endpoint);
                false
            }
            None => false,
        }
    }
}
