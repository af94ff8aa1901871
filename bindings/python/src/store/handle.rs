//! Mooncake's `BufferHandle`: a value in the store's memory.

use std::ffi::{c_int, c_void};

use bytes::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::fork::ProcessGuard;

/// A value in the store's memory. It supports the buffer protocol, read-only: `memoryview(handle)`
/// and `numpy.frombuffer(handle, …)` do not copy, `bytes(handle)` does. The memory returns to
/// the store when the handle and all views of it are released.
#[pyclass(frozen, module = "mc_store.mooncake.store")]
pub(crate) struct BufferHandle {
    value: Bytes,
    process: ProcessGuard,
}

impl BufferHandle {
    pub(super) fn new(value: Bytes) -> Self {
        Self { value, process: ProcessGuard::current() }
    }
}

impl Drop for BufferHandle {
    fn drop(&mut self) {
        if self.process.is_inherited() {
            // The pool to return the bytes to may be locked by a thread that exists only in the
            // parent.
            std::mem::forget(std::mem::take(&mut self.value));
        }
    }
}

#[pymethods]
impl BufferHandle {
    /// Returns the address of the first byte, valid while the handle lives.
    fn ptr(&self) -> usize {
        self.value.as_ptr().expose_provenance()
    }

    /// Returns the value's length in bytes.
    fn size(&self) -> usize {
        self.value.len()
    }

    fn __len__(&self) -> usize {
        self.value.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        bytes_object(py, &self.value)
    }

    fn __repr__(&self) -> String {
        format!("<BufferHandle of {} bytes>", self.value.len())
    }

    /// # Safety
    /// `view` must be null or point to a `Py_buffer` to fill, as CPython promises.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let value = &slf.get().value;
        let base = value.as_ptr().cast_mut().cast::<c_void>();
        // No allocation is longer than `isize::MAX`.
        let len = value.len().cast_signed();
        const READ_ONLY: c_int = 1;
        // SAFETY: `base` is valid for `len` bytes while `slf` lives, which the view keeps alive;
        // `view` points to a `Py_buffer` to fill.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base, len, READ_ONLY, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// Copies of this length and more release the interpreter.
const RELEASE_FROM: usize = 1 << 20;

/// A `bytes` object with a copy of `value`.
pub(crate) fn bytes_object<'py>(py: Python<'py>, value: &Bytes) -> PyResult<Bound<'py, PyBytes>> {
    if value.len() < RELEASE_FROM {
        return Ok(PyBytes::new(py, value));
    }
    // SAFETY: without a source CPython makes an object of this length, uninitialised.
    let object =
        unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), value.len().cast_signed()) };
    // SAFETY: `object` is a new reference, or null with an exception set.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
    // SAFETY: `object` is a bytes object.
    let target = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.expose_provenance();
    py.detach(|| {
        let target = std::ptr::with_exposed_provenance_mut::<u8>(target);
        // SAFETY: the object has `value.len()` bytes, and no other code has a reference to it yet.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), target, value.len()) };
    });
    Ok(object.cast_into()?)
}
