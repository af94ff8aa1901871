//! Ways to peers that do not answer where they like best to be reached.

use std::collections::HashMap;

use mc_types::Endpoint;
use parking_lot::Mutex;

/// Peers to remember. More begin anew, at the cost of a [pause](mc_net::NEXT_AFTER) each.
const MAX_DETOURS: usize = 1024;

/// The ways that answered, of peers whose first one did not: without it every link to such a peer
/// would be waited for anew.
#[derive(Debug, Default)]
pub(super) struct Detours(Mutex<HashMap<Endpoint, Endpoint>>);

impl Detours {
    /// Returns the way to take first to a peer.
    pub(super) fn of(&self, peer: &Endpoint) -> Option<Endpoint> {
        if peer.others().is_empty() {
            return None;
        }
        self.0.lock().get(peer).cloned()
    }

    /// Takes note that `way` answered, after the first of its transport did not.
    pub(super) fn found(&self, peer: &Endpoint, way: &Endpoint) {
        let mut detours = self.0.lock();
        if detours.len() == MAX_DETOURS {
            detours.clear();
        }
        detours.insert(peer.clone(), way.clone());
    }

    pub(super) fn forget(&self, peer: &Endpoint) {
        self.0.lock().remove(peer);
    }
}
