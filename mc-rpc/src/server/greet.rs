//! From an accepted socket to a connection that is served: the handshake.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use mc_places::{Seat, Stage};
use mc_types::ErrorCode;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::close_reason::CloseReason;
use super::config::ServerConfig;
use super::connection::Connection;
use super::dispatch::CallSource;
use super::guest::{Guest, GuestProtocol};
use super::identity::Shown;
use super::metrics::{Counters, add};
use super::open_connections::{ConnectionKind, Open};
use super::peer::{Peer, Source};
use super::transit::Transit;
use super::upgrade::{self, TakeStream};
#[cfg(feature = "tls")]
use crate::frame::MAGIC;
use crate::frame::preface::HandshakeError;
use crate::frame::{
    ClientPreface, Hello, PREFACE_LEN, Purpose, ServerPreface, VERSION, Welcome, other_version,
};
use crate::handshake::{read_exactly, read_preface};
use crate::refusal::Refusal;
use crate::server::shared::Shared;
use crate::stream::Stream;

/// Serves a connection to its end, and says once why a bad one ended.
pub(super) async fn serve(
    stream: Stream,
    (peer, source): (Peer, Source),
    (shared, guest): (Arc<Shared>, Option<Arc<dyn GuestProtocol>>),
    seat: Seat,
    draining: watch::Receiver<bool>,
) {
    add(&shared.counters.accepted, 1);
    let _counted = Counted::new(&shared.counters);
    let served_by = (Arc::clone(&shared), guest);
    let serving = greet_and_serve(stream, (peer, source), served_by, seat, draining);
    match serving.await {
        Ok(()) => tracing::debug!(%peer, "connection closed"),
        Err(CloseReason::Io(error)) => tracing::debug!(%peer, %error, "connection lost"),
        Err(reason) => {
            let (counter, refused) = match &reason {
                CloseReason::Refused(refusal) => (&shared.counters.turned_away, Some(refusal.code)),
                _ => (&shared.counters.closed_for_cause, None),
            };
            add(counter, 1);
            if refused == Some(ErrorCode::UnavailableInCurrentStatus) {
                // Clients that look for the leader ask every standby, again and again.
                tracing::debug!(%peer, %reason, "refused a client that looks for the leader");
            } else {
                shared.log_limiter.about(&peer, &reason);
            }
        }
    }
}

/// Counts a connection for as long as it is open.
struct Counted<'a>(&'a Counters);

impl<'a> Counted<'a> {
    fn new(counters: &'a Counters) -> Self {
        add(&counters.connections, 1);
        Self(counters)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn greet_and_serve(
    stream: Stream,
    (peer, source): (Peer, Source),
    (shared, guest): (Arc<Shared>, Option<Arc<dyn GuestProtocol>>),
    seat: Seat,
    draining: watch::Receiver<bool>,
) -> Result<(), CloseReason> {
    let (since, handshake_timeout) = (Instant::now(), shared.config.handshake_timeout);
    stream.prepare(shared.config.keepalive)?;
    let greeted = async {
        let (mut stream, shown) = secure(stream, peer, &shared.config).await?;
        let mut begun = [0; PREFACE_LEN];
        let len = stream.read(&mut begun).await?;
        let begun = &begun[..len];
        let Some(&first) = begun.first() else {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        };
        if let Some(guest) = guest.filter(|guest| guest.first_byte() == first) {
            return Ok(Greeted::Guest(stream, shown, Bytes::copy_from_slice(begun), guest));
        }
        let known = greet(&mut stream, (peer, source), begun, &shown, &shared).await?;
        Ok::<_, CloseReason>(Greeted::Known(stream, known))
    };
    match timeout(handshake_timeout, greeted)
        .await
        .map_err(|_| CloseReason::SlowHandshake(handshake_timeout))??
    {
        Greeted::Known(stream, Known { asker, transit, take, software }) => {
            let kind = match take {
                Some(_) => ConnectionKind::Journal,
                None => ConnectionKind::Calls,
            };
            let caller = Some(Arc::clone(&asker.caller));
            let _listed = shared.open.enter(Open { peer, software, caller, kind, since });
            if let Some(take) = take {
                upgrade::serve(stream, peer, &*take, seat, draining).await;
                return Ok(());
            }
            seat.place().reached(Stage::Shaken);
            Connection::new(stream, shared, (asker, transit), seat).serve(draining).await
        }
        Greeted::Guest(stream, shown, begun, protocol) => {
            let (software, caller, kind) = (Box::default(), None, ConnectionKind::Grpc);
            let _listed = shared.open.enter(Open { peer, software, caller, kind, since });
            let (stream, guest) = Guest::new(stream, shared, shown, seat, draining);
            protocol.serve(stream, begun, guest).await
        }
    }
}

/// The protocol that a connection turned out to speak.
enum Greeted {
    Known(Stream, Known),
    /// A guest, of which these bytes were read. Each of its calls says for itself who calls.
    Guest(Stream, Shown, Bytes, Arc<dyn GuestProtocol>),
}

/// Lets a TCP connection speak TLS where that is asked for.
async fn secure(
    stream: Stream,
    peer: Peer,
    config: &ServerConfig,
) -> Result<(Stream, Shown), CloseReason> {
    let shown = Shown::by(peer);
    #[cfg(feature = "tls")]
    let stream = match (stream, &config.tls) {
        (Stream::Tcp(stream), Some(tls)) => return secure_tcp(stream, shown, tls).await,
        (stream, _) => stream,
    };
    #[cfg(not(feature = "tls"))]
    let _ = config;
    Ok((stream, shown))
}

#[cfg(feature = "tls")]
async fn secure_tcp(
    mut stream: tokio::net::TcpStream,
    shown: Shown,
    tls: &crate::tls::ServerTls,
) -> Result<(Stream, Shown), CloseReason> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    if first[0] == MAGIC[0] {
        // A client of ours without TLS: it understands a refusal.
        let refusal = Refusal::new(
            ErrorCode::Unauthenticated,
            "this master speaks TLS only; name the file of the authority that signed its \
             certificate",
        );
        let preface: [u8; PREFACE_LEN] = read_preface(&mut stream, &[]).await?;
        let preface = ClientPreface::parse(&preface)?;
        read_exactly(&mut stream, preface.hello_len.into()).await?;
        refuse(&mut stream, &refusal).await?;
        return Err(CloseReason::Refused(refusal));
    }
    let accepted =
        tokio_rustls::TlsAcceptor::from(tls.current(crate::tls::SERVED)).accept(stream).await;
    let stream = accepted.map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => CloseReason::Tls(error),
        // Gone, as those are who only look whether the port is open.
        _ => CloseReason::Io(error),
    })?;
    let shown = shown.with_certificate(stream.get_ref().1);
    Ok((Stream::Tls(Box::new(stream.into())), shown))
}

/// A peer that has shaken hands.
struct Known {
    asker: CallSource,
    transit: Transit,
    /// Takes the stream, where it is one of the journal, which carries no frames.
    take: Option<Arc<dyn TakeStream>>,
    software: Box<str>,
}

/// Shakes hands: the versions match, and the server knows who it is. `begun` has arrived.
async fn greet(
    stream: &mut Stream,
    (peer, source): (Peer, Source),
    begun: &[u8],
    shown: &Shown,
    shared: &Shared,
) -> Result<Known, CloseReason> {
    let preface: [u8; PREFACE_LEN] = read_preface(stream, begun).await?;
    let client = ClientPreface::parse(&preface)?;
    if client.version != VERSION {
        refuse(stream, &other_version(client.version)).await?;
        return Err(HandshakeError::Version { theirs: client.version, ours: VERSION }.into());
    }
    let hello = read_exactly(stream, client.hello_len.into()).await?;
    let transit = Transit::since(Instant::now());
    let known = Hello::parse(&hello).and_then(|hello| {
        let token = (!hello.token.is_empty()).then_some(&*hello.token);
        let authenticator = shared.config.authenticator.as_deref();
        let caller = shown.identify(authenticator, token, &hello.tenant)?;
        match hello.purpose {
            Purpose::Calls | Purpose::Journal => shared.check_leads()?,
            // A standby takes it, a former leader does not.
            Purpose::Administration => shared.check_term()?,
        }
        let session = match hello.session {
            0 => None,
            id => Some(Arc::new(shared.sessions.name(id, source, &caller)?)),
        };
        let (from, max_reply) = (shown.from(), client.max_payload as usize);
        let take = match hello.purpose {
            Purpose::Journal => Some(upgrade::taker(shared.config.upgrade.as_ref(), &caller)?),
            Purpose::Calls | Purpose::Administration => None,
        };
        let asker = CallSource { caller, from, session, max_reply };
        Ok((asker, hello, take))
    });
    let (asker, hello, take) = match known {
        Ok(known) => known,
        Err(refusal) => {
            refuse(stream, &refusal).await?;
            return Err(CloseReason::Refused(refusal));
        }
    };
    let answer = ServerPreface {
        version: VERSION,
        message_len: 0,
        status: 0,
        max_payload: shared.config.max_payload,
        max_in_flight: shared.config.max_in_flight,
    };
    let mut welcome = Welcome::default();
    // Other clients do not expect one. Without anything to say it has no bytes.
    if hello.local || hello.send_times || hello.purpose != Purpose::Calls {
        welcome.send_times = hello.send_times;
        (welcome.epoch, welcome.incarnation) = (shared.epoch(), shared.incarnation);
        welcome.is_journal = take.is_some();
        (welcome.reads, welcome.traces) = (true, true);
    }
    if let (Peer::Ip(seen_as), Some(name), true) = (peer, &shared.local_socket, hello.local) {
        (welcome.local_socket, welcome.seen_as) = (name.clone(), Some(seen_as));
    }
    stream.write_all(&answer.welcoming(&welcome)).await?;
    stream.flush().await?;
    Ok(Known { asker, transit, take, software: hello.software })
}

async fn refuse(
    stream: &mut (impl AsyncWrite + Unpin),
    refusal: &Refusal,
) -> Result<(), CloseReason> {
    stream.write_all(&ServerPreface::refusing(refusal)).await?;
    stream.flush().await?;
    stream.shutdown().await?;
    Ok(())
}

/// Tells a client that there are too many connections.
pub(super) async fn turn_away(mut stream: Stream, limit: Duration) {
    let tell = async {
        let preface = ClientPreface::parse(&read_preface(&mut stream, &[]).await?)?;
        read_exactly(&mut stream, preface.hello_len.into()).await?;
        let refusal = Refusal::new(
            ErrorCode::Overloaded,
            "this master has as many connections as it takes; retry shortly",
        );
        refuse(&mut stream, &refusal).await
    };
    // Refused either way; a peer that does not even say hello learns nothing.
    let _: Result<Result<(), CloseReason>, _> = timeout(limit, tell).await;
}
