//! Memory that callers registered, for transfers to and from peers without a copy.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::ptr::NonNull;
use std::time::Duration;

use mc_transport::{Memory, MemorySlice};
use parking_lot::{RwLock, RwLockReadGuard};

use super::borrows::Borrows;
use super::device::DeviceMemory;
use super::maps;

/// Time limit of [`Removed::settle`] for transfers that still use the memory.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The reason why memory cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterError {
    /// The address is null, the length is zero, or the range exceeds the address space.
    Impossible,
    /// Part of the memory cannot be read.
    NotMapped,
    /// Part of the memory is registered already.
    Overlaps,
}

/// Registered memory by its first address; no two overlap.
#[derive(Debug, Default)]
pub(crate) struct Buffers(RwLock<BTreeMap<usize, Registered>>);

/// Memory as it was registered.
#[derive(Clone, Debug)]
enum Whole {
    Host(MemorySlice),
    Device(DeviceMemory),
}

impl Whole {
    fn len(&self) -> usize {
        match self {
            Self::Host(slice) => slice.len(),
            Self::Device(memory) => memory.len(),
        }
    }

    fn host(&self) -> Option<&MemorySlice> {
        match self {
            Self::Host(slice) => Some(slice),
            Self::Device(_) => None,
        }
    }
}

#[derive(Debug)]
struct Registered {
    whole: Whole,
    /// Borrows of the caller's memory. Memory that this library allocated frees itself after its
    /// last use, so its borrows are not counted.
    borrows: Borrows,
    /// Calls and transfers that use the memory, of those that count.
    uses: Borrows,
}

impl Registered {
    /// Returns `len` bytes of the memory from `start` on, as a block that counts as a use until the
    /// last handle, slice and transfer of it is gone.
    fn part(&self, start: usize, len: usize) -> Option<MemorySlice> {
        let part = self.whole.host()?.part(start, len)?;
        Some(part.into_memory(self.uses.begin()).whole())
    }
}

impl Buffers {
    /// Registers the `len` bytes at `address` and returns them as a slice: `ours`, if this library
    /// allocated the memory, otherwise the caller's memory.
    ///
    /// The caller promises that the bytes stay mapped until [`Removed::settle`] has returned. That
    /// they are mapped now is checked.
    pub(crate) fn add(
        &self,
        address: usize,
        len: usize,
        ours: Option<MemorySlice>,
    ) -> Result<MemorySlice, RegisterError> {
        let end = address.checked_add(len).ok_or(RegisterError::Impossible)?;
        let first = NonZeroUsize::new(address).ok_or(RegisterError::Impossible)?;
        if len == 0 || isize::try_from(len).is_err() {
            return Err(RegisterError::Impossible);
        }
        let borrows = Borrows::default();
        let whole = match ours {
            Some(ours) => ours,
            None => {
                let rights = maps::rights(address, len).ok_or(RegisterError::NotMapped)?;
                let base = NonNull::with_exposed_provenance(first);
                let borrow = borrows.begin();
                let memory = if rights.writable {
                    // SAFETY: the bytes are mapped for reading and writing, and the caller
                    // promises that they stay so until `settle` has returned, which waits for
                    // `borrow`. They belong to another language: Rust has no reference to them.
                    unsafe { Memory::from_raw(base, len, borrow) }
                } else {
                    // SAFETY: as above, for reading.
                    unsafe { Memory::from_raw_read_only(base, len, borrow) }
                };
                memory.whole()
            }
        };
        self.insert(address..end, Whole::Host(whole.clone()), borrows)?;
        Ok(whole)
    }

    /// Registers memory of a GPU, which is the caller's.
    pub(crate) fn add_device(
        &self,
        address: usize,
        memory: DeviceMemory,
    ) -> Result<(), RegisterError> {
        let end = address.checked_add(memory.len()).ok_or(RegisterError::Impossible)?;
        self.insert(address..end, Whole::Device(memory), Borrows::default())
    }

    fn insert(
        &self,
        range: Range<usize>,
        whole: Whole,
        borrows: Borrows,
    ) -> Result<(), RegisterError> {
        let mut known = self.0.write();
        if known
            .range(..range.end)
            .next_back()
            .is_some_and(|(&at, other)| at + other.whole.len() > range.start)
        {
            return Err(RegisterError::Overlaps);
        }
        known.insert(range.start, Registered { whole, borrows, uses: Borrows::default() });
        Ok(())
    }

    /// Removes the memory that begins at `address`; `None` if no registered memory begins there.
    pub(crate) fn remove(&self, address: usize) -> Option<Removed> {
        self.0.write().remove(&address).map(Removed)
    }

    /// Removes all memory.
    pub(crate) fn clear(&self) -> Vec<Removed> {
        std::mem::take(&mut *self.0.write()).into_values().map(Removed).collect()
    }

    /// Returns whether any part of a block is registered.
    pub(crate) fn contains_part_of(&self, block: &Memory) -> bool {
        let known = self.0.read();
        known.values().filter_map(|it| it.whole.host()).any(|it| it.memory().is_same(block))
    }

    /// Returns what uses the memory that begins at `address`; `None` if no registered memory begins
    /// there.
    pub(crate) fn uses(&self, address: usize) -> Option<Borrows> {
        self.0.read().get(&address).map(|known| known.uses.clone())
    }

    /// Returns a view for looking up many addresses.
    pub(crate) fn lookup(&self) -> Lookup<'_> {
        Lookup(self.0.read())
    }
}

/// A read-locked view of the registered memory.
pub(crate) struct Lookup<'a>(RwLockReadGuard<'a, BTreeMap<usize, Registered>>);

impl Lookup<'_> {
    /// Returns the `len` bytes at `address`; `None` unless one registration covers all of them.
    pub(crate) fn find(&self, address: usize, len: usize) -> Option<MemorySlice> {
        let (&first, Registered { whole, .. }) = self.0.range(..=address).next_back()?;
        whole.host()?.part(address - first, len)
    }

    /// Returns the `len` bytes of a GPU at `address`, which count as a use of them; `None` unless one registration
    /// covers all of them.
    pub(crate) fn device(&self, address: usize, len: usize) -> Option<DeviceMemory> {
        let (&first, known) = self.0.range(..=address).next_back()?;
        let Whole::Device(memory) = &known.whole else { return None };
        let part = memory.part(address - first, len)?;
        Some(part.lent([known.borrows.begin(), known.uses.begin()]))
    }

    /// As [`find`](Self::find), counted among the [uses](Buffers::uses) of the memory.
    pub(crate) fn lend(&self, address: usize, len: usize) -> Option<MemorySlice> {
        let (&first, known) = self.0.range(..=address).next_back()?;
        known.part(address - first, len)
    }

    /// Returns whether one registration covers the `len` bytes at `address`.
    pub(crate) fn covers(&self, address: usize, len: usize) -> bool {
        self.end(address).is_some_and(|end| len <= end - address)
    }

    /// Returns whether the `len` bytes at `address` overlap registered memory that does not cover
    /// all of them: they exceed the memory that the caller vouched for.
    pub(crate) fn is_partly_registered(&self, address: usize, len: usize) -> bool {
        let end = address.saturating_add(len);
        // Registrations do not overlap: only the last one can overlap the bytes without covering
        // them.
        self.0.range(..end).next_back().is_some_and(|(&first, Registered { whole, .. })| {
            let behind = first + whole.len();
            behind > address && (first > address || behind < end)
        })
    }

    /// Returns the end of the registered memory that contains `address`.
    pub(crate) fn end(&self, address: usize) -> Option<usize> {
        let (&first, Registered { whole, .. }) = self.0.range(..=address).next_back()?;
        Some(first + whole.len()).filter(|end| *end > address)
    }
}

/// Memory that is no longer registered, though transfers may still use it.
pub(crate) struct Removed(Registered);

impl Removed {
    /// Returns the block that the memory is part of; `None` for a GPU's.
    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.0.whole.host().map(MemorySlice::memory)
    }

    /// Waits, for a bounded time, until no transfer uses the memory, and returns whether that is so:
    /// only then may its owner release it.
    pub(crate) fn settle(self) -> bool {
        self.into_borrows().wait_timeout(SETTLE_TIMEOUT)
    }

    /// Returns what the transfers that still use the memory have borrowed.
    pub(crate) fn into_borrows(self) -> Borrows {
        self.0.borrows
    }
}
