//! Calls that wait end when a signal's handler raises, as Ctrl-C's does.

use pyo3::prelude::*;

/// Runs `work` with the interpreter released.
///
/// # Errors
/// What a signal's handler raised while it waited, and what it answers is dropped then.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let answer = py.detach(work);
    match PyErr::take(py) {
        None => Ok(answer),
        Some(raised) => Err(raised),
    }
}

/// Whether a signal's handler raises something, which [`detached`] then finds. For threads that
/// have released the interpreter; only the main one handles signals.
pub(crate) fn is_interrupted() -> bool {
    Python::try_attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(raised) => {
            raised.restore(py);
            true
        }
    })
    .unwrap_or(false)
}
