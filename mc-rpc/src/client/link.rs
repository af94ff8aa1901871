//! The way to the master across connections: makes one when a call needs it.

use core::fmt;
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::config::ClientConfig;
use super::connection::Connection;
use crate::error::RpcError;
use crate::method::Method;

pub(super) struct Link {
    addr: Arc<str>,
    config: ClientConfig,
    current: Mutex<Option<Arc<Connection>>>,
    /// Attempts to connect that have ended.
    attempts: AtomicU64,
    /// Held by the one call that connects; the others wait for what it finds.
    dialing: tokio::sync::Mutex<Dialing>,
}

/// What is known from the attempts so far.
#[derive(Default)]
struct Dialing {
    failures: u32,
    /// The last failure, and when the next attempt may begin.
    failed: Option<(RpcError, Instant)>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(addr: Arc<str>, config: ClientConfig) -> Self {
        Self {
            addr,
            config,
            current: Mutex::new(None),
            attempts: AtomicU64::new(0),
            dialing: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn addr(&self) -> &str {
        &self.addr
    }

    pub(super) fn shared_addr(&self) -> &Arc<str> {
        &self.addr
    }

    fn current(&self) -> Option<Arc<Connection>> {
        self.current.lock().as_ref().filter(|connection| connection.is_alive()).cloned()
    }

    /// The connection there is, or a new one. Calls that wait while another
    /// call connects share its success and its failure, so that a master that is
    /// away costs each of them one attempt's time.
    ///
    /// Cancelling gives up the attempt.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, RpcError> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let seen = self.attempts.load(Ordering::Acquire);
        let mut dialing = self.dialing.lock().await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        if let Some((error, retry_at)) = &dialing.failed {
            if self.attempts.load(Ordering::Acquire) != seen {
                return Err(error.clone());
            }
            tokio::time::sleep_until(*retry_at).await;
        }
        let opened = Connection::open(&self.addr, &self.config).await;
        match &opened {
            Ok(connection) => {
                *dialing = Dialing::default();
                *self.current.lock() = Some(Arc::clone(connection));
            }
            Err(error) => {
                let wait = backoff(&self.config, dialing.failures);
                dialing.failures = dialing.failures.saturating_add(1);
                dialing.failed = Some((error.clone(), Instant::now() + wait));
            }
        }
        self.attempts.fetch_add(1, Ordering::Release);
        opened
    }

    /// Sends a request that `write` writes and waits for its answer.
    pub(super) async fn call(
        &self,
        method: Method,
        write: impl FnOnce(&mut BytesMut),
    ) -> Result<Bytes, RpcError> {
        let after = self.config.call_timeout;
        let deadline = Instant::now() + after;
        let connection = match self.current() {
            Some(connection) => connection,
            None => match tokio::time::timeout_at(deadline, self.connection()).await {
                Ok(connection) => connection?,
                Err(_) => {
                    let source = io::Error::new(
                        io::ErrorKind::TimedOut,
                        format!("no connection after {after:?}"),
                    );
                    let (addr, source) = (Arc::clone(&self.addr), Arc::new(source));
                    return Err(RpcError::Unreachable { addr, source });
                }
            },
        };
        connection.call(method, deadline, after, write).await
    }
}

/// Capped exponential backoff with equal jitter: between half of the full wait
/// and all of it.
fn backoff(config: &ClientConfig, failures: u32) -> Duration {
    let full = config.min_backoff.saturating_mul(1 << failures.min(16)).min(config.max_backoff);
    full.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_its_limit() {
        let config = ClientConfig::default();
        for failures in 0..200 {
            let wait = backoff(&config, failures);
            assert!(wait >= config.min_backoff / 2 && wait <= config.max_backoff, "{wait:?}");
        }
        assert!(backoff(&config, 199) >= config.max_backoff / 2);
    }
}
