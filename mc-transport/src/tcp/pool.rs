//! The links of a node, by peer.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mc_types::Endpoint;
use parking_lot::Mutex;
use tokio::net::{TcpStream, lookup_host};

use super::Counters;
use super::config::TcpConfig;
use super::greeting::greet;
use super::link::TcpLink;
use super::plain;
use super::socket::Stream;
use super::tasks::Tasks;
#[cfg(feature = "tls")]
use super::tls::Settings;
use crate::error::{ConnectError, TransferError};
use crate::transport::Link;

/// Links to every peer that was asked for.
pub(super) struct Pool {
    config: TcpConfig,
    tasks: Arc<Tasks>,
    counters: Arc<Counters>,
    peers: Mutex<HashMap<Endpoint, Arc<Peer>>>,
    closed: AtomicBool,
}

#[derive(Default)]
struct Peer {
    links: Mutex<Vec<Arc<TcpLink>>>,
    /// Held while connecting, so that a crowd of callers makes one connection.
    connecting: tokio::sync::Mutex<()>,
}

impl Peer {
    /// The healthy link with the least under way, and how many there are.
    fn idlest(&self) -> (Option<Arc<TcpLink>>, usize) {
        let mut links = self.links.lock();
        links.retain(|link| link.is_healthy());
        let idlest = links.iter().min_by_key(|link| link.unanswered()).cloned();
        (idlest, links.len())
    }
}

impl Pool {
    pub(super) fn new(config: TcpConfig, tasks: Arc<Tasks>, counters: Arc<Counters>) -> Self {
        let (peers, closed) = (Mutex::default(), AtomicBool::new(false));
        Self { config, tasks, counters, peers, closed }
    }

    /// A link to `endpoint`: one that exists when there are enough, a new one
    /// otherwise.
    pub(super) async fn link(&self, endpoint: &Endpoint) -> Result<Arc<TcpLink>, ConnectError> {
        let wanted = self.config.links_per_peer.get();
        let peer = self.peer(endpoint)?;
        if let (Some(link), count) = peer.idlest()
            && count >= wanted
        {
            return Ok(link);
        }
        let _connecting = peer.connecting.lock().await;
        let (idlest, count) = peer.idlest();
        if count < wanted {
            match self.connect(endpoint).await {
                Ok(link) => self.keep(&peer, link),
                // A link fewer than wished is better than none.
                Err(error) => idlest.ok_or(error),
            }
        } else {
            Ok(idlest.expect("at least one link is wanted, so the count is not zero"))
        }
    }

    /// Fails every link, and every later call.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let peers = std::mem::take(&mut *self.peers.lock());
        for peer in peers.values() {
            for link in peer.links.lock().drain(..) {
                link.close(TransferError::Closed);
            }
        }
    }

    fn peer(&self, endpoint: &Endpoint) -> Result<Arc<Peer>, ConnectError> {
        let mut peers = self.peers.lock();
        if self.closed.load(Ordering::SeqCst) {
            return Err(ConnectError::Closed);
        }
        if let Some(peer) = peers.get(endpoint) {
            return Ok(Arc::clone(peer));
        }
        // A new peer is rare enough to look for those that are gone.
        peers.retain(|_, peer| Arc::strong_count(peer) > 1 || peer.idlest().1 > 0);
        let peer = Arc::<Peer>::default();
        peers.insert(endpoint.clone(), Arc::clone(&peer));
        Ok(peer)
    }

    fn keep(&self, peer: &Peer, link: TcpLink) -> Result<Arc<TcpLink>, ConnectError> {
        let link = Arc::new(link);
        peer.links.lock().push(Arc::clone(&link));
        // `close` may have passed this peer between our first check and the push.
        if self.closed.load(Ordering::SeqCst) {
            link.close(TransferError::Closed);
            return Err(ConnectError::Closed);
        }
        Ok(link)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<TcpLink, ConnectError> {
        let after = self.config.connect_timeout;
        let greeted = tokio::time::timeout(after, self.reach(endpoint)).await;
        let (stream, max_operation) = greeted.unwrap_or_else(|_| {
            Err(ConnectError::TimedOut { endpoint: endpoint.clone(), after })
        })?;
        Ok(TcpLink::open(
            stream,
            max_operation,
            self.config.stall_timeout,
            &self.tasks,
            &self.counters.links,
        ))
    }

    /// Connects and exchanges prefaces; the smaller operation limit of both.
    async fn reach(&self, endpoint: &Endpoint) -> Result<(Stream, u64), ConnectError> {
        let unreachable = |source: io::Error| {
            let source = Arc::new(source);
            ConnectError::Unreachable { endpoint: endpoint.clone(), source }
        };
        let expected = "tcp://HOST:PORT";
        let has_port = endpoint
            .address()
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        if !has_port {
            return Err(ConnectError::BadAddress { endpoint: endpoint.clone(), expected });
        }
        #[cfg(feature = "tls")]
        let settings = match &self.config.tls {
            Some(tls) => Some(Settings::read(&tls.client, endpoint).await?),
            None => None,
        };
        let addresses = lookup_host(endpoint.address()).await.map_err(unreachable)?;
        let addresses: Vec<_> = addresses.collect();
        // Tries one address after the other.
        let stream = TcpStream::connect(&addresses[..]).await.map_err(unreachable)?;
        plain::tune(&stream, &self.config);
        #[cfg(feature = "tls")]
        let stream = match settings {
            Some(settings) => settings.secure(stream.into(), endpoint).await?,
            None => Stream::from(stream),
        };
        #[cfg(not(feature = "tls"))]
        let stream = Stream::from(stream);
        let max_operation = greet(&stream, endpoint, self.config.max_operation.as_u64()).await?;
        Ok((stream, max_operation))
    }
}
