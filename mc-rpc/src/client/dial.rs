//! Steps of making a connection that the async and the blocking client share.

use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mc_types::ErrorCode;
use socket2::{SockRef, TcpKeepalive};

use super::address::Address;
use super::config::ClientConfig;
use crate::error::RpcError;
use crate::frame::Welcome;
use crate::handshake::PrefaceError;
#[cfg(feature = "tls")]
use crate::tls::TlsError;

/// What a failed handshake with the master at `addr` is for the caller.
pub(super) fn handshake_failed(addr: &Arc<str>, error: PrefaceError) -> RpcError {
    let addr = Arc::clone(addr);
    match error {
        #[cfg(feature = "tls")]
        PrefaceError::Io(source) if is_tls(&source) => {
            RpcError::TlsHandshake { addr, source: Arc::new(source) }
        }
        PrefaceError::Io(source) => RpcError::Unreachable { addr, source: Arc::new(source) },
        PrefaceError::Refused(refusal) => RpcError::Refused(refusal),
        PrefaceError::Handshake(reason) => RpcError::NotAMaster { addr, reason },
    }
}

/// Whether the two sides did not agree on TLS, or on each other's certificates.
#[cfg(feature = "tls")]
fn is_tls(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|source| source.is::<crate::tls::rustls::Error>() || source.is::<TlsError>())
}

/// No answer came during the handshake.
pub(super) fn no_answer(addr: &Arc<str>, timeout: Duration) -> RpcError {
    let text = format!("no answer within {timeout:?}");
    handshake_failed(addr, io::Error::new(io::ErrorKind::TimedOut, text).into())
}

/// What the master offers in the words behind its preface.
pub(super) fn offers(words: &[u8]) -> Welcome {
    // What this side does not understand it does without.
    Welcome::parse(words).unwrap_or_default()
}

/// The shorter way to the master at `addr`, if its `welcome` shows one to the client that has
/// connected from `ours`.
pub(super) fn shorter_way(
    addr: &Arc<str>,
    welcome: &Welcome,
    ours: Option<SocketAddr>,
) -> Option<Address> {
    // The way an IPv4 client looks to a socket of IPv6.
    let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    let direct = canonical(ours?) == canonical(welcome.seen_as?);
    let offered = !welcome.local_socket.is_empty();
    (direct && offered).then(|| Address::local(&welcome.local_socket, addr))
}

/// Whether another attempt to connect may succeed without intervention. Only for
/// failures to connect: a call that is refused so is not repeated.
pub(super) fn may_pass(failure: &RpcError) -> bool {
    match failure {
        RpcError::Unreachable { .. } | RpcError::Unresolved { .. } => true,
        RpcError::Refused(refusal) => {
            matches!(refusal.code, ErrorCode::Overloaded | ErrorCode::UnavailableInCurrentStatus)
        }
        _ => false,
    }
}

/// Of the failures of several addresses the one to tell: what a master said before what
/// the network did.
pub(super) fn more_telling(first: Option<RpcError>, next: RpcError) -> RpcError {
    match first {
        Some(first) if !matches!(first, RpcError::Unreachable { .. }) => first,
        _ => next,
    }
}

/// Whether a call that failed so may be sent again: its connection is gone, and not
/// because the master broke the protocol.
pub(super) fn broke(failure: &RpcError) -> bool {
    match failure {
        RpcError::ConnectionLost { source, .. } => source.kind() != io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// Whether a call's connection was given up because nothing was heard.
pub(super) fn was_silent(failure: &RpcError) -> bool {
    match failure {
        RpcError::ConnectionLost { source, .. } => source.kind() == io::ErrorKind::TimedOut,
        _ => false,
    }
}

/// Sends at once, and finds out when the other host has gone without a word.
pub(super) fn tune(socket: &SockRef<'_>, config: &ClientConfig) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let idle = config.keepalive.clamp(SECOND, MAX_IDLE);
    let keepalive = TcpKeepalive::new().with_time(idle).with_interval((idle / 3).max(SECOND));
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    let keepalive = keepalive.with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(2 * idle))?;
    Ok(())
}

const SECOND: Duration = Duration::from_secs(1);

/// Linux takes no longer ones.
const MAX_IDLE: Duration = Duration::from_secs(32_767);
