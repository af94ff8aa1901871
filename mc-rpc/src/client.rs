//! The client's side: the master's commands as methods.

mod calls;
mod config;
mod connection;
mod link;

use std::sync::Arc;

use bytes::BytesMut;

use crate::answer::Answer;
use crate::error::RpcError;
use crate::method::Method;

pub use calls::{EvictDiskItem, FoundItem, OffloadItem, PutRevokeItem, PutStartItem};
pub use config::ClientConfig;
use link::Link;

/// The master, seen from a client: one connection, on which many calls are
/// under way at a time.
///
/// Cloning is cheap, and clones share the connection. A connection that is lost
/// is made again by the next call; calls that were under way fail with
/// [`RpcError::ConnectionLost`], because nobody can tell whether they were
/// executed.
///
/// Every method ends after [`ClientConfig::call_timeout`] at the latest.
/// Dropping its future gives the answer up; the call may be executed all the
/// same.
///
/// # Panics
/// Its futures panic outside a tokio runtime with I/O and time. The connection
/// lives in the runtime that made it and is lost when that ends.
#[derive(Clone, Debug)]
pub struct MasterClient {
    link: Arc<Link>,
}

impl MasterClient {
    /// Connects to the master at `addr` (`host:port`).
    ///
    /// # Errors
    /// [`RpcError::Unreachable`] when nobody answers there,
    /// [`RpcError::NotAMaster`] when somebody else does.
    pub async fn connect(addr: &str, config: ClientConfig) -> Result<Self, RpcError> {
        let client = Self::lazy(addr, config);
        client.link.connection().await?;
        Ok(client)
    }

    /// A client that connects on its first call.
    #[must_use]
    pub fn lazy(addr: &str, config: ClientConfig) -> Self {
        Self { link: Arc::new(Link::new(addr.into(), config)) }
    }

    /// The master's address, as given.
    #[must_use]
    pub fn addr(&self) -> &str {
        self.link.addr()
    }

    async fn call<T>(
        &self,
        method: Method,
        write: impl FnOnce(&mut BytesMut),
        read: impl FnOnce(&[u8]) -> Answer<T>,
    ) -> Result<T, RpcError> {
        let answer = self.link.call(method, write).await?;
        match read(&answer) {
            Ok(answer) => answer.map_err(RpcError::Refused),
            Err(reason) => Err(RpcError::Malformed {
                addr: Arc::clone(self.link.shared_addr()),
                method,
                reason,
            }),
        }
    }
}
