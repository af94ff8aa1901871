//! The contract that every implementation keeps.

use std::sync::Arc;

use async_trait::async_trait;
use mc_types::Endpoint;

use crate::error::{ConnectError, RegisterError, TransferError};
use crate::memory::Memory;
use crate::operation::Operation;
use crate::region::{Access, Region};

/// A way to move bytes between the memories of nodes: a network, a shared
/// memory, a fabric inside one process.
///
/// A value is one node on that network. It opens its own memory to peers
/// ([`register`](Self::register)) and reaches theirs ([`connect`](Self::connect)).
/// The suite in `mc_transport::conformance` (feature `conformance`) checks an
/// implementation against everything said here.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// The scheme of the endpoints that this transport connects to.
    fn scheme(&self) -> &'static str;

    /// Where peers reach this node; `None` when it does not accept them.
    fn endpoint(&self) -> Option<&Endpoint>;

    /// Opens `memory` to every peer that is told the region's key.
    ///
    /// # Errors
    /// [`RegisterError`] when no key can be made or the transport was shut down.
    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError>;

    /// A link to the peer at `endpoint`. A healthy link that exists already is
    /// used again, so calling this for every batch is the normal use.
    ///
    /// # Errors
    /// [`ConnectError`] when there is none and none can be made.
    ///
    /// # Cancellation
    /// Dropping the future gives up the attempt and leaks nothing.
    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<dyn Link>, ConnectError>;
}

/// A link to one peer. Batches from many tasks share it.
#[async_trait]
pub trait Link: Send + Sync {
    /// Carries out the operations and gives one result for each, in their order.
    /// They may run in any order and at the same time.
    ///
    /// # Errors
    /// Each operation has its own [`TransferError`]. When the link is lost, every
    /// operation that was not answered fails with the cause, and
    /// [`is_healthy`](Self::is_healthy) says so.
    ///
    /// # Cancellation
    /// Dropping the future abandons the results, not the operations: those that
    /// were started may still run to their end, and keep the memory they touch
    /// alive until then. The link stays usable.
    async fn submit(&self, batch: Vec<Operation>) -> Vec<Result<(), TransferError>>;

    /// Whether the link can still carry operations. Once it is `false` it stays
    /// so; connect again.
    fn is_healthy(&self) -> bool;
}
