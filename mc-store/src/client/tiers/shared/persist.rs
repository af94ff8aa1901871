//! Writing files after puts.
//!
//! A put that has ended leaves its key here and returns. The caller's memory may change from then on, so
//! the put holds the bytes for the file: the caller's [`Bytes`], or a copy. There is none of a replica in
//! this client's own segment, from which the file is written, and none of what would be too many bytes:
//! they are read back. That grants a lease, which keeps the object in memory at the cost of others.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use mc_rpc::FileOutcome;
use mc_tier::{ObjectBytes, SliceInfo};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::SharedTier;
use super::queue::{Job, Pending};
use crate::client::core::Core;
use crate::client::read::{Item, Target};
use crate::client::segments::Held;
use crate::client::tiers::objects::{object_of, verified};

/// Files that are written at a time, and their bytes. Where each operation of a file system takes half a
/// millisecond, a file of 64 KiB takes three: so many writers are half a gigabyte a second.
pub(super) const WRITERS: usize = 32;
const BYTES: u64 = 256 << 20;

/// Files that one call reports.
const OUTCOMES: usize = 256;

/// Time after which an outcome is told to the master, however few there are.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How often a report is tried. Unreported files are found by the next comparison.
const REPORTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// An object and whether its file is written.
type Written = (Pending, bool);

/// Writes files, so many at a time, until the client has gone.
pub(super) async fn write_files(core: Weak<Core>, mut queue: mpsc::Receiver<Job>, writers: usize) {
    let mut writing: JoinSet<Written> = JoinSet::new();
    let (mut written, mut bytes, mut next) = (Vec::new(), 0, None::<Job>);
    let mut report_at = Instant::now();
    loop {
        if written.is_empty() {
            report_at = Instant::now() + REPORT_EVERY;
        }
        tokio::select! {
            biased;
            Some(done) = writing.join_next() => {
                let len = done.as_ref().map_or(0, |(pending, _)| pending.len());
                bytes = if writing.is_empty() { 0 } else { bytes - len };
                written.extend(done);
            }
            () = tokio::time::sleep_until(report_at), if !written.is_empty() => {}
            job = queue.recv(), if next.is_none() && writing.len() < writers => {
                let Some(job) = job else { return };
                next = Some(job);
            }
        }
        let has_room = |(_, next): &mut Job| writing.is_empty() || bytes + next.len() <= BYTES;
        if let Some((turn, mut pending)) = next.take_if(has_room) {
            let Some(core) = core.upgrade() else { return };
            if core.is_late(&pending) {
                pending.bytes = None;
                written.push((pending, false));
            } else {
                bytes += pending.len();
                writing.spawn(async move {
                    let is_written = match core.has_unlisted() {
                        true => core.write_in_turn(turn, &pending).await,
                        false => core.write_file(&pending).await,
                    };
                    pending.bytes = None;
                    (pending, is_written)
                });
            }
        }
        let is_due = written.len() >= OUTCOMES || Instant::now() >= report_at;
        if is_due || writing.is_empty() && next.is_none() && queue.is_empty() {
            let Some(core) = core.upgrade() else { return };
            core.report_written(std::mem::take(&mut written)).await;
        }
    }
}

impl Core {
    /// Returns whether the master will have given up the file of an object when it is written and told of: then
    /// it would be written in vain. Counts it.
    fn is_late(&self, pending: &Pending) -> bool {
        let Some(shared) = self.shared_tier.as_ref().filter(|it| !it.is_unlisted) else {
            return false;
        };
        // As long as the last one took, and a report.
        let last = Duration::from_micros(shared.last_write.load(Ordering::Relaxed));
        let is_late = self.settings.clock.now() + last + REPORT_EVERY >= pending.until;
        if is_late {
            // One write that hung is not to keep all others from being tried.
            let half = u64::try_from((last / 2).as_micros()).unwrap_or(u64::MAX);
            shared.last_write.store(half, Ordering::Relaxed);
            shared.counters.late();
        }
        is_late
    }

    /// Writes the file of an object. Returns whether it is written.
    pub(super) async fn write_file(self: &Arc<Self>, pending: &Pending) -> bool {
        let Some(shared) = &self.shared_tier else { return false };
        let (Some(tier), Ok(id)) =
            (shared.tier(), self.file_id(shared, pending.key.as_ref(), pending.handle.generation))
        else {
            return false;
        };
        if shared.is_paused() {
            shared.counters.no_room();
            return false;
        }
        let begun = Instant::now();
        let Some(source) = self.source(pending).await else { return false };
        let slices = pending.slices.clone();
        let len = pending.len();
        let write = move || {
            let object = source.object(&slices).ok_or("the object has changed in memory")?;
            tier.put(&id, &object).map_err(|error| error.to_string())
        };
        let written = self.settings.environment.blocking(write).await;
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        shared.last_write.store(took, Ordering::Relaxed);
        let Some(Ok(written)) = written else { return false };
        shared.counters.written(begun.elapsed(), written.as_ref().map(|()| len).map_err(drop));
        if let Err(error) = &written {
            shared.counters.complain(|failures| {
                warn!(key = %pending.key, %error, failures, "an object's file could not be written");
            });
        }
        written.is_ok()
    }

    /// Where the object's bytes are; `None` when it is gone.
    async fn source(&self, pending: &Pending) -> Option<Source> {
        let (key, extent) = pending.replica;
        if let Some(bytes) = &pending.bytes {
            return Some(Source::Slices(bytes.slices.clone()));
        }
        if let Some(own) = self.segments.local(key, extent) {
            return Some(Source::Own(own));
        }
        let generation = Some(pending.handle.generation);
        let mut items = [Item::new(pending.key.as_str(), None, generation, Target::OWNED)];
        self.get_all(&mut items).await;
        let [item] = items;
        match item.into_bytes() {
            Ok(bytes) => Some(Source::Whole(bytes)),
            Err(error) => {
                debug!(key = %pending.key, %error, "an object went before its file was written");
                None
            }
        }
    }

    /// Tells the master which files are written, and deletes those that it has no use for.
    async fn report_written(&self, written: Vec<Written>) {
        let Some(shared) = &self.shared_tier else { return };
        let count = written.len();
        let refused = std::mem::take(&mut *shared.queue.refused.lock());
        if shared.is_unlisted {
            self.delete_outdated(&refused).await;
            return shared.queue.ended(count);
        }
        let all: Vec<Written> = written
            .into_iter()
            .chain(refused.into_iter().map(|pending| (pending, false)))
            .collect();
        for part in all.chunks(mc_rpc::MAX_BATCH) {
            self.report_part(shared, part).await;
        }
        shared.queue.ended(count);
    }

    async fn report_part(&self, shared: &SharedTier, part: &[Written]) {
        let outcomes: Vec<FileOutcome<'_>> = part
            .iter()
            .map(|(pending, written)| FileOutcome {
                key: pending.key.as_ref(),
                handle: pending.handle,
                written: *written,
            })
            .collect();
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=REPORTS {
            match self.master.batch_disk_put_end(self.id, &outcomes).await {
                Ok(answers) => {
                    let useless = part.iter().zip(answers).filter(|((_, written), answer)| {
                        *written && answer.as_ref().is_err_and(|refusal| !refusal.is_retryable())
                    });
                    let ids = useless.filter_map(|((pending, _), _)| {
                        self.object_id(pending.key.as_ref(), pending.handle.generation).ok()
                    });
                    self.delete_files(shared, ids.collect()).await;
                    return;
                }
                Err(error) if error.is_retryable() && attempt < REPORTS => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                Err(error) => {
                    debug!(%error, "the master was not told of files that were written");
                    return;
                }
            }
        }
    }
}

/// Where the bytes of an object come from.
enum Source {
    /// The slices that were held.
    Slices(Box<[Bytes]>),
    /// A replica in the client's own segment.
    Own(Held),
    /// A get.
    Whole(Bytes),
}

impl Source {
    /// The object; `None` when its bytes are not those that were put. May block.
    fn object(self, slices: &[SliceInfo]) -> Option<ObjectBytes> {
        let info = |slice: &SliceInfo| (slice.len, Some(slice.checksum));
        match self {
            Self::Slices(parts) => verified(parts.into_iter().zip(slices.iter().map(info))),
            Self::Own(own) => {
                object_of(Bytes::from(own.on_host().ok()?.to_vec()), slices.iter().map(info))
            }
            Self::Whole(bytes) => object_of(bytes, slices.iter().map(info)),
        }
    }
}
