//! When a master's snapshots are taken.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_ha::{Apart, Executor, JournalError, JournalWriter, SnapshotInfo, take_snapshot_async};
use mc_types::Time;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

/// When snapshots are taken. A start reads the last one and the journal since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotPolicy {
    /// At least so often, while there are changes. Default 10 minutes.
    pub interval: Duration,
    /// When so much was written since the last one, or a quarter of its size if that is more.
    /// Default 64 MiB.
    pub bytes: u64,
    /// Never sooner after the last one. Default 15 seconds.
    pub min_interval: Duration,
}

impl Default for SnapshotPolicy {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(600),
            bytes: 64 << 20,
            min_interval: Duration::from_secs(15),
        }
    }
}

/// How often it is looked whether one is due.
const LOOK: Duration = Duration::from_secs(1);

/// Takes snapshots. Dropping it waits for the snapshot under way, where a thread may block.
#[derive(Debug)]
pub(crate) struct Snapshots {
    shared: Arc<Shared>,
    running: Option<Apart>,
}

#[derive(Debug)]
struct Shared {
    policy: SnapshotPolicy,
    writer: Arc<JournalWriter>,
    begun: Instant,
    /// The age of the snapshot that was there at the start.
    age: Duration,
    state: Mutex<State>,
    /// Wakes the task: a snapshot is asked for, or it is the end.
    wake: Notify,
    taken: Arc<Mutex<SnapshotsTaken>>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes written when the last one began.
    written: u64,
    tried: Option<Instant>,
    /// A standby has none to begin with.
    is_asked: bool,
    ends: bool,
}

/// Asks for a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotRequest(Arc<Shared>);

impl SnapshotRequest {
    /// Has one taken soon.
    pub(crate) fn ask(&self) {
        self.0.state.lock().is_asked = true;
        self.0.wake.notify_one();
    }
}

/// The snapshots so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SnapshotsTaken {
    pub(crate) last: Option<SnapshotInfo>,
    /// Those that came to nothing since the start.
    pub(crate) failed: u64,
}

impl Snapshots {
    pub(crate) fn new(
        policy: SnapshotPolicy,
        writer: Arc<JournalWriter>,
    ) -> Result<Self, JournalError> {
        let last = writer.journal().snapshots()?.first().copied();
        let taken = Arc::new(Mutex::new(SnapshotsTaken { last, failed: 0 }));
        let age = last.and_then(|last| last.finished.elapsed().ok()).unwrap_or_default();
        let shared = Shared {
            policy,
            writer,
            begun: Instant::now(),
            age,
            state: Mutex::default(),
            wake: Notify::new(),
            taken,
        };
        Ok(Self { shared: Arc::new(shared), running: None })
    }

    pub(crate) fn start(
        &mut self,
        executor: &dyn Executor,
        master: Arc<mc_meta::Master>,
        now: impl Fn() -> Time + Send + Sync + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let run = async move { shared.run(&master, &now).await };
        self.running = Some(Apart::start(executor, "mc-snapshots", run)?);
        Ok(())
    }

    /// Waits for the snapshot under way, and takes no more.
    pub(crate) async fn close(&self) {
        self.end();
        if let Some(running) = &self.running {
            running.ended().await;
        }
    }

    fn end(&self) {
        self.shared.state.lock().ends = true;
        self.shared.wake.notify_one();
    }

    pub(crate) fn request(&self) -> SnapshotRequest {
        SnapshotRequest(Arc::clone(&self.shared))
    }

    pub(crate) fn taken(&self) -> Arc<Mutex<SnapshotsTaken>> {
        Arc::clone(&self.shared.taken)
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        self.end();
        if let Some(running) = &self.running {
            running.wait();
        }
    }
}

impl Shared {
    async fn run(&self, master: &mc_meta::Master, now: &(dyn Fn() -> Time + Send + Sync)) {
        loop {
            // Either way it is time to look.
            let _ = timeout(LOOK, self.wake.notified()).await;
            {
                let mut state = self.state.lock();
                if state.ends {
                    return;
                }
                let is_asked = std::mem::take(&mut state.is_asked);
                if !is_asked && !self.is_due(&state) {
                    continue;
                }
                state.tried = Some(Instant::now());
            }
            let written = self.writer.state().written;
            let begun = Instant::now();
            let taken = take_snapshot_async(master, &self.writer, now).await;
            match taken {
                Ok(info) => {
                    info!(
                        at = %info.at, bytes = info.bytes,
                        seconds = format_args!("{:.1}", begun.elapsed().as_secs_f64()),
                        "snapshot taken"
                    );
                    self.taken.lock().last = Some(info);
                    self.state.lock().written = written;
                }
                Err(error) => {
                    warn!(%error, "no snapshot was taken; the journal is kept until one is");
                    self.taken.lock().failed += 1;
                }
            }
        }
    }

    fn is_due(&self, state: &State) -> bool {
        let SnapshotPolicy { interval, bytes, min_interval } = self.policy;
        let written = self.writer.state().written.saturating_sub(state.written);
        if written == 0 || state.tried.is_some_and(|tried| tried.elapsed() < min_interval) {
            return false;
        }
        let last = self.taken.lock().last;
        let size = last.map_or(0, |last| last.bytes);
        let is_old = match state.tried {
            Some(tried) => tried.elapsed() >= interval,
            // What was there at the start counts from its own time.
            None => self.age + self.begun.elapsed() >= interval,
        };
        is_old && last.is_some() || written >= bytes.max(size / 4)
    }
}
