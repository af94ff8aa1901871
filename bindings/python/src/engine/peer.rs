//! A peer, as this engine knows it.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_tls::ClientTls;
use mc_types::Endpoint;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::channel::{Channel, ChannelError};
use super::error::EngineError;
use super::protocol::{Description, Hello, Instance, Notify, ProtocolError, Reply, Request};
use super::ranges::Ranges;
use super::settings;

/// The most peers that are remembered.
const MAX_PEERS: usize = 4096;

/// The time that a request waits for the ones before it.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The peers of an engine, by session.
pub(super) struct Peers {
    by_session: Mutex<HashMap<Box<str>, Arc<Peer>>>,
    greeting: Greeting,
}

/// The introduction of this engine to a peer, and the TLS settings for the connection.
#[derive(Clone)]
pub(super) struct Greeting {
    pub(super) hello: Hello,
    pub(super) tls: Option<ClientTls>,
}

impl Peers {
    pub(super) fn new(greeting: Greeting) -> Self {
        Self { by_session: Mutex::default(), greeting }
    }

    /// Returns the peer of a session, "host:port". Forgets those that nothing uses when there are
    /// too many.
    pub(super) fn find(&self, session: &str) -> Result<Arc<Peer>, EngineError> {
        let mut known = self.by_session.lock();
        if let Some(peer) = known.get(session) {
            return Ok(Arc::clone(peer));
        }
        let (host, port) = settings::parse_session(session)
            .ok_or_else(|| EngineError::BadHost { text: session.to_owned() })?;
        if known.len() >= MAX_PEERS {
            known.retain(|_, peer| Arc::strong_count(peer) > 1);
            if known.len() >= MAX_PEERS {
                return Err(EngineError::TooManyPeers { max: MAX_PEERS });
            }
        }
        let peer = Arc::new(Peer {
            session: session.into(),
            host: host.into(),
            port,
            greeting: self.greeting.clone(),
            channel: tokio::sync::Mutex::default(),
            known: Mutex::default(),
        });
        known.insert(session.into(), Arc::clone(&peer));
        Ok(peer)
    }
}

/// A peer's memory, and the way to it, as it has described them.
pub(super) struct Described {
    /// The run of the engine that this is true of.
    pub(super) instance: Instance,
    pub(super) endpoint: Endpoint,
    pub(super) ranges: Ranges,
}

/// See the module.
pub(super) struct Peer {
    session: Box<str>,
    host: Box<str>,
    port: u16,
    greeting: Greeting,
    /// The connection for requests, which is used again. A cancelled request closes it.
    channel: tokio::sync::Mutex<Option<Channel>>,
    known: Mutex<Option<Arc<Described>>>,
}

impl Peer {
    pub(super) fn session(&self) -> &str {
        &self.session
    }

    /// Returns what is known of the peer; `None` before it was [asked](Self::describe).
    pub(super) fn known(&self) -> Option<Arc<Described>> {
        self.known.lock().clone()
    }

    /// Asks the peer for its memory.
    pub(super) async fn describe(&self) -> Result<Arc<Described>, EngineError> {
        let (instance, reply) = self.ask(Request::Describe).await?;
        let Reply::Description(Description { endpoint, ranges }) = reply else {
            return Err(self.misunderstood(ProtocolError::Unexpected));
        };
        let known = Arc::new(Described { instance, endpoint, ranges });
        *self.known.lock() = Some(Arc::clone(&known));
        Ok(known)
    }

    /// Asks the peer for a sign of life.
    pub(super) async fn probe(&self) -> Result<(), EngineError> {
        match self.ask(Request::Probe).await? {
            (_, Reply::Done) => Ok(()),
            _ => Err(self.misunderstood(ProtocolError::Unexpected)),
        }
    }

    /// Hands a notify over. Those of one caller arrive in order.
    pub(super) async fn notify(&self, notify: Notify) -> Result<(), EngineError> {
        match self.ask(Request::Notify(notify)).await? {
            (_, Reply::Done) => Ok(()),
            (_, Reply::Full) => Err(EngineError::NotifyRefused { session: self.session.clone() }),
            (_, Reply::Description(_)) => Err(self.misunderstood(ProtocolError::Unexpected)),
        }
    }

    /// Returns the reply to a request, and the run of the peer that has given it.
    async fn ask(&self, request: Request) -> Result<(Instance, Reply), EngineError> {
        let frame = request.encode().map_err(|error| self.misunderstood(error))?;
        let locked = timeout(TURN_TIMEOUT, self.channel.lock()).await;
        let late = |_| self.failed(ChannelError::Io(io::ErrorKind::TimedOut.into()));
        let mut place = locked.map_err(late)?;
        if let Some(mut channel) = place.take()
            && channel.is_alive().await
        {
            let instance = channel.hello.instance;
            match channel.exchange(&frame).await {
                Ok(reply) => {
                    *place = Some(channel);
                    return Ok((instance, reply));
                }
                Err(error) => {
                    let renewed = self.connect().await?;
                    // A notify may have arrived, unless it went to a run that is over.
                    let is_repeatable = !matches!(request, Request::Notify(_))
                        || renewed.hello.instance != instance;
                    if !is_repeatable {
                        return Err(self.failed(error));
                    }
                    *place = Some(renewed);
                }
            }
        }
        let mut channel = match place.take() {
            Some(renewed) => renewed,
            None => self.connect().await?,
        };
        let reply = channel.exchange(&frame).await.map_err(|error| self.failed(error))?;
        let instance = channel.hello.instance;
        *place = Some(channel);
        Ok((instance, reply))
    }

    async fn connect(&self) -> Result<Channel, EngineError> {
        let Greeting { hello, tls } = &self.greeting;
        let connected = Channel::connect(&self.host, self.port, tls.as_ref(), *hello).await;
        connected.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: ChannelError) -> EngineError {
        match error {
            ChannelError::Io(source) => {
                EngineError::Unreachable { session: self.session.clone(), source }
            }
            ChannelError::Protocol(source) => self.misunderstood(source),
        }
    }

    fn misunderstood(&self, source: ProtocolError) -> EngineError {
        EngineError::Protocol { session: self.session.clone(), source }
    }
}
