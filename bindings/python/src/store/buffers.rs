//! Memory of callers, by address.

use mc_store::Source;
use mc_transport::MemorySlice;
use pyo3::prelude::*;

use super::arguments::Size;
use super::session::Session;
use super::{NOT_SET_UP, Store};
use crate::error::{Failure, code_of};
use crate::interrupt::detached;
use crate::memory::{HostMemory, Look, RegisterError, copy_in};

#[pymethods]
impl Store {
    /// register_buffer(self, buffer_ptr: int, size: int) -> int
    ///
    /// Makes the size bytes at buffer_ptr known, so that bytes move straight between them and
    /// the peers; memory that is not registered works, too, and costs a copy. They must stay
    /// mapped until unregister_buffer or close has returned. Memory that can only be read can
    /// only be put from. Returns 0, or -600 when the bytes are not mapped, some of them are
    /// registered already, or the store is not set up.
    fn register_buffer(&self, py: Python<'_>, buffer_ptr: Size, size: Size) -> PyResult<i32> {
        let Some(session) = self.session()? else { return Ok(NOT_SET_UP.code()) };
        Ok(code_of(detached(py, || session.register(buffer_ptr.0, size.0))?))
    }

    /// unregister_buffer(self, buffer_ptr: int) -> int
    ///
    /// Takes back a register_buffer of memory that begins at buffer_ptr. Returns when no
    /// transfer touches the memory any more: 0, -600 when it is not registered, and -800 when a
    /// transfer does not end within a minute; the memory must not be released then.
    fn unregister_buffer(&self, py: Python<'_>, buffer_ptr: Size) -> PyResult<i32> {
        let Some(session) = self.session()? else { return Ok(NOT_SET_UP.code()) };
        Ok(code_of(detached(py, || session.unregister(buffer_ptr.0))?))
    }

    /// alloc_from_mem_pool(self, size: int) -> int
    ///
    /// The address of size bytes of the memory that a store after setup_dummy shares with its
    /// node agent, from and into which values move without a copy. It is never given back. 0
    /// when there is no such memory, or not so much.
    fn alloc_from_mem_pool(&self, size: Size) -> PyResult<usize> {
        let Some(session) = self.session()? else { return Ok(0) };
        let part = session.allocate(size.0);
        Ok(part.map_or(0, |part| part.address().expose_provenance()))
    }
}

impl Session {
    fn register(&self, address: usize, len: usize) -> Result<(), Failure> {
        let shared = self.find_allocated(address, len).or_else(|| HostMemory::find(address, len));
        let memory = self.buffers.add(address, len, shared).map_err(|why| {
            let why = match why {
                RegisterError::Impossible => "are no range of addresses",
                RegisterError::NotMapped => "are not mapped, or are memory of a device",
                RegisterError::Overlaps => "are registered already, at least in part",
            };
            Failure::refuse(format_args!("the {len} bytes at {address:#x} {why}"))
        })?;
        self.backend.register(memory.memory()).inspect_err(|_| {
            self.buffers.remove(address);
        })
    }

    fn unregister(&self, address: usize) -> Result<(), Failure> {
        let removed = self.buffers.remove(address).ok_or(Failure::INVALID_PARAMS)?;
        let block = removed.memory();
        let told = if self.buffers.names(block) || self.is_pool(block) {
            Ok(())
        } else {
            self.backend.unregister(block)
        };
        if removed.settle() { told } else { Err(Failure::TRANSFER) }
    }

    /// The `len` bytes at `address` if they can be read into where they are; refused when
    /// they leave registered memory. Memory that can only be read is left to the system to
    /// refuse.
    pub(super) fn target(
        &self,
        look: &Look<'_>,
        address: usize,
        len: usize,
    ) -> Result<Option<MemorySlice>, Failure> {
        Ok(self.in_place(look, address, len)?.filter(MemorySlice::is_writable))
    }

    fn in_place(
        &self,
        look: &Look<'_>,
        address: usize,
        len: usize,
    ) -> Result<Option<MemorySlice>, Failure> {
        if look.leaves(address, len) {
            return Err(Failure::refuse(format_args!(
                "the {len} bytes at {address:#x} are registered in part; register all of them at \
                 once or none"
            )));
        }
        let known = look.find(address, len).or_else(|| self.find_allocated(address, len));
        Ok(known.filter(|slice| self.backend.reaches(slice)))
    }

    /// The `len` bytes at `address` to be sent.
    pub(super) fn source(
        &self,
        look: &Look<'_>,
        address: usize,
        len: usize,
    ) -> Result<Source, Failure> {
        match self.in_place(look, address, len)? {
            Some(slice) => Ok(slice.into()),
            None => copy_in(address, len).map(Source::from),
        }
    }
}
