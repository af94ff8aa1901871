//! Writing files after puts.
//!
//! A put that has ended leaves its key here and returns. The caller's memory may change from then on, so
//! the put holds the bytes for the file: the caller's [`Bytes`], or a copy. There is none of a replica in
//! this client's own segment, from which the file is written, and none of what would be too many bytes:
//! they are read back. That grants a lease, which keeps the object in memory at the cost of others.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use mc_rpc::FileOutcome;
use mc_tier::{InvalidObject, ObjectBytes, ObjectId, SliceInfo};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::packing::Packing;
use super::{DeletionCause, FileWork};
use crate::client::core::Core;
use crate::client::read::{Item, Target};
use crate::client::segments::Held;
use crate::client::tiers::shared::{Flushing, Job, Pending, Turn};
use crate::client::tiers::{object_of, verified};

/// Files that are written at a time, and their bytes. Where each operation of a file system takes half a
/// millisecond, a file of 64 KiB takes three: so many writers are half a gigabyte a second.
pub(super) const WRITERS: usize = 32;
const BYTES: u64 = 256 << 20;

/// Objects that are read back at a time.
const READ_BACK: usize = 256;

/// Files that one call reports.
const OUTCOMES: usize = 256;

/// Time after which an outcome is told to the master, however few there are.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How often a report is tried. Unreported files are found by the next comparison.
const REPORTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// An object and whether its file is written.
type WrittenFile = (Pending, bool);

/// Writes files, so many at a time, until the client has gone.
pub(super) async fn write_files(
    core: Weak<Core>,
    mut queue: mpsc::Receiver<Job>,
    flushing: Arc<Flushing>,
    writers: usize,
) {
    let mut writing: JoinSet<Vec<WrittenFile>> = JoinSet::new();
    let (mut packing, mut ready) = (Packing::default(), VecDeque::<Vec<Job>>::new());
    let (mut written, mut bytes, mut report_at) = (Vec::new(), 0, Instant::now());
    loop {
        if written.is_empty() {
            report_at = Instant::now() + REPORT_EVERY;
        }
        let gathered_until = packing.next_end();
        tokio::select! {
            biased;
            Some(done) = writing.join_next() => {
                let done = done.unwrap_or_default();
                let len: u64 = done.iter().map(|(pending, _)| pending.len()).sum();
                bytes = if writing.is_empty() { 0 } else { bytes - len };
                written.extend(done);
            }
            () = tokio::time::sleep_until(report_at), if !written.is_empty() => {}
            job = queue.recv(), if ready.is_empty() && writing.len() < writers => {
                let Some(job) = job else { return };
                let has_packs = core.upgrade().is_some_and(|core| has_packs(&core));
                let alone = if has_packs { packing.add(job, Instant::now()) } else { Some(job) };
                ready.extend(alone.map(|job| vec![job]));
            }
            () = tokio::time::sleep_until(gathered_until.unwrap_or(report_at)),
                if gathered_until.is_some() && ready.is_empty() => {}
            () = flushing.asked() => {}
        }
        if ready.is_empty() {
            let is_over = flushing.is_asked() && queue.is_empty();
            ready.extend(packing.take(Instant::now(), is_over));
        }
        while let Some(jobs) = ready.front() {
            let len: u64 = jobs.iter().map(|(_, pending)| pending.len()).sum();
            if !writing.is_empty() && (writing.len() >= writers || bytes + len > BYTES) {
                break;
            }
            let jobs = ready.pop_front().expect("it is the first");
            let Some(core) = core.upgrade() else { return };
            let Some(work) = FileWork::of(&core) else { return };
            let (late, jobs): (Vec<_>, Vec<_>) =
                jobs.into_iter().partition(|(_, pending)| work.is_late(pending));
            written.extend(late.into_iter().map(|(_, pending)| (pending.without_bytes(), false)));
            bytes += jobs.iter().map(|(_, pending)| pending.len()).sum::<u64>();
            writing.spawn(async move { write_jobs(&core, jobs).await });
        }
        let is_due = written.len() >= OUTCOMES || Instant::now() >= report_at;
        if is_due || writing.is_empty() && ready.is_empty() && queue.is_empty() {
            let Some(core) = core.upgrade() else { return };
            let Some(work) = FileWork::of(&core) else { return };
            work.report_written(std::mem::take(&mut written)).await;
        }
    }
}

/// Returns whether objects may be written as one file.
fn has_packs(core: &Core) -> bool {
    let Some(shared) = &core.tiers.shared else { return false };
    !shared.is_unlisted && shared.tier().is_some_and(|tier| tier.put_at_once() > 1)
}

/// Writes objects, several as one file.
async fn write_jobs(core: &Core, jobs: Vec<Job>) -> Vec<WrittenFile> {
    let Some(work) = FileWork::of(core) else { return Vec::new() };
    let outcomes = match &jobs[..] {
        [] => Vec::new(),
        [(turn, pending)] if core.tiers.has_unlisted() => {
            vec![work.write_in_turn(*turn, pending).await]
        }
        [(_, pending)] => vec![work.write_file(pending).await],
        jobs => work.write_pack(jobs).await,
    };
    let pending = jobs.into_iter().map(|(_, pending)| pending.without_bytes());
    pending.zip(outcomes).collect()
}

impl FileWork<'_> {
    /// Returns whether the master will have dropped the file of an object when it is written and reported: then
    /// it would be written in vain. Counts it.
    fn is_late(&self, pending: &Pending) -> bool {
        if self.shared.is_unlisted {
            return false;
        }
        // As long as the last one took, and a report.
        let last = Duration::from_micros(self.shared.last_write.load(Ordering::Relaxed));
        let is_late = self.reader.clock.now() + last + REPORT_EVERY >= pending.until;
        if is_late {
            // One write that hung is not to keep all others from being tried.
            let half = u64::try_from((last / 2).as_micros()).unwrap_or(u64::MAX);
            self.shared.last_write.store(half, Ordering::Relaxed);
            self.shared.counters.late();
        }
        is_late
    }

    /// Writes objects as one file. Returns which are written.
    async fn write_pack(&self, jobs: &[Job]) -> Vec<bool> {
        let none = || vec![false; jobs.len()];
        let Some(tier) = self.shared.tier() else { return none() };
        if self.shared.is_paused() {
            jobs.iter().for_each(|_| self.shared.counters.no_room());
            return none();
        }
        let begun = Instant::now();
        let mut sources = Vec::with_capacity(jobs.len());
        for ((_, pending), source) in jobs.iter().zip(self.sources(jobs).await) {
            let id = self.id_of(pending).ok();
            sources.push(source.zip(id).map(|(source, id)| (source, id, pending.slices.clone())));
        }
        let write = move || {
            let mut objects = Vec::with_capacity(sources.len());
            let mut is_there = Vec::with_capacity(sources.len());
            for source in sources {
                // What has changed in memory, or has gone, is left out.
                let object =
                    source.and_then(|(source, id, slices)| Some((id, source.object(&slices)?)));
                is_there.push(object.is_some());
                objects.extend(object);
            }
            let written = tier.put_many(&objects).map_err(|error| error.to_string());
            (is_there, written)
        };
        let written = self.tiers.environment.blocking(write).await;
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.shared.last_write.store(took, Ordering::Relaxed);
        let Some(Ok((is_there, written))) = written else { return none() };
        for ((_, pending), _) in jobs.iter().zip(&is_there).filter(|(_, is_there)| **is_there) {
            let outcome = written.as_ref().map(|()| pending.len()).map_err(drop);
            self.shared.counters.written(begun.elapsed(), outcome);
        }
        if let Err(error) = &written {
            self.shared.counters.complain(|failures| {
                warn!(objects = jobs.len(), %error, failures, "a file of objects could not be written");
            });
            return none();
        }
        is_there
    }

    /// Where the bytes of these objects are.
    async fn sources(&self, jobs: &[Job]) -> Vec<Option<Source>> {
        let mut sources: Vec<_> =
            jobs.iter().map(|(_, pending)| self.source_at_hand(pending)).collect();
        let mut far: Vec<usize> = (0..jobs.len()).filter(|at| sources[*at].is_none()).collect();
        // They are read back in parts that one call takes.
        while !far.is_empty() {
            let part = far.split_off(far.len().saturating_sub(READ_BACK));
            let item = |at: &usize| {
                let pending = &jobs[*at].1;
                let generation = Some(pending.handle.generation);
                Item::new(pending.key.as_str(), None, generation, Target::OWNED)
            };
            let mut items: Vec<_> = part.iter().map(item).collect();
            self.reader.get_all(&mut items).await;
            for (at, item) in part.into_iter().zip(items) {
                sources[at] = whole(&jobs[at].1, item);
            }
        }
        sources
    }

    /// Writes the file of an object. Returns whether it is written.
    async fn write_file(&self, pending: &Pending) -> bool {
        let (Some(tier), Ok(id)) = (self.shared.tier(), self.id_of(pending)) else { return false };
        if self.shared.is_paused() {
            self.shared.counters.no_room();
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
        let written = self.tiers.environment.blocking(write).await;
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.shared.last_write.store(took, Ordering::Relaxed);
        let Some(Ok(written)) = written else { return false };
        self.shared.counters.written(begun.elapsed(), written.as_ref().map(|()| len).map_err(drop));
        if let Err(error) = &written {
            self.shared.counters.complain(|failures| {
                warn!(key = %pending.key, %error, failures, "an object's file could not be written");
            });
        }
        written.is_ok()
    }

    /// The id by which the shared tier knows an object.
    fn id_of(&self, pending: &Pending) -> Result<ObjectId, InvalidObject> {
        self.tiers.file_id(self.shared, pending.key.as_ref(), pending.handle.generation)
    }

    /// Writes a file, unless the object was deleted since that was asked for. Returns whether it is written.
    async fn write_in_turn(&self, turn: Turn, pending: &Pending) -> bool {
        let Ok(id) = self.id_of(pending) else { return false };
        let turns = &self.shared.queue.turns;
        if !turns.begin_write(turn, &id).await {
            return false;
        }
        let is_written = self.write_file(pending).await;
        let is_void = turns.is_void(turn, &id);
        if !is_written || is_void {
            self.tiers.delete_outdated(std::slice::from_ref(pending)).await;
        }
        turns.end_write();
        is_written && !is_void
    }

    /// Where the object's bytes are; `None` when it is gone.
    async fn source(&self, pending: &Pending) -> Option<Source> {
        if let Some(source) = self.source_at_hand(pending) {
            return Some(source);
        }
        let generation = Some(pending.handle.generation);
        let mut items = [Item::new(pending.key.as_str(), None, generation, Target::OWNED)];
        self.reader.get_all(&mut items).await;
        let [item] = items;
        whole(pending, item)
    }

    /// Where the object's bytes are in this process.
    fn source_at_hand(&self, pending: &Pending) -> Option<Source> {
        let (key, extent) = pending.replica;
        match &pending.bytes {
            Some(bytes) => Some(Source::Slices(bytes.slices.clone())),
            None => self.reader.segments.local(key, extent).map(Source::Own),
        }
    }

    /// Tells the master which files are written, and deletes those that it has no use for.
    async fn report_written(&self, written: Vec<WrittenFile>) {
        let count = written.len();
        let refused = std::mem::take(&mut *self.shared.queue.refused.lock());
        if self.shared.is_unlisted {
            self.tiers.delete_outdated(&refused).await;
            return self.shared.queue.ended(count);
        }
        let all: Vec<WrittenFile> = written
            .into_iter()
            .chain(refused.into_iter().map(|pending| (pending, false)))
            .collect();
        for part in all.chunks(mc_rpc::MAX_BATCH) {
            self.report_part(part).await;
        }
        self.shared.queue.ended(count);
    }

    async fn report_part(&self, part: &[WrittenFile]) {
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
            match self.link.master.batch_file_put_end(self.link.id, &outcomes).await {
                Ok(answers) => {
                    let useless = part.iter().zip(answers).filter(|((_, written), answer)| {
                        *written && answer.as_ref().is_err_and(|refusal| !refusal.is_retryable())
                    });
                    let ids = useless.filter_map(|((pending, _), _)| {
                        self.tiers.object_id(pending.key.as_ref(), pending.handle.generation).ok()
                    });
                    self.delete_files(ids.collect(), DeletionCause::Unwanted).await;
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

/// The bytes of an object that was read back.
fn whole(pending: &Pending, item: Item<'_>) -> Option<Source> {
    match item.into_bytes() {
        Ok(bytes) => Some(Source::Whole(bytes)),
        Err(error) => {
            debug!(key = %pending.key, %error, "an object went before its file was written");
            None
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
