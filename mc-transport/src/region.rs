//! Memory opened to peers, and the keys that open it.

mod gate;
mod served;
mod ticket;

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::Future;
use std::future::poll_fn;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use mc_memory::{Access, Memory, MemorySlice};
use mc_ticket::Ticket;
use mc_types::{Extent, RemoteKey};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use self::gate::{Gate, Pass};
use self::served::ServedCounters;
pub use self::served::ServedTotals;
use self::ticket::GrantEnd;
pub use self::ticket::{MasterClock, Tickets};
use crate::error::{RegisterError, TransferError};
use crate::open_links::OpenLinks;
use crate::staged::{AdmittedStaged, Staging};

/// Memory that peers may reach while this value lives. Dropping it withdraws the key at
/// once; operations that are under way keep the memory alive and end soon.
/// [`withdraw`](Self::withdraw) waits for that.
#[must_use = "dropping a region withdraws its key at once"]
pub struct Region {
    key: RemoteKey,
    memory: Memory,
    /// Withdraws the key when dropped.
    registration: Box<dyn Registration>,
}

/// The registration of a region with a transport. Dropping it withdraws the region's key.
pub trait Registration: Send + Sync + 'static {
    /// Withdraws the key, asks the operations of peers that are under way to end, and waits
    /// until none of them touches the region's memory any more.
    ///
    /// # Cancellation
    /// Dropping the future gives up the waiting only.
    fn withdraw(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Asks the operations of peers that are under way to end, and waits until none of them touches
    /// the region's memory any more. The key stays, and later operations are let in.
    ///
    /// # Cancellation
    /// Nothing is done before the future is polled. Dropping it after that gives up the waiting only.
    fn interrupt(&self) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

impl Region {
    /// Ties `key` and `memory` together, for implementations of
    /// [`Transport`](crate::Transport).
    pub fn new(key: RemoteKey, memory: Memory, registration: impl Registration) -> Self {
        memory.expose();
        Self { key, memory, registration: Box::new(registration) }
    }

    /// The key to give to peers that may reach the memory.
    #[must_use]
    pub fn key(&self) -> RemoteKey {
        self.key
    }

    /// The memory; one of no bytes when the region is over [staged](crate::StagedMemory) memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Withdraws the key, as dropping does, and does not wait.
    pub fn revoke(self) {}

    /// Withdraws the key, ends the operations of peers that are under way and waits until
    /// none of them touches the memory any more. Writes that were ended fail, and so do
    /// reads. From then on the memory may have another use.
    ///
    /// That holds for peers that are served by this node. A process that
    /// [maps](Memory::map_shared) the memory touches it without asking the owner: when the
    /// memory [was lent](Memory::was_lent), give the new life other pages.
    ///
    /// # Cancellation
    /// The key is withdrawn by the call. Dropping the future gives up the waiting only.
    pub fn withdraw(self) -> impl Future<Output = ()> + Send + 'static {
        self.registration.withdraw()
    }

    /// Ends the operations of peers that are under way, as [`withdraw`](Self::withdraw) does and with
    /// the same limit, and keeps the key: operations that begin from now on are let in. For a node whose
    /// master has changed, and knows nothing of what the one before it has granted.
    ///
    /// A peer that maps the memory, or reaches it by a network card, shows no ticket when it comes again: it
    /// is trusted to know when its grant ends.
    ///
    /// # Cancellation
    /// Nothing is done before the future is polled. Dropping it after that gives up the waiting only.
    pub fn interrupt(&self) -> impl Future<Output = ()> + Send + use<> {
        self.registration.interrupt()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("memory", &self.memory).finish_non_exhaustive()
    }
}

/// Memory that an operation of a peer was let in to. While this lives, a region that is
/// being withdrawn waits for it. Hold it for as long as the operation touches the memory,
/// [check](Self::check) it before each step, and let it go when that fails.
#[derive(Clone)]
#[must_use = "the memory may have another use once this is dropped"]
pub struct Admitted {
    memory: MemorySlice,
    claim: Claim,
}

/// The right of one operation of a peer to touch a region. A region that is being withdrawn
/// waits until it is dropped.
#[derive(Clone)]
pub struct Claim {
    pass: Pass,
    /// The end of the grant, of a write under a ticket.
    end: Option<GrantEnd>,
}

/// An operation of a peer that was let in, by the kind of memory that it names.
pub enum Admission {
    /// Memory of the host.
    Host(Admitted),
    /// Memory that is copied through stages.
    Staged(AdmittedStaged),
}

impl Admission {
    /// The operation, for callers that can touch memory of the host only.
    ///
    /// # Errors
    /// [`TransferError::Unsupported`] when it names staged memory.
    pub fn on_host(self) -> Result<Admitted, TransferError> {
        match self {
            Self::Host(admitted) => Ok(admitted),
            Self::Staged(_) => {
                Err(TransferError::Unsupported { what: "direct access to staged memory" })
            }
        }
    }
}

impl Admitted {
    /// The bytes that the operation names.
    #[must_use]
    pub fn memory(&self) -> &MemorySlice {
        &self.memory
    }

    /// Checks that the operation may still touch the memory. To be called before each part
    /// of the bytes is moved.
    ///
    /// A read that was let in is served to its end, as long as the region is there: what it
    /// brings late is found by the reader's lease and checksums.
    ///
    /// # Errors
    /// [`TransferError::KeyRefused`] when the region was withdrawn, and
    /// [`TransferError::GrantEnded`] when the ticket of a write has ended.
    pub fn check(&self) -> Result<(), TransferError> {
        self.claim.check()
    }

    /// Returns whether the region was withdrawn.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.claim.is_withdrawn()
    }

    /// The right to touch the memory.
    pub fn claim(&self) -> &Claim {
        &self.claim
    }
}

impl Claim {
    /// As [`Admitted::check`].
    ///
    /// # Errors
    /// As there.
    pub fn check(&self) -> Result<(), TransferError> {
        if self.is_withdrawn() {
            return Err(TransferError::KeyRefused);
        }
        self.end.as_ref().map_or(Ok(()), GrantEnd::check)
    }

    /// Returns whether the region was withdrawn.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.pass.is_closed()
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").field("memory", &self.memory).finish_non_exhaustive()
    }
}

/// The regions of one node, by key: what a transport consults for every
/// operation of a peer when no hardware does.
///
/// Clones share the table.
#[derive(Clone, Default)]
pub struct RegionTable {
    regions: Arc<RwLock<HashMap<RemoteKey, OpenRegion>>>,
    /// The links over which peers reach the regions, whichever transport they came by.
    links: OpenLinks,
    /// Notified of each withdrawal, for tasks that wait for something else meanwhile.
    withdrawals: Arc<Notify>,
    served: Arc<ServedCounters>,
    /// Where keys come from; `None` for the system's randomness.
    keys: Option<Arc<dyn Fn() -> RemoteKey + Send + Sync>>,
}

/// A region as its table has it, for transports whose devices reach the memory by themselves.
pub struct OpenRegion {
    /// The memory.
    pub memory: Registered,
    /// The access that peers have.
    pub access: Access,
    tickets: Option<Tickets>,
    gate: Arc<Gate>,
    /// State that transports attach to the region. Dropped before the withdrawal of the key
    /// ends, so that they learn of it in time.
    pub attached: Vec<Box<dyn Any + Send + Sync>>,
}

impl OpenRegion {
    /// The right to touch the region until it is dropped: a withdrawal waits for that.
    #[must_use]
    pub fn claim(&self) -> Claim {
        Claim { pass: self.gate.enter(), end: None }
    }
}

/// The memory of a region.
pub enum Registered {
    /// Memory of the host.
    Host(Memory),
    /// Reached by copies through memory of the host, never by its address.
    Staged(Staging),
}

impl Registered {
    fn len(&self) -> usize {
        match self {
            Self::Host(memory) => memory.len(),
            Self::Staged(staging) => staging.size(),
        }
    }
}

impl RegionTable {
    /// A table without regions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A table whose regions get their keys from `next` in place of the system's randomness, so
    /// that a simulation repeats. Keys are capabilities: those that can be guessed protect
    /// nothing.
    #[must_use]
    pub fn with_keys(next: impl Fn() -> RemoteKey + Send + Sync + 'static) -> Self {
        Self { keys: Some(Arc::new(next)), ..Self::default() }
    }

    /// Opens `memory` to peers under a new random key.
    ///
    /// # Errors
    /// [`RegisterError::ReadOnly`] when peers could write what this process
    /// cannot, and [`RegisterError::NoRandomness`].
    pub fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        self.open(Registered::Host(memory.clone()), access, None, self.next_key()?)
    }

    /// Opens `memory` to peers that show a ticket for what they touch, under a new random
    /// key that opens nothing without one.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub fn register_with_tickets(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Tickets,
    ) -> Result<Region, RegisterError> {
        self.open(Registered::Host(memory.clone()), access, Some(tickets), self.next_key()?)
    }

    /// Opens `memory` under the key of a region that another process had opened over the same
    /// bytes; see [`Transport::register_again`](crate::Transport::register_again) for what the
    /// caller must see to.
    ///
    /// # Errors
    /// [`RegisterError::ReadOnly`], and [`RegisterError::KeyTaken`] when the table has the key.
    pub fn register_again(
        &self,
        memory: &Memory,
        access: Access,
        tickets: Option<Tickets>,
        key: RemoteKey,
    ) -> Result<Region, RegisterError> {
        self.open(Registered::Host(memory.clone()), access, tickets, key)
    }

    /// Opens staged memory to peers of the transports that serve it: TCP, with and without TLS,
    /// and QUIC. [`admit`](Self::admit) refuses it. With `tickets` the key opens nothing
    /// without one.
    ///
    /// # Errors
    /// [`RegisterError::NoRandomness`].
    pub fn register_staged(
        &self,
        memory: &Staging,
        access: Access,
        tickets: Option<Tickets>,
    ) -> Result<Region, RegisterError> {
        self.open(Registered::Staged(memory.clone()), access, tickets, self.next_key()?)
    }

    fn open(
        &self,
        memory: Registered,
        access: Access,
        tickets: Option<Tickets>,
        key: RemoteKey,
    ) -> Result<Region, RegisterError> {
        let on_host = match &memory {
            Registered::Host(memory) if access != Access::Read && !memory.is_writable() => {
                return Err(RegisterError::ReadOnly);
            }
            Registered::Host(memory) => memory.clone(),
            Registered::Staged(_) => Memory::empty(),
        };
        let gate = Arc::default();
        let open =
            OpenRegion { memory, access, tickets, gate: Arc::clone(&gate), attached: Vec::new() };
        match self.regions.write().entry(key) {
            Entry::Vacant(place) => _ = place.insert(open),
            Entry::Occupied(_) => return Err(RegisterError::KeyTaken),
        }
        let gates = Arc::new(Mutex::new(vec![gate]));
        Ok(Region::new(key, on_host, OpenKey { table: self.clone(), key, gates }))
    }

    fn next_key(&self) -> Result<RemoteKey, RegisterError> {
        if let Some(next) = &self.keys {
            return Ok(next());
        }
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)
            .map_err(|error| RegisterError::NoRandomness { source: error.into() })?;
        Ok(RemoteKey::from_bytes(bits))
    }

    /// Lets an operation of a peer in to the memory that it names, when it may have it.
    ///
    /// `offset` and `len` count bytes from the region's first. A region that asks for
    /// tickets opens to `ticket` only, which others ignore.
    ///
    /// # Errors
    /// [`TransferError::KeyRefused`], also for a ticket that is not good here,
    /// [`TransferError::GrantEnded`], [`TransferError::AccessDenied`],
    /// [`TransferError::OutOfBounds`], or [`TransferError::Unsupported`] when the region is over
    /// [staged](crate::StagedMemory) memory.
    pub fn admit(
        &self,
        key: RemoteKey,
        offset: u64,
        len: u64,
        wanted: Access,
        ticket: Option<&Ticket>,
    ) -> Result<Admitted, TransferError> {
        self.admit_any(key, offset, len, wanted, ticket).and_then(Admission::on_host)
    }

    /// [`admit`](Self::admit) for transports that serve staged memory, too.
    ///
    /// # Errors
    /// As there.
    pub fn admit_any(
        &self,
        key: RemoteKey,
        offset: u64,
        len: u64,
        wanted: Access,
        ticket: Option<&Ticket>,
    ) -> Result<Admission, TransferError> {
        self.admit_checked(key, offset, len, wanted, |region, extent| match &region.tickets {
            None => Ok(None),
            Some(tickets) => {
                let ticket = ticket.ok_or(TransferError::KeyRefused)?;
                tickets.check(key, extent, wanted, ticket).map(Some)
            }
        })
    }

    /// [`admit`](Self::admit) for an operation of this process itself, which owns the memory
    /// and needs no ticket.
    ///
    /// # Errors
    /// As there.
    pub fn admit_owner(
        &self,
        key: RemoteKey,
        offset: u64,
        len: u64,
        wanted: Access,
    ) -> Result<Admitted, TransferError> {
        let admitted = self.admit_checked(key, offset, len, wanted, |_, _| Ok(None));
        admitted.and_then(Admission::on_host)
    }

    fn admit_checked(
        &self,
        key: RemoteKey,
        offset: u64,
        len: u64,
        wanted: Access,
        grant: impl FnOnce(&OpenRegion, Extent) -> Result<Option<GrantEnd>, TransferError>,
    ) -> Result<Admission, TransferError> {
        let regions = self.regions.read();
        let region = regions.get(&key).ok_or(TransferError::KeyRefused)?;
        if !region.access.allows(wanted) {
            return Err(TransferError::AccessDenied { wanted });
        }
        let out_of_bounds = TransferError::OutOfBounds { offset, len };
        let inside = Extent::new(0, region.memory.len() as u64)
            .and_then(|whole| whole.part(offset, len))
            .ok_or(out_of_bounds)?;
        let end = grant(region, inside)?.filter(|_| wanted != Access::Read);
        // Both fit in usize because they lie inside memory whose length does.
        let (offset, len) = (inside.offset() as usize, inside.len() as usize);
        // A withdrawal takes the region out under this lock before.
        let claim = Claim { pass: region.gate.enter(), end };
        match &region.memory {
            Registered::Host(memory) => {
                let memory = memory.slice(offset, len);
                let memory = memory.expect("the extent was found to lie inside the memory");
                drop(regions);
                if wanted == Access::Write {
                    memory.populate_behind();
                }
                Ok(Admission::Host(Admitted { memory, claim }))
            }
            Registered::Staged(staging) => {
                Ok(Admission::Staged(staging.admitted(offset, len, claim)))
            }
        }
    }

    /// Waits for `event` unless `is_withdrawn` says that a region was withdrawn which the
    /// caller is using.
    ///
    /// # Errors
    /// [`Withdrawn`] when it was.
    pub async fn unless_withdrawn<T>(
        &self,
        event: impl Future<Output = T>,
        is_withdrawn: impl Fn() -> bool,
    ) -> Result<T, Withdrawn> {
        let mut event = pin!(event);
        loop {
            let mut withdrawal = pin!(self.withdrawals.notified());
            // Registered before the question, so that no withdrawal falls in between.
            withdrawal.as_mut().enable();
            if is_withdrawn() {
                return Err(Withdrawn);
            }
            let happened = poll_fn(|cx| match event.as_mut().poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending => withdrawal.as_mut().poll(cx).map(|()| None),
            });
            if let Some(outcome) = happened.await {
                return Ok(outcome);
            }
        }
    }

    /// Shows the region to `visit`, while it cannot be withdrawn; `None` when no region
    /// has the key.
    pub fn visit<T>(&self, key: RemoteKey, visit: impl FnOnce(&mut OpenRegion) -> T) -> Option<T> {
        self.regions.write().get_mut(&key).map(visit)
    }

    /// The links over which peers reach the regions.
    #[must_use]
    pub fn links(&self) -> &OpenLinks {
        &self.links
    }

    /// Counts of the operations that peers did in the regions.
    #[must_use]
    pub fn served(&self) -> ServedTotals {
        self.served.read()
    }

    /// Counts a read or write of a peer that was carried out here.
    pub fn count_served(&self, access: Access, len: u64) {
        self.served.add(access, len);
    }

    /// Regions that are open now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions.read().len()
    }

    /// Returns whether no region is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Withdraws every key, as the end of a transport that has the table for itself does.
    pub(crate) fn clear(&self) {
        // Dropped after the lock: releasing foreign memory runs code of its owner.
        let withdrawn = std::mem::take(&mut *self.regions.write());
        for region in withdrawn.values() {
            region.gate.close();
        }
        self.told_of_withdrawal();
        drop(withdrawn);
    }

    /// Lets operations in by another gate from now on, and asks those to end that came by the gates before
    /// it; returns these.
    fn replace_gate(&self, key: RemoteKey, gates: &Mutex<Vec<Arc<Gate>>>) -> Vec<Arc<Gate>> {
        let mut gates = gates.lock();
        let next = Arc::<Gate>::default();
        // Attachments of devices and of processes that map the memory, which get new ones when they ask again.
        // Dropped after the locks: cards take their time.
        let mut attached = Vec::new();
        if let Some(open) = self.regions.write().get_mut(&key) {
            open.gate = Arc::clone(&next);
            std::mem::swap(&mut attached, &mut open.attached);
        }
        gates.retain(|gate| !gate.is_empty());
        gates.iter().for_each(|gate| gate.close());
        let before = gates.clone();
        gates.push(next);
        drop(gates);
        drop(attached);
        self.told_of_withdrawal();
        before
    }

    fn told_of_withdrawal(&self) {
        self.withdrawals.notify_waiters();
    }
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionTable").field("len", &self.len()).finish()
    }
}

/// A region that was in use was withdrawn.
#[derive(Debug)]
pub struct Withdrawn;

/// A key of a [`RegionTable`], withdrawn when this is dropped.
struct OpenKey {
    table: RegionTable,
    key: RemoteKey,
    /// The region's gate, and before it those of interrupted operations that may still be inside.
    gates: Arc<Mutex<Vec<Arc<Gate>>>>,
}

impl Registration for OpenKey {
    fn withdraw(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let gates = self.gates.lock().clone();
        drop(self);
        Box::pin(all_emptied(gates))
    }

    fn interrupt(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (table, key, gates) = (self.table.clone(), self.key, Arc::clone(&self.gates));
        Box::pin(async move {
            let before = table.replace_gate(key, &gates);
            all_emptied(before).await;
        })
    }
}

async fn all_emptied(gates: Vec<Arc<Gate>>) {
    for gate in gates {
        gate.emptied().await;
    }
}

impl Drop for OpenKey {
    fn drop(&mut self) {
        // Dropped after the lock: releasing foreign memory runs code of its owner.
        let withdrawn = self.table.regions.write().remove(&self.key);
        self.gates.lock().iter().for_each(|gate| gate.close());
        self.table.told_of_withdrawal();
        drop(withdrawn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_its_error() {
        let table = RegionTable::new();
        let memory = Memory::allocate(100).unwrap();
        let region = table.register(&memory, Access::Read).unwrap();
        let key = region.key();
        assert_eq!(table.admit(key, 40, 60, Access::Read, None).unwrap().memory().len(), 60);
        assert_eq!(table.admit(key, 100, 0, Access::Read, None).unwrap().memory().len(), 0);
        for (offset, len) in [(40, 61), (101, 0), (u64::MAX, 1), (1, u64::MAX), (0, u64::MAX)] {
            let refused = table.admit(key, offset, len, Access::Read, None);
            assert!(matches!(refused, Err(TransferError::OutOfBounds { .. })), "{offset} {len}");
        }
        let denied = table.admit(key, 0, 1, Access::Write, None);
        assert!(matches!(denied, Err(TransferError::AccessDenied { .. })));
        region.revoke();
        let gone = table.admit(key, 0, 1, Access::Read, None);
        assert!(matches!(gone, Err(TransferError::KeyRefused)));
        assert!(table.is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_mapped_for_reading_opens_for_reading() {
        let owner = Memory::options().shared().allocate(8).unwrap();
        let shared = owner.share(Access::Read).unwrap();
        let peer = Memory::map_shared(shared, 8, Access::Read).unwrap();
        let table = RegionTable::new();
        for access in [Access::Write, Access::ReadWrite] {
            let refused = table.register(&peer, access);
            assert!(matches!(refused, Err(RegisterError::ReadOnly)), "{access:?}");
        }
        assert!(table.register(&peer, Access::Read).is_ok());
    }

    #[test]
    fn a_region_of_an_earlier_process_opens_under_its_key() {
        let memory = Memory::allocate(8).unwrap();
        let before = RegionTable::new();
        let key = before.register(&memory, Access::ReadWrite).unwrap().key();
        let table = RegionTable::new();
        let again = table.register_again(&memory, Access::ReadWrite, None, key).unwrap();
        assert_eq!(again.key(), key);
        assert!(table.admit(key, 0, 8, Access::Write, None).is_ok());
        let twice = table.register_again(&memory, Access::ReadWrite, None, key);
        assert!(matches!(twice, Err(RegisterError::KeyTaken)));
        assert!(table.admit(key, 0, 8, Access::Read, None).is_ok(), "the first one is as it was");
        drop(again);
        assert!(table.admit(key, 0, 8, Access::Read, None).is_err());
    }

    #[test]
    fn one_memory_may_be_open_under_several_keys() {
        let table = RegionTable::new();
        let memory = Memory::allocate(8).unwrap();
        let first = table.register(&memory, Access::Read).unwrap();
        let second = table.register(&memory, Access::ReadWrite).unwrap();
        assert_ne!(first.key(), second.key());
        drop(first);
        assert!(table.admit(second.key(), 0, 8, Access::Write, None).is_ok());
    }
}
