//! Leaders whose terms a test ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_rpc::{Authority, ServerConfig, Term};
use mc_types::Epoch;

/// The authority of a leader, until the test ends it.
#[derive(Clone, Debug)]
pub(crate) struct Switch(Arc<AtomicBool>);

impl Authority for Switch {
    fn may_answer(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Switch {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// Ends the term.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The settings of the leader's server in this term, and what ends the term.
pub(crate) fn leader(epoch: u64) -> (ServerConfig, Switch) {
    let (mut config, switch) = (ServerConfig::default(), Switch::new());
    let authority = Arc::new(switch.clone());
    config.term = Some(Term { epoch: Epoch::new(epoch), authority });
    // Some tests stand between a client and its master.
    config.local_socket = false;
    (config, switch)
}
