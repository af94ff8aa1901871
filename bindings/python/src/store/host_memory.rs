//! Mooncake's `MooncakeHostMemAllocator`.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::arguments::Size;
use crate::error::{Chain, OK};
use crate::memory::HostMemory;

/// Allocates memory that processes of this host can share. The node agent reads and writes this
/// memory without a copy when the thin client has registered it.
#[pyclass(frozen, module = "mc_store.mooncake.store")]
#[derive(Debug, Default)]
pub(crate) struct MooncakeHostMemAllocator;

#[pymethods]
impl MooncakeHostMemAllocator {
    #[new]
    fn new() -> Self {
        Self
    }

    /// alloc(self, size: int) -> int
    ///
    /// Allocates size zeroed bytes, aligned to a page, and returns their address. Raises
    /// RuntimeError when there is not enough memory.
    fn alloc(&self, py: Python<'_>, size: Size) -> PyResult<usize> {
        py.detach(|| HostMemory::allocate(size.0))
            .map_err(|error| PyRuntimeError::new_err(Chain(&error).to_string()))
    }

    /// free(self, ptr: int) -> int
    ///
    /// Frees memory that alloc of any allocator returned. Stores with which the memory is
    /// registered keep it until it is unregistered. Returns 0, or -1 when this process did not
    /// allocate the memory; memory of a parent process is not freed.
    fn free(&self, py: Python<'_>, ptr: Size) -> i32 {
        if py.detach(|| HostMemory::free(ptr.0)) { OK } else { -1 }
    }
}
