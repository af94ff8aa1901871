//! Bytes objects of Python that values are read into, without a copy after that.

use std::ptr::{NonNull, null};

use bytes::Bytes;
use mc_store::Memory;
use parking_lot::Mutex;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::handle::bytes_object;

/// Shorter values are read into memory of the store and copied: that costs less than taking the
/// interpreter while they are read.
const FROM: usize = 64 << 10;

/// One object for each of several values, made when the value's length is known.
#[derive(Debug)]
pub(super) struct BytesObjects(Vec<Mutex<Option<Py<PyBytes>>>>);

impl BytesObjects {
    /// For so many values.
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Mutex::new(None)).collect())
    }

    /// Makes the object for a value of `len` bytes, and returns its memory. A value that is read once more
    /// has another object.
    pub(super) fn make(&self, at: usize, len: usize) -> Option<Memory> {
        let place = self.0.get(at).filter(|_| len >= FROM)?;
        Python::try_attach(|py| {
            let object = uninitialised(py, len)?;
            let base = NonNull::new(begin(&object).cast_mut())?;
            let owner = object.clone().unbind();
            // SAFETY: the object has `len` bytes, which it keeps as long as it lives. No code but this has a
            // reference to it before `take`, and that gives it out only when nothing else names the block.
            let memory = unsafe { Memory::from_raw_exclusive(base, len, owner) };
            *place.lock() = Some(object.unbind());
            Some(memory)
        })?
    }

    /// The object with `value`, which was read for this place.
    pub(super) fn take<'py>(
        &self,
        py: Python<'py>,
        at: usize,
        value: Bytes,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let made = self.0.get(at).and_then(|place| place.lock().take());
        match made.map(|made| made.into_bound(py)) {
            // The value borrows from the object, so that nothing else can write to it.
            Some(made) if begin(&made) == value.as_ptr() && made.len()? == value.len() => Ok(made),
            _ => bytes_object(py, &value),
        }
    }
}

/// The address of an object's bytes, without a reference to them.
fn begin(object: &Bound<'_, PyBytes>) -> *const u8 {
    // SAFETY: it is a bytes object.
    unsafe { ffi::PyBytes_AsString(object.as_ptr()) }.cast_const().cast()
}

/// A bytes object of this length; `None` when there is no memory for it.
fn uninitialised(py: Python<'_>, len: usize) -> Option<Bound<'_, PyBytes>> {
    let len = isize::try_from(len).ok()?;
    // SAFETY: without a source CPython makes an object of this length, uninitialised.
    let object = unsafe { ffi::PyBytes_FromStringAndSize(null(), len) };
    // SAFETY: `object` is a new reference, or null with an exception set, which is taken here.
    let object = unsafe { Bound::from_owned_ptr_or_err(py, object) }.ok()?;
    object.cast_into().ok()
}
