//! Looks in the background at peers that failed, so that no read or write has to find out.

use std::sync::Arc;
use std::time::Duration;

use mc_transport::{Link as _, MemorySlice, Node, Operation, RemoteSpan, Transport as _};
use mc_types::{Endpoint, Extent};
use tracing::{debug, info};

use super::core::Core;
use super::peers::{Due, Standing};
use crate::error::PeerError;

/// How long a peer has for an answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

impl Core {
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

    /// Up to `limit` segments at suspects.
    pub(super) fn suspect_segments(&self, limit: usize) -> Vec<Box<str>> {
        let (segments, due) = self.peers.suspect_segments(limit);
        due.into_iter().for_each(|due| self.probe(due));
        segments
    }

    /// Asks a suspect for nothing, to see whether it answers.
    fn probe(&self, due: Due) {
        let (peers, loads) = (Arc::clone(&self.peers), Arc::clone(&self.loads));
        let transport = Arc::clone(&self.transport);
        let task = async move {
            let answer = tokio::time::timeout(PROBE_TIMEOUT, ask(&transport, &due)).await;
            let silence = match answer {
                Ok(Ok(())) => None,
                Ok(Err(error)) => error.is_silence().then(|| error.to_string()),
                Err(elapsed) => Some(elapsed.to_string()),
            };
            match &silence {
                None => {
                    loads.forget(&due.endpoint);
                    info!(endpoint = %due.endpoint, "a peer that failed answers again");
                }
                Some(error) => debug!(endpoint = %due.endpoint, error, "a peer is still silent"),
            }
            peers.probed(&due.endpoint, silence.is_none());
        };
        let mut background = self.background.lock();
        while background.try_join_next().is_some() {}
        background.spawn_on(task, &self.runtime);
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
