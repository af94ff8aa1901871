//! One-sided operations between nodes inside one process: for tests, and for a
//! store embedded in one.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Weak};

use mc_memory::{Access, Memory};
use mc_types::{Endpoint, EndpointError, RemoteKey};
use parking_lot::Mutex;

use crate::completion::{Completions, Outcome};
use crate::copy::{AdmittedSpan, copy};
use crate::error::{ConnectError, RegisterError, TransferError};
use crate::operation::{Operation, RemoteSpan};
use crate::region::{Admission, Region, RegionTable, Tickets};
use crate::staged::Staging;
use crate::transport::{Capabilities, Link, MAX_BATCH, Ordering, Transport, View};

const SCHEME: &str = "mem";

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
        self.transport_with(name, RegionTable::new())
    }

    /// Adds a node with this table of regions, which is empty: as
    /// [`transport`](Self::transport), but the keys of its regions may
    /// [come from elsewhere](RegionTable::with_keys).
    ///
    /// # Errors
    /// As [`transport`](Self::transport).
    pub fn transport_with(
        &self,
        name: &str,
        regions: RegionTable,
    ) -> Result<MemTransport, FabricError> {
        let endpoint = Endpoint::new(SCHEME, name)
            .map_err(|source| FabricError::BadName { name: name.to_owned(), source })?;
        let mut nodes = self.nodes.lock();
        if nodes.get(name).is_some_and(|node| node.strong_count() > 0) {
            return Err(FabricError::NameTaken { name: name.to_owned() });
        }
        let node = Arc::new(Node { regions, open: AtomicBool::new(true) });
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

impl Transport for MemTransport {
    type Link = MemLink;

    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        Some(&self.endpoint)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        self.node.regions.register(memory, access)
    }

    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        self.node.regions.register_with_tickets(memory, access, tickets)
    }

    fn register_again(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Option<Tickets>,
        key: RemoteKey,
    ) -> Result<Region, RegisterError> {
        self.node.regions.register_again(memory, access, tickets, key)
    }

    /// For peers that read. They do so in their own task, which it may block.
    fn register_staged(
        &self,
        memory: &Staging,
        access: Access,
        tickets: Option<Tickets>,
    ) -> Result<Region, RegisterError> {
        if access != Access::Read {
            return Err(RegisterError::NoStaging);
        }
        self.node.regions.register_staged(memory, access, tickets)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<MemLink>, ConnectError> {
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
        self.node.open.store(false, Release);
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

/// A link of a [`MemTransport`]: operations are copies, made in the task that
/// waits for them.
pub struct MemLink {
    peer: Arc<Node>,
}

impl Node {
    fn is_open(&self) -> bool {
        self.open.load(Acquire)
    }

    /// Lets an operation in to the memory that `span` names, when a peer may have it.
    fn admit(&self, span: RemoteSpan, wanted: Access) -> Result<Admission, TransferError> {
        if !self.is_open() {
            let source = Arc::new(std::io::ErrorKind::ConnectionReset.into());
            return Err(TransferError::LinkLost { source });
        }
        let (offset, len) = (span.extent.offset(), span.extent.len());
        self.regions.admit_any(span.key, offset, len, wanted, span.ticket.as_ref())
    }

    fn execute(&self, operation: &Operation) -> Outcome {
        operation.validate()?;
        let remote = operation.remote();
        match self.admit(remote, operation.access())? {
            Admission::Host(admitted) => {
                let permit = AdmittedSpan { span: remote, admitted };
                copy(operation, permit.admitted.memory(), &permit)
            }
            Admission::Staged(admitted) => admitted.read_here(operation),
        }
    }
}

impl Link for MemLink {
    fn submit(&self, batch: Vec<Operation>) -> Completions {
        let len = batch.len();
        if len > MAX_BATCH {
            let too_large = TransferError::BatchTooLarge { len, max: MAX_BATCH };
            return Completions::ready(vec![Err(too_large); len]);
        }
        let peer = Arc::clone(&self.peer);
        Completions::inline(batch, move |operation| peer.execute(operation))
    }

    fn is_healthy(&self) -> bool {
        self.peer.is_open()
    }

    fn capabilities(&self) -> Capabilities {
        let ordering = Ordering::Submission;
        Capabilities {
            zero_copy: true,
            views: true,
            ordering,
            tickets: true,
            cancels: true,
            ..Capabilities::new(u64::MAX)
        }
    }

    fn view(&self, span: RemoteSpan) -> Result<View, TransferError> {
        // The view does not hold up a withdrawal: the memory stays mapped, and who looks asks
        // whether it was withdrawn.
        let bytes = self.peer.admit(span, Access::Read)?.on_host()?.memory().clone();
        let peer = Arc::clone(&self.peer);
        Ok(View::new(bytes, Arc::new(move || peer.admit(span, Access::Read).is_ok())))
    }
}

impl fmt::Debug for MemLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemLink").field("is_healthy", &self.is_healthy()).finish_non_exhaustive()
    }
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
        /// The problem.
        source: EndpointError,
    },
}
