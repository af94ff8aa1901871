//! The face of the reference system: `MooncakeDistributedStore`.

use pyo3::prelude::*;

/// What `MooncakeDistributedStore` is derived from.
#[pyclass(frozen, subclass, module = "mc_store._native")]
#[derive(Debug, Default)]
pub(crate) struct Store {}

#[pymethods]
impl Store {
    #[new]
    fn new() -> Self {
        Self::default()
    }
}
