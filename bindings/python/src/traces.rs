//! Traces of OpenTelemetry.

use std::sync::{Mutex, PoisonError};

use mc_trace::TraceContext;
use mc_trace::otlp::{Exporting, export_from_env};
use pyo3::prelude::*;

/// The exporter of the spans of this process.
static EXPORTING: Mutex<Option<Exporting>> = Mutex::new(None);

/// Sends spans where the variables of OpenTelemetry say, if they do. What is wrong with them is logged.
pub(crate) fn set_up() {
    match export_from_env("mc-store-python") {
        Ok(exporting) => *EXPORTING.lock().unwrap_or_else(PoisonError::into_inner) = exporting,
        Err(error) => tracing::warn!(%error, "calls are not traced"),
    }
}

/// Sends the last spans. For the end of the interpreter.
#[pyfunction]
#[pyo3(name = "_end_traces")]
pub(crate) fn end_traces(py: Python<'_>) {
    py.detach(|| EXPORTING.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// The program's own span on this thread, if calls are traced and it traces, too.
pub(crate) fn parent(py: Python<'_>) -> Option<TraceContext> {
    if !mc_trace::is_on() {
        return None;
    }
    // A program that traces has loaded it; what is missing or odd there is no reason to fail a call.
    let span = || -> PyResult<Option<TraceContext>> {
        let modules = py.import("sys")?.getattr("modules")?;
        let span = modules.get_item("opentelemetry.trace")?.call_method0("get_current_span")?;
        let context = span.call_method0("get_span_context")?;
        let flags: u8 = context.getattr("trace_flags")?.extract()?;
        let trace = context.getattr("trace_id")?.extract()?;
        Ok(TraceContext::new(trace, context.getattr("span_id")?.extract()?, flags & 1 == 1))
    };
    span().ok().flatten()
}

/// Runs `work` as a part of the program's own span.
pub(crate) fn under<T>(parent: Option<TraceContext>, work: impl FnOnce() -> T) -> T {
    match parent {
        None => work(),
        Some(parent) => mc_trace::under(parent, work),
    }
}

/// Makes a future a part of the program's own span on this thread.
pub(crate) fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> + use<F> {
    let parent = if mc_trace::is_on() { Python::try_attach(parent).flatten() } else { None };
    under(parent, || mc_trace::carried(future))
}
