//! One-sided operations between nodes inside one process: for tests, and for a
//! store embedded in one.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;

use async_trait::async_trait;
use mc_types::{Endpoint, EndpointError};
use parking_lot::Mutex;

use crate::error::{ConnectError, RegisterError, TransferError};
use crate::memory::{Memory, MemorySlice};
use crate::operation::{Operation, Source};
use crate::region::{Access, Region, RegionTable};
use crate::transport::{Link, Transport};

const SCHEME: &str = "mem";

/// Bytes moved before other tasks get a turn; about a millisecond of copying.
const YIELD_AFTER: u64 = 8 << 20;

/// A network inside this process, on which [`MemTransport`]s find each other by
/// name. Clones are the same network.
///
/// ```
/// use mc_transport::{MemFabric, Transport};
/// let fabric = MemFabric::new();
/// let node = fabric.transport("node-1")?;
/// assert_eq!(node.endpoint().unwrap().as_str(), "mem://node-1");
/// # Ok::<(), mc_transport::FabricError>(())
/// ```
#[derive(Clone, Default)]
pub struct MemFabric {
    nodes: Arc<Mutex<HashMap<String, Weak<Node>>>>,
}

impl MemFabric {
    /// A network without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node; it leaves when it is dropped.
    ///
    /// # Errors
    /// [`FabricError`] when a node has this name, or the name cannot stand in an
    /// endpoint.
    pub fn transport(&self, name: &str) -> Result<MemTransport, FabricError> {
        let endpoint = Endpoint::new(SCHEME, name)
            .map_err(|source| FabricError::BadName { name: name.to_owned(), source })?;
        let mut nodes = self.nodes.lock();
        if nodes.get(name).is_some_and(|node| node.strong_count() > 0) {
            return Err(FabricError::NameTaken { name: name.to_owned() });
        }
        let node = Arc::new(Node { regions: RegionTable::new(), open: AtomicBool::new(true) });
        nodes.insert(name.to_owned(), Arc::downgrade(&node));
        Ok(MemTransport { fabric: self.clone(), endpoint, node })
    }
}

impl fmt::Debug for MemFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemFabric").finish_non_exhaustive()
    }
}

struct Node {
    regions: RegionTable,
    /// Cleared when the transport is dropped; links see it.
    open: AtomicBool,
}

/// One node of a [`MemFabric`].
pub struct MemTransport {
    fabric: MemFabric,
    endpoint: Endpoint,
    node: Arc<Node>,
}

#[async_trait]
impl Transport for MemTransport {
    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        Some(&self.endpoint)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        self.node.regions.register(memory, access)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<dyn Link>, ConnectError> {
        if endpoint.scheme() != SCHEME {
            let endpoint = endpoint.clone();
            return Err(ConnectError::WrongScheme { scheme: SCHEME, endpoint });
        }
        let peer = self.fabric.nodes.lock().get(endpoint.address()).and_then(Weak::upgrade);
        let peer = peer.ok_or_else(|| ConnectError::Unreachable {
            endpoint: endpoint.clone(),
            source: Arc::new(std::io::ErrorKind::ConnectionRefused.into()),
        })?;
        Ok(Arc::new(MemLink { peer }))
    }
}

impl Drop for MemTransport {
    fn drop(&mut self) {
        self.node.open.store(false, Ordering::Release);
        self.node.regions.clear();
        let mut nodes = self.fabric.nodes.lock();
        nodes.retain(|_, node| !std::ptr::eq(node.as_ptr(), Arc::as_ptr(&self.node)));
    }
}

impl fmt::Debug for MemTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemTransport").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

struct MemLink {
    peer: Arc<Node>,
}

impl MemLink {
    fn execute(&self, operation: &Operation) -> Result<(), TransferError> {
        operation.validate()?;
        if !self.is_healthy() {
            let source = Arc::new(std::io::ErrorKind::ConnectionReset.into());
            return Err(TransferError::LinkLost { source });
        }
        let span = operation.remote();
        let (offset, len) = (span.extent.offset(), span.extent.len());
        let wanted = match operation {
            Operation::Read { .. } => Access::Read,
            Operation::Write { .. } => Access::Write,
        };
        let remote = self.peer.regions.resolve(span.key, offset, len, wanted)?;
        let mut at = 0;
        match operation {
            Operation::Read { into, .. } => {
                for piece in into.iter() {
                    part(&remote, &mut at, piece.len())
                        .copy_to_slice(piece)
                        .expect("the part has the length of the piece");
                }
            }
            Operation::Write { from, .. } => {
                for piece in from.iter() {
                    let target = part(&remote, &mut at, piece.len());
                    match piece {
                        Source::Bytes(bytes) => target.copy_from(0, bytes),
                        Source::Memory(slice) => slice.copy_to_slice(&target),
                    }
                    .expect("the part has the length of the piece");
                }
            }
        }
        Ok(())
    }
}

/// The next `len` bytes of the remote side.
fn part(remote: &MemorySlice, at: &mut usize, len: usize) -> MemorySlice {
    let part = remote.part(*at, len).expect("the lengths were validated to agree");
    *at += len;
    part
}

#[async_trait]
impl Link for MemLink {
    async fn submit(&self, batch: Vec<Operation>) -> Vec<Result<(), TransferError>> {
        let mut results = Vec::with_capacity(batch.len());
        let mut since_yield = 0u64;
        for operation in batch {
            if since_yield >= YIELD_AFTER {
                since_yield = 0;
                yield_once().await;
            }
            results.push(self.execute(&operation));
            since_yield = since_yield.saturating_add(operation.remote().extent.len());
        }
        results
    }

    fn is_healthy(&self) -> bool {
        self.peer.open.load(Ordering::Acquire)
    }
}

/// Gives other tasks of whatever runtime polls this a turn.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Why a node could not join a [`MemFabric`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Another node has the name.
    #[error("a node named {name} is on this fabric already; choose another name")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The name cannot stand in an endpoint.
    #[error("{name:?} cannot name a node")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        source: EndpointError,
    },
}
