//! Ctrl-C while blocks are on a disk of the user: they are removed before the process ends.

use std::io;
use std::thread;

use mc_cli::Shutdown;
use tokio::sync::watch;

use crate::cluster::runtime;
use crate::error::ReplayError;

/// The exit code of a process that was interrupted twice, as of a shell.
const INTERRUPTED: i32 = 130;

/// Whether the user has interrupted the replay.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(watch::Receiver<bool>);

impl Interrupt {
    /// Leaves SIGINT and SIGTERM to the system, which ends the process.
    pub(crate) fn never() -> Self {
        Self(watch::Sender::new(false).subscribe())
    }

    /// Listens for SIGINT and SIGTERM from now on. The first ends the replay in order, the second
    /// ends the process.
    ///
    /// # Errors
    /// [`ReplayError::Thread`], [`ReplayError::Signals`].
    pub(crate) fn listen() -> Result<Self, ReplayError> {
        let name = "the signals";
        let runtime = runtime(name)?;
        let signals = runtime.block_on(async { Shutdown::listen() });
        let mut signals = signals.map_err(ReplayError::Signals)?;
        let asked = watch::Sender::new(false);
        let interrupt = Self(asked.subscribe());
        let listen = move || {
            runtime.block_on(async {
                signals.requested().await;
                asked.send_replace(true);
                signals.requested().await;
                std::process::exit(INTERRUPTED);
            });
        };
        let spawned = thread::Builder::new().name(name.into()).spawn(listen);
        let failed = |source: io::Error| ReplayError::Thread { name: name.into(), source };
        spawned.map_err(failed)?;
        Ok(interrupt)
    }

    /// Returns whether the user has interrupted the replay.
    pub(crate) fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Completes when the user interrupts the replay.
    pub(crate) async fn asked(&mut self) {
        if self.0.wait_for(|asked| *asked).await.is_err() {
            // Nothing listens.
            std::future::pending::<()>().await;
        }
    }
}
