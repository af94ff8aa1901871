//! Which peers are worth trying.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mc_types::{Endpoint, RemoteKey};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long a peer that failed is tried last before it is probed. Each time that it fails again
/// doubles this, up to the longest.
const SUSPICION: Duration = Duration::from_secs(2);
const LONGEST_SUSPICION: Duration = Duration::from_secs(16);

/// How long a failure is remembered, to know a peer that is back when the master names
/// it, and one that fails again and again: longer than a transport leaves a peer alone.
const MEMORY: Duration = Duration::from_secs(30);

/// Most peers remembered as failing, and most segments of one. Beyond that some
/// are forgotten, which costs a try, not correctness.
const MAX_SUSPECTS: usize = 1024;
const MAX_SEGMENTS: usize = 8;
const MAX_KEYS: usize = 64;

/// Most peers that are probed at a time.
const MAX_PROBES: usize = 64;

/// Remembers peers that failed, so that one that is dead, or answers to its master alone, costs
/// one time-out and not one for each object on it.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Ordered, so that a simulation repeats.
    suspects: Mutex<BTreeMap<Endpoint, Suspect>>,
    /// How many these are: hardly ever any, and asked for each transfer.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Suspect {
    /// The last failure.
    since: Instant,
    /// When it is probed.
    until: Instant,
    /// Failures in a row, those during one suspicion counted once.
    failures: u32,
    state: State,
    /// Segments known to be there.
    segments: Vec<Box<str>>,
    /// The keys that opened them when the peer failed.
    keys: Vec<RemoteKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It failed, and nothing was heard of it since.
    Silent,
    /// The same, and it is being asked.
    Probed,
    /// It has answered.
    Fine,
}

/// How good a choice a peer is.
#[derive(Debug)]
pub(super) enum Standing {
    /// Nothing is wrong with it.
    Fine,
    /// It failed, and has not answered since.
    Suspect,
    /// The same, and the caller is to probe it.
    Due(Due),
}

/// A peer that is to be probed.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) endpoint: Endpoint,
    /// A key that it had.
    pub(super) key: RemoteKey,
}

impl Suspect {
    fn new(now: Instant) -> Self {
        let until = now + SUSPICION;
        let (segments, keys) = (Vec::new(), Vec::new());
        Self { since: now, until, failures: 1, state: State::Silent, segments, keys }
    }

    fn fail(&mut self, now: Instant) {
        if now - self.since >= MEMORY {
            self.failures = 0;
        }
        self.since = now;
        if self.state == State::Silent && now < self.until {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let doublings = (self.failures - 1).min(8);
        self.until = now + (SUSPICION * (1 << doublings)).min(LONGEST_SUSPICION);
        self.state = State::Silent;
    }

    fn is_due(&self, now: Instant) -> bool {
        self.state == State::Silent && now >= self.until
    }

    fn learn(&mut self, keys: impl IntoIterator<Item = RemoteKey>) {
        for key in keys {
            if self.keys.len() < MAX_KEYS && !self.keys.contains(&key) {
                self.keys.push(key);
            }
        }
    }

    fn probe(&mut self, endpoint: &Endpoint) -> Due {
        self.state = State::Probed;
        let key = self.keys.first().copied().unwrap_or(RemoteKey::from_bytes([0; 16]));
        Due { endpoint: endpoint.clone(), key }
    }
}

impl Peers {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<Endpoint, Suspect>) -> T) -> T {
        let mut suspects = self.suspects.lock();
        let result = change(&mut suspects);
        self.count.store(suspects.len(), Ordering::Relaxed);
        result
    }

    /// Notes that a peer just failed, whose memory these keys were to open.
    pub(super) fn failed(&self, endpoint: &Endpoint, keys: impl IntoIterator<Item = RemoteKey>) {
        let now = Instant::now();
        self.change(|suspects| {
            if let Some(suspect) = suspects.get_mut(endpoint) {
                suspect.fail(now);
                suspect.learn(keys);
                return;
            }
            if suspects.len() >= MAX_SUSPECTS {
                suspects.retain(|_, suspect| now < suspect.until && suspect.state != State::Fine);
            }
            if suspects.len() < MAX_SUSPECTS {
                let mut suspect = Suspect::new(now);
                suspect.learn(keys);
                suspects.insert(endpoint.clone(), suspect);
            }
        });
    }

    /// Notes that a peer has answered.
    pub(super) fn answered(&self, endpoint: &Endpoint) {
        if self.is_empty() {
            return;
        }
        if let Some(suspect) = self.suspects.lock().get_mut(endpoint) {
            suspect.state = State::Fine;
        }
    }

    /// Notes what the probe of a peer came to.
    pub(super) fn probed(&self, endpoint: &Endpoint, has_answered: bool) {
        if has_answered {
            self.answered(endpoint);
        } else if let Some(suspect) = self.suspects.lock().get_mut(endpoint) {
            suspect.fail(Instant::now());
        }
    }

    /// Whether a peer that failed must be back: it has mounted memory since, as a key
    /// shows that was not known then. It is no suspect any more.
    pub(super) fn is_back(
        &self,
        endpoint: &Endpoint,
        keys: impl IntoIterator<Item = RemoteKey>,
    ) -> bool {
        if self.is_empty() {
            return false;
        }
        self.change(|suspects| {
            let Some(suspect) = suspects.get(endpoint) else { return false };
            let back = keys.into_iter().any(|key| !suspect.keys.contains(&key));
            if back {
                suspects.remove(endpoint);
            }
            back
        })
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

    /// Whether a peer failed and has not answered since. One caller is asked to probe it when
    /// its time has come.
    pub(super) fn standing(&self, endpoint: &Endpoint) -> Standing {
        if self.is_empty() {
            return Standing::Fine;
        }
        let now = Instant::now();
        let mut suspects = self.suspects.lock();
        let is_due = suspects.get(endpoint).is_some_and(|suspect| suspect.is_due(now));
        let may_probe = is_due && probes(&suspects) < MAX_PROBES;
        match suspects.get_mut(endpoint) {
            None | Some(Suspect { state: State::Fine, .. }) => Standing::Fine,
            Some(suspect) if may_probe => Standing::Due(suspect.probe(endpoint)),
            Some(_) => Standing::Suspect,
        }
    }

    /// Up to `limit` segments at peers that are suspects, and those peers that the caller is to
    /// probe now.
    pub(super) fn suspect_segments(&self, limit: usize) -> (Vec<Box<str>>, Vec<Due>) {
        if self.is_empty() {
            return Default::default();
        }
        let now = Instant::now();
        self.change(|suspects| {
            suspects.retain(|_, suspect| now - suspect.since < MEMORY);
            let free = MAX_PROBES.saturating_sub(probes(suspects));
            let due = suspects.iter_mut().filter(|(_, suspect)| suspect.is_due(now));
            let due = due.take(free).map(|(endpoint, suspect)| suspect.probe(endpoint)).collect();
            let silent = suspects.values().filter(|suspect| suspect.state != State::Fine);
            let segments = silent.flat_map(|suspect| &suspect.segments);
            (segments.take(limit).cloned().collect(), due)
        })
    }
}

fn probes(suspects: &BTreeMap<Endpoint, Suspect>) -> usize {
    suspects.values().filter(|suspect| suspect.state == State::Probed).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint::new("tcp", "10.0.0.1:7").unwrap()
    }

    fn is_suspect(peers: &Peers) -> bool {
        !matches!(peers.standing(&endpoint()), Standing::Fine)
    }

    #[test]
    fn new_memory_shows_that_a_peer_is_back() {
        let endpoint = endpoint();
        let [old, other, new] = [1, 2, 3].map(|n| RemoteKey::from_bytes([n; 16]));
        let peers = Peers::default();
        assert!(!peers.is_back(&endpoint, [old]), "it never failed");
        peers.failed(&endpoint, [old, old]);
        peers.failed(&endpoint, [other]);
        assert!(is_suspect(&peers));
        assert!(!peers.is_back(&endpoint, [old, other]));
        assert!(peers.is_back(&endpoint, [old, new]));
        assert!(!is_suspect(&peers));
    }

    #[test]
    fn a_peer_that_fails_again_is_left_alone_for_longer() {
        let begun = Instant::now();
        let mut suspect = Suspect::new(begun);
        let mut now = begun;
        for seconds in [2, 4, 8, 16, 16] {
            assert_eq!(suspect.until - now, Duration::from_secs(seconds));
            suspect.fail(now + SUSPICION / 2);
            assert_eq!(suspect.until - now, Duration::from_secs(seconds), "of the same time");
            assert!(!suspect.is_due(suspect.until - Duration::from_millis(1)));
            assert!(suspect.is_due(suspect.until));
            now = suspect.until;
            suspect.fail(now);
        }
        suspect.fail(now + MEMORY);
        assert_eq!(suspect.until - (now + MEMORY), SUSPICION, "that was long ago");
    }

    #[test]
    fn a_suspect_is_probed_by_one_and_trusted_when_it_answers() {
        let peers = Peers::default();
        let key = RemoteKey::from_bytes([1; 16]);
        peers.failed(&endpoint(), [key]);
        peers.holds(&endpoint(), "there");
        let end = |peers: &Peers| {
            peers.suspects.lock().values_mut().for_each(|one| one.until = Instant::now());
        };
        end(&peers);
        assert!(matches!(peers.standing(&endpoint()), Standing::Due(due) if due.key == key));
        assert!(matches!(peers.standing(&endpoint()), Standing::Suspect));
        peers.probed(&endpoint(), false);
        assert!(matches!(peers.standing(&endpoint()), Standing::Suspect));
        end(&peers);
        let (segments, due) = peers.suspect_segments(10);
        assert_eq!((segments.len(), due.len()), (1, 1));
        peers.probed(&endpoint(), true);
        assert!(!is_suspect(&peers));
        assert!(peers.suspect_segments(10).0.is_empty());
    }
}
