//! Memory: its registration, and its bytes.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::engine::TransferEngine;
use crate::engine::error::{EngineError, code_of, value_or};
use crate::error::OK;
use crate::items::Items;
use crate::memory::{BorrowGuard, copy_in, copy_out};
use crate::store::arguments::Size;

#[pymethods]
impl TransferEngine {
    /// register_memory(self, buffer_addr: int, capacity: int, location: str = '*') -> int
    ///
    /// Opens the capacity bytes at buffer_addr to transfers, of this engine and of its peers. The
    /// memory must stay mapped until unregister_memory has returned 0, or the engine is deleted.
    /// Peers can only read read-only memory. location has no effect. Returns 0; -7 when some of
    /// the bytes are registered already; -1 when they are not memory of the host.
    #[pyo3(signature = (buffer_addr, capacity, location = "*"))]
    fn register_memory(
        &self,
        py: Python<'_>,
        buffer_addr: Size,
        capacity: Size,
        location: &str,
    ) -> PyResult<i32> {
        let _ = location;
        self.code(py, |engine| engine.open(buffer_addr.0, capacity.0))
    }

    /// unregister_memory(self, buffer_addr: int) -> int
    ///
    /// Undoes a register_memory of memory that begins at buffer_addr, ends the transfers of peers
    /// that use it, and waits for those of this engine. Returns 0, and then nothing touches the
    /// memory any more; -3 when no memory is registered there; -1 when a transfer does not end
    /// within a minute. After -1, or an interrupt, the memory must not be freed: call again.
    fn unregister_memory(&self, py: Python<'_>, buffer_addr: Size) -> PyResult<i32> {
        self.code(py, |engine| engine.close(buffer_addr.0))
    }

    /// batch_register_memory(self, buffer_addresses: list[int], capacities: list[int], location:
    /// str = '*') -> int
    ///
    /// register_memory of several pieces: of all of them, or of none. Returns 0 or the number of
    /// the first failure.
    #[pyo3(signature = (buffer_addresses, capacities, location = "*"))]
    fn batch_register_memory(
        &self,
        py: Python<'_>,
        buffer_addresses: Items<Size>,
        capacities: Items<Size>,
        location: &str,
    ) -> PyResult<i32> {
        let _ = location;
        if buffer_addresses.len() != capacities.len() {
            let counts = vec![buffer_addresses.len(), capacities.len()];
            return Ok(EngineError::LengthsDiffer { counts }.logged());
        }
        let pairs = buffer_addresses.into_iter().zip(capacities);
        let list: Vec<_> = pairs.map(|(address, len)| (address.0, len.0)).collect();
        self.code(py, |engine| engine.open_all(&list))
    }

    /// batch_unregister_memory(self, buffer_addresses: list[int]) -> int
    ///
    /// unregister_memory of several pieces: of all that are registered, within one minute. Returns 0
    /// or the number of the first failure.
    fn batch_unregister_memory(
        &self,
        py: Python<'_>,
        buffer_addresses: Items<Size>,
    ) -> PyResult<i32> {
        let list: Vec<_> = buffer_addresses.into_iter().map(|address| address.0).collect();
        self.code(py, |engine| engine.close_all(&list))
    }

    /// allocate_managed_buffer(self, length: int) -> int
    ///
    /// Allocates length zeroed bytes that are registered, and that processes of this host transfer
    /// through shared memory. Returns their address; 0 when there is no memory.
    fn allocate_managed_buffer(&self, py: Python<'_>, length: Size) -> PyResult<usize> {
        let allocated = self.with(py, |engine| engine.allocate(length.0))?;
        Ok(value_or(allocated, 0))
    }

    /// free_managed_buffer(self, buffer_addr: int, length: int) -> int
    ///
    /// Frees memory of allocate_managed_buffer, when no transfer uses it. length has no effect.
    /// Returns 0, or -3 when the engine has not allocated memory there.
    fn free_managed_buffer(
        &self,
        py: Python<'_>,
        buffer_addr: Size,
        length: Size,
    ) -> PyResult<i32> {
        let _ = length;
        self.code(py, |engine| engine.free(buffer_addr.0))
    }

    /// write_bytes_to_buffer(self, dest_address: int, src_ptr: bytes | str, length: int) -> int
    ///
    /// Copies the first length bytes of an object, of a str those of its UTF-8, to dest_address.
    /// Returns 0, or a negative number when the object has fewer bytes, or the memory cannot be
    /// written.
    fn write_bytes_to_buffer(
        &self,
        py: Python<'_>,
        dest_address: Size,
        src_ptr: &Bound<'_, PyAny>,
        length: Size,
    ) -> PyResult<i32> {
        let encoded = match src_ptr.cast::<PyString>() {
            Ok(text) => Some(text.encode_utf8()?.into_any()),
            Err(_) => None,
        };
        let mut guard = BorrowGuard::default();
        let source = guard.borrow(encoded.as_ref().unwrap_or(src_ptr))?;
        let copied = py.detach(|| {
            let bytes = match source {
                mc_transport::Source::Bytes(bytes) => bytes,
                mc_transport::Source::Memory(memory) => memory.to_vec().into(),
            };
            match bytes.get(..length.0) {
                Some(bytes) => copy_out(bytes, dest_address.0).is_ok(),
                None => {
                    tracing::warn!("{} bytes are fewer than {}", bytes.len(), length.0);
                    false
                }
            }
        });
        guard.release(py);
        Ok(if copied { OK } else { code_of(Err(EngineError::BadBytes)) })
    }

    /// read_bytes_from_buffer(self, source_address: int, length: int) -> bytes
    ///
    /// Returns a copy of the length bytes at source_address. Raises ValueError when they cannot be
    /// read.
    fn read_bytes_from_buffer<'py>(
        &self,
        py: Python<'py>,
        source_address: Size,
        length: Size,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (address, len) = (source_address.0, length.0);
        let copy = py.detach(|| copy_in(address, len)).map_err(|_| {
            PyValueError::new_err(format!("the {len} bytes at {address:#x} cannot be read"))
        })?;
        crate::store::handle::bytes_object(py, &copy)
    }
}
