//! What the connections of a server share.

use core::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mc_places::Places;

use super::config::{SMALL_BUFFERS, ServerConfig};
use super::deduplication::Sessions;
use super::executor::Executor;
#[cfg(feature = "grpc")]
use super::grpc::Reflection;
use super::log_limiter::LogLimiter;
use super::metrics::Counters;

/// What the connections of a server share.
#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) service: S,
    pub(super) config: Arc<ServerConfig>,
    /// The name of the socket that TCP clients of this host are offered.
    pub(super) local_socket: Option<Box<str>>,
    pub(super) executor: Executor,
    pub(super) places: Arc<Places>,
    pub(super) sessions: Sessions,
    pub(super) counters: Counters,
    pub(super) log_limiter: LogLimiter,
    /// Bytes in the buffers of connections that hold many.
    pub(super) buffered: Arc<AtomicUsize>,
    #[cfg(feature = "grpc")]
    pub(super) reflection: Reflection,
}

impl<S> Shared<S> {
    pub(super) fn new(service: S, config: ServerConfig, local_socket: Option<Box<str>>) -> Self {
        Self {
            service,
            local_socket,
            executor: Executor::new(config.bulk_threads),
            places: Places::new(
                config.max_connections,
                config.max_connections_per_address,
                config.idle_timeout,
            ),
            sessions: Sessions::new(config.max_connections),
            counters: Counters::default(),
            log_limiter: LogLimiter::new(),
            buffered: Arc::default(),
            #[cfg(feature = "grpc")]
            reflection: Reflection::new(),
            config: Arc::new(config),
        }
    }
}

/// The part of one connection in [`Shared::buffered`]: all that it holds, and nothing while that
/// is little.
#[derive(Debug, Default)]
pub(super) struct Buffered(usize);

impl Buffered {
    /// Counts `bytes` from now on. Returns whether all connections together hold at most `max`; one
    /// that gives bytes back always may.
    pub(super) fn set(&mut self, bytes: usize, all: &AtomicUsize, max: usize) -> bool {
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
