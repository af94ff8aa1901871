//! The async client: the handle on which calls are made.

use mc_types::BoxFuture;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::time::{Instant, timeout_at};

use super::backoff::bounded;
use super::config::ClientConfig;
use super::dial::lacks_leader;
use super::link::Link;
use super::metrics::ClientMetrics;
use crate::answer::Answer;
use crate::error::RpcError;
use crate::method::Method;

/// The master, seen from a client: connections on which many calls are under way at a
/// time.
///
/// Cloning is cheap, and clones share the connections. A connection that is lost is made
/// again when a call needs it, and calls that were under way are made again on it, see
/// [`ClientConfig::retry`]; they fail with [`RpcError::ConnectionLost`] when their time is
/// over before that has succeeded, because it is unknown whether they were executed.
///
/// Every method ends after [`ClientConfig::call_timeout`] at the latest.
/// Dropping its future gives the answer up and tells the master so; the call may be
/// executed all the same.
///
/// # Panics
/// Its futures panic outside a tokio runtime with I/O and time. A connection
/// lives in the runtime that made it and is lost when that ends.
#[derive(Clone, Debug)]
pub struct MasterClient {
    link: Arc<Link>,
}

impl MasterClient {
    /// Connects to the master at `addr`: `host:port`, `unix:/path`, several of these with
    /// `,` or `;` in between, or `scheme://…` for a [`resolver`](ClientConfig::resolver).
    ///
    /// # Errors
    /// [`RpcError::Address`] when the address is invalid, [`RpcError::Unreachable`] when no
    /// process answers there, [`RpcError::NotAMaster`] when a process answers that is not a
    /// master, [`RpcError::Refused`] when the master rejects the connection.
    pub fn connect<'a>(
        addr: &'a str,
        config: ClientConfig,
    ) -> BoxFuture<'a, Result<Self, RpcError>> {
        Box::pin(async move {
            let client = Self::lazy(addr, config);
            client.link.connection().await?;
            Ok(client)
        })
    }

    /// Connects as [`connect`](Self::connect), and tries again while that fails because masters
    /// answer that they do not lead: for [`ClientConfig::call_timeout`], and no longer than calls wait, see
    /// [`ClientConfig::outage_timeout`]; not at all if [`ClientConfig::retry`] is off. `waits` is told
    /// once why it waits.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_to_leader<'a>(
        addr: &'a str,
        config: ClientConfig,
        waits: impl FnOnce(&RpcError) + Send + 'a,
    ) -> BoxFuture<'a, Result<Self, RpcError>> {
        Box::pin(async move {
            let mut waits = config.retry.then_some(waits);
            let is_patient = config.retry;
            let deadline = Instant::now() + bounded(config.call_timeout);
            let client = Self::lazy(addr, config);
            loop {
                // It keeps the pauses between the attempts.
                let error = match timeout_at(deadline, client.link.connection()).await {
                    Ok(Ok(_)) => return Ok(client),
                    Ok(Err(error)) => error,
                    Err(_) => client.link.last_failure(),
                };
                let is_over = Instant::now() >= deadline || client.link.is_known_down();
                if !is_patient || !lacks_leader(&error) || is_over {
                    return Err(error);
                }
                if let Some(waits) = waits.take() {
                    waits(&error);
                }
            }
        })
    }

    /// A client that connects on its first call, which also says what is wrong with the
    /// address.
    #[must_use]
    pub fn lazy(addr: &str, config: ClientConfig) -> Self {
        Self { link: Arc::new(Link::new(addr, config)) }
    }

    /// The master's address, as given.
    #[must_use]
    pub fn addr(&self) -> &str {
        self.link.addr()
    }

    /// Returns the address that connections try first, as `host:port` or `unix:/path`: of several
    /// that are given, or that a resolver found, the one that answered last. `None` when a resolver
    /// has to find it.
    #[must_use]
    pub fn preferred_addr(&self) -> Option<Arc<str>> {
        self.link.preferred_addr()
    }

    /// Returns the figures of this client and its clones.
    #[must_use]
    pub fn metrics(&self) -> ClientMetrics {
        self.link.metrics()
    }

    pub(crate) async fn call<T>(
        &self,
        method: Method,
        write: impl FnOnce(&mut BytesMut),
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        self.link.call(method, write, read).await
    }
}
