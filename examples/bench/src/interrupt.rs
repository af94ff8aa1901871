//! Ctrl-C while a running cluster is measured: what was put there is taken back first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mc_cli::Shutdown;

use crate::error::BenchError;

static ASKED: AtomicBool = AtomicBool::new(false);

/// The exit code of who was interrupted twice, as of a shell.
const INTERRUPTED: i32 = 130;

/// How often [`or_asked`] looks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Listens for SIGINT and SIGTERM from now on. The first ends the load under way in order,
/// the second the process.
///
/// # Errors
/// The system's error.
pub(crate) fn listen() -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Shutdown::listen() })?;
    std::thread::Builder::new().name("interrupt".into()).spawn(move || {
        runtime.block_on(async {
            signals.requested().await;
            ASKED.store(true, Ordering::Relaxed);
            signals.requested().await;
            std::process::exit(INTERRUPTED);
        });
    })?;
    Ok(())
}

/// Returns whether the user interrupted the run.
pub(crate) fn is_asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// # Errors
/// [`BenchError::Interrupted`] when the user interrupted the run.
pub(crate) fn check() -> Result<(), BenchError> {
    if is_asked() { Err(BenchError::Interrupted) } else { Ok(()) }
}

/// Runs `work` to its end, or drops it when the user interrupts the run.
///
/// # Errors
/// That of `work`, or [`BenchError::Interrupted`].
pub(crate) async fn or_asked<T>(
    work: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    let asked = async {
        while !is_asked() {
            tokio::time::sleep(INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        outcome = work => outcome,
        () = asked => Err(BenchError::Interrupted),
    }
}
