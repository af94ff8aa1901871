//! The result of a get: bytes of the client's local buffer, with the buffer protocol.

use std::ffi::c_int;

use bytes::Bytes;
use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use pyo3::types::{PyBytes, PyIterator, PyMemoryView, PySlice};

use super::value::Value;
use crate::fork::ProcessGuard;

/// The bytes of a value, or of a part of a value, in the client's local buffer; read-only.
///
/// It supports the buffer protocol: everything that takes bytes-like objects uses the bytes
/// without a copy, such as ``memoryview(b)``, ``numpy.frombuffer(b, dtype)``, ``file.write(b)``,
/// ``torch.frombuffer(b, dtype=...)``. ``bytes(b)`` copies. The bytes stay valid and occupy
/// the client's local buffer as long as the buffer, a slice of it, or a view of either lives,
/// also after the client is closed.
///
/// >>> store["greeting"] = b"hello"
/// >>> b = store["greeting"]
/// >>> len(b), b[0], bytes(b[1:4]), b == b"hello"
/// (5, 104, b'ell', True)
#[pyclass(frozen, sequence, weakref, module = "mc_store", name = "Buffer")]
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Bytes,
    process: ProcessGuard,
}

impl Buffer {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self { bytes, process: ProcessGuard::current() }
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.process.is_inherited() {
            // The pool to return the bytes to may be locked by a thread that exists only in the
            // parent.
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

#[pymethods]
impl Buffer {
    /// Returns a copy of the bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.bytes)
    }

    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.tobytes(py)
    }

    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyIterator>> {
        PyMemoryView::from(slf)?.try_iter()
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        let len = self.bytes.len();
        if let Ok(slice) = index.cast::<PySlice>() {
            let part = slice.indices(isize::try_from(len)?)?;
            if part.step != 1 {
                return Err(PyValueError::new_err("a slice of a Buffer must have step 1"));
            }
            // Indices of a slice lie within the length; an empty one may end before it begins.
            let start = usize::try_from(part.start)?;
            let bytes = self.bytes.slice(start..start + part.slicelength);
            return Ok(Bound::new(py, Self::new(bytes))?.into_any());
        }
        let Ok(at) = index.extract::<isize>() else {
            return Err(PyTypeError::new_err("an index of a Buffer must be an integer or a slice"));
        };
        let at = if at < 0 { at.checked_add_unsigned(len) } else { Some(at) };
        let byte = at.and_then(|at| self.bytes.get(usize::try_from(at).ok()?));
        let byte = byte.ok_or_else(|| PyIndexError::new_err("the index is out of range"))?;
        byte.into_bound_py_any(py)
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        let (CompareOp::Eq | CompareOp::Ne, Ok(other)) = (op, other.extract::<Value>()) else {
            return Ok(py.NotImplemented());
        };
        let equal = match other {
            Value::Bytes(bytes) => self.bytes == bytes,
            Value::Memory(memory) => {
                memory.len() == self.bytes.len() && self.bytes == memory.to_vec()
            }
        };
        (equal == matches!(op, CompareOp::Eq)).into_py_any(py)
    }

    fn __repr__(&self) -> String {
        format!("<mc_store.Buffer of {} bytes>", self.bytes.len())
    }

    /// # Safety
    /// `view` is the interpreter's, to be filled.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        let len = isize::try_from(bytes.len())?;
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: `view` is valid by this function's contract. The bytes neither move nor
        // change while `slf` lives, which the view keeps alive, and it is marked read-only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
