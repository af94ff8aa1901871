//! What callers pass, as they pass it.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::vec;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBool, PyInt, PyList, PyString, PyTuple};

/// An address or a number of bytes: an `int` that fits in 64 bits without a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size(pub(super) usize);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<usize>() {
            Ok(size) => Ok(Self(size)),
            // As the reference system does with what is out of range.
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Err(PyTypeError::new_err("an int from 0 to 2**64 - 1 is required"))
            }
            Err(error) => Err(error),
        }
    }
}

impl<'py> IntoPyObject<'py> for Size {
    type Target = PyInt;
    type Output = Bound<'py, PyInt>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        self.0.into_pyobject(py)
    }
}

/// Whatever has a truth value, as the reference system takes it for a flag: an `int`, a `float`
/// or `None` beside a `bool`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag(pub(super) bool);

impl<'py> FromPyObject<'_, 'py> for Flag {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_none() || object.extract::<f64>().is_ok() {
            return object.is_truthy().map(Self);
        }
        object.extract().map(Self)
    }
}

impl<'py> IntoPyObject<'py> for Flag {
    type Target = PyBool;
    type Output = Borrowed<'py, 'py, PyBool>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        self.0.into_pyobject(py)
    }
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "True" } else { "False" })
    }
}

/// The items of a sequence. A list knows how many it has; of anything else that is not believed,
/// for memory would be taken for as many as it claims.
#[derive(Clone, Default)]
pub(super) struct Items<T>(Vec<T>);

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
        if object.is_exact_instance_of::<PyList>() || object.is_exact_instance_of::<PyTuple>() {
            return object.extract().map(Self);
        }
        // SAFETY: the object lives, and the interpreter is held.
        let is_sequence = unsafe { ffi::PySequence_Check(object.as_ptr()) } != 0;
        if !is_sequence || object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("a list is required"));
        }
        let mut items = Vec::new();
        for item in object.try_iter()? {
            items.push(item?.extract().map_err(Into::into)?);
        }
        Ok(Self(items))
    }
}

impl<'py, T: IntoPyObject<'py>> IntoPyObject<'py> for Items<T> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        self.0.into_pyobject(py)
    }
}

/// Texts that stay where they are while the interpreter is released.
pub(super) struct Texts(Items<PyBackedStr>);

impl Texts {
    /// All of them, borrowed.
    pub(super) fn as_strs(&self) -> Vec<&str> {
        self.0.iter().map(|text| &**text).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<'py> FromPyObject<'_, 'py> for Texts {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        object.extract().map(Self)
    }
}

/// Addresses with their sizes; `None` when there are not as many of both.
pub(super) fn pair_up((addresses, sizes): (Items<Size>, Items<Size>)) -> Option<Vec<(Size, Size)>> {
    (addresses.len() == sizes.len()).then(|| addresses.into_iter().zip(sizes).collect())
}
