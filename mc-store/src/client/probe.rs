//! Looks in the background at peers that failed, so that no read or write has to find out.

use std::sync::Arc;
use std::time::Duration;

use mc_transport::{
    Link as _, MemorySlice, Node, Operation, Outcome, RemoteSpan, TransferError, Transport as _,
};
use mc_types::{Endpoint, Extent, RemoteKey};
use tracing::{debug, info};

use super::background::Background;
use super::load::Loads;
use super::peers::{Admission, Avoided, Due, Peers, Probed, Standing};
use crate::error::PeerError;

/// How long a peer has for an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Which peers answer, and how well. Those that failed are probed in the background.
#[derive(Debug)]
pub(super) struct PeerHealth {
    pub(super) peers: Arc<Peers>,
    pub(super) loads: Arc<Loads>,
    transport: Arc<Node>,
    background: Arc<Background>,
}

impl PeerHealth {
    /// Nothing is known of any peer yet.
    pub(super) fn new(transport: Arc<Node>, background: Arc<Background>) -> Self {
        Self { peers: Arc::default(), loads: Arc::default(), transport, background }
    }

    /// Notes that a peer has failed, whose memory these keys were to open, or whether it has answered.
    pub(super) fn note(
        &self,
        endpoint: &Endpoint,
        keys: impl IntoIterator<Item = RemoteKey>,
        outcomes: &[Outcome],
        has_failed: bool,
    ) {
        if has_failed {
            let is_late = |it: &Outcome| matches!(it, Err(TransferError::TimedOut { .. }));
            self.peers.failed(endpoint, keys, outcomes.iter().any(is_late));
        } else if outcomes.iter().any(Result::is_ok) {
            self.peers.answered(endpoint);
        }
    }

    /// Whether a peer failed and has not answered since.
    pub(super) fn is_suspect(&self, endpoint: &Endpoint) -> bool {
        match self.peers.standing(endpoint) {
            Standing::Fine => false,
            Standing::Suspect => true,
            Standing::Due(due) => {
                self.probe(due);
                true
            }
        }
    }

    /// Whether a peer may be asked for something now; while it is silent, why not. One caller has
    /// it probed when its time has come, and those that ask meanwhile wait a moment for the answer.
    ///
    /// # Errors
    /// [`PeerError::Silent`].
    pub(super) async fn admit(&self, endpoint: &Endpoint) -> Result<(), PeerError> {
        match self.peers.admit(endpoint) {
            Admission::Granted => return Ok(()),
            Admission::Refused { .. } => {}
            Admission::Probed => self.peers.probe_is_over(endpoint).await,
            Admission::Due(due) => {
                self.probe(due);
                self.peers.probe_is_over(endpoint).await;
            }
        }
        let (since, retry_in) = match self.peers.admit(endpoint) {
            Admission::Granted => return Ok(()),
            Admission::Refused { since, retry_in } => (since, retry_in),
            Admission::Probed => (PROBE_TIMEOUT, PROBE_TIMEOUT),
            Admission::Due(due) => {
                self.probe(due);
                (PROBE_TIMEOUT, PROBE_TIMEOUT)
            }
        };
        // People read them.
        let [since, retry_in] =
            [since, retry_in].map(|time| Duration::from_millis(time.as_millis() as u64));
        Err(PeerError::Silent { endpoint: endpoint.clone(), since, retry_in })
    }

    /// Up to `limit` segments that puts leave out, as they could not be written a moment ago.
    pub(super) fn avoided_segments(&self, limit: usize) -> Vec<Avoided> {
        let (segments, due) = self.peers.avoided_segments(limit);
        due.into_iter().for_each(|due| self.probe(due));
        segments
    }

    /// Asks a suspect for nothing, to see whether it answers.
    fn probe(&self, due: Due) {
        let (peers, loads) = (Arc::clone(&self.peers), Arc::clone(&self.loads));
        let transport = Arc::clone(&self.transport);
        let task = async move {
            let answer = tokio::time::timeout(PROBE_TIMEOUT, ask(&transport, &due)).await;
            let (probed, failure) = match answer {
                Ok(Err(error)) if error.is_silence() => {
                    let is_late = error.is_whole_time_limit();
                    let probed = if is_late { Probed::Silent } else { Probed::Refused };
                    (probed, error.to_string())
                }
                Ok(_) => (Probed::Answered, String::new()),
                Err(elapsed) => (Probed::Silent, elapsed.to_string()),
            };
            match probed {
                Probed::Answered => {
                    loads.forget(&due.endpoint);
                    info!(endpoint = %due.endpoint, "a peer that failed answers again");
                }
                _ => debug!(endpoint = %due.endpoint, failure, "a peer is still silent"),
            }
            peers.probed(&due.endpoint, probed);
        };
        self.background.spawn(task);
    }
}

/// Reads no bytes. A refusal is an answer too.
async fn ask(transport: &Node, due: &Due) -> Result<(), PeerError> {
    // One attempt in so long a time needs no breaker.
    transport.forgive(&due.endpoint);
    let link = transport.connect(&due.endpoint).await.map_err(PeerError::Connect)?;
    let from = RemoteSpan::new(due.key, Extent::new(0, 0).expect("nothing is in bounds"));
    let read = Operation::read(from, Vec::<MemorySlice>::new());
    let outcome = link.submit(vec![read]).await.remove(0);
    let endpoint = due.endpoint.clone();
    outcome.map(drop).map_err(|source| PeerError::Transfer { endpoint, source })
}
