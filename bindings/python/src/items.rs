//! Arguments with many items: lists and other iterables.

use std::fmt;
use std::ops::Deref;
use std::vec;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

/// The most items of one argument; an endless iterator reaches it in about a second.
const MAX_ITEMS: usize = 1 << 22;

/// The number of items between two checks for signals: an iterator may be slow.
const SIGNAL_CHECK_INTERVAL: usize = 1 << 10;

/// Collects the results of `take` for the items of an iterable. Reserves memory in advance only for
/// lists and tuples: other types may claim any length.
///
/// # Errors
/// The exception that the iterable, `take`, or a signal's handler raises; a `ValueError` for more
/// than [`MAX_ITEMS`] items, and a `MemoryError` when they do not fit in memory.
pub(crate) fn gather<'py, T>(
    iterable: &Bound<'py, PyAny>,
    mut take: impl FnMut(Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let mut items = Vec::new();
    if is_list(iterable) {
        reserve(&mut items, iterable.len()?)?;
    }
    for item in iterable.try_iter()? {
        reserve(&mut items, 1)?;
        items.push(take(item?)?);
        if items.len().is_multiple_of(SIGNAL_CHECK_INTERVAL) {
            iterable.py().check_signals()?;
        }
    }
    Ok(items)
}

fn is_list(object: &Bound<'_, PyAny>) -> bool {
    object.is_exact_instance_of::<PyList>() || object.is_exact_instance_of::<PyTuple>()
}

fn reserve<T>(items: &mut Vec<T>, more: usize) -> PyResult<()> {
    if items.len() + more > MAX_ITEMS {
        return Err(PyValueError::new_err(format!("there are more than {MAX_ITEMS} items")));
    }
    items.try_reserve(more).map_err(|_| PyMemoryError::new_err(()))
}

/// The items of a sequence.
#[derive(Clone, Default, IntoPyObject)]
#[pyo3(transparent)]
pub(crate) struct Items<T>(Vec<T>);

impl<T: fmt::Debug> fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for Items<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> IntoIterator for Items<T> {
    type Item = T;
    type IntoIter = vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'py, T: FromPyObjectOwned<'py>> FromPyObject<'_, 'py> for Items<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        // SAFETY: the object lives, and the interpreter is held.
        let is_sequence = unsafe { ffi::PySequence_Check(object.as_ptr()) } != 0;
        if !is_sequence || object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("a list is required"));
        }
        gather(&object, |item| item.extract().map_err(Into::into)).map(Self)
    }
}
