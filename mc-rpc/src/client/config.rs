//! The client's settings.

use core::time::Duration;
use std::borrow::Cow;
use std::sync::Arc;

use mc_environment::ClientEnvironment;

use super::address::Resolve;
use super::address::Resolvers;
use super::read_counter::ReadCounter;
use super::token::Token;
use super::youngest_term::YoungestTerm;
use crate::frame::DEFAULT_MAX_PAYLOAD;
#[cfg(feature = "tls")]
use crate::tls::ClientTls;

/// Settings of a [`MasterClient`](crate::MasterClient) and of a
/// [`blocking::MasterClient`](crate::blocking::MasterClient).
///
/// Clients that are made from clones of one configuration ask the masters of one cluster: once one
/// of them has met a younger leader, none of them believes an older one. Clients of another cluster
/// take a configuration of their own.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientConfig {
    /// How long making a connection to one address may take, name lookup and handshake
    /// included. Default 3 s.
    pub connect_timeout: Duration,
    /// How long one call may take, from its beginning to its answer, the making
    /// of a connection and further attempts included. Default 10 s.
    pub call_timeout: Duration,
    /// Whether a call whose connection could not be made or broke is made again until
    /// [`call_timeout`](Self::call_timeout) is over. A call that must not be executed
    /// twice carries a token, by which the master knows it. Default yes.
    pub retry: bool,
    /// How long calls wait for a master that cannot be connected to, counted from the first attempt that
    /// failed. When it is over the master is known to be down: calls fail at once, while attempts to
    /// connect go on, until one works. Default: [`call_timeout`](Self::call_timeout), and no more than four
    /// seconds where the address names a single master, which no other can take over from.
    pub outage_timeout: Option<Duration>,
    /// Most calls under way at a time; more wait for their turn. The master may
    /// allow fewer. A call counts once for every 16 KiB that it sends. Default
    /// 4096. The blocking client has one call under way on each connection.
    pub max_in_flight: u32,
    /// Most connections of an async client, among which calls choose the one with the
    /// least to do; a second one is made when calls meet on the first. More than one helps
    /// clients with more to send than one thread of the master answers. Default 1.
    pub connections: usize,
    /// Most connections of a blocking client, each of which carries one call at a time;
    /// more callers wait for their turn. Few of them stay open when the calls are over.
    /// Default 64.
    pub connections_max: usize,
    /// How long a thread that waits for an answer of a blocking client looks for it, giving way to
    /// other threads of its CPU, before it sleeps: being woken can take longer than the answer.
    /// One thread of a process at a time does so while at most one other waits; rarely while answers take
    /// longer, and never with TLS. Zero: always sleep. Default 100 µs.
    pub spin: Duration,
    /// Whether a client that finds itself on the master's host goes on over a Unix socket
    /// that the master offers, over which calls take half the time. Never with TLS, nor
    /// through a proxy. Default yes.
    pub local_socket: bool,
    /// Largest answer accepted, in bytes; at least 64 KiB. Default 16 MiB.
    pub max_payload: u32,
    /// How long to wait after the first failed attempt to connect. Each further
    /// failure doubles it, and the wait is drawn between half of that and all of
    /// it, so that clients do not return together. Default 50 ms.
    pub min_backoff: Duration,
    /// Longest wait between attempts to connect; 1 s during the first ten seconds in which the
    /// masters answer that they do not lead, or refuse connections. Default 2 s.
    pub max_backoff: Duration,
    /// After how much silence the system asks whether the other host still lives; a
    /// connection on which it says nothing for twice that time is lost. Default 15 s.
    pub keepalive: Duration,
    /// The token that proves the client's identity to the master. Default none.
    pub token: Option<Token>,
    /// The tenant that it acts for; empty for the one that its credential says. Default
    /// empty.
    pub tenant: String,
    /// The software with its version, by which the master's operator knows this client: cut at 128 bytes. Default
    /// `mc-rpc/` and the version of this crate.
    pub software: Cow<'static, str>,
    /// Whether the client administers one master: a standby takes its connections too, for
    /// [`ha_status`](crate::MasterClient::ha_status). Default no.
    pub administration: bool,
    /// Makes TCP connections speak TLS; Unix sockets never do. Default none.
    #[cfg(feature = "tls")]
    pub tls: Option<ClientTls>,
    /// Whether the connections are for the leader's journal.
    pub(super) journal: bool,
    /// The client's reads, of which its calls say which are over.
    pub(super) reads: ReadCounter,
    pub(super) terms: YoungestTerm,
    pub(super) resolvers: Resolvers,
    /// `None` for the operating system.
    pub(super) environment: Option<Arc<dyn ClientEnvironment>>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            call_timeout: Duration::from_secs(10),
            retry: true,
            outage_timeout: None,
            max_in_flight: 4096,
            connections: 1,
            connections_max: 64,
            spin: Duration::from_micros(100),
            local_socket: true,
            max_payload: DEFAULT_MAX_PAYLOAD,
            min_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(2),
            keepalive: Duration::from_secs(15),
            token: None,
            tenant: String::new(),
            software: concat!("mc-rpc/", env!("CARGO_PKG_VERSION")).into(),
            administration: false,
            reads: ReadCounter::default(),
            #[cfg(feature = "tls")]
            tls: None,
            journal: false,
            terms: YoungestTerm::default(),
            resolvers: Resolvers::default(),
            environment: None,
        }
    }
}

impl ClientConfig {
    /// Has the clients of this configuration tell with their calls which of their reads are over;
    /// returns what counts these. Without, and without randomness, what they read is kept for the
    /// whole time for which the master said that they may.
    pub fn count_reads(&mut self) -> ReadCounter {
        let mut number = [0; 16];
        let reader = if self.random(&mut number) { u128::from_le_bytes(number) } else { 0 };
        self.reads = ReadCounter::new(reader);
        self.reads.clone()
    }

    /// Finds masters whose address begins with `scheme://` by `resolve`, in place of what
    /// did so before.
    pub fn resolver(&mut self, scheme: &str, resolve: Arc<dyn Resolve>) -> &mut Self {
        self.resolvers.insert(scheme, resolve);
        self
    }

    /// Returns whether the client has a resolver for this scheme.
    #[must_use]
    pub fn has_resolver(&self, scheme: &str) -> bool {
        self.resolvers.of(scheme).is_some()
    }

    /// Has an async client live in this environment in place of the operating system's sockets and
    /// randomness. A [`blocking::MasterClient`](crate::blocking::MasterClient) takes its sockets
    /// from the system all the same.
    pub fn environment(&mut self, environment: Arc<dyn ClientEnvironment>) -> &mut Self {
        self.environment = Some(environment);
        self
    }

    /// Fills `bytes` with random ones; returns whether there were any.
    pub(super) fn random(&self, bytes: &mut [u8]) -> bool {
        match &self.environment {
            None => getrandom::fill(bytes).is_ok(),
            Some(environment) => environment.random(bytes).is_ok(),
        }
    }

    /// Returns a random number from 0 to 1, for the pauses between attempts.
    pub(super) fn fraction(&self) -> f64 {
        let Some(environment) = &self.environment else { return fastrand::f64() };
        let mut bytes = [0; 4];
        // Without randomness the pause is the shortest.
        drop(environment.random(&mut bytes));
        f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
    }
}
