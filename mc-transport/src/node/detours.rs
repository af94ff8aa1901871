//! Ways to peers that do not answer where they like best to be reached.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mc_types::Endpoint;
use parking_lot::Mutex;

/// Peers to remember. More begin anew, at the cost of a [pause](mc_net::NEXT_AFTER) each.
const MAX_DETOURS: usize = 1024;

/// How long a way is taken first, before the one that the peer likes best is tried again: it may be
/// back, and a name may lead somewhere else by now.
const TAKEN_FOR: Duration = Duration::from_secs(10);

/// The ways that answered, of peers whose first one did not: without it every link to such a peer
/// would be waited for anew.
#[derive(Debug, Default)]
pub(super) struct Detours(Mutex<HashMap<Endpoint, (Endpoint, Instant)>>);

impl Detours {
    /// Returns the way to take first to a peer.
    pub(super) fn of(&self, peer: &Endpoint) -> Option<Endpoint> {
        if peer.others().is_empty() {
            return None;
        }
        let detours = self.0.lock();
        let (way, since) = detours.get(peer)?;
        // A peer that is mounted anew may tell others.
        (since.elapsed() < TAKEN_FOR && peer.others().contains(way)).then(|| way.clone())
    }

    /// Takes note that `way` answered, after the first of its transport did not.
    pub(super) fn found(&self, peer: &Endpoint, way: &Endpoint) {
        let mut detours = self.0.lock();
        if detours.len() == MAX_DETOURS {
            detours.clear();
        }
        detours.insert(peer.clone(), (way.clone(), Instant::now()));
    }

    pub(super) fn forget(&self, peer: &Endpoint) {
        self.0.lock().remove(peer);
    }
}

/// Returns whether the node at `way` is certainly the one of `peer`, if that still exists. A name
/// among the further ways may lead to another host by now, while the peer lives on where it was.
pub(super) fn is_certain(peer: &Endpoint, way: &Endpoint) -> bool {
    way == peer || way.address().parse::<SocketAddr>().is_ok()
}
