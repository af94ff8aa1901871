//! The application's side: forwards operations to the node agent of this host.

mod arena;
mod backed;
mod builder;
mod dial;
mod get;
mod keeper;
mod object_store;
mod put;
mod replicas;
mod session;
mod shared;

use mc_types::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

use mc_transport::Memory;
use tokio::task::JoinHandle;

pub use self::builder::DummyClientBuilder;
use self::shared::Shared;
use super::error::DummyError;

/// A client that lets another process of this host, the node agent, do the work.
///
/// Puts, gets and all other calls are those of [`ObjectStore`](mc_store::ObjectStore) and
/// [`ReplicatedStore`](mc_store::ReplicatedStore), which an application imports. Values lie in memory that both processes see:
///
/// * [`allocate`](Self::allocate) takes memory from the *local buffer*, which is shared
///   from the start. [`put_from`](mc_store::ObjectStore::put_from) and
///   [`get_into`](mc_store::ObjectStore::get_into) with such memory copy nothing in this process.
/// * [`register`](Self::register) shares memory that the application allocated itself.
/// * [`put`](mc_store::ObjectStore::put) and [`get`](mc_store::ObjectStore::get) copy once, into or
///   out of the local buffer. A batch has as many values under way as the buffer has room for.
///
/// The error of a call is a [`StoreError`](mc_store::StoreError); where that has no variant for what
/// happened, [`DummyError::behind`] is it.
///
/// Clones share one connection. Calls are pipelined, and answers come in any order.
///
/// # When the node agent goes
/// Calls that are under way fail with [`DummyError::RealClientGone`], and so do new ones
/// until the node agent is back. The thin client looks for it with growing pauses,
/// shares all memory anew and serves calls; [`wait_until_connected`](Self::wait_until_connected)
/// returns then.
///
/// # Cancellation
/// Dropping a future abandons the call, which the node agent may still carry out. Memory
/// of the local buffer is not used for anything else before it has; a target that the
/// application owns may change until then.
#[derive(Clone, Debug)]
pub struct DummyClient {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {
    shared: Arc<Shared>,
    /// Keeps the connection, or makes a new one.
    keeper: JoinHandle<()>,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl DummyClient {
    /// Begins to describe a thin client.
    pub fn builder() -> DummyClientBuilder {
        DummyClientBuilder::default()
    }

    /// Connects to the node agent at `address`, a `host:port` of this host. Must be called
    /// in a tokio runtime.
    ///
    /// # Errors
    /// [`DummyError`]; nothing is left running then.
    pub async fn connect(address: &str) -> Result<Self, DummyError> {
        Self::builder().server(address).connect().await
    }

    /// Whether the node agent is connected now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.core.shared.session().is_ok()
    }

    /// Waits until the node agent is connected.
    ///
    /// # Errors
    /// [`DummyError::RealClientGone`] or what else keeps it away, after `patience`.
    pub fn wait_until_connected<'a>(
        &'a self,
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), DummyError>> {
        Box::pin(async move { self.core.shared.wait_until_connected(patience).await })
    }

    /// Takes `len` bytes of the local buffer, which the node agent reaches. They are
    /// given back when the last handle, slice and call that names them is gone. What they
    /// held before is not erased.
    ///
    /// # Errors
    /// [`DummyError::TooLarge`] and [`DummyError::BufferFull`].
    pub fn allocate(&self, len: usize) -> Result<Memory, DummyError> {
        self.core.shared.arena.allocate(len)
    }

    /// Shares `memory` with the node agent, so that calls can name it without a copy. It
    /// must have been allocated with
    /// [`MemoryOptions::shared`](mc_transport::MemoryOptions::shared), and is kept until it is
    /// [unregistered](Self::unregister). Memory that is registered already stays so.
    ///
    /// # Errors
    /// [`DummyError::Memory`] when it cannot be shared, [`DummyError::Failed`] when the
    /// node agent takes no more, [`DummyError::RealClientGone`] when it is not there. The
    /// memory is not registered then.
    pub fn register<'a>(&'a self, memory: &'a Memory) -> BoxFuture<'a, Result<(), DummyError>> {
        Box::pin(async move { self.core.shared.register(memory).await })
    }

    /// Takes `memory` back. Calls that name it already go on to their ends.
    ///
    /// # Errors
    /// [`DummyError::NotRegistered`] when it was not registered. A node agent that is not
    /// there has forgotten it by itself.
    pub fn unregister<'a>(&'a self, memory: &'a Memory) -> BoxFuture<'a, Result<(), DummyError>> {
        Box::pin(async move { self.core.shared.unregister(memory).await })
    }
}
