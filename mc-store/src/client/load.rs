//! How busy each peer is with what this client asks of it, and how far away it is.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mc_rpc::PeerSpeed;
use mc_types::Endpoint;
use parking_lot::RwLock;
use tokio::time::Instant;

/// Most peers that are known. Of more than these some are forgotten, which costs a choice
/// that could have been better.
const MAX_PEERS: usize = 4096;

/// The size above which a read's time depends on its bytes, and tells nothing about the way.
const SMALL: u64 = 64 << 10;

/// How many times the usual time a transfer takes before its peer has stalled, and at least.
const STALLED_AT: u64 = 8;
const STALLED_AT_LEAST: Duration = Duration::from_millis(100);

/// The assumed time for a mebibyte at an unknown peer, in microseconds.
const UNKNOWN_PER_MIB: u64 = 20_000;

/// Bytes under way that make a peer one step busier.
const STEP: u64 = 1 << 20;

/// Every peer that bytes went to or came from.
#[derive(Debug, Default)]
pub(super) struct Loads {
    peers: RwLock<HashMap<Endpoint, Arc<Load>>>,
}

/// One peer.
#[derive(Debug, Default)]
struct Load {
    /// Bytes under way.
    in_flight: AtomicU64,
    /// Moving average of what small transfers take, in 1/8 µs; 0 before the first.
    latency: AtomicU64,
    /// Moving average of what a mebibyte of larger transfers takes, in µs; 0 before the first.
    per_mib: AtomicU64,
    /// Whether bytes go there through sockets, as far as is known.
    is_remote: AtomicBool,
    /// Whether a transfer has ended since [`Loads::speeds`] was asked.
    is_used: AtomicBool,
}

/// How good a choice a peer is, the best first. Peers that were never used are tried
/// before those that were: how else would they be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Distance {
    is_remote: bool,
    /// Mebibytes under way.
    busy: u64,
    /// The latency's order of magnitude: peers of one rack are all the same.
    far: u32,
}

/// A transfer under way.
pub(super) struct Begun {
    load: Arc<Load>,
    bytes: u64,
    begun: Instant,
}

impl Loads {
    pub(super) fn begin(&self, endpoint: &Endpoint, bytes: u64) -> Begun {
        let load = self.load(endpoint);
        load.in_flight.fetch_add(bytes, Ordering::Relaxed);
        Begun { load, bytes, begun: Instant::now() }
    }

    pub(super) fn distance(&self, endpoint: &Endpoint) -> Distance {
        let peers = self.peers.read();
        let Some(load) = peers.get(endpoint) else { return Distance::default() };
        let latency = load.latency.load(Ordering::Relaxed);
        Distance {
            is_remote: load.is_remote.load(Ordering::Relaxed),
            busy: load.in_flight.load(Ordering::Relaxed) / STEP,
            far: (u64::BITS - latency.leading_zeros()) / 2,
        }
    }

    /// How fast some of the peers are that were used since this was last asked, `most` of them at the most.
    pub(super) fn speeds(&self, most: usize) -> Vec<PeerSpeed> {
        let micros = |micros: u64| u32::try_from(micros).unwrap_or(u32::MAX);
        let used = |load: &Load| load.is_used.swap(false, Ordering::Relaxed);
        let peers = self.peers.read();
        // The order of the map is as good as drawn. Who is not told of now is next time, if it is used then.
        peers
            .iter()
            .filter(|(_, load)| used(load))
            .take(most)
            .map(|(endpoint, load)| PeerSpeed {
                endpoint: endpoint.as_str().to_owned(),
                small_us: micros(load.latency.load(Ordering::Relaxed).div_ceil(8)),
                mebibyte_us: micros(load.per_mib.load(Ordering::Relaxed)),
            })
            .collect()
    }

    /// Forgets a peer that stalled and answers again, so that it is measured anew.
    pub(super) fn forget(&self, endpoint: &Endpoint) {
        self.peers.write().remove(endpoint);
    }

    fn load(&self, endpoint: &Endpoint) -> Arc<Load> {
        if let Some(load) = self.peers.read().get(endpoint) {
            return Arc::clone(load);
        }
        let mut peers = self.peers.write();
        if peers.len() >= MAX_PEERS {
            peers.retain(|_, load| Arc::strong_count(load) > 1);
        }
        Arc::clone(peers.entry(endpoint.clone()).or_default())
    }
}

impl Begun {
    /// Takes note that the transfer ended, well or not, and whether it went through shared
    /// memory.
    pub(super) fn ended(self, shared: bool) {
        self.load.is_remote.store(!shared, Ordering::Relaxed);
        self.took(self.begun.elapsed());
    }

    /// Takes note that the transfer was cancelled because its peer had stalled. If that is how
    /// long the peer takes from now on, the next transfers have more time.
    pub(super) fn stalled(self) {
        self.took(self.begun.elapsed());
    }

    /// How long the peer may make no progress before it has stalled: several times what this
    /// transfer, and those that are under way beside it, usually take there.
    pub(super) fn stalls_after(&self) -> Duration {
        let mib = |bytes: u64, each: u64| (u128::from(bytes) * u128::from(each)) >> 20;
        let per_mib = match self.load.per_mib.load(Ordering::Relaxed) {
            0 => UNKNOWN_PER_MIB,
            known => known,
        };
        let latency = self.load.latency.load(Ordering::Relaxed) / 8;
        let bytes = mib(self.load.in_flight.load(Ordering::Relaxed), per_mib);
        let usual = u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(latency);
        Duration::from_micros(usual.saturating_mul(STALLED_AT)).max(STALLED_AT_LEAST)
    }

    fn took(&self, time: Duration) {
        let (average, took) = if self.bytes <= SMALL {
            (&self.load.latency, time.as_nanos() / 125)
        } else {
            (&self.load.per_mib, (time.as_micros() << 20) / u128::from(self.bytes))
        };
        let took = u64::try_from(took).unwrap_or(u64::MAX / 8);
        let before = average.load(Ordering::Relaxed);
        let now = if before == 0 { took } else { (7 * before).saturating_add(took) / 8 };
        // Of two at once one may be lost.
        average.store(now.max(1), Ordering::Relaxed);
        if !self.load.is_used.load(Ordering::Relaxed) {
            self.load.is_used.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.load.in_flight.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_near_peers_come_first() {
        let loads = Loads::default();
        let [near, far] = ["10.0.0.1:1", "10.0.0.2:1"].map(|at| Endpoint::new("tcp", at).unwrap());
        loads.begin(&near, 1).ended(true);
        loads.begin(&far, 1).ended(false);
        assert!(loads.distance(&near) < loads.distance(&far), "shared memory is nearest");
        loads.begin(&near, 1).ended(false);
        let busy = loads.begin(&near, 5 << 20);
        assert!(loads.distance(&near) > loads.distance(&far), "it is busy");
        drop(busy);
        assert_eq!(loads.distance(&near).busy, 0, "also after a transfer that was given up");
    }

    #[test]
    fn a_peer_has_stalled_after_several_times_the_usual() {
        let loads = Loads::default();
        let endpoint = Endpoint::new("tcp", "10.0.0.1:1").unwrap();
        assert_eq!(loads.begin(&endpoint, 1).stalls_after(), STALLED_AT_LEAST);
        let unknown = loads.begin(&endpoint, 64 << 20).stalls_after();
        assert_eq!(unknown, Duration::from_millis(8 * 64 * 20) + Duration::from_micros(0));
        let took = |bytes, time| loads.begin(&endpoint, bytes).took(time);
        took(1 << 20, Duration::from_millis(1));
        assert_eq!(loads.begin(&endpoint, 1 << 20).stalls_after(), STALLED_AT_LEAST);
        let large = loads.begin(&endpoint, 256 << 20);
        assert_eq!(large.stalls_after(), Duration::from_millis(8 * 256));
        assert!(
            loads.begin(&endpoint, 1).stalls_after() >= Duration::from_millis(8 * 256),
            "behind"
        );
        drop(large);
        (0..100).for_each(|_| took(1, Duration::from_millis(50)));
        let slow = loads.begin(&endpoint, 1).stalls_after();
        assert!(
            slow > Duration::from_millis(390) && slow <= Duration::from_millis(400),
            "{slow:?}"
        );
    }

    #[test]
    fn peers_that_were_used_are_told_once() {
        let loads = Loads::default();
        let endpoint = Endpoint::new("tcp", "10.0.0.1:1").unwrap();
        drop(loads.begin(&endpoint, 1));
        assert_eq!(loads.speeds(9), [], "nothing is known of it");
        loads.begin(&endpoint, 1).took(Duration::from_micros(40));
        loads.begin(&endpoint, 2 << 20).took(Duration::from_micros(700));
        let told =
            PeerSpeed { endpoint: endpoint.as_str().to_owned(), small_us: 40, mebibyte_us: 350 };
        assert_eq!(loads.speeds(9), [told]);
        assert_eq!(loads.speeds(9), []);
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let loads = Loads::default();
        for n in 0..2 * MAX_PEERS {
            let endpoint = Endpoint::new("tcp", &format!("10.0.0.1:{n}")).unwrap();
            loads.begin(&endpoint, 1).ended(false);
        }
        assert!(loads.peers.read().len() <= MAX_PEERS);
    }
}
