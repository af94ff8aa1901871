//! The signals that end a server.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{self, SignalKind};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A signal so soon after another one is the same request: supervisors and `timeout` send theirs to
/// the process and to its group.
const SAME_REQUEST: Duration = Duration::from_secs(1);

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
    requests: mpsc::Receiver<Signal>,
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
        let interrupt = unix::signal(SignalKind::interrupt())?;
        let terminate = unix::signal(SignalKind::terminate())?;
        let (heard, requests) = mpsc::channel(1);
        tokio::spawn(hear(interrupt, terminate, heard));
        Ok(Self { requests })
    }

    /// Completes when one of the signals arrives, or has arrived since the last
    /// call. Cancelling it loses nothing; a second call waits for a second
    /// signal, by which a user may ask not to wait for a clean end. One that arrives less than a
    /// second after another is the same request, sent twice.
    ///
    /// # Panics
    /// When the runtime that it listens on has ended.
    pub async fn requested(&mut self) -> Signal {
        self.requests.recv().await.expect("a runtime that goes on")
    }
}

/// Passes requests on until the receiver is gone.
async fn hear(
    mut interrupt: unix::Signal,
    mut terminate: unix::Signal,
    heard: mpsc::Sender<Signal>,
) {
    let mut last: Option<Instant> = None;
    loop {
        let signal = tokio::select! {
            _ = interrupt.recv() => Signal::Interrupt,
            _ = terminate.recv() => Signal::Terminate,
            () = heard.closed() => return,
        };
        if last.is_some_and(|last| last.elapsed() < SAME_REQUEST) {
            continue;
        }
        last = Some(Instant::now());
        // Beside a request that is not taken yet, another one says nothing new.
        let _ = heard.try_send(signal);
    }
}

/// Requests to read the settings again: SIGHUP. From the moment this exists, the signal does not end the
/// process.
#[derive(Debug)]
pub struct Hangups {
    signals: unix::Signal,
}

impl Hangups {
    /// Begins to listen.
    ///
    /// # Errors
    /// The system's error when it refused the handler.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { signals: unix::signal(SignalKind::hangup())? })
    }

    /// Completes when a signal arrives, or has arrived since the last call. Cancelling it loses nothing.
    pub async fn requested(&mut self) {
        if self.signals.recv().await.is_none() {
            // The runtime hears no more signals.
            std::future::pending::<()>().await;
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
