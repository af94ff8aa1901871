//! Memory that callers registered, so that bytes move straight between it and the peers.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::time::Duration;

use mc_transport::{Memory, MemorySlice};
use parking_lot::{RwLock, RwLockReadGuard};

use super::loans::Loans;
use super::maps;

/// How long [`Removed::settle`] waits for transfers that still touch the memory.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why memory is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegisterError {
    /// Null, no bytes, or more than there are addresses.
    Impossible,
    /// Some of it cannot be read.
    NotMapped,
    /// Some of it is registered already.
    Overlaps,
}

/// Registered memory by its first address; no two overlap.
#[derive(Debug, Default)]
pub(crate) struct Buffers(RwLock<BTreeMap<usize, Registered>>);

#[derive(Debug)]
struct Registered {
    whole: MemorySlice,
    /// Who has a handle. Memory that we allocated keeps itself, so nobody is counted there.
    loans: Loans,
}

impl Buffers {
    /// Registers the `len` bytes at `address` and returns what they are: `ours`, if that is
    /// memory that we allocated, and otherwise the caller's.
    ///
    /// The caller promises that they stay where they are until [`Removed::settle`] has
    /// returned. That they are there now is looked up.
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
        let loans = Loans::default();
        let whole = match ours {
            Some(ours) => ours,
            None => {
                let rights = maps::rights(address, len).ok_or(RegisterError::NotMapped)?;
                let base = NonNull::with_exposed_provenance(first);
                let loan = loans.lend();
                let memory = if rights.writable {
                    // SAFETY: the bytes are mapped for reading and writing, and whoever
                    // registers them promises that they stay so until `settle` has returned,
                    // which waits for `loan`. They are memory of another language: no
                    // reference to them exists on our side.
                    unsafe { Memory::from_raw(base, len, loan) }
                } else {
                    // SAFETY: as above, for reading.
                    unsafe { Memory::from_raw_read_only(base, len, loan) }
                };
                memory.whole()
            }
        };
        let mut known = self.0.write();
        if known
            .range(..end)
            .next_back()
            .is_some_and(|(&at, other)| at + other.whole.len() > address)
        {
            return Err(RegisterError::Overlaps);
        }
        known.insert(address, Registered { whole: whole.clone(), loans });
        Ok(whole)
    }

    /// Forgets the memory that begins at `address`; `None` when none does.
    pub(crate) fn remove(&self, address: usize) -> Option<Removed> {
        self.0.write().remove(&address).map(Removed)
    }

    /// Forgets all memory.
    pub(crate) fn clear(&self) -> Vec<Removed> {
        std::mem::take(&mut *self.0.write()).into_values().map(Removed).collect()
    }

    /// Whether any part of a block is registered.
    pub(crate) fn names(&self, block: &Memory) -> bool {
        self.0.read().values().any(|known| known.whole.memory().is_same(block))
    }

    /// To look up many addresses.
    pub(crate) fn look(&self) -> Look<'_> {
        Look(self.0.read())
    }
}

/// Looks addresses up.
pub(crate) struct Look<'a>(RwLockReadGuard<'a, BTreeMap<usize, Registered>>);

impl Look<'_> {
    /// The `len` bytes at `address`; `None` unless all of them were registered at once.
    pub(crate) fn find(&self, address: usize, len: usize) -> Option<MemorySlice> {
        let (&first, Registered { whole, .. }) = self.0.range(..=address).next_back()?;
        whole.part(address - first, len)
    }

    /// Whether a part of the `len` bytes at `address` is registered, and not all of them at
    /// once: they leave what the caller has said is there.
    pub(crate) fn leaves(&self, address: usize, len: usize) -> bool {
        let end = address.saturating_add(len);
        // No two overlap, so that only the last one can do so and not hold them all.
        self.0.range(..end).next_back().is_some_and(|(&first, Registered { whole, .. })| {
            let behind = first + whole.len();
            behind > address && (first > address || behind < end)
        })
    }

    /// The end of the memory that was registered with `address` in it.
    pub(crate) fn end(&self, address: usize) -> Option<usize> {
        let (&first, Registered { whole, .. }) = self.0.range(..=address).next_back()?;
        Some(first + whole.len()).filter(|end| *end > address)
    }
}

/// Memory that is registered no more, though transfers may still touch it.
pub(crate) struct Removed(Registered);

impl Removed {
    /// The block that it is part of.
    pub(crate) fn memory(&self) -> &Memory {
        self.0.whole.memory()
    }

    /// Waits until nobody touches the memory, as its owner may release it then; whether that is
    /// so after a bounded time.
    pub(crate) fn settle(self) -> bool {
        let Registered { whole, loans } = self.0;
        drop(whole);
        loans.wait(PATIENCE)
    }
}
