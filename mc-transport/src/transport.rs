//! The contract that every implementation keeps.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use mc_memory::{Access, Memory, MemoryError, MemorySlice};
use mc_types::{Endpoint, RemoteKey};

use crate::completion::Completions;
use crate::error::{ConnectError, RegisterError, TransferError};
use crate::link_id::LinkId;
use crate::operation::{Operation, RemoteSpan};
use crate::region::{Region, Tickets};
use crate::staged::Staging;

/// Most operations of one batch, unless a link's [`Capabilities`] say less.
pub const MAX_BATCH: usize = 65_536;

/// A way to move bytes between the memories of nodes: a network, a shared
/// memory, a fabric inside one process.
///
/// A value is one node on that network. It opens its own memory to peers
/// ([`register`](Self::register)) and reaches theirs ([`connect`](Self::connect)).
/// The suite in `mc_transport::conformance` (feature `conformance`) checks an
/// implementation against everything said here, and `docs/your-own-transport.md`
/// leads through writing one.
///
/// Where the implementation is chosen at run time, use `dyn` [`DynTransport`],
/// which every transport is, too.
pub trait Transport: Send + Sync + 'static {
    /// The link that [`connect`](Self::connect) makes.
    type Link: Link;

    /// The scheme of the endpoints that this transport connects to.
    fn scheme(&self) -> &'static str;

    /// Where peers reach this node; `None` when it does not accept them.
    fn endpoint(&self) -> Option<&Endpoint>;

    /// Memory that this transport moves bytes of without a detour; registering any
    /// other works, too.
    ///
    /// # Errors
    /// [`MemoryError`] when the system has no such room.
    fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        Memory::allocate(len)
    }

    /// Opens `memory` to every peer that is told the region's key. The same memory
    /// may be registered again and then has another key.
    ///
    /// # Errors
    /// [`RegisterError`] when no key can be made or the transport was shut down.
    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError>;

    /// Opens `memory` to every peer that shows a ticket for what it touches: for an extent,
    /// a direction and a time. The region's key opens nothing without one.
    ///
    /// The owner of the memory verifies each operation, and writes again before each part of
    /// their bytes is applied. Where peers copy by themselves, as over shared memory, the
    /// tickets cannot be verified; see the transport.
    ///
    /// # Errors
    /// [`RegisterError`]; [`RegisterError::NoTickets`] from transports that do not verify
    /// them.
    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        let _ = (memory, access, tickets);
        Err(RegisterError::NoTickets)
    }

    /// Opens `memory` under the key and with the tickets of a region that an earlier process had
    /// opened over the same bytes, such as those of a file: peers that were told the key go on with
    /// it. The other calls draw a key, which no peer has.
    ///
    /// The caller sees to it that the earlier process touches the bytes no more, on behalf of peers
    /// neither, and that the master, which tells peers of the region, knows that it is the same one. Otherwise
    /// a right that a peer had in the past reaches bytes of the present.
    ///
    /// # Errors
    /// [`RegisterError`]; [`RegisterError::NoReuse`] from transports that cannot, which is the default.
    fn register_again(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Option<Tickets>,
        key: RemoteKey,
    ) -> Result<Region, RegisterError> {
        let _ = (memory, access, tickets, key);
        Err(RegisterError::NoReuse)
    }

    /// Opens memory to peers that is copied through memory of the host, such as a GPU's. With
    /// `tickets` the key opens nothing without one.
    ///
    /// # Errors
    /// [`RegisterError`]; [`RegisterError::NoStaging`] from transports that do not serve it.
    fn register_staged(
        &self,
        memory: &Staging,
        access: Access,
        tickets: Option<Tickets>,
    ) -> Result<Region, RegisterError> {
        let _ = (memory, access, tickets);
        Err(RegisterError::NoStaging)
    }

    /// A link to the peer at `endpoint`. A healthy link that exists already is
    /// used again, so calling this for every batch is the normal use.
    ///
    /// # Errors
    /// [`ConnectError`] when there is none and none can be made.
    ///
    /// # Cancellation
    /// Dropping the future gives up the attempt and leaks nothing.
    fn connect(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = Result<Arc<Self::Link>, ConnectError>> + Send;

    /// As [`connect`](Self::connect), for operations on [staged](crate::Staging) memory, such as a disk, which
    /// may be slow or hang: where a link carries one operation after the other, those on memory have
    /// another link then. By default it is the same.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancellation
    /// As there.
    fn connect_apart(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = Result<Arc<Self::Link>, ConnectError>> + Send {
        self.connect(endpoint)
    }

    /// Forgets that attempts to reach the peer at `endpoint` failed: the next one is made at
    /// once. For callers that learned elsewhere that the peer is back. Does nothing by default.
    fn forgive(&self, endpoint: &Endpoint) {
        let _ = endpoint;
    }

    /// The connections that peers made to this node. None by default.
    fn peer_connections(&self) -> PeerConnections {
        PeerConnections::default()
    }

    /// Ends every connection and task, and waits until they are gone. Operations under way
    /// fail; registering and connecting fail from now on. Does nothing by default, as for
    /// transports that end when they are dropped.
    ///
    /// # Cancellation
    /// Dropping the future still ends everything, without waiting for it.
    fn shutdown(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// The connections that peers made to a node, over one transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerConnections {
    /// Open now, handshakes included.
    pub open: usize,
    /// Refused so far, because all places were taken by connections at work.
    pub refused: u64,
    /// Idle ones that were closed so far because others needed their places.
    pub yielded: u64,
}

/// [`Transport`] for use behind a pointer: the same methods, a link of any kind.
#[async_trait]
pub trait DynTransport: Send + Sync + 'static {
    /// See [`Transport::scheme`].
    fn scheme(&self) -> &'static str;

    /// See [`Transport::endpoint`].
    fn endpoint(&self) -> Option<&Endpoint>;

    /// See [`Transport::allocate`].
    ///
    /// # Errors
    /// As there.
    fn allocate(&self, len: usize) -> Result<Memory, MemoryError>;

    /// See [`Transport::register`].
    ///
    /// # Errors
    /// As there.
    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError>;

    /// See [`Transport::register_with_tickets`].
    ///
    /// # Errors
    /// As there.
    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        let _ = (memory, access, tickets);
        Err(RegisterError::NoTickets)
    }

    /// See [`Transport::register_again`].
    ///
    /// # Errors
    /// As there.
    fn register_again(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Option<Tickets>,
        key: RemoteKey,
    ) -> Result<Region, RegisterError> {
        let _ = (memory, access, tickets, key);
        Err(RegisterError::NoReuse)
    }

    /// See [`Transport::register_staged`].
    ///
    /// # Errors
    /// As there.
    fn register_staged(
        &self,
        memory: &Staging,
        access: Access,
        tickets: Option<Tickets>,
    ) -> Result<Region, RegisterError> {
        let _ = (memory, access, tickets);
        Err(RegisterError::NoStaging)
    }

    /// See [`Transport::connect`].
    ///
    /// # Errors
    /// As there.
    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<dyn Link>, ConnectError>;

    /// See [`Transport::connect_apart`].
    ///
    /// # Errors
    /// As there.
    async fn connect_apart(&self, endpoint: &Endpoint) -> Result<Arc<dyn Link>, ConnectError> {
        self.connect(endpoint).await
    }

    /// See [`Transport::forgive`].
    fn forgive(&self, endpoint: &Endpoint) {
        let _ = endpoint;
    }

    /// See [`Transport::peer_connections`].
    fn peer_connections(&self) -> PeerConnections {
        PeerConnections::default()
    }

    /// See [`Transport::shutdown`].
    async fn shutdown(&self) {}
}

#[async_trait]
impl<T: Transport> DynTransport for T {
    fn scheme(&self) -> &'static str {
        Transport::scheme(self)
    }

    fn endpoint(&self) -> Option<&Endpoint> {
        Transport::endpoint(self)
    }

    fn allocate(&self, len: usize) -> Result<Memory, MemoryError> {
        Transport::allocate(self, len)
    }

    fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        Transport::register(self, memory, access)
    }

    fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        Transport::register_with_tickets(self, memory, access, tickets)
    }

    fn register_again(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Option<Tickets>,
        key: RemoteKey,
    ) -> Result<Region, RegisterError> {
        Transport::register_again(self, memory, access, tickets, key)
    }

    fn register_staged(
        &self,
        memory: &Staging,
        access: Access,
        tickets: Option<Tickets>,
    ) -> Result<Region, RegisterError> {
        Transport::register_staged(self, memory, access, tickets)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Arc<dyn Link>, ConnectError> {
        Transport::connect(self, endpoint).await.map(|link| link as Arc<dyn Link>)
    }

    async fn connect_apart(&self, endpoint: &Endpoint) -> Result<Arc<dyn Link>, ConnectError> {
        Transport::connect_apart(self, endpoint).await.map(|link| link as Arc<dyn Link>)
    }

    fn forgive(&self, endpoint: &Endpoint) {
        Transport::forgive(self, endpoint);
    }

    fn peer_connections(&self) -> PeerConnections {
        Transport::peer_connections(self)
    }

    async fn shutdown(&self) {
        Transport::shutdown(self).await;
    }
}

/// A link to one peer. Batches from many tasks share it.
pub trait Link: Send + Sync + 'static {
    /// Carries out the operations, and gives one result for each. They may run in
    /// any order and at the same time, and start now or when the results are first
    /// waited for.
    ///
    /// Each operation fails for itself, with its own [`TransferError`]. When the
    /// link is lost, every operation that was not answered fails with the cause,
    /// and [`is_healthy`](Self::is_healthy) says so. A batch of more operations than
    /// [`Capabilities::max_batch`] fails as a whole, each with
    /// [`TransferError::BatchTooLarge`].
    ///
    /// # Cancellation
    /// See [`Completions`]. The link stays usable.
    fn submit(&self, batch: Vec<Operation>) -> Completions;

    /// Returns whether the link can still carry operations. Once it is `false` it stays
    /// so; connect again.
    fn is_healthy(&self) -> bool;

    /// The link's capabilities.
    fn capabilities(&self) -> Capabilities;

    /// The name under which the peer knows this link, for [`fence`](Self::fence); `None`
    /// where nothing of a lost link can still be on its way.
    fn id(&self) -> Option<LinkId> {
        None
    }

    /// The names of the healthy links that operations given to this one may travel over;
    /// several, for links that are made of others. One that was among them when a write was
    /// submitted, and is not when that has failed, was lost: it may still bring bytes until
    /// the peer has [fenced](Self::fence) it.
    fn ids(&self) -> Vec<LinkId> {
        self.id().filter(|_| self.is_healthy()).into_iter().collect()
    }

    /// Makes the peer end `lost`, another link to it, and says when that is so: from then
    /// on nothing that was submitted to `lost` touches the peer's memory any more. Who
    /// lost a link with writes under way does this before the same place is written
    /// again; without it an old write could arrive on top of a newer one.
    ///
    /// The batch of results has one: done, also when the peer had ended it before.
    ///
    /// # Errors
    /// [`TransferError::Unsupported`] for links that have no [`id`](Self::id), and what
    /// any operation may fail with.
    fn fence(&self, lost: LinkId) -> Completions {
        let _ = lost;
        let unsupported = TransferError::Unsupported { what: "a fence against another link" };
        Completions::ready(vec![Err(unsupported)])
    }

    /// The peer's bytes themselves, without a copy, where both sides share memory. Does
    /// not wait: a link that has to ask the peer for a region first gives views of it
    /// once an operation, if only one of no bytes, was carried out there.
    ///
    /// # Errors
    /// The error that a read would have; [`TransferError::Unsupported`] on a link whose
    /// [`Capabilities::views`] is `false`, for a region whose memory cannot be shared,
    /// and for one that has to be asked for. A read does then.
    fn view(&self, span: RemoteSpan) -> Result<View, TransferError> {
        let _ = span;
        Err(TransferError::Unsupported { what: "a view of the peer's memory" })
    }
}

/// The capabilities of a [`Link`], for code that chooses between several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Bytes of the largest operation. [`Operation::split`] cuts larger ones.
    pub max_operation: u64,
    /// Operations of the largest batch.
    pub max_batch: usize,
    /// Large payloads pass between the wire and registered memory without a buffer
    /// of ours between.
    pub zero_copy: bool,
    /// In which order the peer carries out the operations that this link is given.
    pub ordering: Ordering,
    /// [`Link::view`] works.
    pub views: bool,
    /// Bytes are encrypted, and the peer is authenticated.
    pub encrypted: bool,
    /// The peer verifies the tickets of operations, where a region asks for them. Where this
    /// is `false`, as over shared memory, a peer that has a region's key reaches all of it.
    pub tickets: bool,
    /// Reads end when their [`Cancel`](crate::Cancel) says so.
    pub cancels: bool,
}

impl Capabilities {
    /// A plain link: every buffer in between, no order, no views, not encrypted, no
    /// tickets, nothing that cancels reads.
    #[must_use]
    pub const fn new(max_operation: u64) -> Self {
        Self {
            max_operation,
            max_batch: MAX_BATCH,
            zero_copy: false,
            ordering: Ordering::None,
            views: false,
            encrypted: false,
            tickets: false,
            cancels: false,
        }
    }
}

/// In which order operations are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordering {
    /// Any; wait for one to be done before you submit what depends on it.
    None,
    /// The order of submission. Still, their results are the only proof that they
    /// were.
    Submission,
}

/// Bytes of a peer, in place: the reader shares the memory with their owner.
///
/// They may change at any moment, and the owner may give their place to something
/// else. Hold a lease while you use them, and ask [`is_current`](Self::is_current)
/// when you are done: `false` means that the region was withdrawn meanwhile, and
/// nothing that was seen may be trusted. The memory itself stays mapped while a
/// view lives, so that looking is always safe.
pub struct View {
    bytes: MemorySlice,
    is_open: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl View {
    /// A view of `bytes`, for implementations; `is_open` says whether their region
    /// still is.
    pub fn new(bytes: MemorySlice, is_open: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        Self { bytes, is_open }
    }

    /// The bytes. Writing them is not part of the bargain, and refused where the
    /// system can.
    #[must_use]
    pub fn bytes(&self) -> &MemorySlice {
        &self.bytes
    }

    /// Returns whether the region is still open.
    #[must_use]
    pub fn is_current(&self) -> bool {
        (self.is_open)()
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
