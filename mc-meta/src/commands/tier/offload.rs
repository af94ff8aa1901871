//! Objects on the clients' local disks: how they come there and what becomes of them.
//!
//! A client writes only what it holds in memory. An object that is to be written keeps
//! that memory until the client says how it went, or its time is up: it is not evicted,
//! but a command that removes or replaces it does so, and the client
//! then hears that what it wrote is of no use.

pub(crate) mod error;

use std::sync::Arc;

use mc_types::{ClientId, Extent, Generation, KeyRef, Time};

use crate::effect::emit::{Emit, unseen};
use crate::master::Master;
use crate::object::local_disk::{LocalDiskSpec, OnLocalDisk};
use crate::object::{Object, Queue};
use crate::record::Location;
use crate::shard::Shard;
use crate::side_tables::local_disk::{Book, LocalDiskConfig, LocalDiskDeletions, LocalDiskInfo};
use crate::side_tables::offload::Offload;
use crate::side_tables::offload_queue::{OffloadError, TierJob};
use crate::space::replica::Replica;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::request::Slices;
use crate::vocabulary::slot::ObjectSlot;

pub use error::LocalDiskError;

/// Jobs that one tick ends for their age.
const TICK_JOBS: usize = 512;

/// How writing an object to a disk went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadOutcome<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// The put that it came from, as [`TierJob::generation`] said.
    pub generation: Generation,
    /// Whether it is on the disk now.
    pub written: bool,
    /// If not, whether the disk can take no object of this length.
    pub too_long: bool,
    /// Where it begins in the disk's region then.
    pub address: u64,
}

/// An object to write to a client's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadJob {
    /// The object.
    pub job: TierJob,
    /// Its slices, with their checksums.
    pub slices: Slices,
    /// Where it is in the client's own memory, until the client says how the job went. A command that
    /// removes the object ends that sooner: what is there then has other checksums.
    pub source: Location,
}

/// The decision on an object that would be evicted.
pub(crate) enum OffloadDecision {
    /// The object is evicted.
    No,
    /// The object stays until it is written: so many bytes are free at once, and so many then.
    Writing { freed: u64, promised: u64 },
    /// The object stays, because no client can write it now.
    Later,
}

impl Master {
    /// Makes a client's local disk known. From then on the client must
    /// [`ping`](Self::ping) more often than the client TTL, and fetch what to write with
    /// [`offload_heartbeat`](Self::offload_heartbeat) if it is `enabled`. Mounting it
    /// again as it is mounted changes only that. What was known of a disk that was away can be read
    /// again when [`report_local_disk`](Self::report_local_disk) says where it is. A disk that another
    /// client had mounted is this client's from now on.
    ///
    /// # Errors
    /// [`LocalDiskError::Unsupported`] without local disks, or
    /// [`LocalDiskError::TooManyDisks`].
    pub fn mount_local_disk(
        &self,
        now: Time,
        client: ClientId,
        spec: LocalDiskSpec,
        enabled: bool,
    ) -> Result<(), LocalDiskError> {
        let config = self.local_disks_wanted()?;
        let (mut clients, mut book) = loop {
            let clients = self.clients.lock();
            let book = self.local.book.lock();
            let Some((holder, is_same)) = book.in_the_way(client, &spec) else {
                break (clients, book);
            };
            drop(book);
            drop(clients);
            if is_same {
                self.suspend_local_disk(now, holder, now + config.return_timeout);
            } else {
                self.drop_local_disk(now, holder);
            }
            if holder != client {
                self.clients.lock().disk_moved(holder);
            }
        };
        let dropped = book
            .offloads
            .mount(client, enabled)
            .map_err(|_| LocalDiskError::TooManyDisks { limit: crate::MAX_DISKS })?;
        if !book.is_mounted(client, &spec) {
            book.mount(client, spec);
        }
        drop(book);
        clients.disk_mounted(client, now, self.config.client_ttl);
        drop(clients);
        self.stop_offloads(now, dropped);
        Ok(())
    }

    /// Takes a client's disk back. With `keep`, the objects on it are remembered for its return;
    /// otherwise they are gone. Unmounting a disk that is not mounted changes nothing.
    ///
    /// # Errors
    /// [`LocalDiskError::Unsupported`] without local disks.
    pub fn unmount_local_disk(
        &self,
        now: Time,
        client: ClientId,
        keep: bool,
    ) -> Result<(), LocalDiskError> {
        let config = self.local_disks_wanted()?;
        // Before the client leaves, because a client that leaves keeps its disk.
        if keep {
            self.suspend_local_disk(now, client, now + config.return_timeout);
        } else {
            self.drop_local_disk(now, client);
        }
        let mut clients = self.clients.lock();
        if clients.disk_left(client) && self.segments.read().of_client(client).is_empty() {
            clients.leave(client);
        }
        self.hand_over(clients, now);
        Ok(())
    }

    /// Notes how many bytes a client's disk can hold.
    ///
    /// # Errors
    /// [`OffloadError::NoDisk`].
    pub fn report_ssd_capacity(&self, client: ClientId, bytes: u64) -> Result<(), OffloadError> {
        self.local.book.lock().offloads.set_capacity(client, bytes)
    }

    /// Hands a client up to `max` objects to write to its disk, oldest first, and notes
    /// whether it takes more.
    ///
    /// # Errors
    /// [`OffloadError::NoDisk`]: the client is to mount its disk again and report what is
    /// on it.
    pub fn offload_heartbeat(
        &self,
        now: Time,
        client: ClientId,
        enabled: bool,
        max: usize,
    ) -> Result<Vec<OffloadJob>, OffloadError> {
        let (dropped, jobs) = {
            let mut book = self.local.book.lock();
            let dropped = book.offloads.enable(client, enabled)?;
            (dropped, book.offloads.drain(now, client, max)?)
        };
        self.stop_offloads(now, dropped);
        Ok(jobs.into_iter().filter_map(|job| self.offload_job(now, client, job)).collect())
    }

    /// Returns the place of a job's object in the client's memory. Ends the job when it is not there
    /// any more.
    fn offload_job(&self, now: Time, client: ClientId, job: TierJob) -> Option<OffloadJob> {
        let key = self.hashed(job.key.as_ref());
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let slot = shard.find_of_put(key, job.generation, emit)?;
        shard.offload_fetched(slot, now);
        let object = shard.get(slot);
        let is_own = |replica: &&Replica| replica.segment.client() == client;
        if let Some(replica) = object.replicas().find(is_own) {
            let (segment, extent) = (replica.segment.spec().id, replica.allocation.extent());
            let slices = object.slices();
            return Some(OffloadJob { job, slices, source: Location { segment, extent } });
        }
        // It is not pending when its time is up.
        let _ = self.local.book.lock().offloads.failed(now, client, job.generation);
        shard.not_written(slot, false, emit);
        None
    }

    /// Notes how the writing of objects went. One that is written can be read from the
    /// disk from now on.
    ///
    /// # Errors
    /// For each that is not to be written any more [`OffloadError::NotPending`]: the
    /// client deletes what it wrote.
    pub fn notify_offload(
        &self,
        now: Time,
        client: ClientId,
        outcomes: &[OffloadOutcome<'_>],
    ) -> Vec<Result<(), OffloadError>> {
        let note = |outcome: &OffloadOutcome<'_>| self.end_offload(now, client, outcome);
        outcomes.iter().map(note).collect()
    }

    fn end_offload(
        &self,
        now: Time,
        client: ClientId,
        outcome: &OffloadOutcome<'_>,
    ) -> Result<(), OffloadError> {
        let key = self.hashed(outcome.key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let slot = shard.find_of_put(key, outcome.generation, emit);
        let mut book = self.local.book.lock();
        let disk = Arc::clone(book.disk(client).ok_or(OffloadError::NoDisk)?);
        let Some(slot) = slot else {
            // Its jobs went with the object.
            return Err(OffloadError::NotPending);
        };
        if !outcome.written {
            let again = book.offloads.failed(now, client, outcome.generation)?;
            drop(book);
            shard.not_written(slot, again || outcome.too_long, emit);
            return Ok(());
        }
        if disk.objects() >= self.local.max_objects() {
            book.offloads.failed(now, client, outcome.generation)?;
            drop(book);
            shard.not_written(slot, true, emit);
            return Err(OffloadError::TooManyObjects);
        }
        let len = book.offloads.written(now, client, outcome.generation)?.len;
        let place = Extent::new(outcome.address, len)
            .map(|extent| OnLocalDisk::new(disk, extent, shard.tenant(slot)));
        drop(book);
        let Some(place) = place else {
            shard.not_written(slot, false, emit);
            return Err(OffloadError::NotPending);
        };
        shard.get_mut(slot).add_local_disk(place);
        shard.written(slot, emit);
        Ok(())
    }

    /// Hands a client the objects to delete from its disk, at most `max`, each once.
    pub fn local_disk_deletions(&self, client: ClientId, max: usize) -> LocalDiskDeletions {
        let deletions = self.local.book.lock().take_dead(client, max);
        if deletions.report_all || deletions.remove_all || !deletions.objects.is_empty() {
            // The objects are back without their replicas if their removal is undone.
            self.see_all();
        }
        deletions
    }

    /// Returns whether a client is to delete everything on its disk, because everything was
    /// removed by force; says so once.
    pub fn poll_remove_all(&self, client: ClientId) -> bool {
        let wipes = self.local.book.lock().offloads.take_wipe(client);
        if wipes {
            self.see_all();
        }
        wipes
    }

    /// The clients' local disks.
    #[must_use]
    pub fn local_disks(&self) -> Vec<LocalDiskInfo> {
        self.local.book.lock().infos()
    }

    fn local_disks_wanted(&self) -> Result<LocalDiskConfig, LocalDiskError> {
        self.local.config.ok_or(LocalDiskError::Unsupported)
    }

    /// Everything was removed: nothing is to be written any more, and what is on the
    /// disks is to go.
    pub(crate) fn wipe_local_disks(&self, now: Time) {
        if self.local.config.is_some() {
            let (dropped, ended) = {
                let mut book = self.local.book.lock();
                (book.offloads.clear(), book.promotions.clear())
            };
            self.stop_offloads(now, dropped.into_iter().map(|(_, job)| job).collect());
            self.stop_promotions(now, ended);
        }
    }

    /// A disk is gone.
    fn drop_local_disk(&self, now: Time, client: ClientId) {
        if self.end_disk_jobs(now, client, |book| book.remove(client)) {
            self.start_sweep();
        }
    }

    /// A client's disk is away; what is known of it is kept until that time.
    fn suspend_local_disk(&self, now: Time, client: ClientId, forgotten_at: Time) {
        self.end_disk_jobs(now, client, |book| book.suspend(client, forgotten_at));
    }

    /// A client with a disk is silent, or has left.
    pub(crate) fn local_disk_client_gone(&self, now: Time, client: ClientId) {
        if let Some(config) = self.local.config {
            self.suspend_local_disk(now, client, now + config.return_timeout);
        }
    }

    /// Ends what was to be written to a client's disk and read from it, when `change` says that the
    /// client had one.
    fn end_disk_jobs(
        &self,
        now: Time,
        client: ClientId,
        change: impl FnOnce(&mut Book) -> bool,
    ) -> bool {
        let (dropped, ended) = {
            let mut book = self.local.book.lock();
            if !change(&mut book) {
                return false;
            }
            (book.offloads.unmount(client), book.promotions.client_gone(client))
        };
        self.stop_offloads(now, dropped);
        self.stop_promotions(now, ended);
        true
    }

    /// Ends what took too long; true when more is left to do.
    pub(crate) fn expire_offloads(&self, now: Time) -> bool {
        if self.local.config.is_none() {
            return false;
        }
        let (expired, is_any_forgotten) = {
            let mut book = self.local.book.lock();
            (book.offloads.expire(now, TICK_JOBS), book.forget_due(now))
        };
        if is_any_forgotten {
            self.start_sweep();
        }
        let more = expired.len() == TICK_JOBS;
        self.stop_offloads(now, expired.into_iter().map(|(_, job)| job).collect());
        more
    }

    /// Tells the objects of these jobs that they are not written. Takes no lock before
    /// those of their shards.
    fn stop_offloads(&self, now: Time, jobs: Vec<TierJob>) {
        let emit = self.emit(now);
        let stop = |job: TierJob| {
            let key = self.hashed(job.key.as_ref());
            let mut shard = self.shard_of(key);
            if let Some(slot) = shard.find_of_put(key, job.generation, emit) {
                shard.not_written(slot, false, emit);
            }
        };
        unseen(|| jobs.into_iter().for_each(stop));
    }
}

impl Shard {
    /// Has a victim written before its memory goes, if it is on no disk yet.
    pub(crate) fn spare(&mut self, slot: ObjectSlot, emit: Emit<'_>) -> OffloadDecision {
        let Some(force) = self.config().books.local.writes_at_eviction() else {
            return OffloadDecision::No;
        };
        let object = self.get_mut(slot);
        if object.outlives_memory() || !object.has_memory() {
            return OffloadDecision::No;
        }
        if !object.protection().is_accessed() && self.config().books.local.is_filtering() {
            self.totals_mut().offload_filtered += 1;
            return OffloadDecision::No;
        }
        let object = self.get_mut(slot);
        let dead = object.take_dead_replicas();
        // Its group was condemned: the object is evicted with the others, or leaves the group.
        let alone = object.group().is_none();
        self.give_back(self.tenant(slot), dead);
        match self.queue_offload(slot, emit) {
            Ok(client) => {
                self.leave_group(slot);
                self.eviction().wait_for_disk(slot);
                let object = self.get_mut(slot);
                let others = object.take_replicas_if(|r| r.segment.client() != client);
                let promised = object.replicas().fold(0, |sum, r| sum + r.len());
                let generation = object.generation;
                self.set_offload(slot, Offload { client, promised, since: emit.now });
                self.config()
                    .books
                    .local
                    .book
                    .lock()
                    .offloads
                    .promise(client, generation, promised);
                self.config().books.quotas.leaves(self.tenant(slot), promised);
                if !others.is_empty() {
                    self.emit_changed(slot, emit);
                }
                let freed = self.give_back(self.tenant(slot), others);
                self.config().books.quotas.evicted(self.tenant(slot), freed);
                self.totals_mut().add_evicted(0, freed);
                OffloadDecision::Writing { freed, promised }
            }
            Err(OffloadError::QueueFull { .. }) if alone && !force => OffloadDecision::Later,
            Err(_) => OffloadDecision::No,
        }
    }

    /// Ends the offload of an object; true when it was to be evicted after it.
    fn offload_over(&mut self, slot: ObjectSlot) -> bool {
        let evicting = self.get(slot).queue() == Queue::Offloading;
        if evicting {
            self.eviction().remove(slot);
        }
        let object = self.get_mut(slot);
        let len = object.len();
        if let Some(offload) = self.take_offload(slot) {
            offload.give_back(&self.config().books, self.tenant(slot), len);
        }
        evicting
    }

    /// An object is on a disk now.
    fn written(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        let evicting = self.offload_over(slot);
        if evicting && !self.is_in_use(slot, emit.now) {
            self.evict_from_memory(slot, emit);
            return;
        }
        if evicting {
            self.back_in_order(slot);
        }
        self.emit_changed(slot, emit);
    }

    /// An object is not written to the disk that it was to be written to, and with `never` is not to
    /// be tried again.
    fn not_written(&mut self, slot: ObjectSlot, never: bool, emit: Emit<'_>) {
        if self.offload(slot).is_none() {
            return;
        }
        if !self.offload_over(slot) {
            return;
        }
        let force = self.config().books.local.writes_at_eviction() == Some(true);
        if (force || never) && !self.is_in_use(slot, emit.now) {
            self.evict_from_memory(slot, emit);
        } else {
            self.back_in_order(slot);
        }
    }

    /// Evicts an object whose memory is wanted at once, though it was to be written to a disk before.
    /// Returns the bytes that are free then; zero when it is used, or does not wait for a disk.
    pub(crate) fn drop_waiting(&mut self, slot: ObjectSlot, emit: Emit<'_>) -> u64 {
        let object = self.get(slot);
        let (queue, generation) = (object.queue(), object.generation);
        let Some(Offload { client, .. }) = self.offload(slot) else { return 0 };
        if queue != Queue::Offloading || self.is_in_use(slot, emit.now) {
            return 0;
        }
        self.config().books.local.book.lock().offloads.cancel(client, generation);
        self.offload_over(slot);
        self.evict_from_memory(slot, emit).bytes
    }
}

impl Removal {
    /// Why an object is gone that has lost all that it had.
    pub(crate) fn of_lost(object: &Object) -> Self {
        let was_on_disk = !object.local_disks().is_empty();
        let had_memory = object.replicas().next().is_some();
        if was_on_disk && !had_memory { Self::DiskLost } else { Self::SegmentLost }
    }
}
