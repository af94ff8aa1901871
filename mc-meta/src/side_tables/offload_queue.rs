//! The book of objects that clients are to write to their local disks.
//!
//! An object waits in the queue of the client that holds a memory replica of it, is
//! fetched by that client, and ends when the client says how it went, when its time is
//! up, or when the object or the client has gone. The caller that queues an object keeps its
//! replica in place until it ends, so whatever ends one hands it back.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use mc_lease::{TimerKey, TimerWheel};
use mc_types::{ClientId, ErrorCode, Generation, KeyRef, ObjectKey, Time};
use thiserror::Error;

use crate::vocabulary::metrics::Totals;

#[cfg(test)]
mod tests;

/// Most clients that have a local disk.
pub const MAX_DISKS: usize = 1 << 16;

/// How long a client may have something to write and say nothing of it, and is still given more. What
/// it was given counts as room to come for as long.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a put waits for a disk: for one whose client is as silent, or where something has waited
/// for as long to be fetched, it does not wait.
pub(crate) const PROMPT: Duration = Duration::from_millis(500);

/// Most bytes that a client fetches at a time, unless a single object has more.
const MAX_FETCHED: u64 = 256 << 20;

/// Objects that failed once and are remembered, of one disk.
const MAX_FAILED: usize = 4096;

/// Limits of the way to local disks and back. The defaults are Mooncake's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffloadConfig {
    /// Objects that one client can have to write or be writing.
    pub queue_limit: usize,
    /// How long an object may wait to be fetched, and then to be written.
    pub task_timeout: Duration,
}

impl Default for OffloadConfig {
    fn default() -> Self {
        Self { queue_limit: 50_000, task_timeout: Duration::from_secs(600) }
    }
}

/// An object to move between a client's memory and its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierJob {
    /// The object's key, as it is stored.
    pub key: ObjectKey,
    /// The put that the object came from. Names the job: a later put of the key is
    /// another object.
    pub generation: Generation,
    /// Its length in bytes.
    pub len: u64,
}

/// The capacity, usage and queue of a client's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalDiskUsage {
    /// Whether the client takes objects to write.
    pub enabled: bool,
    /// Bytes of the objects written to it and not dropped since.
    pub used: u64,
    /// Bytes that it can hold, as its client says; zero before it does.
    pub capacity: u64,
    /// Objects waiting to be fetched.
    pub queued: usize,
    /// Objects fetched and not reported on yet.
    pub writing: usize,
    /// For how long the client has had objects to write and has neither fetched them nor reported any, or
    /// has been writing the oldest that it fetched, whichever is longer; as of the master's last tick.
    pub waits_for: Duration,
}

/// Every local disk and what is to be written to it.
///
/// An operation on one object takes O(log n) in the number of objects in its client's
/// queue, and those on many that for each object they return.
#[derive(Debug)]
pub(crate) struct Offloads {
    config: OffloadConfig,
    disks: BTreeMap<ClientId, Disk>,
    deadlines: TimerWheel<(ClientId, Generation)>,
    /// Objects queued so far.
    turns: u64,
    /// Bytes of memory that come free when all disks have written what they are to write.
    promised: u64,
    totals: Totals,
    /// When expired objects were last looked for.
    ticked: Time,
}

#[derive(Debug, Default)]
struct Disk {
    enabled: bool,
    capacity: u64,
    /// Whether its client is to be told to wipe it.
    wipe: bool,
    /// Since when its client has had objects to write and has neither fetched them nor reported any as
    /// written. Writes that time out meanwhile do not change it.
    owing: Option<Time>,
    /// Puts that there had been when its client was heard of last.
    puts: u64,
    /// Bytes of memory that come free when it has written what it is to write.
    promised: u64,
    /// Objects that it could not write once.
    failed: BTreeSet<Generation>,
    pending: BTreeMap<Generation, Pending>,
    /// Objects of `pending` that are not fetched yet, in the order of their arrival.
    queue: BTreeMap<u64, Generation>,
    /// Fetched objects of `pending`, with the time when they were fetched.
    fetched: BTreeSet<(Time, Generation)>,
}

#[derive(Debug)]
struct Pending {
    job: TierJob,
    /// Its place in the queue, until it is fetched.
    turn: Option<u64>,
    deadline: TimerKey,
    /// When it was queued or fetched.
    since: Time,
    /// Bytes of memory that come free when it is written.
    promised: u64,
}

impl Disk {
    /// How long its client has been silent though it has something to write.
    fn silence(&self, now: Time) -> Duration {
        self.owing.map_or(Duration::ZERO, |since| now - since)
    }

    /// Its client has asked what to write, or told what it wrote.
    fn heard(&mut self, now: Time) {
        self.owing = (!self.pending.is_empty()).then_some(now);
    }

    /// How long its client has been silent, or has been writing one object.
    fn waits_for(&self, now: Time) -> Duration {
        let writing = self.fetched.first().map_or(Duration::ZERO, |(since, _)| now - *since);
        self.silence(now).max(writing)
    }

    /// Returns whether its client writes, as far as is known.
    fn writes(&self, now: Time) -> bool {
        self.waits_for(now) < PATIENCE
    }

    /// Returns whether what it is to write will soon be written.
    fn keeps_up(&self, now: Time) -> bool {
        let first = self.queue.values().next().and_then(|first| self.pending.get(first));
        let waits = first.is_some_and(|first| now - first.since >= PROMPT);
        self.writes(now) && self.silence(now) < PROMPT && !waits
    }

    fn take(&mut self, generation: Generation) -> Option<Pending> {
        let pending = self.pending.remove(&generation)?;
        match pending.turn {
            Some(turn) => _ = self.queue.remove(&turn),
            None => _ = self.fetched.remove(&(pending.since, generation)),
        }
        self.promised -= pending.promised;
        Some(pending)
    }
}

impl Offloads {
    pub(crate) fn new(config: OffloadConfig) -> Self {
        Self {
            config,
            disks: BTreeMap::new(),
            deadlines: TimerWheel::new(),
            turns: 0,
            promised: 0,
            totals: Totals::default(),
            ticked: Time::ORIGIN,
        }
    }

    pub(crate) const fn totals(&self) -> Totals {
        self.totals
    }

    /// Notes that a client has a local disk. Mounting it again changes only whether it
    /// takes objects; what it no longer takes is handed back.
    ///
    /// # Errors
    /// [`OffloadError::TooManyDisks`].
    pub(crate) fn mount(
        &mut self,
        client: ClientId,
        enabled: bool,
    ) -> Result<Vec<TierJob>, OffloadError> {
        if !self.disks.contains_key(&client) && self.disks.len() == MAX_DISKS {
            return Err(OffloadError::TooManyDisks);
        }
        self.disks.entry(client).or_default();
        self.enable(client, enabled)
    }

    /// Notes whether a client takes objects. When it does not, those that it has not
    /// fetched are handed back.
    ///
    /// # Errors
    /// [`OffloadError::NoDisk`].
    pub(crate) fn enable(
        &mut self,
        client: ClientId,
        enabled: bool,
    ) -> Result<Vec<TierJob>, OffloadError> {
        let disk = self.disks.get_mut(&client).ok_or(OffloadError::NoDisk)?;
        disk.enabled = enabled;
        let dropped: Vec<Generation> =
            if enabled { Vec::new() } else { disk.queue.values().copied().collect() };
        Ok(dropped.into_iter().filter_map(|generation| self.cancel(client, generation)).collect())
    }

    /// Forgets a client's disk: it is unmounted, or the client has gone. What was to be
    /// written to it is handed back.
    pub(crate) fn unmount(&mut self, client: ClientId) -> Vec<TierJob> {
        let Some(disk) = self.disks.remove(&client) else { return Vec::new() };
        self.totals.offload_given_up += disk.pending.len() as u64;
        self.promised -= disk.promised;
        let cancel = |pending: Pending| {
            self.deadlines.cancel(pending.deadline);
            pending.job
        };
        disk.pending.into_values().map(cancel).collect()
    }

    /// Notes how many bytes a client's disk can hold.
    ///
    /// # Errors
    /// [`OffloadError::NoDisk`].
    pub(crate) fn set_capacity(
        &mut self,
        client: ClientId,
        bytes: u64,
    ) -> Result<(), OffloadError> {
        self.disks.get_mut(&client).ok_or(OffloadError::NoDisk)?.capacity = bytes;
        Ok(())
    }

    /// Returns the usage of a client's disk, without the bytes of the objects on it.
    pub(crate) fn usage(&self, client: ClientId) -> Option<LocalDiskUsage> {
        self.disks.get(&client).map(|disk| LocalDiskUsage {
            enabled: disk.enabled,
            used: 0,
            capacity: disk.capacity,
            queued: disk.queue.len(),
            writing: disk.pending.len() - disk.queue.len(),
            waits_for: disk.waits_for(self.ticked),
        })
    }

    /// Returns whether a client takes one more object to write.
    pub(crate) fn takes(&self, now: Time, client: ClientId) -> bool {
        self.disks.get(&client).is_some_and(|disk| {
            let has_room = disk.pending.len() < self.config.queue_limit;
            disk.enabled && has_room && disk.silence(now) < PATIENCE
        })
    }

    /// Queues an object for a client to write. The caller keeps the client's replica in
    /// place until the job comes back.
    ///
    /// # Errors
    /// [`OffloadError`]; nothing is queued then.
    pub(crate) fn queue(
        &mut self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        generation: Generation,
        len: u64,
    ) -> Result<(), OffloadError> {
        let limit = self.config.queue_limit;
        let disk = self.disks.get_mut(&client).ok_or(OffloadError::NoDisk)?;
        if !disk.enabled {
            return Err(OffloadError::Disabled);
        }
        if disk.silence(now) >= PATIENCE {
            return Err(OffloadError::Silent);
        }
        if disk.pending.contains_key(&generation) {
            return Err(OffloadError::AlreadyPending);
        }
        if disk.pending.len() >= limit {
            self.totals.offload_refused += 1;
            return Err(OffloadError::QueueFull { limit });
        }
        let turn = self.turns;
        self.turns += 1;
        let deadline =
            self.deadlines.schedule(now + self.config.task_timeout, (client, generation));
        let job = TierJob { key: key.to_owned(), generation, len };
        disk.owing.get_or_insert(now);
        let pending = Pending { job, turn: Some(turn), deadline, since: now, promised: 0 };
        disk.pending.insert(generation, pending);
        disk.queue.insert(turn, generation);
        self.totals.offload_queued += 1;
        Ok(())
    }

    /// Notes how many puts there were when a client was heard of. Returns whether these are others than the
    /// time before.
    pub(crate) fn note_puts(&mut self, client: ClientId, puts: u64) -> bool {
        let disk = self.disks.get_mut(&client);
        disk.is_some_and(|disk| core::mem::replace(&mut disk.puts, puts) != puts)
    }

    /// Returns whether a client has something to fetch, or its disk to wipe.
    pub(crate) fn has_work(&self, client: ClientId) -> bool {
        self.disks.get(&client).is_some_and(|disk| disk.wipe || !disk.queue.is_empty())
    }

    /// Hands a client up to `max` objects to write, and so many bytes, oldest first. Each is handed out
    /// once; if the answer is lost, it comes back when its time is up.
    ///
    /// # Errors
    /// [`OffloadError::NoDisk`]: the client is to mount it again and say what is on it.
    pub(crate) fn drain(
        &mut self,
        now: Time,
        client: ClientId,
        max: usize,
    ) -> Result<Vec<TierJob>, OffloadError> {
        let disk = self.disks.get_mut(&client).ok_or(OffloadError::NoDisk)?;
        disk.heard(now);
        let (mut jobs, mut bytes) = (Vec::with_capacity(max.min(disk.queue.len())), 0_u64);
        while jobs.len() < max
            && bytes < MAX_FETCHED
            && let Some((_, generation)) = disk.queue.pop_first()
        {
            let pending = disk.pending.get_mut(&generation).expect("what is queued is pending");
            (pending.turn, pending.since) = (None, now);
            disk.fetched.insert((now, generation));
            self.deadlines.cancel(pending.deadline);
            let due = now + self.config.task_timeout;
            pending.deadline = self.deadlines.schedule(due, (client, generation));
            bytes = bytes.saturating_add(pending.job.len);
            jobs.push(pending.job.clone());
        }
        Ok(jobs)
    }

    /// Notes that a client has written an object that it fetched.
    ///
    /// # Errors
    /// [`OffloadError::NoDisk`] or [`OffloadError::NotPending`]: the object has gone, or
    /// its time was up. What was written is of no use.
    pub(crate) fn written(
        &mut self,
        now: Time,
        client: ClientId,
        generation: Generation,
    ) -> Result<TierJob, OffloadError> {
        let job = self.end(now, client, generation)?;
        self.totals.offload_written += 1;
        self.totals.offload_written_bytes =
            self.totals.offload_written_bytes.saturating_add(job.len);
        Ok(job)
    }

    /// Notes that a client could not write an object that it fetched. Returns whether that was so
    /// before.
    ///
    /// # Errors
    /// [`OffloadError::NoDisk`] or [`OffloadError::NotPending`].
    pub(crate) fn failed(
        &mut self,
        now: Time,
        client: ClientId,
        generation: Generation,
    ) -> Result<bool, OffloadError> {
        self.end(now, client, generation)?;
        self.totals.offload_failed += 1;
        let failed = &mut self.disks.get_mut(&client).ok_or(OffloadError::NoDisk)?.failed;
        if failed.remove(&generation) {
            return Ok(true);
        }
        if failed.len() == MAX_FAILED {
            failed.clear();
        }
        failed.insert(generation);
        Ok(false)
    }

    /// Notes that memory comes free when an object is written.
    pub(crate) fn promise(&mut self, client: ClientId, generation: Generation, bytes: u64) {
        let Some(disk) = self.disks.get_mut(&client) else { return };
        let Some(pending) = disk.pending.get_mut(&generation) else { return };
        disk.promised = disk.promised - pending.promised + bytes;
        self.promised = self.promised - pending.promised + bytes;
        pending.promised = bytes;
    }

    /// Returns whether so many bytes come free soon: a put may wait for them.
    pub(crate) fn promises_soon(&self, now: Time, bytes: u64) -> bool {
        self.promised >= bytes && self.promised_if(bytes, |disk| disk.keeps_up(now)) >= bytes
    }

    /// The bytes that come free, leaving out disks of whose clients nothing is heard.
    pub(crate) fn promised(&self, now: Time) -> u64 {
        match self.promised {
            0 => 0,
            _ => self.promised_if(u64::MAX, |disk| disk.writes(now)),
        }
    }

    /// Returns the bytes that these disks promise, or `enough`.
    fn promised_if(&self, enough: u64, counts: impl Fn(&Disk) -> bool) -> u64 {
        let disks = self.disks.values().filter(|disk| disk.promised > 0 && counts(disk));
        let mut sum = 0_u64;
        for disk in disks {
            sum = sum.saturating_add(disk.promised);
            if sum >= enough {
                break;
            }
        }
        sum
    }

    /// Objects that were to be written before their memory goes, on disks that do not keep up: for so
    /// many bytes, at most `max`, those that have waited for longest first.
    pub(crate) fn late(&self, now: Time, bytes: u64, max: usize) -> Vec<TierJob> {
        if self.promised == 0 {
            return Vec::new();
        }
        let late = self.disks.values().filter(|disk| disk.promised > 0 && !disk.keeps_up(now));
        let jobs = late.flat_map(|disk| {
            let fetched = disk.fetched.iter().map(|(_, generation)| generation);
            disk.queue.values().chain(fetched).filter_map(|waiting| disk.pending.get(waiting))
        });
        let mut found = 0;
        let jobs = jobs.filter(|pending| pending.promised > 0).take(max).take_while(|pending| {
            let is_wanted = found < bytes;
            found += pending.promised;
            is_wanted
        });
        jobs.map(|pending| pending.job.clone()).collect()
    }

    /// Gives an object up that is not written yet, because it has gone.
    pub(crate) fn cancel(&mut self, client: ClientId, generation: Generation) -> Option<TierJob> {
        let pending = self.disks.get_mut(&client)?.take(generation)?;
        self.promised -= pending.promised;
        self.deadlines.cancel(pending.deadline);
        self.totals.offload_given_up += 1;
        Some(pending.job)
    }

    /// Hands back up to `limit` objects whose time is up.
    pub(crate) fn expire(&mut self, now: Time, limit: usize) -> Vec<(ClientId, TierJob)> {
        self.ticked = now;
        let mut expired = Vec::new();
        while expired.len() < limit
            && let Some((_, (client, generation))) = self.deadlines.pop_due(now)
        {
            expired.extend(self.cancel(client, generation).map(|job| (client, job)));
        }
        expired
    }

    /// Gives everything up that is not written yet, and has every client wipe its disk.
    pub(crate) fn clear(&mut self) -> Vec<(ClientId, TierJob)> {
        let mut dropped = Vec::new();
        self.promised = 0;
        for (client, disk) in &mut self.disks {
            disk.wipe = true;
            disk.promised = 0;
            disk.queue.clear();
            disk.fetched.clear();
            for pending in core::mem::take(&mut disk.pending).into_values() {
                self.deadlines.cancel(pending.deadline);
                dropped.push((*client, pending.job));
            }
        }
        self.totals.offload_given_up += dropped.len() as u64;
        dropped
    }

    /// Returns whether a client is to wipe its disk; says so once.
    pub(crate) fn take_wipe(&mut self, client: ClientId) -> bool {
        self.disks.get_mut(&client).is_some_and(|disk| core::mem::take(&mut disk.wipe))
    }

    fn end(
        &mut self,
        now: Time,
        client: ClientId,
        generation: Generation,
    ) -> Result<TierJob, OffloadError> {
        let disk = self.disks.get_mut(&client).ok_or(OffloadError::NoDisk)?;
        // No client can have written what no client has fetched.
        let is_fetched = disk.pending.get(&generation).is_some_and(|it| it.turn.is_none());
        let pending = if is_fetched { disk.take(generation) } else { None };
        disk.heard(now);
        let pending = pending.ok_or(OffloadError::NotPending)?;
        self.promised -= pending.promised;
        self.deadlines.cancel(pending.deadline);
        Ok(pending.job)
    }
}

/// Why an object is not written to a local disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The client has mounted no local disk.
    #[error("the client has no local disk mounted; mount it and report what is on it")]
    NoDisk,
    /// The client takes no objects now.
    #[error("the client takes no objects for its local disk")]
    Disabled,
    /// The client has something to write, and has said nothing of it for a while.
    #[error("the client has said nothing of what it is to write for {PATIENCE:?}")]
    Silent,
    /// The client has as much to write as it may.
    #[error("{limit} objects wait to be written to this disk, which is the limit")]
    QueueFull {
        /// The most it may have.
        limit: usize,
    },
    /// The client is to write this very object already.
    #[error("the object is on its way to this disk already")]
    AlreadyPending,
    /// The client was not given this object, or too long ago.
    #[error("the client is not to write this object, or not any more; delete what was written")]
    NotPending,
    /// No more disks can be mounted.
    #[error("{MAX_DISKS} local disks are mounted, which is the limit")]
    TooManyDisks,
    /// The object's tenant has as many bytes on disks as it may.
    #[error("the tenant has as many bytes on disks as its quota allows; remove some, or raise it")]
    OverQuota,
    /// The disk has the most objects that it may have.
    #[error("as many objects are on this disk as may be; delete what was written, and the oldest")]
    TooManyObjects,
}

impl OffloadError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NoDisk => ErrorCode::SegmentNotFound,
            Self::Disabled | Self::Silent => ErrorCode::UnableOffloading,
            Self::QueueFull { .. } | Self::TooManyObjects => ErrorCode::OffloadQueueFull,
            Self::AlreadyPending => ErrorCode::ObjectHasReplicationTask,
            Self::NotPending => ErrorCode::ObjectNoReplicationTask,
            Self::OverQuota => ErrorCode::TenantQuotaExceeded,
            Self::TooManyDisks => ErrorCode::Overloaded,
        }
    }

    /// Returns whether the same call may succeed later: the client writes what it has.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::QueueFull { .. } | Self::Silent)
    }
}
