//! The client's mapping protocol.

use pyo3::prelude::*;

use super::Client;
use super::buffer::Buffer;
use super::failure::About as _;
use super::value::Value;

#[pymethods]
impl Client {
    // Python would ask for the keys 0, 1, 2 … else.
    #[classattr]
    const __iter__: Option<Py<PyAny>> = None;

    /// :meth:`exists`.
    fn __contains__(&self, py: Python<'_>, key: String) -> PyResult<bool> {
        self.exists(py, key)
    }

    /// :meth:`get`; raises :class:`KeyError` when the object is missing.
    fn __getitem__(&self, py: Python<'_>, key: String) -> PyResult<Buffer> {
        self.wait(py, |client| async move { client.get(&key).await.map(Buffer::new).about(&key) })
    }

    /// :meth:`upsert`.
    fn __setitem__(&self, py: Python<'_>, key: String, value: Value) -> PyResult<()> {
        self.upsert(py, key, value, None, None).map(|_done| ())
    }

    /// :meth:`remove`.
    fn __delitem__(&self, py: Python<'_>, key: String) -> PyResult<()> {
        self.remove(py, key, false).map(|_done| ())
    }
}
