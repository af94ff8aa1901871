//! The load of this client and the speed of its peers, for the heartbeat.

use std::sync::Arc;
use std::time::Duration;

use mc_rpc::{MAX_PEER_SPEEDS, NodeLoad};
use mc_transport::Node;
use tokio::time::Instant;

use super::load::Loads;
use super::self_check::SelfCheck;

/// How often it is said: a master of ten thousand clients has two thousand a second to read.
const PAUSE: Duration = Duration::from_secs(5);

/// The load of this client, and the speed of its peers.
#[derive(Debug)]
pub(super) struct OwnLoad {
    transport: Arc<Node>,
    loads: Arc<Loads>,
    told: Option<Instant>,
}

impl OwnLoad {
    pub(super) fn new(transport: Arc<Node>, loads: Arc<Loads>) -> Self {
        Self { transport, loads, told: None }
    }

    /// Returns the words for the heartbeat of now, if it has any.
    pub(super) fn due(&mut self, own: &SelfCheck) -> Option<NodeLoad> {
        if self.told.is_some_and(|told| told.elapsed() < PAUSE) {
            return None;
        }
        self.told = Some(Instant::now());
        let served = self.transport.served();
        let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let answers = own.answers();
        Some(NodeLoad {
            reads: served.reads,
            read_bytes: served.read_bytes,
            writes: served.writes,
            written_bytes: served.written_bytes,
            answer_us: answers.map(|(middle, _)| micros(middle)),
            worst_answer_us: answers.map_or(0, |(_, worst)| micros(worst)),
            peers: self.loads.speeds(MAX_PEER_SPEEDS),
        })
    }
}
