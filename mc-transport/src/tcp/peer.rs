//! The links to one peer: made, kept together as one, and made again when they are lost.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mc_types::Endpoint;
use parking_lot::Mutex;
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::config::TcpConfig;
use super::route::{Route, routes};
#[cfg(feature = "tls")]
use super::tls::Settings;
use crate::backend::counters::Counters;
use crate::backend::description::Description;
use crate::backend::tasks::Tasks;
use crate::backend::tune::tune;
use crate::breaker::Breaker;
use crate::bundle::Bundle;
use crate::error::{ConnectError, TransferError};
use crate::link_id::LinkId;
use crate::stream::greeting::{Greeted, greet};
use crate::stream::link::StreamLink;
use crate::stream::socket::Stream;
use crate::transport::Link;

/// The time after which a second route to a peer is tried beside the first.
const NEXT_WAY_AFTER: Duration = Duration::from_millis(300);

/// The settings and state that links are made with.
pub(super) struct Context {
    pub(super) config: TcpConfig,
    pub(super) tasks: Arc<Tasks>,
    pub(super) counters: Arc<Counters>,
}

/// One peer.
pub(super) struct Peer {
    endpoint: Endpoint,
    state: Mutex<State>,
    /// Held while connecting, so that a crowd of callers makes one connection.
    connecting: tokio::sync::Mutex<()>,
}

struct State {
    /// The links as one; `None` before the first.
    bundle: Option<Arc<Bundle>>,
    slots: Vec<LinkSlot>,
    /// The peer's last description of itself.
    description: Option<Arc<Description>>,
    breaker: Breaker,
    closed: bool,
}

/// Where a link belongs.
struct LinkSlot {
    route: Route,
    link: Option<Arc<StreamLink>>,
    /// The peer's id of the link that was lost here, until the peer has ended it.
    lost: Option<LinkId>,
    breaker: Breaker,
    /// A task connects.
    reconnecting: bool,
}

impl LinkSlot {
    fn new(route: Route, config: &TcpConfig) -> Self {
        let breaker = Breaker::new(config.breaker);
        Self { route, link: None, lost: None, breaker, reconnecting: false }
    }

    fn fill(&mut self, link: Arc<StreamLink>) {
        self.link = Some(link);
        self.lost = None;
    }

    /// Gives out the link if it was lost, and remembers its name.
    fn take_lost(&mut self) -> Option<Arc<StreamLink>> {
        let lost = self.link.take_if(|link| !link.is_healthy())?;
        self.lost = lost.id();
        Some(lost)
    }

    fn is_filled(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_healthy())
    }
}

impl Peer {
    pub(super) fn new(endpoint: Endpoint, config: &TcpConfig) -> Self {
        let state = State {
            bundle: None,
            slots: Vec::new(),
            description: None,
            breaker: Breaker::new(config.breaker),
            closed: false,
        };
        Self { endpoint, state: Mutex::new(state), connecting: tokio::sync::Mutex::default() }
    }

    /// Lets go of links that were lost, and with them of their sockets: it may be long
    /// until a link to this peer is wanted again.
    fn drop_lost(&self) {
        let mut state = self.state.lock();
        let bundle = state.bundle.take_if(|bundle| !bundle.is_healthy());
        let links: Vec<_> = state.slots.iter_mut().filter_map(LinkSlot::take_lost).collect();
        drop(state);
        drop((bundle, links));
    }

    /// Returns whether there is a link.
    pub(super) fn is_linked(&self) -> bool {
        self.state.lock().slots.iter().any(LinkSlot::is_filled)
    }

    /// The peer's description of itself; `None` before there was a link.
    pub(super) fn description(&self) -> Option<Arc<Description>> {
        self.state.lock().description.clone()
    }

    /// Forgets that attempts failed.
    pub(super) fn forgive(&self) {
        let mut state = self.state.lock();
        state.breaker.succeeded();
        for slot in &mut state.slots {
            slot.breaker.succeeded();
        }
    }

    /// Fails every link, and those to come.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.bundle = None;
        let slots = std::mem::take(&mut state.slots);
        drop(state);
        for link in slots.into_iter().filter_map(|slot| slot.link) {
            link.close(TransferError::Closed);
        }
    }

    /// The links that there are, or the first of them. Those that are missing are made
    /// meanwhile.
    pub(super) async fn link(
        self: &Arc<Self>,
        context: &Arc<Context>,
    ) -> Result<Arc<Bundle>, ConnectError> {
        if let Some(bundle) = self.linked(context)? {
            return Ok(bundle);
        }
        let _connecting = self.connecting.lock().await;
        if let Some(bundle) = self.linked(context)? {
            return Ok(bundle);
        }
        self.admit()?;
        let reached = self.reach(context).await;
        let (route, greeted) = match reached {
            Ok(reached) => reached,
            Err(error) => {
                if error.speaks_of_the_peer() {
                    self.state.lock().breaker.failed(Instant::now());
                }
                return Err(error);
            }
        };
        self.begin(&route, greeted, context).await?;
        let bundle = self.linked(context)?;
        bundle.ok_or_else(|| self.lost(io::ErrorKind::ConnectionReset.into()))
    }

    /// The links as one, if there is one.
    fn linked(
        self: &Arc<Self>,
        context: &Arc<Context>,
    ) -> Result<Option<Arc<Bundle>>, ConnectError> {
        self.drop_lost();
        let mut state = self.state.lock();
        if state.closed {
            return Err(ConnectError::Closed);
        }
        let Some(bundle) = state.bundle.clone().filter(|bundle| bundle.is_healthy()) else {
            return Ok(None);
        };
        let now = Instant::now();
        for (index, slot) in state.slots.iter_mut().enumerate() {
            if !slot.reconnecting && !slot.is_filled() && slot.breaker.admit(now).is_ok() {
                slot.reconnecting = true;
                let (peer, context) = (Arc::clone(self), Arc::clone(context));
                let tasks = Arc::clone(&context.tasks);
                tasks.spawn(async move { peer.reconnect(index, context).await });
            }
        }
        Ok(Some(bundle))
    }

    fn admit(&self) -> Result<(), ConnectError> {
        self.state.lock().breaker.admit(Instant::now()).map_err(|retry_in| {
            ConnectError::CircuitOpen { endpoint: self.endpoint.clone(), retry_in }
        })
    }

    /// Reaches the peer on any of the ways that are known, whichever answers first. The
    /// next is tried when one failed, or takes longer than usual.
    async fn reach(&self, context: &Arc<Context>) -> Result<(Route, Greeted), ConnectError> {
        let (mut known, node): (Vec<Route>, _) = {
            let state = self.state.lock();
            let routes = state.slots.iter().map(|slot| slot.route.clone());
            (routes.collect(), state.description.as_ref().map(|known| known.node))
        };
        known.extend(routes(&context.config.rails, &[]));
        known.push(Route::PLAIN);
        let mut ways: Vec<Route> = Vec::new();
        for route in known {
            if !ways.contains(&route) {
                ways.push(route);
            }
        }
        let mut ways = ways.into_iter();
        let mut attempts = JoinSet::new();
        let mut first_error = None;
        loop {
            let next = ways.next();
            let last = next.is_none();
            if let Some(route) = next {
                let (endpoint, context) = (self.endpoint.clone(), Arc::clone(context));
                attempts.spawn(async move {
                    let greeted = connect(&endpoint, &route, &context.config).await?;
                    // The endpoint is that of the process that is there now; a former rail may
                    // have become another node's.
                    if route.remote.is_some() && node != Some(greeted.description.node) {
                        return Err(ConnectError::NotAPeer { endpoint });
                    }
                    Ok((route, greeted))
                });
            }
            let timeout = if last { context.config.connect_timeout } else { NEXT_WAY_AFTER };
            match tokio::time::timeout(timeout, attempts.join_next()).await {
                Ok(Some(Ok(Ok(reached)))) => return Ok(reached),
                Ok(Some(Ok(Err(error)))) => first_error = first_error.or(Some(error)),
                // Attempts neither panic nor are they ended by anyone but us.
                Ok(Some(Err(_))) | Err(_) => {}
                Ok(None) if last => {
                    return Err(first_error.unwrap_or_else(|| {
                        let after = context.config.connect_timeout;
                        ConnectError::TimedOut { endpoint: self.endpoint.clone(), after }
                    }));
                }
                Ok(None) => {}
            }
        }
    }

    /// Takes the first link in: from here on it is known which others there could be.
    async fn begin(
        self: &Arc<Self>,
        route: &Route,
        greeted: Greeted,
        context: &Context,
    ) -> Result<(), ConnectError> {
        let description = Arc::new(greeted.description.clone());
        self.drop_lost();
        let lost: Vec<LinkId> = {
            let state = self.state.lock();
            let same = state.description.as_ref().is_some_and(|old| old.node == description.node);
            let lost = state.slots.iter().filter_map(|slot| slot.lost);
            lost.filter(|_| same).collect()
        };
        let mut ways = routes(&context.config.rails, &description.rails);
        // More links than ways share them.
        let wanted = context.config.links_per_peer.get().max(ways.len());
        ways = ways.iter().cycle().take(wanted).cloned().collect();
        let mut slots: Vec<LinkSlot> =
            ways.into_iter().map(|route| LinkSlot::new(route, &context.config)).collect();
        let several = slots.iter().any(|slot| slot.route != slots[0].route);
        // The first connection may have used another spelling of one of the ways.
        let first = slots.iter().position(|slot| slot.route == *route).unwrap_or(0);
        let link = self.open(greeted, several, context);
        for lost in lost {
            self.fence(&link, lost).await?;
        }
        slots[first].fill(Arc::clone(&link));
        let bundle = Arc::new(Bundle::new(context.config.bundle));
        bundle.add(Arc::clone(&link) as Arc<dyn Link>);
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            link.close(TransferError::Closed);
            return Err(ConnectError::Closed);
        }
        state.breaker.succeeded();
        state.slots = slots;
        state.bundle = Some(bundle);
        state.description = Some(description);
        Ok(())
    }

    /// Makes the link that is missing at `index`.
    async fn reconnect(self: Arc<Self>, index: usize, context: Arc<Context>) {
        self.drop_lost();
        let (route, node, lost, several) = {
            let state = self.state.lock();
            let Some(slot) = state.slots.get(index) else { return };
            let Some(description) = &state.description else { return };
            let several = state.slots.iter().any(|other| other.route != slot.route);
            (slot.route.clone(), description.node, slot.lost, several)
        };
        let greeted = connect(&self.endpoint, &route, &context.config).await;
        let greeted = greeted.and_then(|greeted| {
            if greeted.description.node == node {
                return Ok(greeted);
            }
            warn!(peer = %self.endpoint, ?route, "another node answers there; the way is not used");
            Err(ConnectError::NotAPeer { endpoint: self.endpoint.clone() })
        });
        let link = match greeted {
            Ok(greeted) => {
                let link = self.open(greeted, several, &context);
                match lost {
                    Some(lost) => self.fence(&link, lost).await.map(|()| link),
                    None => Ok(link),
                }
            }
            Err(error) => Err(error),
        };
        let mut state = self.state.lock();
        let bundle = state.bundle.clone().filter(|bundle| bundle.is_healthy() && !state.closed);
        let Some(slot) = state.slots.get_mut(index).filter(|slot| slot.route == route) else {
            return;
        };
        slot.reconnecting = false;
        match (link, bundle) {
            (Ok(link), Some(bundle)) => {
                slot.breaker.succeeded();
                slot.fill(Arc::clone(&link));
                bundle.add(link);
            }
            // All links were lost meanwhile; the next caller begins anew.
            (Ok(_), None) => {}
            (Err(error), _) => {
                debug!(peer = %self.endpoint, ?route, %error, "a link could not be made");
                slot.breaker.failed(Instant::now());
            }
        }
    }

    /// Makes the peer end a lost link before another takes its place: what the caller
    /// tries again must not be overtaken by what it tried before.
    async fn fence(&self, link: &StreamLink, lost: LinkId) -> Result<(), ConnectError> {
        match link.fence(lost).await.remove(0) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.lost(io::Error::other(error))),
        }
    }

    fn open(
        self: &Arc<Self>,
        greeted: Greeted,
        several_ways: bool,
        context: &Context,
    ) -> Arc<StreamLink> {
        let config = &context.config;
        let peer = Arc::downgrade(self);
        let timeout = if several_ways {
            config.stall_timeout.min(config.reroute_after)
        } else {
            config.stall_timeout
        };
        Arc::new(StreamLink::open(
            greeted,
            timeout,
            &context.tasks,
            &context.counters.links,
            move || {
                if let Some(peer) = peer.upgrade() {
                    peer.drop_lost();
                }
            },
        ))
    }

    fn lost(&self, source: io::Error) -> ConnectError {
        ConnectError::Unreachable { endpoint: self.endpoint.clone(), source: Arc::new(source) }
    }
}

/// Connects on one way and exchanges prefaces.
async fn connect(
    endpoint: &Endpoint,
    route: &Route,
    config: &TcpConfig,
) -> Result<Greeted, ConnectError> {
    let after = config.connect_timeout;
    let connected = async {
        #[cfg(feature = "tls")]
        let settings = match &config.tls {
            Some(tls) => Some(Settings::read(&tls.client, endpoint).await?),
            None => None,
        };
        let stream = dial(endpoint, route).await?;
        tune(&stream, config.congestion_control.as_deref());
        #[cfg(feature = "tls")]
        let stream = match settings {
            Some(settings) => settings.secure(stream.into(), endpoint).await?,
            None => Stream::from(stream),
        };
        #[cfg(not(feature = "tls"))]
        let stream = Stream::from(stream);
        greet(stream, endpoint, config.max_operation.as_u64()).await
    };
    let timed_out = || ConnectError::TimedOut { endpoint: endpoint.clone(), after };
    tokio::time::timeout(after, connected).await.unwrap_or_else(|_| Err(timed_out()))
}

async fn dial(endpoint: &Endpoint, route: &Route) -> Result<TcpStream, ConnectError> {
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
    let addresses = match route.remote {
        Some(address) => vec![address],
        None => lookup_host(endpoint.address()).await.map_err(unreachable)?.collect(),
    };
    let Some(local) = route.local else {
        let dialled = mc_net::first_of(addresses, TcpStream::connect).await;
        return dialled.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into())).map_err(unreachable);
    };
    let addresses = addresses.into_iter().filter(|address| address.is_ipv4() == local.is_ipv4());
    let dialled = mc_net::first_of(addresses, |address| async move {
        let socket = if local.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.bind((local, 0).into())?;
        socket.connect(address).await
    });
    let no_family = || io::Error::other("no address of the peer is of the local address's family");
    dialled.await.unwrap_or_else(|| Err(no_family())).map_err(unreachable)
}
