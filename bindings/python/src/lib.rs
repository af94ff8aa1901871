//! The native part of the Python package `mc_store`.

mod client;
mod error;
#[allow(dead_code, reason = "used by what comes next")]
mod fork;
mod memory;
mod store;

use pyo3::prelude::*;

/// The native part of `mc_store`; import that instead.
#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use crate::store::Store;
}
