//! The links of a node, by peer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mc_transport::backend::ProvenLinks;
use mc_transport::{Breaker, BreakerConfig, ConnectError, Link, NodeSecret};
use mc_types::Endpoint;
use parking_lot::Mutex;

use super::link::RdmaLink;
use super::shared::Shared;

/// How long a shortcut that is being made is waited for. Usually it takes milliseconds; a network
/// that loses its packets takes seconds to show.
const SOON: Duration = Duration::from_millis(250);

/// Peers whose failed attempts are remembered; all are forgotten when there are more.
const MAX_REMEMBERED: usize = 1024;

/// Links to every peer that was asked for.
pub(super) struct Pool {
    shared: Arc<Shared>,
    links: ProvenLinks<RdmaLink>,
    /// Attempts by the secret of the peer, which each of its lives has anew.
    attempts: Mutex<HashMap<[u8; 16], Arc<Attempts>>>,
}

/// Attempts to connect to a peer as a shortcut.
#[derive(Default)]
struct Attempts {
    /// Set while a task connects.
    is_tried: AtomicBool,
    /// Refuses attempts after one that failed.
    refused: Mutex<Option<Breaker>>,
}

impl Attempts {
    /// Returns whether an attempt may be made now, which the caller makes then.
    fn begin(&self) -> bool {
        let mut refused = self.refused.lock();
        let is_due = refused.as_mut().is_none_or(|breaker| breaker.admit(Instant::now()).is_ok());
        is_due && !self.is_tried.swap(true, Ordering::SeqCst)
    }

    /// Takes note of how an attempt ended to reach the peer at `endpoint`.
    fn ended(&self, endpoint: &Endpoint, error: Option<&ConnectError>) {
        let mut refused = self.refused.lock();
        match (error, refused.as_mut()) {
            (None, Some(_)) => {
                tracing::info!(%endpoint, "bytes go to this peer by RDMA again");
                *refused = None;
            }
            (None, None) => {}
            (Some(error), None) => {
                let error = error as &dyn std::error::Error;
                tracing::warn!(%endpoint, error, "no RDMA to this peer; bytes go over another way");
                let mut config = BreakerConfig::default();
                config.failures = 1;
                refused.insert(Breaker::new(config)).failed(Instant::now());
            }
            (Some(_), Some(breaker)) => breaker.failed(Instant::now()),
        }
        self.is_tried.store(false, Ordering::SeqCst);
    }
}

impl Pool {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, links: ProvenLinks::default(), attempts: Mutex::default() }
    }

    /// The link to the peer at `endpoint`, which knows `secret` if there is one. A new one uses
    /// `fallback` for what cannot be reached by RDMA.
    pub(super) async fn link(
        &self,
        endpoint: &Endpoint,
        secret: Option<NodeSecret>,
        fallback: Option<Arc<dyn Link>>,
    ) -> Result<Arc<RdmaLink>, ConnectError> {
        self.links.link(endpoint, secret, self.shared.connect(endpoint, secret, fallback)).await
    }

    /// The link to the node at `endpoint`, if there is one or one is made soon. `over` is a link to
    /// the same node, whose endpoint is `peer`.
    pub(super) async fn shortcut(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        secret: NodeSecret,
        over: &Arc<dyn Link>,
        peer: &Endpoint,
    ) -> Option<Arc<RdmaLink>> {
        if let Some(link) = self.links.healthy(endpoint, secret) {
            link.set_fallback(over);
            return Some(link);
        }
        let attempts = self.attempts(secret);
        if !attempts.begin() {
            return None;
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (pool, endpoint, over) = (Arc::clone(self), endpoint.clone(), Arc::clone(over));
        let peer = peer.clone();
        self.shared.tasks.spawn(async move {
            let tried = pool.link(&endpoint, Some(secret), Some(over)).await;
            attempts.ended(&peer, tried.as_ref().err());
            let _ = sender.send(tried.ok());
        });
        tokio::time::timeout(SOON, receiver).await.ok()?.ok()?
    }

    /// Returns the attempts to connect to the peer that knows `secret`.
    fn attempts(&self, secret: NodeSecret) -> Arc<Attempts> {
        let mut all = self.attempts.lock();
        let secret = secret.to_bytes();
        if all.len() >= MAX_REMEMBERED && !all.contains_key(&secret) {
            all.clear();
        }
        Arc::clone(all.entry(secret).or_default())
    }

    /// Fails every link, and every later call.
    pub(super) fn close(&self) {
        self.links.close();
    }

    /// Queue pairs of all links.
    pub(super) fn queue_pairs(&self) -> usize {
        self.links.all().iter().map(|link| link.queue_pairs()).sum()
    }
}
