//! The memory that this engine has opened to its peers, and uses in its own transfers.

use std::collections::BTreeMap;
use std::ops::Range as Addresses;

use mc_transport::{Access, Memory, MemorySlice, Node, Region, Transport as _};
use parking_lot::Mutex;

use super::error::EngineError;
use super::ranges::{MAX_RANGES, Range, Ranges};
use crate::memory::{Buffers, HostMemory, Lookup, RegisterError, Removed};

/// Registered memory by its first address.
#[derive(Debug, Default)]
pub(super) struct Regions {
    buffers: Buffers,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    by_address: BTreeMap<usize, Opened>,
    /// The number of registrations so far.
    count: u64,
}

#[derive(Debug)]
struct Opened {
    region: Region,
    len: usize,
    /// The number of registrations before this one.
    number: u64,
    origin: Origin,
}

/// Whose memory it is.
#[derive(Debug)]
pub(super) enum Origin {
    /// The caller's; this package's own allocator may have made it, and keeps it while it is
    /// registered.
    Caller { _kept: Option<MemorySlice> },
    /// The engine has allocated it.
    Managed,
}

/// Memory that is closed to new operations of peers, and that operations may still use.
pub(super) struct Closing {
    region: Region,
    own: Settling,
}

/// Memory that no peer uses any more, and that own transfers may still use.
pub(super) struct Settling {
    removed: Option<Removed>,
    _origin: Origin,
}

impl Closing {
    /// Ends the operations of peers that are under way, and waits until none touches the memory.
    pub(super) async fn withdraw(self) -> Settling {
        self.region.withdraw().await;
        self.own
    }
}

impl Settling {
    /// Waits until no own transfer uses the memory, for a bounded time or until `gives_up` says
    /// that the caller waits no more. Returns whether nothing uses the memory now.
    pub(super) fn settle_unless(self, gives_up: impl FnMut() -> bool) -> bool {
        self.removed.is_none_or(|removed| removed.settle_unless(gives_up))
    }
}

impl Regions {
    /// Opens the caller's memory.
    pub(super) fn open(&self, node: &Node, address: usize, len: usize) -> Result<(), EngineError> {
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
        let inserted = self.try_insert(node, slice.memory(), address, slice.len(), origin);
        if inserted.is_err() {
            self.buffers.remove(address);
        }
        inserted
    }

    fn try_insert(
        &self,
        node: &Node,
        memory: &Memory,
        address: usize,
        len: usize,
        origin: Origin,
    ) -> Result<(), EngineError> {
        let access = if memory.is_writable() { Access::ReadWrite } else { Access::Read };
        let mut open = self.open.lock();
        if open.by_address.len() >= MAX_RANGES {
            return Err(EngineError::TooManyRanges { max: MAX_RANGES });
        }
        let region = node.register(memory, access)?;
        let number = open.count;
        open.count += 1;
        open.by_address.insert(address, Opened { region, len, number, origin });
        Ok(())
    }

    /// Closes the caller's memory that begins at `address` to new operations.
    pub(super) fn close(&self, address: usize) -> Result<Closing, EngineError> {
        self.close_if(address, |origin| matches!(origin, Origin::Caller { .. }))
    }

    /// Closes memory that the engine allocated to new operations.
    pub(super) fn close_managed(&self, address: usize) -> Result<Closing, EngineError> {
        self.close_if(address, |origin| matches!(origin, Origin::Managed))
    }

    fn close_if(
        &self,
        address: usize,
        is_so: impl FnOnce(&Origin) -> bool,
    ) -> Result<Closing, EngineError> {
        let mut open = self.open.lock();
        let found = open.by_address.get(&address).is_some_and(|opened| is_so(&opened.origin));
        let opened = found.then(|| open.by_address.remove(&address)).flatten();
        let opened = opened.ok_or(EngineError::NotRegistered { address })?;
        Ok(self.closing(address, opened))
    }

    /// Closes all memory to new operations.
    pub(super) fn close_all(&self) -> Vec<Closing> {
        let open = std::mem::take(&mut self.open.lock().by_address);
        open.into_iter().map(|(address, opened)| self.closing(address, opened)).collect()
    }

    fn closing(&self, address: usize, Opened { region, origin, .. }: Opened) -> Closing {
        let own = Settling { removed: self.buffers.remove(address), _origin: origin };
        Closing { region, own }
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
