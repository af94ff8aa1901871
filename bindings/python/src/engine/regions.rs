//! The memory that this engine has opened to its peers, and uses in its own transfers.

use std::collections::BTreeMap;
use std::ops::Range as Addresses;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mc_transport::{Access, MemorySlice, Node, Region, Transport as _};
use parking_lot::Mutex;

use super::error::EngineError;
use super::ranges::{MAX_RANGES, Range, Ranges};
use crate::memory::{Borrows, Buffers, DeviceMemory, HostMemory, Lookup, RegisterError, Removed};

/// Registered memory by its first address.
#[derive(Default)]
pub(super) struct Regions {
    buffers: Buffers,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    by_address: BTreeMap<usize, Opened>,
    /// Memory that is closed, by first address, until it is [forgotten](Regions::forget).
    closing: BTreeMap<usize, Arc<Closing>>,
    /// The number of registrations so far.
    count: u64,
}

struct Opened {
    region: Region,
    len: usize,
    /// The number of registrations before this one.
    number: u64,
    origin: Origin,
}

/// The owner of registered memory.
pub(super) enum Origin {
    /// The caller's; this package's own allocator may have made it, and keeps it while it is
    /// registered.
    Caller { _kept: Option<MemorySlice> },
    /// The engine has allocated it.
    Managed,
}

/// Memory that is closed to new operations, and that those under way may still use.
pub(super) struct Closing {
    address: usize,
    len: usize,
    /// Ends with the operations of peers; `None` when it has.
    withdrawal: tokio::sync::Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    /// Borrows of running operations. Those of managed memory are not counted: it lives as long.
    borrows: Borrows,
    origin: Origin,
}

impl Closing {
    /// The first address.
    pub(super) fn address(&self) -> usize {
        self.address
    }

    /// Waits until no operation of a peer touches the memory.
    ///
    /// # Cancellation
    /// Another call continues the wait.
    pub(super) async fn withdrawn(&self) {
        let mut withdrawal = self.withdrawal.lock().await;
        if let Some(under_way) = &mut *withdrawal {
            under_way.await;
            *withdrawal = None;
        }
    }

    /// Waits at most `limit` until no own transfer uses the memory, and returns whether that is so.
    pub(super) fn settled_within(&self, limit: Duration) -> bool {
        self.borrows.wait_timeout(limit)
    }

    /// Returns whether an operation may still touch some of the `len` bytes at `address`.
    fn may_touch(&self, address: usize, len: usize) -> bool {
        let overlaps = self.address < address + len && address < self.address + self.len;
        overlaps && !self.borrows.is_empty()
    }
}

impl Regions {
    /// Opens the caller's memory.
    pub(super) fn open(&self, node: &Node, address: usize, len: usize) -> Result<(), EngineError> {
        let on_device = match len {
            0 => None,
            _ => DeviceMemory::find(address, len).map_err(|_| EngineError::Device { address })?,
        };
        if let Some(memory) = on_device {
            return self.open_device(node, address, memory);
        }
        // Not opened as memory that processes share: those that have mapped it could still write
        // it when its registration has ended.
        let kept = HostMemory::find(address, len);
        let memory = self.buffers.add(address, len, None).map_err(|why| match why {
            RegisterError::Impossible => EngineError::Impossible { address, len },
            RegisterError::NotMapped => EngineError::NotMapped { address, len },
            RegisterError::Overlaps => EngineError::Overlaps { address, len },
        })?;
        self.insert(node, &memory, address, Origin::Caller { _kept: kept })
    }

    /// Opens memory of a GPU, which peers reach through pinned memory of the host.
    fn open_device(
        &self,
        node: &Node,
        address: usize,
        memory: DeviceMemory,
    ) -> Result<(), EngineError> {
        let len = memory.len();
        let staging = memory.staging().map_err(|_| EngineError::Device { address })?;
        let overlaps = |_| EngineError::Overlaps { address, len };
        self.buffers.add_device(address, memory).map_err(overlaps)?;
        let register = || Ok(node.register_staged(&staging, Access::ReadWrite, None)?);
        let inserted = self.insert_opened(address, len, register, Origin::Caller { _kept: None });
        inserted.inspect_err(|_| drop(self.buffers.remove(address)))
    }

    /// Allocates memory that processes of this host can share, opens it, and returns its address.
    pub(super) fn allocate(&self, node: &Node, len: usize) -> Result<usize, EngineError> {
        if len == 0 {
            return Err(EngineError::Impossible { address: 0, len });
        }
        let memory = node.allocate(len)?.whole();
        let address = memory.address().expose_provenance();
        let overlaps = |_| EngineError::Overlaps { address, len };
        let memory = self.buffers.add(address, len, Some(memory)).map_err(overlaps)?;
        self.insert(node, &memory, address, Origin::Managed).map(|()| address)
    }

    fn insert(
        &self,
        node: &Node,
        slice: &MemorySlice,
        address: usize,
        origin: Origin,
    ) -> Result<(), EngineError> {
        let inserted = self.try_insert(node, slice, address, origin);
        inserted.inspect_err(|_| drop(self.buffers.remove(address)))
    }

    fn try_insert(
        &self,
        node: &Node,
        slice: &MemorySlice,
        address: usize,
        origin: Origin,
    ) -> Result<(), EngineError> {
        let (memory, len) = (slice.memory(), slice.len());
        let access = if memory.is_writable() { Access::ReadWrite } else { Access::Read };
        self.insert_opened(address, len, || Ok(node.register(memory, access)?), origin)
    }

    fn insert_opened(
        &self,
        address: usize,
        len: usize,
        register: impl FnOnce() -> Result<Region, EngineError>,
        origin: Origin,
    ) -> Result<(), EngineError> {
        let mut open = self.open.lock();
        if open.by_address.len() >= MAX_RANGES {
            return Err(EngineError::TooManyRanges { max: MAX_RANGES });
        }
        if open.closing.values().any(|closing| closing.may_touch(address, len)) {
            return Err(EngineError::Overlaps { address, len });
        }
        let region = register()?;
        let number = open.count;
        open.count += 1;
        open.by_address.insert(address, Opened { region, len, number, origin });
        Ok(())
    }

    /// Closes the caller's memory that begins at `address` to new operations. Memory that was
    /// closed and not [forgotten](Self::forget) is found again.
    pub(super) fn close(&self, address: usize) -> Result<Arc<Closing>, EngineError> {
        self.close_if(address, |origin| matches!(origin, Origin::Caller { .. }))
    }

    /// Closes memory that the engine allocated to new operations.
    pub(super) fn close_managed(&self, address: usize) -> Result<Arc<Closing>, EngineError> {
        self.close_if(address, |origin| matches!(origin, Origin::Managed))
    }

    fn close_if(
        &self,
        address: usize,
        is_so: impl Fn(&Origin) -> bool,
    ) -> Result<Arc<Closing>, EngineError> {
        let mut open = self.open.lock();
        if open.by_address.get(&address).is_some_and(|opened| is_so(&opened.origin)) {
            self.begin_closing(&mut open, address);
        }
        let closing = open.closing.get(&address).filter(|closing| is_so(&closing.origin));
        closing.cloned().ok_or(EngineError::NotRegistered { address })
    }

    /// Closes all memory to new operations. Returns it, and what was closing already.
    pub(super) fn close_all(&self) -> Vec<Arc<Closing>> {
        let mut open = self.open.lock();
        while let Some((&address, _)) = open.by_address.first_key_value() {
            self.begin_closing(&mut open, address);
        }
        std::mem::take(&mut open.closing).into_values().collect()
    }

    fn begin_closing(&self, open: &mut Open, address: usize) {
        let Some(Opened { region, len, origin, .. }) = open.by_address.remove(&address) else {
            return;
        };
        let borrows = self.buffers.remove(address).map(Removed::into_borrows).unwrap_or_default();
        // The key is withdrawn at once.
        let withdrawal = tokio::sync::Mutex::new(Some(Box::pin(region.withdraw()) as Pin<Box<_>>));
        let closing = Closing { address, len, withdrawal, borrows, origin };
        open.closing.insert(address, Arc::new(closing));
    }

    /// Forgets memory that nothing uses any more.
    pub(super) fn forget(&self, closed: &Arc<Closing>) {
        let closing = &mut self.open.lock().closing;
        if closing.get(&closed.address).is_some_and(|known| Arc::ptr_eq(known, closed)) {
            closing.remove(&closed.address);
        }
    }

    /// Returns what peers are told.
    pub(super) fn ranges(&self) -> Ranges {
        let open = self.open.lock();
        let range = |(&address, opened): (&usize, &Opened)| Range {
            address: address as u64,
            len: opened.len as u64,
            key: opened.region.key(),
        };
        let first = open.by_address.iter().min_by_key(|(_, opened)| opened.number);
        let first = first.map(|(&address, _)| address as u64);
        Ranges::new(open.by_address.iter().map(range).collect(), first)
            .expect("registrations have bytes, do not overlap, and are not too many")
    }

    /// Returns a view for looking up local memory.
    pub(super) fn lookup(&self) -> LocalMemory<'_> {
        LocalMemory(self.buffers.lookup())
    }
}

/// A read-locked view of the registered memory.
pub(super) struct LocalMemory<'a>(Lookup<'a>);

impl LocalMemory<'_> {
    /// Returns the `len` bytes of a GPU's memory at `address`, if one registration has all of them.
    pub(super) fn device(&self, address: usize, len: usize) -> Option<DeviceMemory> {
        self.0.device(address, len)
    }

    /// Returns the pieces of registered memory that the `len` bytes at `address` consist of:
    /// several where registrations adjoin.
    pub(super) fn pieces(
        &self,
        address: usize,
        len: usize,
    ) -> Result<Vec<MemorySlice>, EngineError> {
        if let Some(whole) = self.0.find(address, len) {
            return Ok(vec![whole]);
        }
        let missing = EngineError::LocalNotRegistered { address, len };
        let Some(Addresses { start, end }) = address.checked_add(len).map(|end| address..end)
        else {
            return Err(missing);
        };
        let (mut reached, mut pieces) = (start, Vec::new());
        while reached < end {
            let piece = self.0.end(reached).map(|known| known.min(end));
            let piece = piece.and_then(|behind| self.0.find(reached, behind - reached));
            let Some(piece) = piece else { return Err(missing) };
            reached += piece.len();
            pieces.push(piece);
        }
        Ok(pieces)
    }
}
