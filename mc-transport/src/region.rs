//! Memory opened to peers, and the keys that open it.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use mc_types::{Extent, RemoteKey};
use parking_lot::RwLock;

use crate::error::{RegisterError, TransferError};
use crate::memory::{Memory, MemorySlice};
#[cfg(feature = "tcp")]
use crate::tcp::connections::Connections;

/// What peers may do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Read and write it.
    ReadWrite,
}

impl Access {
    /// Whether everything that `wanted` does is allowed.
    #[must_use]
    pub fn allows(self, wanted: Self) -> bool {
        self == Self::ReadWrite || self == wanted
    }
}

/// Memory that peers may reach while this value lives. Dropping it withdraws the
/// key at once; operations that were under way keep the memory alive and may
/// still finish.
#[must_use = "dropping a region withdraws its key at once"]
pub struct Region {
    key: RemoteKey,
    memory: Memory,
    /// Withdraws the key when dropped.
    _registration: Box<dyn Any + Send + Sync>,
}

impl Region {
    /// Ties `key` and `memory` together, for implementations of
    /// [`Transport`](crate::Transport); `registration` is whatever withdraws the
    /// key when it is dropped.
    pub fn new(key: RemoteKey, memory: Memory, registration: impl Any + Send + Sync) -> Self {
        memory.expose();
        Self { key, memory, _registration: Box::new(registration) }
    }

    /// The key to give to those who may reach the memory.
    #[must_use]
    pub fn key(&self) -> RemoteKey {
        self.key
    }

    /// The memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Withdraws the key, as dropping does.
    pub fn revoke(self) {}
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("memory", &self.memory).finish_non_exhaustive()
    }
}

/// The regions of one node, by key: what a transport consults for every
/// operation of a peer when no hardware does.
///
/// Clones share the table.
#[derive(Clone, Default)]
pub struct RegionTable {
    regions: Arc<RwLock<HashMap<RemoteKey, OpenRegion>>>,
    /// Streams over which peers reach the regions, whichever transport they came by, so
    /// that a peer that lost one may have it ended over any other.
    #[cfg(feature = "tcp")]
    connections: Connections,
}

pub(crate) struct OpenRegion {
    pub(crate) memory: Memory,
    pub(crate) access: Access,
    /// What transports hang on the region. Dropped before whoever withdraws the key
    /// goes on, so that they learn of it in time.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    pub(crate) attached: Vec<Box<dyn Any + Send + Sync>>,
}

impl RegionTable {
    /// A table without regions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens `memory` to peers under a new random key.
    ///
    /// # Errors
    /// [`RegisterError::ReadOnly`] when peers could write what this process
    /// cannot, and [`RegisterError::NoRandomness`].
    pub fn register(&self, memory: &Memory, access: Access) -> Result<Region, RegisterError> {
        if access != Access::Read && !memory.is_writable() {
            return Err(RegisterError::ReadOnly);
        }
        let mut bits = [0; 16];
        getrandom::fill(&mut bits)
            .map_err(|error| RegisterError::NoRandomness { source: error.into() })?;
        let key = RemoteKey::from_bytes(bits);
        let open = OpenRegion {
            memory: memory.clone(),
            access,
            #[cfg(all(feature = "shm", target_os = "linux"))]
            attached: Vec::new(),
        };
        self.regions.write().insert(key, open);
        Ok(Region::new(key, memory.clone(), Registration { table: self.clone(), key }))
    }

    /// The memory that an operation of a peer names, when it may have it.
    ///
    /// `offset` and `len` count bytes from the region's first.
    ///
    /// # Errors
    /// [`TransferError::KeyRefused`], [`TransferError::AccessDenied`] or
    /// [`TransferError::OutOfBounds`], checked in this order.
    pub fn resolve(
        &self,
        key: RemoteKey,
        offset: u64,
        len: u64,
        wanted: Access,
    ) -> Result<MemorySlice, TransferError> {
        let regions = self.regions.read();
        let region = regions.get(&key).ok_or(TransferError::KeyRefused)?;
        if !region.access.allows(wanted) {
            return Err(TransferError::AccessDenied { wanted });
        }
        let out_of_bounds = TransferError::OutOfBounds { offset, len };
        let inside = Extent::new(0, region.memory.len() as u64)
            .and_then(|whole| whole.part(offset, len))
            .ok_or(out_of_bounds)?;
        // Both fit in usize because they lie inside memory of this process.
        let slice = region.memory.slice(inside.offset() as usize, inside.len() as usize);
        let slice = slice.expect("the extent was found to lie inside the memory");
        if wanted == Access::Write {
            slice.populate_behind();
        }
        Ok(slice)
    }

    /// Shows the region to `visit`, while nobody can withdraw it; `None` when no region
    /// has the key.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    pub(crate) fn visit<T>(
        &self,
        key: RemoteKey,
        visit: impl FnOnce(&mut OpenRegion) -> T,
    ) -> Option<T> {
        self.regions.write().get_mut(&key).map(visit)
    }

    /// The streams over which peers reach the regions.
    #[cfg(feature = "tcp")]
    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    /// Regions that are open now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions.read().len()
    }

    /// Whether no region is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Withdraws every key.
    pub(crate) fn clear(&self) {
        // Dropped after the lock: releasing foreign memory runs code of its owner.
        let withdrawn = std::mem::take(&mut *self.regions.write());
        drop(withdrawn);
    }
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionTable").field("len", &self.len()).finish()
    }
}

/// Withdraws a key of a [`RegionTable`] when dropped.
struct Registration {
    table: RegionTable,
    key: RemoteKey,
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Dropped after the lock: releasing foreign memory runs code of its owner.
        let withdrawn = self.table.regions.write().remove(&self.key);
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
        assert_eq!(table.resolve(key, 40, 60, Access::Read).unwrap().len(), 60);
        assert_eq!(table.resolve(key, 100, 0, Access::Read).unwrap().len(), 0);
        for (offset, len) in [(40, 61), (101, 0), (u64::MAX, 1), (1, u64::MAX), (0, u64::MAX)] {
            let refused = table.resolve(key, offset, len, Access::Read);
            assert!(matches!(refused, Err(TransferError::OutOfBounds { .. })), "{offset} {len}");
        }
        let denied = table.resolve(key, 0, 1, Access::Write);
        assert!(matches!(denied, Err(TransferError::AccessDenied { .. })));
        region.revoke();
        let gone = table.resolve(key, 0, 1, Access::Read);
        assert!(matches!(gone, Err(TransferError::KeyRefused)));
        assert!(table.is_empty());
    }

    #[test]
    fn one_memory_may_be_open_under_several_keys() {
        let table = RegionTable::new();
        let memory = Memory::allocate(8).unwrap();
        let first = table.register(&memory, Access::Read).unwrap();
        let second = table.register(&memory, Access::ReadWrite).unwrap();
        assert_ne!(first.key(), second.key());
        drop(first);
        assert!(table.resolve(second.key(), 0, 8, Access::Write).is_ok());
    }
}
