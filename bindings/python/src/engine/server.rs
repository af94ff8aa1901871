//! Answers the requests of peers.

use std::sync::Arc;
use std::time::Duration;

use mc_tls::ServerTls;
use mc_types::Endpoint;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::channel::{Channel, ChannelError};
use super::notifies::Inbox;
use super::protocol::{Description, Hello, Reply, Request};
use super::regions::Regions;

/// The most connections at a time; another one is closed at once.
const MAX_CONNECTIONS: usize = 1024;

/// The time without a request after which a connection is closed. A peer connects again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// The pause after an error of the listening socket, as when the process has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What peers may ask for.
pub(super) struct Server {
    pub(super) hello: Hello,
    pub(super) endpoint: Endpoint,
    pub(super) regions: Arc<Regions>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) tls: Option<Arc<ServerTls>>,
}

impl Server {
    /// Serves peers until the future is dropped, which closes their connections.
    pub(super) async fn run(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!("cannot accept a peer: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    let server = Arc::clone(&self);
                    connections.spawn(async move {
                        if let Err(error) = server.serve(stream).await {
                            tracing::debug!("a peer's connection was closed: {error:?}");
                        }
                        drop(place);
                    });
                }
                Err(_) => {
                    tracing::warn!("{MAX_CONNECTIONS} peers are connected; another one is refused");
                }
            }
        }
    }

    async fn serve(&self, stream: TcpStream) -> Result<(), ChannelError> {
        let mut channel = Channel::accept(stream, self.tls.as_ref(), self.hello).await?;
        while let Some(request) = channel.request(IDLE_TIMEOUT).await? {
            channel.reply(&self.answer(request)).await?;
        }
        Ok(())
    }

    fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Describe => Reply::Description(Description {
                endpoint: self.endpoint.clone(),
                ranges: self.regions.ranges(),
            }),
            Request::Probe => Reply::Done,
            Request::Notify(notify) => match self.inbox.push(notify) {
                true => Reply::Done,
                false => Reply::Full,
            },
        }
    }
}
