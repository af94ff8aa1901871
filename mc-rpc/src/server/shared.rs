//! The state that the connections of a server share.

use core::{fmt, mem};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mc_places::Places;
use mc_types::Epoch;

use super::config::{SMALL_BUFFERS, ServerConfig};
use super::deduplication::Sessions;
use super::executor::Executor;
use super::log_limiter::LogLimiter;
use super::metrics::Counters;
use super::open_connections::OpenConnections;
use super::term::Term;
use crate::refusal::Refusal;
use crate::service::Service;

/// The state that the connections of a server share.
///
/// It is of one type whatever the service is, so that all that serves connections is compiled here and
/// not once in each program and each test.
pub(super) struct Shared {
    pub(super) service: Arc<dyn Service>,
    pub(super) config: Arc<ServerConfig>,
    /// The name of the socket that TCP clients of this host are offered.
    pub(super) local_socket: Option<Box<str>>,
    pub(super) executor: Executor,
    pub(super) places: Arc<Places>,
    pub(super) open: OpenConnections,
    pub(super) sessions: Sessions,
    /// Drawn at random; the sessions are those of this number.
    pub(super) incarnation: u64,
    pub(super) counters: Counters,
    pub(super) log_limiter: LogLimiter,
    /// Bytes in the buffers of connections that hold many.
    pub(super) buffered: Arc<AtomicUsize>,
}

impl Shared {
    pub(super) fn new(
        service: Arc<dyn Service>,
        config: ServerConfig,
        local_socket: Option<Box<str>>,
    ) -> Self {
        Self {
            service,
            local_socket,
            executor: Executor::new(config.bulk_threads, config.environment.clone()),
            places: Places::new(
                config.max_connections,
                config.max_connections_per_address,
                config.idle_timeout,
            ),
            open: OpenConnections::default(),
            sessions: Sessions::new(config.max_connections),
            incarnation: draw_incarnation(),
            counters: Counters::default(),
            log_limiter: LogLimiter::new(),
            buffered: Arc::default(),
            config: Arc::new(config),
        }
    }

    /// The term in which the server answers.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.config.term.as_ref().map(|term| term.epoch)
    }

    /// Refuses what a master must not answer whose term is over.
    pub(super) fn check_term(&self) -> Result<(), Refusal> {
        self.config.term.as_ref().map_or(Ok(()), Term::check)
    }

    /// Refuses what only a master may answer that leads, or that is alone.
    pub(super) fn check_leads(&self) -> Result<(), Refusal> {
        self.check_term()?;
        self.service.takes_calls()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Never 0, which says that there is none.
fn draw_incarnation() -> u64 {
    let mut number = [0; 8];
    getrandom::fill(&mut number).expect("the system gives random numbers");
    u64::from_le_bytes(number).max(1)
}

/// The part of one connection in the bytes that all connections of a server hold
/// ([`ServerConfig::max_buffered`](crate::ServerConfig::max_buffered)): all that it holds, and nothing
/// while that is little.
#[derive(Debug, Default)]
pub struct Buffered(usize);

impl Buffered {
    /// Counts `bytes` in `all` from now on. Returns whether all connections together hold at most `max`; one
    /// that gives bytes back always may.
    pub fn set(&mut self, bytes: usize, all: &AtomicUsize, max: usize) -> bool {
        let counted = if bytes > SMALL_BUFFERS { bytes } else { 0 };
        let before = mem::replace(&mut self.0, counted);
        if counted == before {
            return true;
        }
        all.fetch_sub(before, Ordering::Relaxed);
        let total = all.fetch_add(counted, Ordering::Relaxed) + counted;
        counted < before || total <= max
    }
}
