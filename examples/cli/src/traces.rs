//! Traces of OpenTelemetry.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use mc_trace::otlp::{Exporting, export_from_env};

/// The exporter of the spans of this process.
static EXPORTING: Mutex<Option<Exporting>> = Mutex::new(None);

/// Sends spans where the variables of OpenTelemetry say, if they do. What is wrong with them is logged, and no reason
/// to end.
pub(crate) fn begin() {
    let program = std::env::args_os().next().unwrap_or_default();
    let program = Path::new(&program).file_stem().unwrap_or_default().to_string_lossy();
    match export_from_env(&program) {
        Ok(exporting) => *EXPORTING.lock().unwrap_or_else(PoisonError::into_inner) = exporting,
        Err(error) => tracing::warn!(%error, "requests are not traced"),
    }
}

/// Sends the last spans.
pub(crate) fn end() {
    EXPORTING.lock().unwrap_or_else(PoisonError::into_inner).take();
}
