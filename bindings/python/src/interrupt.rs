//! Ends a waiting call when a signal's handler raises, as that of Ctrl-C does.

use std::cell::Cell;

use pyo3::prelude::*;

use crate::{repeats, traces};

thread_local! {
    /// The exception that a signal's handler raised during this thread's call.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs `work` with the interpreter released.
///
/// # Errors
/// The exception that a signal's handler raised meanwhile; the result of `work` is dropped then.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let parent = traces::parent(py);
    let result = py.detach(|| traces::under(parent, || repeats::one_call(work)));
    match RAISED.take() {
        None => Ok(result),
        Some(raised) => Err(raised),
    }
}

/// Runs the handlers of pending signals and returns whether one of them has raised an exception since
/// [`detached`] began, which then returns it. For threads that have released the interpreter in
/// [`detached`]; only the main thread handles signals.
pub(crate) fn is_interrupted() -> bool {
    if let Some(raised) = RAISED.take() {
        RAISED.set(Some(raised));
        return true;
    }
    // Not while the interpreter ends: it handles no signals then.
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let interrupted = raised.is_some();
    if interrupted {
        RAISED.set(raised);
    }
    interrupted
}
