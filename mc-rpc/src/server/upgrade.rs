//! Connections that leave the protocol: streams over which standbys get the leader's journal.

use core::pin::Pin;
use std::net::SocketAddr;
use std::sync::Arc;

use mc_places::{Seat, Stage};
use mc_types::ErrorCode;
use tokio::sync::watch;

use super::peer::Peer;
use crate::caller::{Caller, Role};
use crate::refusal::Refusal;
use crate::stream::{ByteStream, Stream};

/// A stream that is being served.
pub type Taking<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Takes the streams over which standbys ask for the journal, after the handshake: their peers have
/// the role [`Admin`](Role::Admin), and speak TLS where the server does.
pub trait TakeStream: core::fmt::Debug + Send + Sync + 'static {
    /// Serves the stream, which comes from `peer` (`None` over a Unix socket), until it ends. It is
    /// one connection of the server for so long. The server drops the future when it shuts down.
    ///
    /// The end of the leader's [`Term`](crate::Term) does not end the stream: who takes it says in
    /// which term each record was written.
    fn take<'a>(&'a self, stream: Box<dyn ByteStream>, peer: Option<SocketAddr>) -> Taking<'a>;
}

/// Returns what takes the stream of this caller.
pub(super) fn taker(
    upgrade: Option<&Arc<dyn TakeStream>>,
    caller: &Caller,
) -> Result<Arc<dyn TakeStream>, Refusal> {
    if caller.role() < Role::Admin {
        let (name, role) = (caller.name(), caller.role());
        let message = format!("the journal is for the role {}, {name} has {role}", Role::Admin);
        return Err(Refusal::new(ErrorCode::PermissionDenied, message));
    }
    upgrade.cloned().ok_or_else(|| {
        Refusal::new(
            ErrorCode::UnavailableInCurrentMode,
            "this master has no journal for standbys; start it with high availability",
        )
    })
}

/// Serves a stream until it ends or the server does.
pub(super) async fn serve(
    stream: Stream,
    peer: Peer,
    take: &dyn TakeStream,
    seat: Seat,
    mut draining: watch::Receiver<bool>,
) {
    seat.place().reached(Stage::Proved);
    // It does not make room for others.
    seat.place().set_busy(true);
    let peer = match peer {
        Peer::Ip(address) => Some(address),
        #[cfg(unix)]
        Peer::Local { .. } => None,
    };
    tokio::select! {
        // A simulation with one seed ends it in one way.
        biased;
        () = take.take(Box::new(stream), peer) => {}
        // That the server is gone is an end too.
        _ = draining.wait_for(|draining| *draining) => {}
    }
}
