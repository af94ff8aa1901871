//! The links of a node, by peer.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mc_transport::backend::{Counters, Description, Tasks};
use mc_transport::{ConnectError, Link, LinkId, TlsFailure, TransferError};
use mc_types::Endpoint;
use parking_lot::Mutex;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection};
use tokio::net::lookup_host;
use tokio::task::spawn_blocking;

use super::clock::Clock;
use super::config::QuicConfig;
use super::fault::{MALFORMED, not_connected};
use super::flow::{FlowError, Inflow, Outflow};
use super::hello::PROTOCOL;
use super::hello::{HELLO_LEN, Hello};
use super::link::{Limits, QuicLink};
use super::sockets::Sockets;
use super::tuning::Paths;

/// Peers whose last link was lost that are remembered: they end that link when they are reached
/// again. Nodes with random names do not come back.
const MAX_REMEMBERED: usize = 1024;

/// Links to every peer that was asked for.
pub(super) struct Pool {
    config: QuicConfig,
    paths: Paths,
    sockets: Arc<Sockets>,
    tasks: Arc<Tasks>,
    counters: Arc<Counters>,
    peers: Mutex<HashMap<Endpoint, Arc<Peer>>>,
    closed: AtomicBool,
}

#[derive(Default)]
struct Peer {
    link: Mutex<Option<Arc<QuicLink>>>,
    /// Held while connecting, so that a crowd of callers makes one link; the cause of
    /// the last attempt's failure.
    connecting: tokio::sync::Mutex<Option<ConnectError>>,
    /// Attempts that have ended.
    attempts: AtomicU64,
    /// A link that was lost, of which the peer may not know.
    lost: Mutex<Option<LinkId>>,
    /// The peer's last description of itself.
    description: Mutex<Option<Arc<Description>>>,
}

/// A peer's first message.
struct Greeted {
    /// Bytes of the largest operation that it takes part in.
    max_operation: u64,
    description: Option<Arc<Description>>,
}

impl Peer {
    fn healthy(&self) -> Option<Arc<QuicLink>> {
        let mut link = self.link.lock();
        if let Some(lost) = link.take_if(|link| !link.is_healthy()) {
            *self.lost.lock() = lost.id();
        }
        link.clone()
    }
}

/// The parameters of one attempt to connect.
struct Attempt<'a> {
    endpoint: &'a Endpoint,
    /// This side's first message on each connection.
    hello: Hello,
    config: ClientConfig,
    server_name: String,
    addresses: Vec<SocketAddr>,
}

impl Pool {
    pub(super) fn new(
        config: QuicConfig,
        sockets: Arc<Sockets>,
        tasks: Arc<Tasks>,
        counters: Arc<Counters>,
    ) -> Self {
        let paths = Paths::of_client(&config);
        let (peers, closed) = (Mutex::default(), AtomicBool::new(false));
        Self { config, paths, sockets, tasks, counters, peers, closed }
    }

    /// The link to `endpoint`: the one that exists, or a new one.
    pub(super) async fn link(&self, endpoint: &Endpoint) -> Result<Arc<QuicLink>, ConnectError> {
        let peer = self.peer(endpoint)?;
        if let Some(link) = peer.healthy() {
            return Ok(link);
        }
        let attempts = peer.attempts.load(Ordering::Acquire);
        let mut failure = peer.connecting.lock().await;
        if let Some(link) = peer.healthy() {
            return Ok(link);
        }
        // Another task tried while we waited: the crowd shares the failure, too, rather
        // than wait for its end one by one.
        if peer.attempts.load(Ordering::Acquire) != attempts
            && let Some(error) = &*failure
        {
            return Err(error.clone());
        }
        let outcome = match self.connect(&peer, endpoint).await {
            Ok(link) => fence(&peer, &link, endpoint).await.and_then(|()| self.keep(&peer, link)),
            Err(error) => Err(error),
        };
        *failure = outcome.as_ref().err().cloned();
        peer.attempts.fetch_add(1, Ordering::Release);
        outcome
    }

    /// Fails every link, and every later call.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let peers = std::mem::take(&mut *self.peers.lock());
        for peer in peers.values() {
            if let Some(link) = peer.link.lock().take() {
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
        forget_gone(&mut peers);
        let peer = Arc::<Peer>::default();
        peers.insert(endpoint.clone(), Arc::clone(&peer));
        Ok(peer)
    }

    fn keep(&self, peer: &Peer, link: QuicLink) -> Result<Arc<QuicLink>, ConnectError> {
        let link = Arc::new(link);
        *peer.link.lock() = Some(Arc::clone(&link));
        // `close` may have passed this peer between our first check and this.
        if self.closed.load(Ordering::SeqCst) {
            link.close(TransferError::Closed);
            return Err(ConnectError::Closed);
        }
        Ok(link)
    }

    /// The description of the peer at `endpoint`; `None` before there was a link.
    pub(super) fn description(&self, endpoint: &Endpoint) -> Option<Arc<Description>> {
        let peer = self.peers.lock().get(endpoint).cloned();
        peer.and_then(|peer| peer.description.lock().clone())
    }

    async fn connect(&self, peer: &Peer, endpoint: &Endpoint) -> Result<QuicLink, ConnectError> {
        let after = self.config.connect_timeout;
        let timed_out = || ConnectError::TimedOut { endpoint: endpoint.clone(), after };
        let first = async {
            let attempt = self.prepare(endpoint).await?;
            let first = self.connect_any(&attempt).await?;
            Ok((attempt, first))
        };
        let first = tokio::time::timeout(after, first).await;
        let (attempt, (connection, theirs)) = first.unwrap_or_else(|_| Err(timed_out()))?;
        let address = connection.remote_address();
        let mut connections = vec![connection];
        while connections.len() < self.config.connections_per_peer.get() {
            let another = tokio::time::timeout(after, self.connect_to(&attempt, address)).await;
            // A connection fewer than wished is better than no link.
            let Ok(Ok((connection, _))) = another else { break };
            connections.push(connection);
            // A peer with few places closes one connection for the next.
            let wanted = connections.len();
            connections.retain(|connection| connection.close_reason().is_none());
            if connections.len() < wanted {
                break;
            }
        }
        if connections.is_empty() {
            return Err(ConnectError::Busy { endpoint: endpoint.clone() });
        }
        *peer.description.lock() = theirs.description;
        let limits = Limits {
            max_operation: self.config.max_operation.as_u64().min(theirs.max_operation),
            stall_timeout: self.config.stall_timeout,
            idle_timeout: self.config.idle_timeout,
        };
        let id = attempt.hello.link;
        Ok(QuicLink::open(id, connections, limits, &self.tasks, &self.counters.links))
    }

    /// Reads the certificates, and looks the host up.
    async fn prepare<'a>(&self, endpoint: &'a Endpoint) -> Result<Attempt<'a>, ConnectError> {
        let expected = "quic://HOST:PORT";
        let host = endpoint.address().rsplit_once(':').and_then(|(host, port)| {
            (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(host)
        });
        let Some(host) = host else {
            return Err(ConnectError::BadAddress { endpoint: endpoint.clone(), expected });
        };
        let failed = |source| ConnectError::Tls { endpoint: endpoint.clone(), source };
        let unusable = |error| failed(TlsFailure::Settings(Arc::new(error)));
        let tls = self.config.client.clone().ok_or_else(|| failed(TlsFailure::NoSettings))?;
        let name = tls.expected_name(host).map_err(unusable)?;
        let server_name = name.to_str().into_owned();
        // Reads files.
        let settings = spawn_blocking(move || tls.connect_config(PROTOCOL)).await;
        // It is not cancelled before the runtime is.
        let settings = settings.map_err(|_| ConnectError::Closed)?;
        let settings = settings.map_err(unusable)?;
        let crypto = QuicClientConfig::try_from(settings)
            .expect("the suites of mc-tls have the one for the first packets");
        let addresses = lookup_host(endpoint.address()).await;
        let addresses = addresses.map_err(|source| unreachable(endpoint, source))?.collect();
        let config = ClientConfig::new(Arc::new(crypto));
        let mut link = [0; 16];
        getrandom::fill(&mut link).map_err(|error| unreachable(endpoint, error.into()))?;
        let max_operation = self.config.max_operation.as_u64();
        let hello = Hello { max_operation, link: LinkId::from_bytes(link), description_len: 0 };
        Ok(Attempt { endpoint, hello, config, server_name, addresses })
    }

    /// Tries the addresses; the first that answers is used.
    async fn connect_any(
        &self,
        attempt: &Attempt<'_>,
    ) -> Result<(Connection, Greeted), ConnectError> {
        let addresses = attempt.addresses.iter().copied();
        let connected = mc_net::first_of(addresses, |address| self.connect_to(attempt, address));
        let nowhere = || Err(unreachable(attempt.endpoint, io::ErrorKind::NotFound.into()));
        connected.await.unwrap_or_else(nowhere)
    }

    /// A connection whose peer has said hello, and what it said.
    async fn connect_to(
        &self,
        attempt: &Attempt<'_>,
        address: SocketAddr,
    ) -> Result<(Connection, Greeted), ConnectError> {
        let endpoint = attempt.endpoint;
        let socket = self.sockets.towards(address);
        let socket = socket.map_err(|source| unreachable(endpoint, source))?;
        let socket = socket.ok_or(ConnectError::Closed)?;
        let mut config = attempt.config.clone();
        config.transport_config(self.paths.to(address.ip()));
        let connecting = socket.connect_with(config, address, &attempt.server_name);
        let connecting = connecting.map_err(|error| match error {
            quinn::ConnectError::EndpointStopping => ConnectError::Closed,
            error => unreachable(endpoint, io::Error::new(io::ErrorKind::InvalidInput, error)),
        })?;
        let after = self.config.connect_timeout;
        // No early data is sent: an eavesdropper could send it again.
        let connected = connecting.await;
        let connection = connected.map_err(|error| not_connected(&error, endpoint, after))?;
        match greet(&connection, attempt.hello, after).await {
            Ok(theirs) => Ok((connection, theirs)),
            Err(error) => {
                let reason = connection.close_reason();
                connection.close(MALFORMED, b"not a hello of this version");
                Err(match (error, reason) {
                    // The server looks at our certificate when we are done with its own.
                    (Some(_), Some(reason)) => not_connected(&reason, endpoint, after),
                    _ => ConnectError::NotAPeer { endpoint: endpoint.clone() },
                })
            }
        }
    }
}

/// Forgets unused peers, but for some whose last link was lost.
fn forget_gone(peers: &mut HashMap<Endpoint, Arc<Peer>>) {
    let mut remembered = 0;
    peers.retain(|_, peer| {
        if Arc::strong_count(peer) > 1 || peer.healthy().is_some() {
            return true;
        }
        let was_lost = peer.lost.lock().is_some();
        remembered += usize::from(was_lost);
        was_lost && remembered <= MAX_REMEMBERED
    });
}

/// Makes the peer end the link that was lost before this one, so that nothing of it can
/// arrive on top of what is written over this one.
async fn fence(peer: &Peer, link: &QuicLink, endpoint: &Endpoint) -> Result<(), ConnectError> {
    let lost = *peer.lost.lock();
    let Some(lost) = lost else { return Ok(()) };
    for outcome in link.fence(lost).await {
        outcome.map_err(|error| unreachable(endpoint, io::Error::other(error)))?;
    }
    *peer.lost.lock() = None;
    Ok(())
}

/// Exchanges hellos with the peer; `None` as an error when the peer sent something else.
async fn greet(
    connection: &Connection,
    ours: Hello,
    time: Duration,
) -> Result<Greeted, Option<FlowError>> {
    let clock = Clock::new(time);
    let (send, receive) = connection
        .open_bi()
        .await
        .map_err(|error| Some(FlowError::Read(quinn::ReadError::ConnectionLost(error))))?;
    let mut outflow = Outflow::new(send, &clock);
    outflow.header(&ours.encode()).await.map_err(Some)?;
    outflow.finish().await.map_err(Some)?;
    let mut inflow = Inflow::new(receive, &clock);
    let bytes = inflow.header::<HELLO_LEN>().await.map_err(Some)?;
    let theirs = bytes.and_then(|bytes| Hello::decode(&bytes)).ok_or(None)?;
    // Bounded by `decode`.
    let len = theirs.description_len as usize;
    let mut text = Vec::with_capacity(len);
    while text.len() < len {
        let part = inflow.take(len - text.len()).await.map_err(Some)?;
        text.extend_from_slice(&part.ok_or(None)?);
    }
    let description = match len {
        0 => None,
        _ => Some(Arc::new(Description::decode(&text).ok_or(None)?)),
    };
    Ok(Greeted { max_operation: theirs.max_operation, description })
}

fn unreachable(endpoint: &Endpoint, source: io::Error) -> ConnectError {
    ConnectError::Unreachable { endpoint: endpoint.clone(), source: Arc::new(source) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer with a link that was lost.
    fn lost(nth: usize) -> (Endpoint, Arc<Peer>) {
        let peer = Peer::default();
        *peer.lost.lock() = Some(LinkId::from_bytes([7; 16]));
        (format!("quic://10.0.0.1:{}", nth + 1).parse().unwrap(), Arc::new(peer))
    }

    #[test]
    fn a_client_that_outlives_many_nodes_remembers_some() {
        let mut peers = HashMap::new();
        let (endpoint, in_use) = lost(60_000);
        peers.insert(endpoint.clone(), Arc::clone(&in_use));
        for nth in 0..5_000 {
            peers.extend([lost(nth)]);
            forget_gone(&mut peers);
            assert!(peers.len() <= MAX_REMEMBERED + 1, "{} peers", peers.len());
        }
        assert_eq!(peers.len(), MAX_REMEMBERED + 1);
        assert!(peers.contains_key(&endpoint), "one that somebody connects to");
        peers.values().for_each(|peer| *peer.lost.lock() = None);
        forget_gone(&mut peers);
        assert_eq!(peers.len(), 1, "nothing of the others is under way");
        drop(in_use);
        forget_gone(&mut peers);
        assert!(peers.is_empty());
    }
}
