//! Memory for callers, outside of the interpreter's.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::arguments::Size;
use crate::error::{Chain, OK};
use crate::memory::HostMemory;

/// Allocates memory that processes of this host can share: a node agent reads and writes it
/// without a copy, when it is registered with the thin client.
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
    /// The address of size zeroed bytes, which begin at a page. Raises RuntimeError when there
    /// is no such memory.
    fn alloc(&self, py: Python<'_>, size: Size) -> PyResult<usize> {
        py.detach(|| HostMemory::allocate(size.0))
            .map_err(|error| PyRuntimeError::new_err(Chain(&error).to_string()))
    }

    /// free(self, ptr: int) -> int
    ///
    /// Gives back what alloc returned, by whichever allocator. Stores that it is registered with
    /// keep the memory until it is unregistered. Returns 0, or -1 when this process allocated
    /// nothing there: what its parent had before a fork stays.
    fn free(&self, py: Python<'_>, ptr: Size) -> i32 {
        if py.detach(|| HostMemory::free(ptr.0)) { OK } else { -1 }
    }
}
