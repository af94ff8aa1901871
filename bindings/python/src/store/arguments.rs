//! Arguments as Mooncake's callers pass them.

use std::convert::Infallible;

use mc_types::MediaType;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyString;

pub(super) use crate::items::Items;

/// An address or a number of bytes: an `int` of 64 bits without a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoPyObject)]
#[pyo3(transparent)]
pub(crate) struct Size(pub(crate) usize);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<usize>() {
            Ok(size) => Ok(Self(size)),
            // Mooncake raises TypeError for numbers out of range.
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Err(PyTypeError::new_err("an int from 0 to 2**64 - 1 is required"))
            }
            Err(error) => Err(error),
        }
    }
}

/// A flag. As Mooncake does, accepts an `int`, a `float` or `None` beside a `bool`.
#[derive(Clone, Copy, Debug, IntoPyObject)]
#[pyo3(transparent)]
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

/// The name of a medium.
#[derive(Clone, Copy, Debug)]
pub(super) struct Medium(pub(super) MediaType);

impl<'py> FromPyObject<'_, 'py> for Medium {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let name = object.extract::<PyBackedStr>()?;
        let medium = name.parse().map_err(|error| {
            PyTypeError::new_err(format!("{error}, or None is required, not {name:?}"))
        });
        medium.map(Self)
    }
}

impl<'py> IntoPyObject<'py> for Medium {
    type Target = PyString;
    type Output = Bound<'py, PyString>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(PyString::new(py, self.0.as_str()))
    }
}

/// Strings that can be borrowed while the interpreter is released.
pub(super) struct Texts(Items<PyBackedStr>);

impl Texts {
    /// Returns the strings, borrowed.
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

/// Pairs addresses with sizes; `None` if their numbers differ.
pub(super) fn pair_up((addresses, sizes): (Items<Size>, Items<Size>)) -> Option<Vec<(Size, Size)>> {
    (addresses.len() == sizes.len()).then(|| addresses.into_iter().zip(sizes).collect())
}
