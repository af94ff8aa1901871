//! Transfers that go on while the program does something else.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::error::EngineError;

/// The most transfers whose state is kept. Beyond it the oldest that has ended is forgotten.
const MAX_BATCHES: usize = 65_536;

/// The state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    UnderWay,
    Done,
    Failed,
    TimedOut,
}

impl Progress {
    pub(super) fn of(outcome: &Result<(), EngineError>) -> Self {
        match outcome {
            Ok(()) => Self::Done,
            Err(EngineError::TimedOut { .. }) => Self::TimedOut,
            Err(_) => Self::Failed,
        }
    }
}

/// Asynchronous transfers, by number. Numbers begin with 1 and are not used again.
#[derive(Debug, Default)]
pub(super) struct Batches(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    last: u64,
    batches: BTreeMap<u64, Batch>,
}

#[derive(Debug)]
struct Batch {
    progress: watch::Receiver<Progress>,
    task: AbortHandle,
}

impl Batch {
    fn progress(&self) -> Progress {
        // Asked first: a task says how it has ended before it goes. One that has gone without a
        // word was aborted.
        let is_over = self.progress.has_changed().is_err();
        let progress = *self.progress.borrow();
        if is_over && progress == Progress::UnderWay { Progress::Failed } else { progress }
    }
}

impl Batches {
    /// Adds a transfer, which `spawn` starts, and returns its number. The task says how it has
    /// ended.
    pub(super) fn add(
        &self,
        spawn: impl FnOnce(watch::Sender<Progress>) -> AbortHandle,
    ) -> Result<u64, EngineError> {
        let mut table = self.0.lock();
        if table.batches.len() >= MAX_BATCHES {
            let mut batches = table.batches.iter();
            let ended = batches.find(|(_, batch)| batch.progress() != Progress::UnderWay);
            let oldest = ended.map(|(id, _)| *id);
            let oldest = oldest.ok_or(EngineError::TooManyBatches { max: MAX_BATCHES })?;
            table.batches.remove(&oldest);
        }
        table.last += 1;
        let id = table.last;
        let (sender, progress) = watch::channel(Progress::UnderWay);
        let task = spawn(sender);
        table.batches.insert(id, Batch { progress, task });
        Ok(id)
    }

    /// Returns the state of a transfer; that of an unknown one is failed.
    pub(super) fn progress(&self, id: u64) -> Progress {
        self.0.lock().batches.get(&id).map_or(Progress::Failed, Batch::progress)
    }

    /// Waits for the end of a transfer and returns its state.
    pub(super) async fn wait(&self, id: u64) -> Progress {
        let Some(mut progress) = self.receiver(id) else { return Progress::Failed };
        let ended = progress.wait_for(|progress| *progress != Progress::UnderWay).await;
        ended.map_or(Progress::Failed, |progress| *progress)
    }

    fn receiver(&self, id: u64) -> Option<watch::Receiver<Progress>> {
        self.0.lock().batches.get(&id).map(|batch| batch.progress.clone())
    }

    /// Forgets transfers, which go on if they have not ended.
    pub(super) fn forget(&self, ids: &[u64]) {
        let mut table = self.0.lock();
        for id in ids {
            table.batches.remove(id);
        }
    }

    /// Ends all transfers.
    pub(super) fn abort_all(&self) {
        for batch in std::mem::take(&mut self.0.lock().batches).into_values() {
            batch.task.abort();
        }
    }
}
