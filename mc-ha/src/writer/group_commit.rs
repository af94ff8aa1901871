//! The group commit: changes that wait become durable together.

use core::mem;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mc_types::Sequence;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{error, info, warn};

use super::{Durability, JournalWriter, Shared};
use crate::encoding::Batch;
use crate::journal::JournalError;

/// How long changes are gathered that need not be durable at once.
const GATHER: Duration = Duration::from_millis(5);

/// How long the end of commands is awaited whose first effects are there: to be durable in one go, and
/// not the first effect before the others.
const END_OF_COMMANDS: Duration = Duration::from_millis(1);

/// The wait after a failure, which doubles up to the second one.
const RETRY: Duration = Duration::from_millis(50);
const MAX_RETRY: Duration = Duration::from_secs(1);

/// How long a writer that is dropped tries to write what waits.
const LAST_WRITES: Duration = Duration::from_secs(10);

impl Shared {
    /// Writes what there is to write, until the end.
    pub(super) async fn write(&self) {
        // When the writer gives up what it was closed with.
        let mut ends = None;
        while let Some((batches, last)) = self.next().await {
            if !self.keep(&batches, &mut ends).await {
                return;
            }
            let mut waiting = self.waiting.lock();
            waiting.writing = None;
            waiting.durable = last;
            self.note_oldest(&waiting);
            let bytes: usize = batches.iter().map(|batch| batch.bytes().len()).sum();
            waiting.bytes = waiting.bytes.saturating_sub(bytes);
            waiting.written += bytes as u64;
            if waiting.is_empty() {
                waiting.bytes = 0;
            }
            drop(waiting);
            self.progressed.notify_waiters();
            self.progress.acknowledge(last);
        }
    }

    /// Waits for something to write; `None` at the end.
    async fn next(&self) -> Option<(Vec<Batch>, Sequence)> {
        while self.is_idle()? {
            self.wake.notified().await;
        }
        let until = Instant::now()
            + match self.settings.durability {
                Durability::Async(bound) => GATHER.min(bound / 4),
                Durability::Sync => END_OF_COMMANDS,
            };
        while self.is_gathering() {
            if timeout_at(until, self.wake.notified()).await.is_err() {
                break;
            }
        }
        let mut waiting = self.waiting.lock();
        waiting.is_gathering = false;
        let mut batches = mem::take(&mut waiting.full);
        let last = waiting.builder.seal();
        batches.extend(last);
        waiting.writing = waiting.since.take();
        let last = batches.last()?.last().sequence;
        Some((batches, last))
    }

    /// Returns whether nothing is there to write, and has itself woken when something is; `None` at
    /// the end.
    fn is_idle(&self) -> Option<bool> {
        let mut waiting = self.waiting.lock();
        if !waiting.is_empty() {
            return Some(false);
        }
        waiting.is_idle = !waiting.ends && !waiting.gave_up;
        waiting.is_idle.then_some(true)
    }

    /// Returns whether more may come that is to be written in one go with what is there, and has itself
    /// woken when that is over.
    fn is_gathering(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let is_awaited =
            self.settings.durability == Durability::Sync && waiting.wanted > waiting.durable;
        waiting.is_gathering = !waiting.ends && !is_awaited;
        waiting.is_gathering
    }

    /// Makes batches durable, again and again while that fails. Returns whether it has.
    async fn keep(&self, batches: &[Batch], ends: &mut Option<Instant>) -> bool {
        let mut wait = RETRY;
        let mut is_told = false;
        while let Err(failure) = self.try_once(batches, &mut is_told) {
            if !self.tries_again(&failure, ends) {
                return false;
            }
            sleep(wait).await;
            wait = (2 * wait).min(MAX_RETRY);
        }
        let mut waiting = self.waiting.lock();
        let has_failed = waiting.failure.take().is_some();
        self.is_failing.store(waiting.gave_up, Ordering::Release);
        drop(waiting);
        if has_failed {
            info!("the journal is written again");
            self.progress.suspended(None);
        }
        true
    }

    /// Tries once, and notes meanwhile since when: a medium that hangs does not return.
    fn try_once(&self, batches: &[Batch], is_told: &mut bool) -> Result<(), JournalError> {
        self.waiting.lock().trying = Some(Instant::now());
        let kept = self.try_keep(batches, is_told);
        let mut waiting = self.waiting.lock();
        waiting.hangs += u64::from(waiting.stuck_for() >= JournalWriter::HANGS_AFTER);
        waiting.trying = None;
        kept
    }

    fn try_keep(&self, batches: &[Batch], is_told: &mut bool) -> Result<(), JournalError> {
        let last = self.journal.last();
        // A journal that failed may have kept some of them.
        let missing = batches.iter().filter(|batch| last.is_none_or(|last| batch.last() > last));
        for batch in missing {
            self.journal.append(self.epoch, batch)?;
        }
        if !mem::replace(is_told, true) {
            self.progress.appended(batches);
        }
        self.journal.sync()
    }

    /// Notes that the journal could not be written. Returns whether to try again, or gives up.
    fn tries_again(&self, failure: &JournalError, ends: &mut Option<Instant>) -> bool {
        let mut waiting = self.waiting.lock();
        let is_new = waiting.failure.replace(failure.clone()).is_none();
        self.is_failing.store(true, Ordering::Release);
        if waiting.ends && ends.is_none() {
            *ends = Some(Instant::now() + LAST_WRITES);
        }
        let is_over = ends.is_some_and(|end| Instant::now() >= end);
        let tries_again = !waiting.gave_up && !is_over && failure.is_retryable();
        if !tries_again && !waiting.gave_up {
            error!(%failure, "the journal is not written any more; this master cannot go on");
            self.give_up(&mut waiting);
        }
        drop(waiting);
        if tries_again && is_new {
            warn!(%failure, "the journal cannot be written; trying again");
        }
        self.progress.suspended(Some(failure));
        tries_again
    }
}
