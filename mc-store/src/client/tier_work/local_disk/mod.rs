//! Work on the local disk that the master asks for. After a restart, and whenever the master has forgotten the
//! disk, everything on it is [reported](report).

mod report;
mod room;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use mc_meta::{MAX_DISK_OBJECTS, ReplicaKind};
use mc_rpc::{OffloadItem, OffloadJob, Refusal, RpcError};
use mc_tier::{ObjectId, TierError};
use mc_types::ErrorCode;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use self::report::Report;
use super::promote::promote_all;
use super::tell::{DELETIONS, tell_untold};
use crate::client::core::Core;
use crate::client::master_link::MasterLink;
use crate::client::segments::Segments;
use crate::client::tiers::local_disk::{LaterLocalDisk, LocalDisk};
use crate::client::tiers::{Breaker, Tiers, Turn, WorkError, id_of, ids_of, object_of};
use crate::error::LocalDiskOpenError;

/// Time between two questions for work: from right after work to a while after there was none. Puts wait
/// half a second for a disk.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Time after which an idle client asks although its heartbeats say that there is nothing to do.
const IDLE_PAUSE: Duration = Duration::from_secs(30);

/// Time that a client's start waits for the master to know of its disk.
const FIRST_MOUNT: Duration = Duration::from_secs(2);

/// Time between two attempts to open the disk: the first, and the longest.
const FIRST_OPENING_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_OPENING_PAUSE: Duration = Duration::from_secs(30);

/// Time after a failure.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Objects that are fetched at a time, and written at a time.
const JOBS: usize = 64;
const WIDTH: usize = 4;

/// Starts what writes to the local disk and reads from it for the master. Waits for the master to know of a
/// disk that is open, for [`FIRST_MOUNT`] at most: what is put from then on is written to it.
pub(in crate::client) async fn start_local_disk(core: &Arc<Core>, later: Option<LaterLocalDisk>) {
    let is_open = core.tiers.local_disk.get().is_some();
    if later.is_none() && !is_open {
        return;
    }
    let (tried, mounted) = oneshot::channel();
    core.background.spawn(work(Arc::downgrade(core), later, tried));
    if is_open {
        let _ = timeout(FIRST_MOUNT, mounted).await;
    }
}

/// Takes the disk back, for its return with the node's next client, and closes it.
pub(in crate::client) async fn leave_local_disk(core: &Core) {
    let Some(disk) = core.tiers.local_disk.get() else { return };
    if let Err(error) = core.link.master.unmount_local_disk(core.link.id, true).await {
        debug!(%error, "the master was not told that the local disk is away");
    }
    disk.close(&core.segments).await;
}

/// Asks the master for work and does it, until the client has gone. `tried` is dropped when the disk was to be
/// mounted for the first time, whatever came of it.
async fn work(core: Weak<Core>, later: Option<LaterLocalDisk>, tried: oneshot::Sender<()>) {
    if let Some(later) = later
        && !open(later, &core).await
    {
        return;
    }
    let (mut is_mounted, mut pause, mut failures) = (false, SHORTEST_PAUSE, 0_u64);
    let (mut breaker, mut report, mut tried) = (Breaker::default(), None, Some(tried));
    loop {
        let Some(core) = core.upgrade() else { return };
        let Some(disk) = core.tiers.local_disk.get() else { return };
        let (link, tiers, segments) = (&core.link, &core.tiers, &*core.segments);
        let work = DiskWork { link, tiers, segments, disk };
        let tried = tried.take();
        let done = async {
            if !is_mounted {
                // What is beyond the limit would not be taken note of. A disk that cannot be written is read.
                if let Err(error) = work.evict_beyond().await {
                    debug!(%error, "nothing is evicted from the local disk before it is used");
                }
                work.mount().await?;
                drop(tried);
                // Another master may have another limit.
                disk.most_objects.store(MAX_DISK_OBJECTS as u64, Relaxed);
                is_mounted = true;
                report = Some(Report::begin());
            }
            work.work_once(promote_all(&core), &mut breaker, &mut report).await
        };
        let done = done.await;
        // There may have been nothing to write that would have found out.
        breaker.withdrawn(Instant::now());
        match done {
            Ok(has_worked) => {
                pause = if has_worked { SHORTEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                failures = 0;
            }
            Err(error) => match error.refused() {
                // The master does not know the disk.
                Some(ErrorCode::SegmentNotFound) => {
                    is_mounted = false;
                    pause = SHORTEST_PAUSE;
                }
                Some(ErrorCode::UnableOffload | ErrorCode::NotSupported) => {
                    warn!(%error, "the local disk is not used");
                    return;
                }
                _ => {
                    failures += 1;
                    if failures.is_power_of_two() {
                        warn!(%error, failures, "work on the local disk failed; trying on");
                    }
                    pause = FAILURE_PAUSE;
                }
            },
        }
        let mut told = core.liveness.heard.disk_work();
        drop(core);
        sleep(pause).await;
        if pause == LONGEST_PAUSE {
            // A heartbeat says when there is something to do, unless the master is an older one.
            let is_needed = told.wait_for(|has_work| *has_work != Some(false));
            let _ = timeout(IDLE_PAUSE, is_needed).await;
        }
    }
}

/// Opens the disk as soon as that is possible. Returns whether the client is still there.
async fn open(mut later: LaterLocalDisk, core: &Weak<Core>) -> bool {
    let (mut pause, mut failures) = (FIRST_OPENING_PAUSE, 0_u64);
    loop {
        let opened = later.attempt().await;
        let Some(core) = core.upgrade() else { return false };
        let (node, sealing) = (&core.transfers.transport, &core.tiers.sealing);
        let opened =
            opened.and_then(|tier| LocalDisk::new(tier, true, node, &core.segments, sealing));
        match opened {
            Ok(disk) => {
                core.tiers.local_disk.set(disk);
                info!("the local disk is used from now on");
                return true;
            }
            Err(LocalDiskOpenError::Ending) => return false,
            Err(error) => {
                failures += 1;
                if failures.is_power_of_two() {
                    warn!(%error, failures, "the local disk cannot be opened; trying on");
                }
            }
        }
        drop(core);
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_OPENING_PAUSE);
    }
}

/// Work on the local disk.
#[derive(Clone, Copy)]
struct DiskWork<'c> {
    link: &'c MasterLink,
    tiers: &'c Tiers,
    segments: &'c Segments,
    disk: &'c LocalDisk,
}

impl DiskWork<'_> {
    /// Does what there is to do now, and has objects brought back by `promote`. Returns whether there was anything.
    async fn work_once(
        &self,
        promote: impl Future<Output = Result<bool, RpcError>>,
        breaker: &mut Breaker,
        report: &mut Option<Report>,
    ) -> Result<bool, WorkError> {
        self.tell_of_evicted().await;
        let deletions = self.link.master.fetch_disk_deletions(self.link.id, 0).await?;
        if deletions.remove_all {
            self.empty_disk().await?;
        }
        let mut has_worked = !deletions.objects.is_empty();
        self.delete_from_disk(ids_of(&deletions.objects)).await?;
        if deletions.report_all {
            *report = Some(Report::begin());
        }
        if let Some(under_way) = report {
            has_worked = true;
            if self.report_some(under_way).await? {
                *report = None;
            }
        }
        // While it is left alone, the master evicts what is in this client's memory without it.
        let turn = breaker.turn(Instant::now());
        let jobs =
            self.link.master.offload_heartbeat(self.link.id, turn != Turn::Skip, JOBS).await?;
        has_worked |= !jobs.is_empty();
        self.offload(jobs, turn, breaker).await?;
        has_worked |= promote.await?;
        self.evict_above_watermark().await?;
        Ok(has_worked)
    }

    /// Writes objects to the disk, and tells the master of each as it ends: its memory is wanted.
    async fn offload(
        &self,
        jobs: Vec<OffloadJob>,
        mut turn: Turn,
        breaker: &mut Breaker,
    ) -> Result<(), WorkError> {
        let write = |job: OffloadJob| async move {
            let written = self.write_to_disk(&job).await;
            (job, written)
        };
        let written = stream::iter(jobs).map(write).buffer_unordered(WIDTH).ready_chunks(JOBS);
        let mut written = std::pin::pin!(written);
        while let Some(written) = written.next().await {
            for (_, written) in &written {
                match written {
                    WriteOutcome::At(_) => {
                        turn = Turn::Usual;
                        if breaker.answered() {
                            info!("the local disk takes objects again");
                        }
                    }
                    WriteOutcome::Failed(error) => {
                        if let Some(rest) = breaker.failed(turn, Instant::now()) {
                            warn!(
                                error,
                                ?rest,
                                "the local disk fails; it is left alone, and objects are evicted without it"
                            );
                        }
                    }
                    // Nothing was asked of the disk.
                    WriteOutcome::Gone | WriteOutcome::TooLong => {}
                }
            }
            self.tell_written(&written).await?;
        }
        Ok(())
    }

    /// Tells the master what was written, and deletes what it has no use for.
    async fn tell_written(&self, written: &[(OffloadJob, WriteOutcome)]) -> Result<(), WorkError> {
        let outcomes = written.iter().map(|(job, written)| OffloadItem {
            object: job.job.object(),
            generation: job.job.generation,
            written_at: written.address(),
            too_long: matches!(written, WriteOutcome::TooLong),
        });
        let outcomes: Vec<OffloadItem<'_>> = outcomes.collect();
        // If this is lost, the objects are found by the next report.
        let answers = self.link.master.notify_offload(self.link.id, &outcomes).await?;
        let is_beyond = |answer: &Result<(), Refusal>| {
            answer.as_ref().is_err_and(|refusal| refusal.code == ErrorCode::OffloadQueueFull)
        };
        let beyond = answers.iter().filter(|answer| is_beyond(answer)).count() as u64;
        if beyond > 0 {
            self.note_most_objects(beyond).await?;
        }
        let useless = written
            .iter()
            .zip(answers)
            .filter(|((_, written), answer)| written.address().is_some() && answer.is_err());
        let ids = useless.filter_map(|((job, _), _)| id_of(&job.job).ok()).collect();
        self.delete_from_disk(ids).await
    }

    /// Writes an object to the disk.
    async fn write_to_disk(&self, job: &OffloadJob) -> WriteOutcome {
        let begun = Instant::now();
        let written = self.try_write(job).await;
        let problem: &str = match &written {
            WriteOutcome::At(_) => {
                self.disk.counters.written(begun.elapsed(), Ok(job.job.len));
                return written;
            }
            WriteOutcome::Gone => return written,
            WriteOutcome::TooLong => "it is longer than a segment of the disk's log",
            WriteOutcome::Failed(error) => {
                self.disk.counters.written(begun.elapsed(), Err(()));
                error
            }
        };
        self.disk.counters.complain(|failures| {
            warn!(
                key = %job.job.key, error = problem, failures,
                "an object could not be written to the local disk"
            );
        });
        written
    }

    async fn try_write(&self, job: &OffloadJob) -> WriteOutcome {
        let Some(tier) = self.disk.tier() else { return WriteOutcome::Gone };
        if job.job.len > tier.max_object_len() {
            return WriteOutcome::TooLong;
        }
        let Some(own) = self.segments.held(job.source.segment, job.source.extent) else {
            return WriteOutcome::Gone;
        };
        let Ok(id) = id_of(&job.job) else { return WriteOutcome::Gone };
        let (slices, places) = (job.slices.clone(), Arc::clone(&self.disk.places));
        let write = move || {
            let Ok(bytes) = own.on_host() else { return (WriteOutcome::Gone, Vec::new()) };
            let slices = slices.as_slice().iter().map(|slice| (slice.len, slice.checksum));
            // A command that removed the object gave its memory away.
            let Some(object) = object_of(Bytes::from(bytes.to_vec()), slices) else {
                return (WriteOutcome::Gone, Vec::new());
            };
            let mut evicted = Vec::new();
            let written = match tier.put_making_room(&id, &object, &mut |id| evicted.push(id)) {
                Ok(()) => WriteOutcome::At(places.address(&id, slices_len(&object))),
                Err(TierError::ObjectTooLong { .. }) => WriteOutcome::TooLong,
                Err(error) => WriteOutcome::Failed(error.to_string()),
            };
            (written, evicted)
        };
        let Some(Ok((written, evicted))) = self.tiers.environment.blocking(write).await else {
            return WriteOutcome::Gone;
        };
        self.evicted(evicted).await;
        written
    }

    /// Notes objects that were deleted to make room.
    async fn evicted(&self, ids: Vec<ObjectId>) {
        if ids.is_empty() {
            return;
        }
        info!(objects = ids.len(), "evicted from the local disk");
        self.disk.counters.evicted(ids.len() as u64);
        ids.iter().for_each(|id| self.disk.places.remove(id));
        self.disk.untold.note(ids.into_iter());
        self.tell_of_evicted().await;
    }

    async fn tell_of_evicted(&self) {
        if let Err(error) = tell_untold(self.link, &self.disk.untold, ReplicaKind::LocalDisk).await
        {
            debug!(%error, "the master is told later of objects evicted from the local disk");
        }
    }

    /// Deletes objects from the disk.
    async fn delete_from_disk(&self, ids: Vec<ObjectId>) -> Result<(), WorkError> {
        for part in ids.chunks(DELETIONS) {
            // No reader finds them any more from here on.
            part.iter().for_each(|id| self.disk.places.remove(id));
            let (tier, part) = (self.disk.tier().ok_or(WorkError::Ended)?, part.to_vec());
            let count = part.len() as u64;
            self.tiers.on_tier(move || tier.remove_many(&part)).await?;
            self.disk.counters.deleted(count);
        }
        Ok(())
    }

    /// Deletes everything from the disk.
    async fn empty_disk(&self) -> Result<(), WorkError> {
        let page = std::num::NonZeroUsize::new(DELETIONS).expect("it is not zero");
        loop {
            let tier = self.disk.tier().ok_or(WorkError::Ended)?;
            let page = self.tiers.on_tier(move || tier.scan(None, page)).await?;
            let ids: Vec<ObjectId> =
                page.objects.iter().map(|object| object.id().clone()).collect();
            if ids.is_empty() {
                return Ok(());
            }
            self.delete_from_disk(ids).await?;
        }
    }
}

/// The outcome of a write.
#[derive(Debug)]
enum WriteOutcome {
    /// The object is on the disk, where peers read it at this address.
    At(u64),
    /// The object is not in this client's memory any more.
    Gone,
    /// The disk can take none of this length.
    TooLong,
    /// The disk did not take it.
    Failed(String),
}

impl WriteOutcome {
    const fn address(&self) -> Option<u64> {
        match self {
            Self::At(address) => Some(*address),
            _ => None,
        }
    }
}

fn slices_len(object: &mc_tier::ObjectBytes) -> u64 {
    object.slices().iter().map(|slice| slice.info().len).sum()
}
