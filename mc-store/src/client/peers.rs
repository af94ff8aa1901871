//! Which peers are worth trying.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mc_types::{Endpoint, RemoteKey, SegmentId};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a peer that failed is tried last before it is probed. Each time that it fails again
/// doubles this, up to the longest.
const SUSPICION: Duration = Duration::from_secs(2);
const LONGEST_SUSPICION: Duration = Duration::from_secs(16);

/// The same for a peer that let a whole time limit pass. Callers are refused meanwhile, so this is
/// shorter.
const SILENCE: Duration = Duration::from_secs(1);
const LONGEST_SILENCE: Duration = Duration::from_secs(4);

/// How long a caller waits for a probe of a silent peer: one that is well again answers at once.
const FOR_A_PROBE: Duration = Duration::from_millis(400);

/// How long a failure is remembered, to know a peer that is back when the master names
/// it, and one that fails again and again: longer than a transport leaves a peer alone.
const MEMORY: Duration = Duration::from_secs(30);

/// Most peers remembered as failing, and most segments of one. Beyond that some
/// are forgotten, which costs a try, not correctness.
const MAX_SUSPECTS: usize = 1024;
const MAX_SEGMENTS: usize = 64;
const MAX_KEYS: usize = 64;

/// How long a segment is left out that could not be written although its peer answers: a
/// node may be gone and its address another's, which the master finds out when it hears no more of it.
const REFUSAL: Duration = Duration::from_secs(2);

/// Most segments that are remembered so. Beyond that one more placement fails at each put.
const MAX_REFUSED: usize = 1024;

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
    /// Segments that could not be written although their peers answer, and when they were tried last.
    refused: Mutex<Vec<(Instant, Avoided)>>,
    has_refused: AtomicBool,
    /// Told when a peer has answered or a probe is over.
    heard: Notify,
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
    /// When a whole time limit had passed without an answer, if nothing was heard of it since.
    silent_since: Option<Instant>,
    /// Segments known to be there.
    segments: Vec<Avoided>,
    /// The keys that opened them when the peer failed.
    keys: Vec<RemoteKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The peer failed, and has not answered since.
    Silent,
    /// The same, and it is being asked.
    Probed,
    /// The peer has answered.
    Fine,
}

/// A segment at a peer that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Avoided {
    pub(super) id: SegmentId,
    pub(super) name: Box<str>,
}

/// Whether a peer may be asked for something.
#[derive(Debug)]
pub(super) enum Admission {
    Granted,
    /// The peer is silent, and a probe is under way.
    Probed,
    /// The same, and the caller is to probe it.
    Due(Due),
    /// The peer was silent this long ago, and is asked again after that time.
    Refused {
        since: Duration,
        retry_in: Duration,
    },
}

/// How good a choice a peer is.
#[derive(Debug)]
pub(super) enum Standing {
    /// Nothing is wrong with it.
    Fine,
    /// The peer failed, and has not answered since.
    Suspect,
    /// The same, and the caller is to probe it.
    Due(Due),
}

/// The outcome of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probed {
    Answered,
    /// No answer in time.
    Silent,
    /// The endpoint refused the connection at once.
    Refused,
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
        let state = State::Silent;
        Self { since: now, until, failures: 1, state, silent_since: None, segments, keys }
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
        self.until = now + self.pause();
        self.state = State::Silent;
    }

    /// A whole time limit has passed.
    fn fell_silent(&mut self, now: Instant) {
        self.since = now;
        self.state = State::Silent;
        if self.silent_since.is_none() {
            (self.silent_since, self.failures) = (Some(now), 1);
            self.until = now + self.pause();
        }
    }

    fn pause(&self) -> Duration {
        let (first, longest) = match self.silent_since.is_some() {
            true => (SILENCE, LONGEST_SILENCE),
            false => (SUSPICION, LONGEST_SUSPICION),
        };
        let doublings = self.failures.saturating_sub(1).min(8);
        (first * (1 << doublings)).min(longest)
    }

    fn answered(&mut self) {
        self.state = State::Fine;
        self.silent_since = None;
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

    /// Notes that a peer just failed, whose memory these keys were to open, and whether a whole
    /// time limit passed until then.
    pub(super) fn failed(
        &self,
        endpoint: &Endpoint,
        keys: impl IntoIterator<Item = RemoteKey>,
        is_silent: bool,
    ) {
        let now = Instant::now();
        let fail = |suspect: &mut Suspect| match is_silent {
            true => suspect.fell_silent(now),
            false => suspect.fail(now),
        };
        self.change(|suspects| {
            if let Some(suspect) = suspects.get_mut(endpoint) {
                fail(suspect);
                suspect.learn(keys);
                return;
            }
            if suspects.len() >= MAX_SUSPECTS {
                suspects.retain(|_, suspect| now < suspect.until && suspect.state != State::Fine);
            }
            if suspects.len() < MAX_SUSPECTS {
                let mut suspect = Suspect::new(now);
                fail(&mut suspect);
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
            suspect.answered();
        }
        self.heard.notify_waiters();
    }

    /// Notes what the probe of a peer came to.
    pub(super) fn probed(&self, endpoint: &Endpoint, probed: Probed) {
        if let Some(suspect) = self.suspects.lock().get_mut(endpoint) {
            match probed {
                Probed::Answered => suspect.answered(),
                Probed::Silent => suspect.fail(Instant::now()),
                Probed::Refused => {
                    // A client that asks it gets the same answer at once.
                    suspect.silent_since = None;
                    suspect.fail(Instant::now());
                }
            }
        }
        self.heard.notify_waiters();
    }

    /// Whether a peer may be asked now: not while it is silent. When its time has come one caller
    /// is asked to probe it.
    pub(super) fn admit(&self, endpoint: &Endpoint) -> Admission {
        if self.is_empty() {
            return Admission::Granted;
        }
        let now = Instant::now();
        let mut suspects = self.suspects.lock();
        let Some(suspect) = suspects.get(endpoint) else { return Admission::Granted };
        let Some(silent_since) = suspect.silent_since else { return Admission::Granted };
        let (since, retry_in) = (now - silent_since, suspect.until.saturating_duration_since(now));
        let (is_due, is_probed) = (suspect.is_due(now), suspect.state == State::Probed);
        if is_probed {
            return Admission::Probed;
        }
        match due_one(&mut suspects, endpoint, is_due) {
            Some(due) => Admission::Due(due),
            None => Admission::Refused { since, retry_in },
        }
    }

    /// Waits until the probe of a silent peer is over, or the caller has waited long enough.
    ///
    /// # Cancellation
    /// Nothing is lost.
    pub(super) async fn probe_is_over(&self, endpoint: &Endpoint) {
        let is_over = || {
            let suspects = self.suspects.lock();
            suspects.get(endpoint).is_none_or(|suspect| suspect.state != State::Probed)
        };
        let over = async {
            loop {
                let mut heard = pin!(self.heard.notified());
                heard.as_mut().enable();
                if is_over() {
                    return;
                }
                heard.await;
            }
        };
        // What is not heard in time is as good as nothing.
        let _ = tokio::time::timeout(FOR_A_PROBE, over).await;
    }

    /// Whether a peer that failed may be back: it has mounted memory since, as a key shows that
    /// was not known then. It is no suspect any more. Once for each key: it may be that of another
    /// segment that was there all the time.
    pub(super) fn is_back(
        &self,
        endpoint: &Endpoint,
        keys: impl IntoIterator<Item = RemoteKey>,
    ) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut suspects = self.suspects.lock();
        let Some(suspect) = suspects.get_mut(endpoint) else { return false };
        let new: Vec<RemoteKey> =
            keys.into_iter().filter(|key| !suspect.keys.contains(key)).collect();
        if new.is_empty() {
            return false;
        }
        suspect.learn(new);
        if suspect.silent_since.is_some() {
            // A probe finds out, and no call waits for a whole time limit.
            suspect.until = Instant::now();
            return false;
        }
        suspect.answered();
        true
    }

    /// Notes that `segment` is at a peer, if that is one that failed.
    pub(super) fn holds(&self, endpoint: &Endpoint, id: SegmentId, name: &str) {
        if let Some(suspect) = self.suspects.lock().get_mut(endpoint)
            && suspect.segments.len() < MAX_SEGMENTS
            && !suspect.segments.iter().any(|known| known.id == id)
        {
            suspect.segments.push(Avoided { id, name: name.into() });
        }
    }

    /// Notes that `segment` could not be written although its peer answers.
    pub(super) fn refuses(&self, id: SegmentId, name: &str) {
        let now = Instant::now();
        let mut refused = self.refused.lock();
        refused.retain(|(at, segment)| now - *at < REFUSAL && segment.id != id);
        if refused.len() < MAX_REFUSED {
            refused.push((now, Avoided { id, name: name.into() }));
        }
        self.has_refused.store(true, Ordering::Relaxed);
    }

    /// Up to `limit` segments that are to be left out: at peers that failed and have not answered since,
    /// and those that could not be written a moment ago. And those peers that the caller is to probe now.
    pub(super) fn avoided_segments(&self, limit: usize) -> (Vec<Avoided>, Vec<Due>) {
        let (mut avoided, due) = self.suspect_segments(limit);
        if self.has_refused.load(Ordering::Relaxed) {
            let now = Instant::now();
            let mut refused = self.refused.lock();
            refused.retain(|(at, _)| now - *at < REFUSAL);
            self.has_refused.store(!refused.is_empty(), Ordering::Relaxed);
            let free = limit - avoided.len();
            avoided.extend(refused.iter().take(free).map(|(_, segment)| segment.clone()));
        }
        (avoided, due)
    }

    /// Whether a peer failed and has not answered since. One caller is asked to probe it when
    /// its time has come.
    pub(super) fn standing(&self, endpoint: &Endpoint) -> Standing {
        if self.is_empty() {
            return Standing::Fine;
        }
        let now = Instant::now();
        let mut suspects = self.suspects.lock();
        let is_due = match suspects.get(endpoint) {
            None | Some(Suspect { state: State::Fine, .. }) => return Standing::Fine,
            Some(suspect) => suspect.is_due(now),
        };
        let due = due_one(&mut suspects, endpoint, is_due);
        due.map_or(Standing::Suspect, Standing::Due)
    }

    /// Up to `limit` segments at peers that are suspects, and those peers that the caller is to
    /// probe now.
    fn suspect_segments(&self, limit: usize) -> (Vec<Avoided>, Vec<Due>) {
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

/// The peer, if it is due and one more can be probed.
fn due_one(
    suspects: &mut BTreeMap<Endpoint, Suspect>,
    endpoint: &Endpoint,
    is_due: bool,
) -> Option<Due> {
    let may_probe = is_due && probes(suspects) < MAX_PROBES;
    let suspect = suspects.get_mut(endpoint).filter(|_| may_probe)?;
    Some(suspect.probe(endpoint))
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
        peers.failed(&endpoint, [old, old], false);
        peers.failed(&endpoint, [other], false);
        assert!(is_suspect(&peers));
        assert!(!peers.is_back(&endpoint, [old, other]));
        assert!(peers.is_back(&endpoint, [old, new]));
        assert!(!is_suspect(&peers));
    }

    #[test]
    fn a_dead_peer_with_several_segments_is_tried_once_for_each() {
        let endpoint = endpoint();
        let peers = Peers::default();
        let mut tries = 0;
        for round in 0..3 {
            for n in 1..=8 {
                let key = RemoteKey::from_bytes([n; 16]);
                let avoided = peers.suspect_segments(100).0;
                if avoided.iter().any(|segment| segment.id == SegmentId::from_u128(n.into())) {
                    continue;
                }
                assert_eq!(peers.is_back(&endpoint, [key]), n > 1, "in round {round}");
                tries += 1;
                peers.failed(&endpoint, [key], false);
                peers.holds(&endpoint, SegmentId::from_u128(n.into()), "there");
            }
        }
        assert_eq!(tries, 8);
    }

    #[tokio::test(start_paused = true)]
    async fn segments_that_a_peer_refuses_are_left_out_for_a_while_and_bounded() {
        let peers = Peers::default();
        let avoided = |limit| peers.avoided_segments(limit).0.len();
        assert_eq!(avoided(10), 0);
        peers.refuses(SegmentId::from_u128(1), "there");
        tokio::time::advance(REFUSAL / 2).await;
        peers.refuses(SegmentId::from_u128(2), "too");
        assert_eq!((avoided(10), avoided(1)), (2, 1));
        tokio::time::advance(REFUSAL / 2).await;
        assert_eq!(avoided(10), 1, "the first is tried again");
        for number in 0..2 * MAX_REFUSED as u128 {
            peers.refuses(SegmentId::from_u128(number), "many");
        }
        assert_eq!(avoided(usize::MAX), MAX_REFUSED);
        tokio::time::advance(REFUSAL).await;
        assert_eq!(avoided(10), 0);
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
        peers.failed(&endpoint(), [key], false);
        peers.holds(&endpoint(), SegmentId::from_u128(1), "there");
        let end = |peers: &Peers| {
            peers.suspects.lock().values_mut().for_each(|one| one.until = Instant::now());
        };
        end(&peers);
        assert!(matches!(peers.standing(&endpoint()), Standing::Due(due) if due.key == key));
        assert!(matches!(peers.standing(&endpoint()), Standing::Suspect));
        peers.probed(&endpoint(), Probed::Silent);
        assert!(matches!(peers.standing(&endpoint()), Standing::Suspect));
        end(&peers);
        let (segments, due) = peers.suspect_segments(10);
        assert_eq!((segments.len(), due.len()), (1, 1));
        peers.probed(&endpoint(), Probed::Answered);
        assert!(!is_suspect(&peers));
        assert!(peers.suspect_segments(10).0.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_asked_by_one_and_refused_to_the_others() {
        let peers = Peers::default();
        let (endpoint, key) = (endpoint(), RemoteKey::from_bytes([1; 16]));
        assert!(matches!(peers.admit(&endpoint), Admission::Granted));
        peers.failed(&endpoint, [key], false);
        assert!(matches!(peers.admit(&endpoint), Admission::Granted), "it failed at once");
        for seconds in [1, 2, 4, 4, 4] {
            match seconds {
                1 => peers.failed(&endpoint, [key], true),
                _ => peers.probed(&endpoint, Probed::Silent),
            }
            let Admission::Refused { retry_in, .. } = peers.admit(&endpoint) else {
                panic!("asked again at once");
            };
            assert_eq!(retry_in, Duration::from_secs(seconds));
            // What was under way before fails, too, and changes nothing.
            peers.failed(&endpoint, [key], true);
            tokio::time::advance(retry_in).await;
            assert!(matches!(peers.admit(&endpoint), Admission::Due(due) if due.key == key));
            assert!(matches!(peers.admit(&endpoint), Admission::Probed));
        }
        let begun = Instant::now();
        peers.probe_is_over(&endpoint).await;
        assert_eq!(begun.elapsed(), FOR_A_PROBE, "a caller waits no longer");
        peers.probed(&endpoint, Probed::Answered);
        peers.probe_is_over(&endpoint).await;
        assert!(matches!(peers.admit(&endpoint), Admission::Granted));
        // With another key it is probed at once.
        peers.failed(&endpoint, [key], true);
        assert!(matches!(peers.admit(&endpoint), Admission::Refused { .. }));
        assert!(!peers.is_back(&endpoint, [RemoteKey::from_bytes([2; 16])]));
        assert!(matches!(peers.admit(&endpoint), Admission::Due(_)));
        peers.probed(&endpoint, Probed::Answered);
        // An endpoint without a process refuses at once.
        peers.failed(&endpoint, [key], true);
        peers.probed(&endpoint, Probed::Refused);
        assert!(matches!(peers.admit(&endpoint), Admission::Granted));
    }
}
