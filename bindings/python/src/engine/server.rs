//! Answers the requests of peers.

use std::sync::Arc;
use std::time::Duration;

use mc_places::{Places, Seat, Source, Stage};
use mc_tls::ServerTls;
use mc_types::Endpoint;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::channel::{Channel, ChannelError};
use super::notifies::Inbox;
use super::protocol::{Description, Hello, Reply, Request};
use super::regions::Regions;

/// The most connections at a time. Another one gets the place of one that has asked nothing, or else
/// of the one that has asked nothing for longest.
const MAX_CONNECTIONS: usize = 1024;

/// The time without a request after which a connection is closed. A peer connects again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);

/// The interval at which connections that ask nothing are looked for.
const SWEEP: Duration = Duration::from_secs(5);

/// The pause after an error of the listening socket, as when the process has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The time between two warnings that peers find no place.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// The parts of an engine that serve the requests of peers.
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
        let places = Places::new(MAX_CONNECTIONS, MAX_CONNECTIONS, IDLE_TIMEOUT);
        let (mut connections, mut yielded) = (JoinSet::new(), Yielded::default());
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                Some(_) = connections.join_next() => continue,
                _ = sweep.tick() => {
                    places.sweep(SWEEP);
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    places.shed();
                    tracing::debug!("cannot accept a peer: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (seat, others) = places.take(Source::of(peer));
            yielded.add(others + usize::from(seat.is_none()));
            let Some(seat) = seat else { continue };
            let place = Arc::clone(seat.place());
            let server = Arc::clone(&self);
            let task = connections.spawn(async move {
                if let Err(error) = server.serve(stream, seat).await {
                    tracing::debug!("a peer's connection was closed: {error:?}");
                }
            });
            Seat::run_in(&place, task);
        }
    }

    async fn serve(&self, stream: TcpStream, mut seat: Seat) -> Result<(), ChannelError> {
        let mut channel = Channel::accept(stream, self.tls.as_ref(), self.hello).await?;
        seat.place().reached(Stage::Shaken);
        loop {
            let request = tokio::select! {
                request = channel.request() => request?,
                _ = &mut seat.go => return Ok(()),
            };
            let Some(request) = request else { return Ok(()) };
            seat.place().reached(Stage::Proved);
            seat.seen();
            channel.reply(&self.answer(request)).await?;
        }
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

/// Warns of connections that ended for others, once a second at most: strangers can make any number.
#[derive(Default)]
struct Yielded {
    unsaid: usize,
    said: Option<Instant>,
}

impl Yielded {
    fn add(&mut self, count: usize) {
        self.unsaid += count;
        let is_due = self.said.is_none_or(|said| said.elapsed() >= WARNING_INTERVAL);
        if self.unsaid > 0 && is_due {
            tracing::warn!(
                "{MAX_CONNECTIONS} peers are connected; {} idle ones were closed for others",
                self.unsaid
            );
            *self = Self { unsaid: 0, said: Some(Instant::now()) };
        }
    }
}
