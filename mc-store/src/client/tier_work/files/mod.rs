//! Writing the files of the shared tier after puts ([`persist`]), several objects in one ([`packing`]), and keeping
//! them in step with the objects, as the master asks.

mod eviction;
mod packing;
mod persist;
mod promote;
mod reopening;

use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use mc_meta::{FileSystemState, ReplicaKind};
use mc_rpc::{FileJobs, RpcError};
use mc_tier::{ObjectId, StoredObject, Tier, TierError};
use mc_types::ErrorCode;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use self::persist::{WRITERS, write_files};
use self::promote::promote_files;
use self::reopening::keep_open;
use super::tell::{found_items, is_useless, tell_untold, with_tenants};
use crate::client::core::Core;
use crate::client::master_link::MasterLink;
use crate::client::read::Reader;
use crate::client::tiers::shared::{Deletion, LaterTier, SharedTier};
use crate::client::tiers::{Tiers, WorkError, ids_of};

/// How often the master is told that a client is still at work. After a minute another one gets the work.
const RENEW_EVERY: Duration = Duration::from_secs(15);

/// Time between two questions for work.
const INTERVAL: Duration = Duration::from_secs(1);

/// Questions for work after which the space of the file system is looked at.
const LOOK_EVERY: u32 = 10;

/// Questions for work after which what is left of removed objects is looked at.
const CLEAN_UP_EVERY: u32 = 30;

/// A client without memory of its own looks after the files when it is so old. One that gets an object and ends
/// would take work along.
const GROWN_UP: Duration = Duration::from_secs(60);

/// Files that are listed at a time.
const PAGE: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");

/// Files that a thread deletes, and threads that do: over a network each deletion is an operation or two.
const DELETED: usize = 64;
const DELETERS: usize = 16;

/// Deletions of files that the master does not know of which are carried out at a time.
const UNLISTED_DELETERS: usize = 4;

/// Time after which the master is told of files that are deleted because it does not list them. Another one may
/// have come meanwhile, without a journal, and list those that were still there.
const OUTDATED: Duration = Duration::from_millis(100);

/// Starts what opens the tier, if it is not open, writes files and keeps them in step with the objects.
pub(in crate::client) fn start_shared_tier(core: &Arc<Core>, later: Option<LaterTier>) {
    let Some(shared) = &core.tiers.shared else { return };
    // One name is written and deleted again and again, in turn.
    let writers = if shared.is_unlisted { 1 } else { WRITERS };
    if let Some(jobs) = shared.queue.take() {
        let writing =
            write_files(Arc::downgrade(core), jobs, Arc::clone(&shared.queue.flushing), writers);
        core.background.spawn(writing);
    }
    if shared.is_unlisted
        && let Some(deletions) = shared.queue.take_deletions()
    {
        let deleting = delete_as_asked(Arc::downgrade(core), deletions);
        core.background.spawn(deleting);
    }
    if shared.tier().is_some() {
        start_upkeep(core);
    }
    if let Some(later) = later {
        let opening = keep_open(Arc::downgrade(core), later);
        core.background.spawn(opening);
    }
}

/// Starts what keeps the files in step with the objects, unless it runs.
fn start_upkeep(core: &Arc<Core>) {
    let Some(shared) = &core.tiers.shared else { return };
    if shared.has_upkeep.swap(true, Ordering::Relaxed) {
        return;
    }
    if shared.is_unlisted {
        core.background.spawn(make_room(Arc::downgrade(core)));
        return;
    }
    core.background.spawn(keep(Arc::downgrade(core)));
    if has_no_disk(core) {
        // Otherwise the work for the disk does it.
        core.background.spawn(promote_files(Arc::downgrade(core)));
    }
}

fn has_no_disk(core: &Core) -> bool {
    core.tiers.local_disk.get().is_none() && !core.tiers.local_disk.is_missing()
}

/// Work on the files of the shared tier.
#[derive(Clone, Copy)]
struct FileWork<'c> {
    link: &'c MasterLink,
    tiers: &'c Tiers,
    shared: &'c SharedTier,
    reader: Reader<'c>,
}

impl<'c> FileWork<'c> {
    /// The work of a client with a shared tier.
    fn of(core: &'c Core) -> Option<Self> {
        let (link, tiers, reader) = (&core.link, &core.tiers, core.reader());
        Some(Self { link, tiers, shared: tiers.shared.as_ref()?, reader })
    }

    /// The same, and the tier, if it is open.
    fn of_open(core: &'c Core) -> Option<(Self, Arc<dyn Tier>)> {
        let work = Self::of(core)?;
        Some((work, work.shared.tier()?))
    }
}

/// Asks the master for work and does it, until the client has gone.
async fn keep(core: Weak<Core>) {
    let mut timer = tokio::time::interval(INTERVAL);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Nothing was handed to it yet.
    let mut state = FileSystemState::default().deleted(true);
    let mut turn = 0_u32;
    let begun = Instant::now();
    loop {
        timer.tick().await;
        let Some(core) = core.upgrade() else { return };
        let opened = FileWork::of_open(&core);
        core.liveness.heard.set_promotes(opened.is_some() && has_no_disk(&core));
        let Some((work, tier)) = opened else { continue };
        let shared = work.shared;
        if let Err(error) = tell_untold(&core.link, &shared.untold, ReplicaKind::SharedFile).await {
            debug!(%error, "the master was not told of files that are gone");
        }
        if begun.elapsed() < GROWN_UP && core.segments.is_empty() {
            continue;
        }
        if turn.is_multiple_of(LOOK_EVERY) && shared.quota.is_none() {
            let (is_full, is_vain) = work.look_at_room(&tier).await;
            state = state.full(is_full).in_vain(is_vain);
        }
        if turn.is_multiple_of(CLEAN_UP_EVERY) && tier.wants_clean_up() {
            let cleaned = Arc::clone(&tier);
            if let Err(error) = core.tiers.on_tier(move || cleaned.clean_up()).await {
                debug!(%error, "cannot clean up packs; trying again later");
            }
        }
        turn = turn.wrapping_add(1);
        state = state.on(shared.storage());
        match core.link.master.fetch_file_jobs(core.link.id, state, 0).await {
            Ok(jobs) => {
                // What is handed out is not for another file system.
                shared.leave_other(jobs.storage);
                let working = async {
                    let deleted =
                        work.delete_files(ids_of(&jobs.delete), DeletionCause::Unlisted).await;
                    (deleted, work.do_jobs(&jobs).await)
                };
                let (deleted, compared) = tokio::select! {
                    biased;
                    done = working => done,
                    never = work.keep_turns(jobs.renews) => match never {},
                };
                state = state.deleted(deleted).compared(compared.is_some());
                state = state.whole(compared.is_some_and(|compared| compared.is_whole));
            }
            Err(RpcError::Refused(refusal))
                if matches!(
                    refusal.code,
                    ErrorCode::NotSupported | ErrorCode::PermissionDenied
                ) =>
            {
                debug!(%refusal, "this client does not look after the shared tier");
                return;
            }
            Err(error) => {
                // It may have handed something out.
                state = state.deleted(false);
                debug!(%error, "the master has no work for the shared tier now");
            }
        }
    }
}

/// Makes room for files that the master does not know of, until the client has gone.
async fn make_room(core: Weak<Core>) {
    let mut timer = tokio::time::interval(INTERVAL * LOOK_EVERY);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let Some(core) = core.upgrade() else { return };
        let Some((work, tier)) = FileWork::of_open(&core) else { continue };
        if !work.look_at_room(&tier).await.0 {
            continue;
        }
        if let Err(error) = work.evict_files().await {
            warn!(%error, "files could not be evicted from the shared tier");
        }
    }
}

/// Why files are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeletionCause {
    /// The master says that it lists none of them.
    Unlisted,
    /// The master does not take them from their writer. Another client may have found them, and the master lists
    /// them.
    Unwanted,
}

/// The outcome of a comparison.
#[derive(Clone, Copy)]
struct Compared {
    /// Files that stay.
    kept: u64,
    /// Files that went, since they belonged to no object.
    deleted: u64,
    /// Whether a file that was not reported is not there.
    is_whole: bool,
}

/// Deletes files as it is asked for, so many times at a time, until the client has gone.
async fn delete_as_asked(core: Weak<Core>, mut asked: mpsc::Receiver<Deletion>) {
    let mut going_on = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = going_on.join_next() => {}
            deletion = asked.recv(), if going_on.len() < UNLISTED_DELETERS => {
                let (Some(deletion), Some(core)) = (deletion, core.upgrade()) else { return };
                going_on.spawn(async move { core.tiers.delete_unlisted(deletion).await });
            }
        }
    }
}

impl FileWork<'_> {
    /// Tells the master again and again that the client goes on with what it was handed.
    async fn keep_turns(&self, master_knows: bool) -> std::convert::Infallible {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            if !master_knows {
                continue;
            }
            let state = FileSystemState::default().busy(true);
            if let Err(error) = self.link.master.fetch_file_jobs(self.link.id, state, 0).await {
                debug!(%error, "the master was not told that work on the shared tier goes on");
            }
        }
    }

    /// Does the work beside deletions. Returns what came of a comparison.
    async fn do_jobs(&self, jobs: &FileJobs) -> Option<Compared> {
        let mut compared = None;
        if jobs.compare {
            match self.compare().await {
                Ok(done) => {
                    let Compared { kept, deleted, is_whole } = done;
                    info!(kept, deleted, is_whole, "the shared tier is compared with the master");
                    compared = Some(done);
                }
                Err(error) => {
                    warn!(%error, "the shared tier could not be compared with the master");
                }
            }
        }
        if jobs.evict
            && let Err(error) = self.evict_files().await
        {
            warn!(%error, "files could not be evicted from the shared tier");
        }
        compared
    }

    /// Deletes files that the master has no use for. What cannot be deleted is found by the next comparison.
    /// Returns whether all were tried.
    async fn delete_files(&self, mut ids: Vec<ObjectId>, of: DeletionCause) -> bool {
        let Some(tier) = self.shared.tier() else { return false };
        let begun = Instant::now();
        // What may share a file is deleted together.
        ids.sort_unstable_by_key(|id| (id.generation().run(), id.generation()));
        let len = DELETED.max(tier.removed_at_once());
        let parts: Vec<_> = ids.chunks(len).map(<[ObjectId]>::to_vec).collect();
        let delete = |part: Vec<ObjectId>| {
            let tier = Arc::clone(&tier);
            self.tiers.on_tier(move || {
                let Err(failure) = tier.remove_many(&part) else { return Ok((part, None)) };
                if tier.removed_at_once() > 1 {
                    return Ok((Vec::new(), Some(failure)));
                }
                // One that cannot be deleted keeps no other.
                let (mut deleted, mut failure) = (Vec::with_capacity(part.len()), None);
                for id in part {
                    match tier.remove(&id) {
                        Ok(_) => deleted.push(id),
                        Err(error) => _ = failure.get_or_insert(error),
                    }
                }
                Ok((deleted, failure))
            })
        };
        let mut all = stream::iter(parts).map(delete).buffer_unordered(DELETERS);
        while let Some(outcome) = all.next().await {
            let Ok((mut deleted, failure)) = outcome else { return false };
            self.shared.counters.deleted(deleted.len() as u64);
            if of == DeletionCause::Unwanted || begun.elapsed() >= OUTDATED {
                self.shared.note_untold(&mut deleted);
            }
            if let Some(error) = failure {
                self.shared.counters.complain(|failures| {
                    warn!(%error, failures, "a file of a removed object could not be deleted");
                });
            }
        }
        true
    }

    /// Reports all files, and deletes those that belong to no object.
    async fn compare(&self) -> Result<Compared, WorkError> {
        let (mut kept, mut deleted, mut after) = (0, 0, None);
        let mut is_whole = true;
        let tier = self.shared.tier().ok_or(WorkError::Ended)?;
        let cleaned = Arc::clone(&tier);
        self.tiers.on_tier(move || cleaned.clean_up()).await?;
        loop {
            let (tier, from) = (Arc::clone(&tier), after);
            let page = self.tiers.on_tier(move || tier.scan(from.as_ref(), PAGE)).await?;
            for error in &page.unreadable {
                debug!(%error, "a file cannot be read");
                // A damaged one is of no use. Another may be readable by others, or later.
                is_whole &= matches!(error, TierError::Damaged { .. });
            }
            let useless = self.report_found(&page.objects).await?;
            kept += (page.objects.len() - useless.len()) as u64;
            deleted += useless.len() as u64;
            self.delete_files(useless, DeletionCause::Unlisted).await;
            after = page.next;
            if after.is_none() {
                return Ok(Compared { kept, deleted, is_whole });
            }
        }
    }

    /// Reports files. Returns those that belong to no object.
    async fn report_found(&self, objects: &[StoredObject]) -> Result<Vec<ObjectId>, RpcError> {
        let found = with_tenants(objects, StoredObject::id);
        let answers =
            self.link.master.report_files(self.link.id, &found_items(&found, |_| 0)).await?;
        let answers = found.iter().zip(answers);
        let useless = answers.filter(|(_, answer)| answer.as_ref().is_err_and(is_useless));
        Ok(useless.map(|((_, object), _)| object.id().clone()).collect())
    }
}
