//! Values that are read without a copy of Python's own.

use std::ffi::{c_int, c_void};

use bytes::Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::fork::Home;

/// A value, in memory of the store. It has the buffer protocol, read-only: `memoryview(handle)`,
/// `numpy.frombuffer(handle, …)` and `bytes(handle)`, of which only the last copies. The memory
/// goes back to the store when neither the handle nor a view of it is left.
#[pyclass(frozen, module = "mc_store.mooncake.store")]
pub(crate) struct BufferHandle {
    value: Bytes,
    home: Home,
}

impl BufferHandle {
    pub(super) fn new(value: Bytes) -> Self {
        Self { value, home: Home::here() }
    }
}

impl Drop for BufferHandle {
    fn drop(&mut self) {
        if self.home.was_left() {
            // The pool that would get the bytes back may have been locked by a thread that
            // exists only in the parent.
            std::mem::forget(std::mem::take(&mut self.value));
        }
    }
}

#[pymethods]
impl BufferHandle {
    /// The address of the first byte. It is good while the handle lives.
    fn ptr(&self) -> usize {
        self.value.as_ptr().expose_provenance()
    }

    /// Bytes of the value.
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
        // The bytes object never changes, so that its length does not exceed `isize`.
        let len = value.len().cast_signed();
        const READ_ONLY: c_int = 1;
        // SAFETY: `base` is valid for `len` bytes while `slf`, which the view keeps, lives;
        // `view` is the caller's to fill.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), base, len, READ_ONLY, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// Above this size other threads run while bytes are copied.
const LONG: usize = 1 << 20;

/// A `bytes` object with a copy of `value`.
pub(super) fn bytes_object<'py>(py: Python<'py>, value: &Bytes) -> PyResult<Bound<'py, PyBytes>> {
    if value.len() < LONG {
        return Ok(PyBytes::new(py, value));
    }
    // SAFETY: with no bytes to copy CPython makes an object of so many that are not set.
    let object =
        unsafe { ffi::PyBytes_FromStringAndSize(std::ptr::null(), value.len().cast_signed()) };
    // SAFETY: a new reference, or null with an exception.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }?;
    // SAFETY: it is a bytes object.
    let target = unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.expose_provenance();
    py.detach(|| {
        let target = std::ptr::with_exposed_provenance_mut::<u8>(target);
        // SAFETY: the object has room for them all, and nobody else knows it yet.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), target, value.len()) };
    });
    Ok(object.cast_into()?)
}
