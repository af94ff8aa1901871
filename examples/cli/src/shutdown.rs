//! The signals that end a server.

use std::fmt;
use std::io;

use tokio::signal::unix::{self, SignalKind};

/// Waits for SIGINT (Ctrl-C) or SIGTERM. From the moment this exists, neither
/// signal ends the process by itself.
///
/// ```no_run
/// # async fn serve() -> std::io::Result<()> {
/// let mut shutdown = mc_cli::Shutdown::listen()?;
/// // Bind, register, answer requests in other tasks.
/// let signal = shutdown.requested().await;
/// tracing::info!(%signal, "shutting down");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Shutdown {
    interrupt: unix::Signal,
    terminate: unix::Signal,
}

impl Shutdown {
    /// Begins to listen. Call it before the first line that says the server is
    /// ready, so that no signal is missed.
    ///
    /// # Errors
    /// The system's error when it refused the handler.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
        })
    }

    /// Completes when one of the signals arrives, or has arrived since the last
    /// call. Cancelling it loses nothing; a second call waits for a second
    /// signal, by which a user may ask not to wait for a clean end.
    pub async fn requested(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }
}

/// A signal that asks the process to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: a supervisor.
    Terminate,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}
