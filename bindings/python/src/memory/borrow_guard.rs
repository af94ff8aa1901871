//! Python objects whose bytes a call borrows without a copy.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use mc_transport::{Memory, Source};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView};

use super::borrows::Borrows;
use super::device::{DeviceObject, gather};

/// Time limit of [`BorrowGuard::release`] for borrows that outlive their call: the connections drop
/// them a moment later, but an interrupted put continues.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Keeps Python objects alive while a call borrows their bytes.
///
/// A borrow may outlive the guard for as long as a transfer takes. A thread then waits for the
/// end of the borrow and releases the objects.
#[derive(Default)]
pub(crate) struct BorrowGuard {
    borrows: Borrows,
    buffers: Vec<PyUntypedBuffer>,
}

impl BorrowGuard {
    /// Borrows the bytes of an object with the buffer protocol; copies them if they are not
    /// contiguous.
    pub(crate) fn borrow(&mut self, object: &Bound<'_, PyAny>) -> PyResult<Source> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(shared(bytes));
        }
        if let Some(found) = DeviceObject::of(object)? {
            let gathered = object.py().detach(|| gather(&[found.memory], found.stream));
            let gathered = gathered
                .map_err(|_| PyValueError::new_err("the memory of the GPU cannot be copied"))?;
            return Ok(gathered
                .into_iter()
                .next()
                .map_or_else(|| Bytes::new().into(), Source::from));
        }
        // A view of the object describes its buffer completely, also where the object itself
        // leaves fields out, as arrays of ctypes do.
        let view = PyMemoryView::from(object)?;
        let buffer = PyUntypedBuffer::get(&view)?;
        let len = buffer.len_bytes();
        let Some(base) = NonNull::new(buffer.buf_ptr().cast::<u8>()).filter(|_| len > 0) else {
            return Ok(Bytes::new().into());
        };
        if !buffer.is_c_contiguous() {
            let copy = view.call_method0("tobytes")?;
            return Ok(shared(copy.cast()?));
        }
        let borrow = self.borrows.begin();
        // SAFETY: the object promises `len` contiguous bytes at `base` for as long as the
        // buffer is held, which `self` does until the borrow ends, or for good. Only raw
        // copies read them, so that other threads may change them meanwhile.
        let memory = unsafe { Memory::from_raw_read_only(base, len, borrow) };
        self.buffers.push(buffer);
        Ok(memory.whole().into())
    }

    /// Releases the objects when all borrows have ended. Waits for a bounded time; after that a
    /// thread waits.
    pub(crate) fn release(self, py: Python<'_>) {
        if !self.borrows.is_empty() {
            let borrows = self.borrows.clone();
            py.detach(move || borrows.wait_timeout(RELEASE_TIMEOUT));
        }
    }
}

impl Drop for BorrowGuard {
    fn drop(&mut self) {
        if self.borrows.is_empty() {
            return;
        }
        let kept = std::mem::take(&mut self.buffers);
        let (borrows, kept) = (self.borrows.clone(), ManuallyDrop::new(kept));
        let release = move || {
            borrows.wait();
            // After the end of the interpreter there is nothing to release.
            Python::try_attach(|_| drop(ManuallyDrop::into_inner(kept)));
        };
        // If no thread starts, the objects are never released: their bytes must not change under
        // a transfer.
        let _ = thread::Builder::new().name("mc-borrow".into()).spawn(release);
    }
}

/// The bytes of a `bytes` object. It is immutable, and lives as long as its bytes are referenced,
/// such as by the write of a put's file: no call waits for that.
fn shared(bytes: &Bound<'_, PyBytes>) -> Source {
    Bytes::from_owner(PyBackedBytes::from(bytes.clone())).into()
}
