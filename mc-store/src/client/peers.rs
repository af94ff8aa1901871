//! Which peers are worth trying.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mc_types::Endpoint;
use parking_lot::Mutex;

/// How long a peer that failed is tried last.
const SUSPICION: Duration = Duration::from_secs(2);

/// Most peers remembered as failing, and most segments of one. Beyond that some
/// are forgotten, which costs a try, not correctness.
const MAX_SUSPECTS: usize = 1024;
const MAX_SEGMENTS: usize = 8;

/// Remembers peers that failed a moment ago, so that one dead node costs one
/// time-out and not one for each object on it.
#[derive(Debug, Default)]
pub(super) struct Peers {
    suspects: Mutex<HashMap<Endpoint, Suspect>>,
}

#[derive(Debug)]
struct Suspect {
    since: Instant,
    /// Segments known to be there.
    segments: Vec<Box<str>>,
}

impl Suspect {
    fn is_over(&self) -> bool {
        self.since.elapsed() >= SUSPICION
    }
}

impl Peers {
    /// Notes that a peer just failed.
    pub(super) fn failed(&self, endpoint: &Endpoint) {
        let since = Instant::now();
        let mut suspects = self.suspects.lock();
        if let Some(suspect) = suspects.get_mut(endpoint) {
            suspect.since = since;
            return;
        }
        if suspects.len() >= MAX_SUSPECTS {
            suspects.retain(|_, suspect| !suspect.is_over());
        }
        if suspects.len() < MAX_SUSPECTS {
            suspects.insert(endpoint.clone(), Suspect { since, segments: Vec::new() });
        }
    }

    /// Notes that `segment` is at a peer, if that is one that failed.
    pub(super) fn holds(&self, endpoint: &Endpoint, segment: &str) {
        if let Some(suspect) = self.suspects.lock().get_mut(endpoint)
            && suspect.segments.len() < MAX_SEGMENTS
            && !suspect.segments.iter().any(|known| **known == *segment)
        {
            suspect.segments.push(segment.into());
        }
    }

    /// Whether a peer failed a moment ago.
    pub(super) fn is_suspect(&self, endpoint: &Endpoint) -> bool {
        self.suspects.lock().get(endpoint).is_some_and(|suspect| !suspect.is_over())
    }

    /// Up to `limit` segments at peers that failed a moment ago.
    pub(super) fn suspect_segments(&self, limit: usize) -> Vec<Box<str>> {
        let mut suspects = self.suspects.lock();
        if suspects.is_empty() {
            return Vec::new();
        }
        suspects.retain(|_, suspect| !suspect.is_over());
        let segments = suspects.values().flat_map(|suspect| &suspect.segments);
        segments.take(limit).cloned().collect()
    }
}
