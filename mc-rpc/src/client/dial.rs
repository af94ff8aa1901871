//! Steps of making a connection that the async and the blocking client share.

use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mc_types::ErrorCode;
use socket2::{SockRef, TcpKeepalive};

use super::address::{Address, Candidates, Route};
use super::backoff::backoff_up_to;
use super::config::ClientConfig;
use crate::error::RpcError;
use crate::frame::Welcome;
use crate::ha::named_leader;
use crate::handshake::PrefaceError;
#[cfg(feature = "tls")]
use crate::tls::TlsError;

/// How long after an attempt at one address the next is tried, while the first has no answer.
pub(super) const STAGGER: Duration = Duration::from_millis(250);

/// For so long after the first failed round the next ones follow soon, where masters or their hosts
/// say at once that no leader is there: another one will lead shortly.
const EAGER_FOR: Duration = Duration::from_secs(10);

/// The longest wait between those rounds: thousands of clients make them at the same standbys.
const EAGER_BACKOFF: Duration = Duration::from_secs(1);

/// Makes the caller's error of a failed handshake with the master at `addr`.
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

/// Returns whether the two sides did not agree on TLS, or on each other's certificates.
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

/// The caller of the blocking client cancelled its call during the handshake.
#[derive(Debug, thiserror::Error)]
#[error("the caller did not wait for an answer")]
struct Cancelled;

/// The error of a handshake that its caller cancelled.
pub(super) fn cancelled(addr: &Arc<str>) -> RpcError {
    handshake_failed(addr, io::Error::other(Cancelled).into())
}

/// Returns whether the caller cancelled the attempt, which says nothing of the master.
pub(super) fn was_cancelled(failure: &RpcError) -> bool {
    match failure {
        RpcError::Unreachable { source, .. } => {
            source.get_ref().is_some_and(|source| source.is::<Cancelled>())
        }
        _ => false,
    }
}

/// Parses the offers of the master behind its preface.
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

/// One attempt to connect: each address once, until one works.
pub(super) struct Round<'a> {
    route: &'a Route,
    candidates: Candidates,
    tried: usize,
    failure: Option<RpcError>,
}

impl<'a> Round<'a> {
    /// Begins at the address that worked last; `None` when the addresses are to be
    /// [resolved](Route::resolve) before.
    ///
    /// # Errors
    /// [`RpcError::Address`].
    pub(super) fn begin(route: &'a Route) -> Result<Option<Self>, RpcError> {
        let candidates = route.candidates()?;
        Ok(candidates.map(|candidates| Self { route, candidates, tried: 0, failure: None }))
    }

    /// Returns the next address and its place, if any is left.
    pub(super) fn next(&mut self) -> Option<(usize, Address)> {
        if !self.has_more() {
            return None;
        }
        let (place, address) = self.candidates.get(self.tried);
        self.tried += 1;
        Some((place, address.clone()))
    }

    /// Returns whether addresses are left.
    pub(super) fn has_more(&self) -> bool {
        self.tried < self.candidates.len()
    }

    /// Returns how long an attempt may hear nothing before another address is tried, where that is
    /// not done beside it; `None` when there is no other address.
    pub(super) fn stagger(&self) -> Option<Duration> {
        (self.candidates.len() > 1).then_some(STAGGER)
    }

    /// Notes that the address at this place worked.
    pub(super) fn worked(&self, place: usize) {
        self.route.worked(place);
    }

    /// Ends a round in which every address failed. Returns the most telling failure.
    pub(super) fn over(&mut self) -> RpcError {
        self.route.all_failed();
        self.failure.take().expect("there is at least one address")
    }

    /// Notes that an address failed.
    ///
    /// # Errors
    /// The failure, when no other address helps against it.
    pub(super) fn failed(&mut self, error: RpcError) -> Result<(), RpcError> {
        if !may_pass(&error) && !matches!(error, RpcError::NotAMaster { .. }) {
            return Err(error);
        }
        if let RpcError::Refused(refusal) = &error
            && let Some(leader) = named_leader(refusal)
        {
            self.route.leads(leader);
        }
        self.failure = Some(more_telling(self.failure.take(), error));
        Ok(())
    }
}

/// The rounds since the last one that connected.
#[derive(Debug, Default)]
pub(super) struct FailedRounds {
    count: u32,
    /// When the first of them began.
    first: Option<Instant>,
    last: Option<(RpcError, Instant)>,
}

impl FailedRounds {
    /// Notes that another round failed, which began then. Returns when the next one may begin.
    pub(super) fn add(
        &mut self,
        error: &RpcError,
        config: &ClientConfig,
        begun: Instant,
        now: Instant,
    ) -> Instant {
        let first = *self.first.get_or_insert(begun);
        let is_eager = is_prompt(error) && now.saturating_duration_since(first) < EAGER_FOR;
        let longest = config.max_backoff;
        let longest = if is_eager { longest.min(EAGER_BACKOFF) } else { longest };
        let next = now + backoff_up_to(longest, config, self.count);
        self.count = self.count.saturating_add(1);
        self.last = Some((error.clone(), next));
        next
    }

    /// Returns when the first one began.
    pub(super) const fn first(&self) -> Option<Instant> {
        self.first
    }

    /// Has the next one begin at this time, if there was one.
    pub(super) fn put_off(&mut self, next: Instant) {
        if let Some((_, at)) = &mut self.last {
            *at = next;
        }
    }

    /// Returns why the last one failed, and when the next one may begin.
    pub(super) fn last(&self) -> Option<(&RpcError, Instant)> {
        self.last.as_ref().map(|(error, next)| (error, *next))
    }
}

/// Returns whether a call waits for another round after one that failed so.
pub(super) fn tries_again(config: &ClientConfig, failure: &RpcError) -> bool {
    config.retry && may_pass(failure)
}

/// Returns whether another attempt to connect may succeed without intervention. Only for
/// failures to connect: a call that is refused so is not repeated.
pub(super) fn may_pass(failure: &RpcError) -> bool {
    match failure {
        RpcError::Unreachable { .. } => !was_cancelled(failure),
        RpcError::Unresolved { .. } => true,
        RpcError::Refused(refusal) => {
            matches!(refusal.code, ErrorCode::Overloaded | ErrorCode::UnavailableInCurrentStatus)
        }
        _ => false,
    }
}

/// Returns whether masters answer, and none of them leads.
pub(super) fn lacks_leader(failure: &RpcError) -> bool {
    match failure {
        RpcError::Refused(refusal) => refusal.code == ErrorCode::UnavailableInCurrentStatus,
        _ => false,
    }
}

/// Returns whether a master, its host or a resolver has said at once that no leader is there.
fn is_prompt(failure: &RpcError) -> bool {
    match failure {
        RpcError::Unreachable { source, .. } => source.kind() != io::ErrorKind::TimedOut,
        RpcError::Refused(refusal) => refusal.code == ErrorCode::UnavailableInCurrentStatus,
        // Resolvers are asked for this: how long they take bounds the rate.
        RpcError::Unresolved { .. } => true,
        _ => false,
    }
}

/// Returns whether no answer came in time.
pub(super) fn is_silent(failure: &RpcError) -> bool {
    match failure {
        RpcError::Unreachable { source, .. } => source.kind() == io::ErrorKind::TimedOut,
        _ => false,
    }
}

/// The failure to report of those at several addresses: a master's answer comes before an
/// error of the network.
fn more_telling(first: Option<RpcError>, next: RpcError) -> RpcError {
    match first {
        Some(first) if !matches!(first, RpcError::Unreachable { .. }) => first,
        _ => next,
    }
}

/// Returns whether a call that failed so may be sent again: its connection is gone, and not
/// because the master broke the protocol.
pub(super) fn broke(failure: &RpcError) -> bool {
    match failure {
        RpcError::ConnectionLost { source, .. } => source.kind() != io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// Returns whether a call's connection timed out because nothing was heard.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::address::Resolvers;
    use crate::frame::preface::HandshakeError;

    fn unreachable(addr: &str) -> RpcError {
        let source = Arc::new(io::ErrorKind::ConnectionRefused.into());
        RpcError::Unreachable { addr: addr.into(), source }
    }

    fn next(round: &mut Round<'_>) -> String {
        round.next().unwrap().1.text().to_string()
    }

    #[test]
    fn a_round_begins_where_the_last_one_ended_and_tries_each_address_once() {
        let route = Route::new("a:1,b:2,c:3", &Resolvers::default());
        let mut round = Round::begin(&route).unwrap().unwrap();
        assert_eq!(next(&mut round), "a:1");
        round.failed(unreachable("a:1")).unwrap();
        assert_eq!(next(&mut round), "b:2");
        round.worked(1);
        let mut round = Round::begin(&route).unwrap().unwrap();
        for addr in ["b:2", "c:3", "a:1"] {
            assert_eq!(next(&mut round), addr);
            round.failed(unreachable(addr)).unwrap();
        }
        assert!(round.next().is_none() && !round.has_more());
        assert!(matches!(round.over(), RpcError::Unreachable { .. }));
    }

    #[test]
    fn rounds_that_fail_are_ever_further_apart() {
        let (config, begun) = (ClientConfig::default(), Instant::now());
        let mut failed = FailedRounds::default();
        assert!(failed.last().is_none());
        let mut now = begun;
        for _ in 0..200 {
            let next = failed.add(&unreachable("a:1"), &config, now, now);
            let most = if now < begun + EAGER_FOR { EAGER_BACKOFF } else { config.max_backoff };
            assert!(next >= now + config.min_backoff / 2 && next <= now + most);
            assert!(
                matches!(failed.last(), Some((RpcError::Unreachable { .. }, at)) if at == next)
            );
            now = next;
        }
        let next = failed.add(&unreachable("a:1"), &config, now, now);
        assert!(next >= now + config.max_backoff / 2, "no longer at the shortest wait");
        // A host that says nothing, and a master with too much to do, are left alone for longer.
        let silent = no_answer(&Arc::from("a:1"), config.connect_timeout);
        let busy = crate::Refusal::new(ErrorCode::Overloaded, "busy").into();
        for error in [silent, busy] {
            let mut failed = FailedRounds { count: 16, ..FailedRounds::default() };
            assert!(failed.add(&error, &config, begun, begun) >= begun + config.max_backoff / 2);
        }
    }

    #[test]
    fn a_round_tells_what_a_process_said_before_what_the_network_did() {
        let route = Route::new("a:1,b:2,c:3", &Resolvers::default());
        let mut round = Round::begin(&route).unwrap().unwrap();
        let reason = HandshakeError::Version { theirs: 9, ours: 1 };
        let errors = [
            unreachable("a:1"),
            RpcError::NotAMaster { addr: "b:2".into(), reason },
            unreachable("c:3"),
        ];
        for error in errors {
            let _ = next(&mut round);
            round.failed(error).unwrap();
        }
        assert!(round.next().is_none());
        assert!(matches!(round.over(), RpcError::NotAMaster { .. }));
        // A refusal for good is the end of the round.
        let mut round = Round::begin(&route).unwrap().unwrap();
        let _ = next(&mut round);
        let refused = crate::Refusal::new(ErrorCode::PermissionDenied, "no such token");
        assert!(round.failed(refused.into()).is_err());
    }
}
