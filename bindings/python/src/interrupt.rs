//! Calls that wait end when a signal's handler raises, as Ctrl-C's does.

use std::cell::Cell;

use pyo3::prelude::*;

thread_local! {
    /// What a handler of a signal has raised during the call of this thread.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs `work` with the interpreter released.
///
/// # Errors
/// What a signal's handler raised while it waited, and what it answers is dropped then.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let answer = py.detach(work);
    match RAISED.take() {
        None => Ok(answer),
        Some(raised) => Err(raised),
    }
}

/// Runs the handlers of signals that have come; whether one of them has raised something, which
/// [`detached`] then finds. For threads that have released the interpreter by it; only the main
/// one handles signals.
pub(crate) fn is_interrupted() -> bool {
    // Not while the interpreter ends: nobody is interrupted by anything then.
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let interrupted = raised.is_some();
    if interrupted {
        RAISED.set(raised);
    }
    interrupted
}
