//! The callers' memory, by address.

use std::time::Duration;

use mc_store::Source;
use mc_transport::MemorySlice;
use pyo3::prelude::*;

use super::Store;
use super::arguments::Size;
use super::session::Session;
use crate::error::Failure;
use crate::interrupt::detached;
use crate::memory::{DeviceMemory, HostMemory, Lookup, RegisterError, copy_in, copy_out, gather};

#[pymethods]
impl Store {
    /// register_buffer(self, buffer_ptr: int, size: int) -> int
    ///
    /// Registers the size bytes at buffer_ptr for transfers without a copy; transfers from and to
    /// other memory copy. Memory of a GPU can be registered, too: its values pass pinned memory of
    /// the host. The memory must stay mapped until unregister_buffer or close has returned.
    /// Read-only memory can only be put from. Returns 0, or -600 when the bytes are not mapped,
    /// some of them are registered already, or the store is not set up.
    fn register_buffer(&self, py: Python<'_>, buffer_ptr: Size, size: Size) -> PyResult<i32> {
        self.code(py, |session| session.register(buffer_ptr.0, size.0))
    }

    /// unregister_buffer(self, buffer_ptr: int) -> int
    ///
    /// Undoes a register_buffer of memory that begins at buffer_ptr, and waits until no transfer
    /// uses the memory. Returns 0; -600 when the memory is not registered; -800 when a transfer
    /// does not end within a minute, in which case the memory must not be freed.
    fn unregister_buffer(&self, py: Python<'_>, buffer_ptr: Size) -> PyResult<i32> {
        self.code(py, |session| session.unregister(buffer_ptr.0))
    }

    /// _is_idle(self, buffer_ptr: int, wait: float = 0) -> bool
    ///
    /// Returns whether no call and no transfer uses the registered memory that begins at buffer_ptr,
    /// not even an abandoned one. Waits up to so many seconds until that is so.
    #[pyo3(signature = (buffer_ptr, wait = 0.0))]
    fn _is_idle(&self, py: Python<'_>, buffer_ptr: Size, wait: f64) -> PyResult<bool> {
        let Some(session) = self.session()? else { return Ok(true) };
        let Some(uses) = session.buffers.uses(buffer_ptr.0) else { return Ok(true) };
        let limit = Duration::try_from_secs_f64(wait).unwrap_or_default();
        if uses.is_empty() || limit.is_zero() {
            return Ok(uses.is_empty());
        }
        detached(py, || session.backend.let_end(&uses, limit))
    }

    /// _copy_from_device(to: int, ptr: int, size: int) -> int | None
    ///
    /// Copies the size bytes at ptr to memory of the host, if they are a GPU's: returns 0, or -600 when
    /// that fails. Returns None for other memory.
    #[staticmethod]
    #[pyo3(name = "_copy_from_device")]
    fn copy_from_device(py: Python<'_>, to: Size, ptr: Size, size: Size) -> Option<i32> {
        py.detach(|| {
            let memory = DeviceMemory::find(ptr.0, size.0).transpose()?;
            let copied = memory
                .and_then(|memory| gather(&[memory], None))
                .and_then(|gathered| copy_out(&gathered[0].to_vec(), to.0));
            Some(copied.map_or_else(Failure::code, |()| 0))
        })
    }

    /// alloc_from_mem_pool(self, size: int) -> int
    ///
    /// Allocates size bytes of the pool that setup_dummy shares with the node agent, and returns
    /// their address. Values move from and to this memory without a copy. It cannot be freed.
    /// Returns 0 without such a pool, or when the pool has not enough space.
    fn alloc_from_mem_pool(&self, size: Size) -> PyResult<usize> {
        let Some(session) = self.session()? else { return Ok(0) };
        let part = session.allocate(size.0);
        Ok(part.map_or(0, |part| part.address().expose_provenance()))
    }
}

impl Session {
    fn register(&self, address: usize, len: usize) -> Result<(), Failure> {
        let refused = |why| {
            let why = match why {
                RegisterError::Impossible => "are not a valid range of addresses",
                RegisterError::NotMapped => {
                    "are not mapped, or are memory of a device without a driver"
                }
                RegisterError::Overlaps => "are registered already, at least in part",
            };
            Failure::refuse(format_args!("the {len} bytes at {address:#x} {why}"))
        };
        if len > 0
            && let Some(memory) = DeviceMemory::find(address, len)?
        {
            return self.buffers.add_device(address, memory).map_err(refused);
        }
        let shared = self.find_allocated(address, len).or_else(|| HostMemory::find(address, len));
        let memory = self.buffers.add(address, len, shared).map_err(refused)?;
        let registered = self.backend.register(memory.memory());
        registered.inspect_err(|_| drop(self.buffers.remove(address)))
    }

    fn unregister(&self, address: usize) -> Result<(), Failure> {
        let removed = self.buffers.remove(address).ok_or(Failure::INVALID_PARAMS)?;
        let Some(block) = removed.memory() else {
            // Calls of other threads may be about to copy there, and a copy may hang.
            return if removed.settle() { Ok(()) } else { Err(Failure::TRANSFER) };
        };
        let unregistered = if self.buffers.contains_part_of(block) || self.is_pool(block) {
            Ok(())
        } else {
            self.backend.unregister(block)
        };
        if removed.settle() { unregistered } else { Err(Failure::TRANSFER) }
    }

    /// Returns the `len` bytes at `address` if values can be read into them directly. Rejects bytes
    /// of which only a part is registered. Returns `None` for read-only memory, where the copy
    /// then fails.
    pub(super) fn target(
        &self,
        lookup: &Lookup<'_>,
        address: usize,
        len: usize,
    ) -> Result<Option<MemorySlice>, Failure> {
        Ok(self.in_place(lookup, address, len)?.filter(MemorySlice::is_writable))
    }

    /// Returns whether the `len` bytes at `address` lie in one buffer that is registered.
    pub(super) fn is_registered(&self, lookup: &Lookup<'_>, address: usize, len: usize) -> bool {
        lookup.covers(address, len) || self.find_allocated(address, len).is_some()
    }

    fn in_place(
        &self,
        lookup: &Lookup<'_>,
        address: usize,
        len: usize,
    ) -> Result<Option<MemorySlice>, Failure> {
        if lookup.is_partly_registered(address, len) {
            return Err(Failure::refuse(format_args!(
                "the {len} bytes at {address:#x} are registered only in part; register all of them \
                 at once or none"
            )));
        }
        let known = lookup.lend(address, len).or_else(|| self.find_allocated(address, len));
        Ok(known.filter(|slice| self.backend.reaches(slice)))
    }

    /// Finds the `len` bytes at `address`, for a put.
    pub(super) fn locate(
        &self,
        lookup: &Lookup<'_>,
        address: usize,
        len: usize,
    ) -> Result<Located, Failure> {
        if let Some(memory) = self.on_device(lookup, address, len)? {
            return Ok(Located::OnDevice(memory));
        }
        Ok(match self.in_place(lookup, address, len)? {
            Some(slice) => Located::InPlace(slice),
            None => Located::Elsewhere { address, len },
        })
    }

    /// Returns the `len` bytes at `address`, if they are a GPU's, registered or not.
    pub(super) fn on_device(
        &self,
        lookup: &Lookup<'_>,
        address: usize,
        len: usize,
    ) -> Result<Option<DeviceMemory>, Failure> {
        match lookup.device(address, len) {
            Some(memory) => memory.verify().map(|()| Some(memory)),
            None if lookup.covers(address, len) => Ok(None),
            None => DeviceMemory::find(address, len),
        }
    }
}

/// Where the bytes of a put are.
pub(super) enum Located {
    /// In memory that the store reaches.
    InPlace(MemorySlice),
    /// In memory of a GPU.
    OnDevice(DeviceMemory),
    /// At an address that may be wrong.
    Elsewhere { address: usize, len: usize },
}

impl Located {
    /// Returns the pieces as the sources of a put; copies those that the store does not reach, which takes as long as
    /// they are many: not while a [`Lookup`] keeps other threads from registering. Neighbouring pieces of a GPU become
    /// one.
    pub(super) fn into_sources(pieces: Vec<Self>) -> Result<Vec<Source>, Failure> {
        let (mut sources, mut on_device) = (Vec::with_capacity(pieces.len()), Vec::new());
        for piece in pieces {
            let source = match piece {
                Self::OnDevice(memory) => {
                    on_device.push(memory);
                    continue;
                }
                Self::InPlace(slice) => slice.into(),
                Self::Elsewhere { address, len } => copy_in(address, len)?.into(),
            };
            sources.extend(
                gather(&std::mem::take(&mut on_device), None)?.into_iter().map(Source::from),
            );
            sources.push(source);
        }
        sources.extend(gather(&on_device, None)?.into_iter().map(Source::from));
        Ok(sources)
    }
}
