//! Takes a leader's snapshots.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mc_environment::Environment;
use mc_ha::{
    Apart, JournalError, JournalUsage, JournalWriter, SnapshotInfo, SnapshotPolicy,
    SnapshotSchedule, take_snapshot_async,
};
use mc_types::Time;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

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
    writer: Arc<JournalWriter>,
    state: Mutex<State>,
    /// Wakes the task: a snapshot is asked for, or it is the end.
    wake: Notify,
    taken: Arc<Mutex<SnapshotsTaken>>,
}

#[derive(Debug)]
struct State {
    schedule: SnapshotSchedule,
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
    /// The bytes that the journal took of its medium when it was looked at last, about a second
    /// ago.
    pub(crate) usage: JournalUsage,
}

impl Snapshots {
    pub(crate) fn new(
        policy: SnapshotPolicy,
        writer: Arc<JournalWriter>,
    ) -> Result<Self, JournalError> {
        let last = writer.journal().snapshots()?.first().copied();
        let taken = Arc::new(Mutex::new(SnapshotsTaken {
            last,
            failed: 0,
            usage: writer.journal().usage(),
        }));
        let schedule = SnapshotSchedule::new(policy, last);
        let state = Mutex::new(State { schedule, is_asked: false, ends: false });
        let shared = Shared { writer, state, wake: Notify::new(), taken };
        Ok(Self { shared: Arc::new(shared), running: None })
    }

    pub(crate) fn start(
        &mut self,
        environment: &dyn Environment,
        master: Arc<mc_meta::Master>,
        now: impl Fn() -> Time + Send + Sync + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let run = async move { shared.run(&master, &now).await };
        self.running = Some(Apart::start(environment, "mc-snapshots", run)?);
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
            // Here, where no call waits when the medium hangs.
            let usage = self.writer.journal().usage();
            self.taken.lock().usage = usage;
            {
                let mut state = self.state.lock();
                if state.ends {
                    return;
                }
                let is_wanted = state.is_asked && state.schedule.may_be_asked();
                let written = self.writer.state().written;
                if !is_wanted && !state.schedule.is_due(written) {
                    continue;
                }
                state.is_asked = false;
                state.schedule.began(written);
            }
            let begun = Instant::now();
            let taken = take_snapshot_async(master, &self.writer, now).await;
            match taken {
                Ok(info) => {
                    info!(
                        at = %info.at, bytes = info.bytes,
                        seconds = format_args!("{:.1}", begun.elapsed().as_secs_f64()),
                        "snapshot taken"
                    );
                    self.state.lock().schedule.finished(info);
                    self.taken.lock().last = Some(info);
                }
                Err(error) => {
                    warn!(%error, "no snapshot was taken; the journal is kept until one is");
                    self.state.lock().schedule.failed();
                    self.taken.lock().failed += 1;
                }
            }
        }
    }
}
