//! Memory of Python objects that transfers borrow.
//!
//! A transfer may use memory after its call was abandoned, and on threads that must not wait for
//! the interpreter. So a buffer stays exported until the last handle is dropped, on any thread,
//! and the next thread that is attached to the interpreter releases the buffer.

use std::ptr::NonNull;

use bytes::Bytes;
use mc_cuda::EngineStream;
use mc_transport::{Memory, MemorySlice, Source};
use parking_lot::Mutex;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView};

use super::buffer::Buffer;
use super::failure::{Failure, UNCOPIED};
use crate::fork::PerProcess;
use crate::memory::{self, DeviceMemory, DeviceObject};

/// Buffers that are no longer used and are still to be released to Python.
static UNUSED: PerProcess<Mutex<Vec<PyUntypedBuffer>>> = PerProcess::new();

/// Releases the buffers that transfers have finished with.
pub(super) fn release_unused(py: Python<'_>) {
    // Taken out first: releasing a buffer may run any code, including this function.
    let unused = std::mem::take(&mut *UNUSED.get().lock());
    for buffer in unused {
        buffer.release(py);
    }
}

/// A buffer that a transfer may use.
struct BorrowedBuffer(Option<PyUntypedBuffer>);

impl Drop for BorrowedBuffer {
    fn drop(&mut self) {
        UNUSED.get().lock().extend(self.0.take());
    }
}

/// Returns the buffer's memory, which stays exported until the last handle is dropped.
fn borrow(buffer: PyUntypedBuffer) -> PyResult<MemorySlice> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the buffer is not C-contiguous; copy it first"));
    }
    let (len, writable) = (buffer.len_bytes(), !buffer.readonly());
    let base = NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling());
    let borrowed = BorrowedBuffer(Some(buffer));
    let memory = if writable {
        // SAFETY: the exporter keeps `len` bytes at `base` where they are until the buffer is
        // released, which is when `borrowed` is dropped or later; buffers are at most `isize::MAX`
        // long. Python hands out no Rust references to them.
        unsafe { Memory::from_raw(base, len, borrowed) }
    } else {
        // SAFETY: as above, but for writing.
        unsafe { Memory::from_raw_read_only(base, len, borrowed) }
    };
    Ok(memory.whole())
}

/// A bytes-like object to store.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// The bytes of an immutable object.
    Bytes(Bytes),
    /// The bytes of a mutable object. Checksums detect bytes that change during the call.
    Memory(MemorySlice),
}

impl Value {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(memory) => memory.len(),
        }
    }
}

impl From<Value> for Source {
    fn from(value: Value) -> Self {
        match value {
            Value::Bytes(bytes) => Self::Bytes(bytes),
            Value::Memory(memory) => Self::Memory(memory),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Value {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            let bytes = PyBackedBytes::from(bytes.to_owned());
            return Ok(Self::Bytes(Bytes::from_owner(bytes)));
        }
        if let Ok(buffer) = object.cast::<Buffer>() {
            return Ok(Self::Bytes(buffer.get().bytes().clone()));
        }
        if let Some(DeviceObject { memory, stream, .. }) = DeviceObject::of(&object)? {
            // Its bytes of now: what the engine does with them later is not stored.
            let gathered = object.py().detach(|| memory::gather(&[memory], stream));
            let gathered = gathered.map_err(|_| uncopied())?.into_iter().next();
            return Ok(gathered.map_or_else(|| Self::Bytes(Bytes::new()), Self::Memory));
        }
        borrow(bytes_like(object)?).map(Self::Memory)
    }
}

/// A writable buffer to read into.
#[derive(Clone, Debug)]
pub(super) struct Target {
    slice: MemorySlice,
    /// The memory of a GPU that the bytes are for, and the stream that may be using it; they are read into pinned
    /// memory first.
    device: Option<(DeviceMemory, Option<EngineStream>)>,
}

impl Target {
    /// The memory to read into.
    pub(super) fn slice(&self) -> &MemorySlice {
        &self.slice
    }

    /// Copies the first `len` bytes, which have been read, to where they are for.
    pub(super) async fn land(&self, len: u64) -> Result<u64, Failure> {
        let Some((device, stream)) = &self.device else { return Ok(len) };
        let read = usize::try_from(len).ok().and_then(|len| self.slice.part(0, len));
        let read = read.expect("no more is read than there is room for");
        let landed = memory::land(&read, std::slice::from_ref(device), *stream).await;
        landed.map(|()| len).map_err(|_| Failure::of_device())
    }
}

impl<'py> FromPyObject<'_, 'py> for Target {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let read_only = || PyValueError::new_err("the buffer is read-only; give a writable one");
        if let Some(DeviceObject { memory, stream, is_read_only }) = DeviceObject::of(&object)? {
            if is_read_only {
                return Err(read_only());
            }
            let staged = object.py().detach(|| memory::stage(&memory, memory.len()));
            let slice = staged.map_err(|_| uncopied())?.whole();
            return Ok(Self { slice, device: Some((memory, stream)) });
        }
        let buffer = bytes_like(object)?;
        if buffer.readonly() {
            return Err(read_only());
        }
        Ok(Self { slice: borrow(buffer)?, device: None })
    }
}

fn uncopied() -> PyErr {
    PyValueError::new_err(UNCOPIED)
}

fn bytes_like(object: Borrowed<'_, '_, PyAny>) -> PyResult<PyUntypedBuffer> {
    // A view describes a buffer completely, also where the object itself leaves fields out, as
    // arrays of ctypes do.
    let view = || PyMemoryView::from(&object).and_then(|view| PyUntypedBuffer::get(&view));
    PyUntypedBuffer::get(&object).or_else(|_| view()).map_err(|error| {
        let py = object.py();
        // Other errors are more specific, such as the ValueError of a released memoryview.
        if !error.is_instance_of::<PyTypeError>(py) {
            return error;
        }
        let name =
            object.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string());
        PyTypeError::new_err(format!("a bytes-like object is required, not '{name}'"))
    })
}
