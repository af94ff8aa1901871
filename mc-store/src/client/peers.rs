//! Which peers are worth trying.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mc_types::{Endpoint, RemoteKey};
use parking_lot::Mutex;

/// How long a peer that failed is tried last.
const SUSPICION: Duration = Duration::from_secs(2);

/// How long a failure is remembered, to know a peer that is back when the master names
/// it: longer than a transport leaves a peer alone.
const MEMORY: Duration = Duration::from_secs(30);

/// Most peers remembered as failing, and most segments of one. Beyond that some
/// are forgotten, which costs a try, not correctness.
const MAX_SUSPECTS: usize = 1024;
const MAX_SEGMENTS: usize = 8;
const MAX_KEYS: usize = 64;

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
    /// The keys that opened them when the peer failed.
    keys: Vec<RemoteKey>,
}

impl Suspect {
    fn new(since: Instant) -> Self {
        Self { since, segments: Vec::new(), keys: Vec::new() }
    }

    fn is_over(&self) -> bool {
        self.since.elapsed() >= SUSPICION
    }

    fn learn(&mut self, keys: impl IntoIterator<Item = RemoteKey>) {
        for key in keys {
            if self.keys.len() < MAX_KEYS && !self.keys.contains(&key) {
                self.keys.push(key);
            }
        }
    }
}

impl Peers {
    /// Notes that a peer just failed, whose memory these keys were to open.
    pub(super) fn failed(&self, endpoint: &Endpoint, keys: impl IntoIterator<Item = RemoteKey>) {
        let since = Instant::now();
        let mut suspects = self.suspects.lock();
        if let Some(suspect) = suspects.get_mut(endpoint) {
            suspect.since = since;
            suspect.learn(keys);
            return;
        }
        if suspects.len() >= MAX_SUSPECTS {
            suspects.retain(|_, suspect| !suspect.is_over());
        }
        if suspects.len() < MAX_SUSPECTS {
            let mut suspect = Suspect::new(since);
            suspect.learn(keys);
            suspects.insert(endpoint.clone(), suspect);
        }
    }

    /// Whether a peer that failed must be back: it has mounted memory since, as a key
    /// shows that was not known then. It is no suspect any more.
    pub(super) fn is_back(
        &self,
        endpoint: &Endpoint,
        keys: impl IntoIterator<Item = RemoteKey>,
    ) -> bool {
        let mut suspects = self.suspects.lock();
        let Some(suspect) = suspects.get(endpoint) else { return false };
        let back = keys.into_iter().any(|key| !suspect.keys.contains(&key));
        if back {
            suspects.remove(endpoint);
        }
        back
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
        suspects.retain(|_, suspect| suspect.since.elapsed() < MEMORY);
        let suspected = suspects.values().filter(|suspect| !suspect.is_over());
        let segments = suspected.flat_map(|suspect| &suspect.segments);
        segments.take(limit).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_memory_shows_that_a_peer_is_back() {
        let endpoint = Endpoint::new("tcp", "10.0.0.1:7").unwrap();
        let [old, other, new] = [1, 2, 3].map(|n| RemoteKey::from_bytes([n; 16]));
        let peers = Peers::default();
        assert!(!peers.is_back(&endpoint, [old]), "it never failed");
        peers.failed(&endpoint, [old, old]);
        peers.failed(&endpoint, [other]);
        assert!(peers.is_suspect(&endpoint));
        assert!(!peers.is_back(&endpoint, [old, other]));
        assert!(peers.is_back(&endpoint, [old, new]));
        assert!(!peers.is_suspect(&endpoint));
    }
}
