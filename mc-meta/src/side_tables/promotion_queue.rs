//! The book of objects that are to come back from local disks into memory.
//!
//! A read that finds an object on a disk only is a [`hit`](Promotions::hit). Hit often
//! enough, the object is queued for the client whose disk it is on, or, when there is no
//! room just then, becomes a candidate that is tried again. The client fetches it, is
//! given memory, and says how it went.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use mc_evict::FrequencySketch;
use mc_lease::{TimerKey, TimerWheel};
use mc_types::{ClientId, ErrorCode, Generation, KeyRef, Time};
use thiserror::Error;

use crate::side_tables::offload_queue::TierJob;
use crate::vocabulary::hash::mix;
use crate::vocabulary::metrics::Totals;

#[cfg(test)]
mod tests;

/// Tries of a candidate before it is dropped, and how long it is tried.
const MAX_TRIES: u32 = 8;
const CANDIDATE_LIFE: Duration = Duration::from_secs(60);

/// How long a candidate waits between tries: doubling from the first to the second.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// The part of the queue that one client may have, and what it may always have.
const CLIENT_PART: usize = 16;
const CLIENT_LEAST: usize = 64;

/// How long a client may have something to fetch and not ask for it. Then it loses what is queued for it, and
/// gets nothing more until it asks.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it is remembered that a client is silent, or brings files back, without news of it.
const MEMORY: Duration = Duration::from_secs(60);

/// When objects come back into memory. The defaults are Mooncake's. Zero
/// counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromotionConfig {
    /// Reads, lately, after which an object is worth it.
    pub admission_threshold: u8,
    /// Objects that can be queued or on their way, for all clients together.
    pub queue_limit: usize,
    /// Objects that can wait to be tried again.
    pub candidate_limit: usize,
    /// Objects that a client gets at a time.
    pub max_per_heartbeat: usize,
    /// How long each step may take: to be fetched, to be given memory, to be read.
    pub task_timeout: Duration,
}

impl Default for PromotionConfig {
    fn default() -> Self {
        Self {
            admission_threshold: 2,
            queue_limit: 50_000,
            candidate_limit: 50_000,
            max_per_heartbeat: 1,
            task_timeout: Duration::from_secs(600),
        }
    }
}

/// A read of an object that is on a disk only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TierHit<'a> {
    /// The client whose disk it is on.
    pub(crate) owner: ClientId,
    /// Its key, as it is stored.
    pub(crate) key: KeyRef<'a>,
    /// The key's hash.
    pub(crate) hash: u64,
    pub(crate) generation: Generation,
    pub(crate) len: u64,
}

/// The outcome of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The object is not read often enough.
    Cold,
    /// The object is queued, on its way, or a candidate already.
    Known,
    /// The object is queued.
    Queued,
    /// The object is a candidate, because memory is above its watermark.
    NoRoom,
    /// The object is a candidate, because too many others are queued, or too many for its client.
    QueueFull,
    /// Its client does not ask for what is queued for it.
    Silent,
    /// Too many others are candidates too.
    Dropped,
}

/// An object that is on its way no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndedPromotion {
    pub(crate) job: TierJob,
    owner: ClientId,
    /// Whether it was given memory, which is to be taken back.
    pub(crate) begun: bool,
}

/// Every object that is to come back from a disk.
///
/// An operation on one object takes O(log n) in the number known, which the
/// configuration bounds; those on many that for each object they look at.
#[derive(Debug)]
pub(crate) struct Promotions {
    config: PromotionConfig,
    /// How often keys were read lately.
    sketch: FrequencySketch<4096>,
    seed: u64,
    known: BTreeMap<Generation, Promotion>,
    /// Number of candidates in `known`; the others are tasks.
    candidates: usize,
    /// Tasks that are not fetched yet, by client in the order of their arrival.
    queues: BTreeMap<(ClientId, u64), Generation>,
    /// The clients for which something is in `queues`, and since when they owe it to ask.
    waiting: BTreeMap<ClientId, Waiting>,
    /// The same, by time.
    owing: BTreeSet<(Time, ClientId)>,
    /// Clients that did not ask in time, and since when that is known.
    silent: BTreeMap<ClientId, Time>,
    /// Clients without a disk that bring files back, and when they said so last.
    takers: BTreeMap<ClientId, Time>,
    /// When those of both are forgotten next that were not heard of for long.
    forget_at: Time,
    retries: TimerWheel<Generation>,
    deadlines: TimerWheel<Generation>,
    /// Tasks queued so far.
    turns: u64,
    totals: Totals,
}

/// The queue of one client.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    tasks: usize,
    since: Time,
}

#[derive(Debug)]
struct Promotion {
    job: TierJob,
    owner: ClientId,
    /// The time when a candidate is tried again, or a task expires.
    timer: TimerKey,
    stage: Stage,
}

/// Where an object is on its way. It only moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Tried again from time to time.
    Candidate { since: Time, tries: u32 },
    /// Waiting for its client, in this place.
    Queued(u64),
    /// Its client knows.
    Fetched,
    /// Its client has memory to read it into.
    PendingPut,
}

impl Promotions {
    /// A book without objects. `seed` decides which keys count as one another.
    pub(crate) fn new(config: PromotionConfig, seed: u64) -> Self {
        Self {
            config,
            sketch: FrequencySketch::new(),
            seed: mix(seed),
            known: BTreeMap::new(),
            candidates: 0,
            queues: BTreeMap::new(),
            waiting: BTreeMap::new(),
            owing: BTreeSet::new(),
            silent: BTreeMap::new(),
            takers: BTreeMap::new(),
            forget_at: Time::ORIGIN,
            retries: TimerWheel::new(),
            deadlines: TimerWheel::new(),
            turns: 0,
            totals: Totals::default(),
        }
    }

    pub(crate) const fn totals(&self) -> Totals {
        self.totals
    }

    /// Objects queued or on their way.
    pub(crate) fn tasks(&self) -> usize {
        self.known.len() - self.candidates
    }

    /// Objects that wait to be tried again.
    pub(crate) const fn candidates(&self) -> usize {
        self.candidates
    }

    /// Counts a read, and queues the object if it is worth it. `room` says whether
    /// memory is below its watermark.
    pub(crate) fn hit(&mut self, now: Time, hit: &TierHit<'_>, room: bool) -> Admission {
        self.totals.promotion_hits += 1;
        if self.sketch.touch(mix(hit.hash ^ self.seed)) < self.config.admission_threshold {
            self.totals.promotion_cold += 1;
            return Admission::Cold;
        }
        if self.known.contains_key(&hit.generation) {
            return Admission::Known;
        }
        let job = || TierJob { key: hit.key.to_owned(), generation: hit.generation, len: hit.len };
        if !self.asks(hit.owner, now) {
            self.totals.promotion_dropped += 1;
            return Admission::Silent;
        }
        let Some(refusal) = self.refusal(hit.owner, room) else {
            self.enqueue(now, hit.owner, job());
            return Admission::Queued;
        };
        if self.candidates >= self.config.candidate_limit.max(1) {
            self.totals.promotion_dropped += 1;
            return Admission::Dropped;
        }
        let timer = self.retries.schedule(now + FIRST_BACKOFF, hit.generation);
        let stage = Stage::Candidate { since: now, tries: 0 };
        self.known.insert(hit.generation, Promotion { job: job(), owner: hit.owner, timer, stage });
        self.candidates += 1;
        refusal
    }

    /// Tries up to `limit` candidates again that are due; says how many were queued.
    pub(crate) fn retry(&mut self, now: Time, room: bool, limit: usize) -> usize {
        let mut queued = 0;
        for _ in 0..limit {
            let Some((_, generation)) = self.retries.pop_due(now) else { break };
            let candidate = self.known.remove(&generation).expect("timers go with candidates");
            self.candidates -= 1;
            let Stage::Candidate { since, tries } = candidate.stage else {
                unreachable!("only candidates are tried again");
            };
            if now - since > CANDIDATE_LIFE || !self.asks(candidate.owner, now) {
                self.totals.promotion_exhausted += 1;
            } else if self.refusal(candidate.owner, room).is_none() {
                self.enqueue(now, candidate.owner, candidate.job);
                queued += 1;
            } else if tries + 1 == MAX_TRIES {
                self.totals.promotion_exhausted += 1;
            } else {
                let timer = self.retries.schedule(now + backoff(tries + 1), generation);
                let stage = Stage::Candidate { since, tries: tries + 1 };
                self.known.insert(generation, Promotion { timer, stage, ..candidate });
                self.candidates += 1;
            }
        }
        queued
    }

    /// Returns whether a client is to ask: there is something for it to fetch, or nothing is queued for it
    /// before it does.
    pub(crate) fn waits_for(&self, owner: ClientId) -> bool {
        self.waiting.contains_key(&owner) || self.silent.contains_key(&owner)
    }

    /// Notes that a client without a disk brings files back.
    pub(crate) fn takes_files(&mut self, now: Time, client: ClientId) {
        self.takers.insert(client, now);
    }

    /// Returns whether a client without a disk has said lately that it brings files back.
    pub(crate) fn is_taker(&self, client: ClientId, now: Time) -> bool {
        self.takers.get(&client).is_some_and(|said| now - *said < MEMORY)
    }

    /// Returns whether a client asks for what is queued for it, as far as is known.
    pub(crate) fn asks(&self, client: ClientId, now: Time) -> bool {
        let is_late = |waiting: &Waiting| now - waiting.since >= PATIENCE;
        !self.silent.contains_key(&client) && !self.waiting.get(&client).is_some_and(is_late)
    }

    /// Drops up to `limit` tasks that their clients have not asked for in time.
    pub(crate) fn drop_unfetched(&mut self, now: Time, limit: usize) {
        if self.forget_at <= now {
            self.forget_at = now + MEMORY;
            let is_fresh = |_: &ClientId, heard: &mut Time| now - *heard < MEMORY;
            self.silent.retain(is_fresh);
            self.takers.retain(is_fresh);
        }
        for _ in 0..limit {
            let late = self.owing.first().filter(|(since, _)| now - *since >= PATIENCE);
            let Some(&(_, owner)) = late else { return };
            self.silent.insert(owner, now);
            let first = self.queues.range((owner, 0)..=(owner, u64::MAX)).next();
            let (_, &generation) = first.expect("clients that are waited for have tasks");
            self.take(generation);
            self.totals.promotion_expired += 1;
        }
    }

    /// Hands a client the next objects to bring back from its disk, oldest first. Each
    /// is handed out once.
    pub(crate) fn drain(&mut self, now: Time, owner: ClientId) -> Vec<TierJob> {
        self.silent.remove(&owner);
        let turns: Vec<u64> = self
            .queues
            .range((owner, 0)..=(owner, u64::MAX))
            .map(|((_, turn), _)| *turn)
            .take(self.config.max_per_heartbeat.max(1))
            .collect();
        let mut jobs = Vec::with_capacity(turns.len());
        for turn in turns {
            let generation = self.unqueue(owner, turn).expect("just seen");
            jobs.push(self.advance(now, generation, Stage::Fetched).job.clone());
        }
        if let Some(waiting) = self.waiting.get_mut(&owner) {
            self.owing.remove(&(waiting.since, owner));
            waiting.since = now;
            self.owing.insert((now, owner));
        }
        jobs
    }

    /// Notes that a client that fetched an object asks for memory to read it into.
    ///
    /// # Errors
    /// [`PromotionError`]; the client gets no memory then.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        client: ClientId,
        generation: Generation,
        len: u64,
    ) -> Result<&TierJob, PromotionError> {
        let task = self.task(client, generation)?;
        match task.stage {
            Stage::PendingPut => return Err(PromotionError::AlreadyBegun),
            Stage::Fetched if task.job.len == len => {}
            Stage::Fetched => {
                return Err(PromotionError::WrongLength { given: len, len: task.job.len });
            }
            Stage::Queued(_) | Stage::Candidate { .. } => return Err(PromotionError::NoTask),
        }
        Ok(&self.advance(now, generation, Stage::PendingPut).job)
    }

    /// Notes that a client has read an object into the memory that it was given.
    ///
    /// # Errors
    /// [`PromotionError`]; what is in that memory is not to be used then.
    pub(crate) fn finish(
        &mut self,
        client: ClientId,
        generation: Generation,
    ) -> Result<TierJob, PromotionError> {
        if self.task(client, generation)?.stage != Stage::PendingPut {
            return Err(PromotionError::NoTask);
        }
        let ended = self.take(generation).ok_or(PromotionError::NoTask)?;
        self.totals.promotion_promoted += 1;
        self.totals.promotion_promoted_bytes =
            self.totals.promotion_promoted_bytes.saturating_add(ended.job.len);
        Ok(ended.job)
    }

    /// Notes that a client could not bring an object back. `None` when it is over
    /// already: this may be said twice.
    ///
    /// # Errors
    /// [`PromotionError::IllegalClient`].
    pub(crate) fn fail(
        &mut self,
        client: ClientId,
        generation: Generation,
    ) -> Result<Option<EndedPromotion>, PromotionError> {
        match self.task(client, generation) {
            Ok(_) => {
                self.totals.promotion_failed += 1;
                Ok(self.take(generation))
            }
            Err(PromotionError::NoTask) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives an object up, because it has gone or is in memory by other means.
    pub(crate) fn cancel(&mut self, generation: Generation) -> Option<EndedPromotion> {
        let tasks = self.tasks();
        let ended = self.take(generation)?;
        self.totals.promotion_cancelled += (tasks - self.tasks()) as u64;
        Some(ended)
    }

    /// Gives up everything on the disk of a client that has gone.
    pub(crate) fn client_gone(&mut self, owner: ClientId) -> Vec<EndedPromotion> {
        self.silent.remove(&owner);
        self.takers.remove(&owner);
        self.cancel_all(|promotion| promotion.owner == owner)
    }

    /// Gives everything up.
    pub(crate) fn clear(&mut self) -> Vec<EndedPromotion> {
        self.cancel_all(|_| true)
    }

    /// Hands back up to `limit` objects whose time is up.
    pub(crate) fn expire(&mut self, now: Time, limit: usize) -> Vec<EndedPromotion> {
        let mut expired = Vec::new();
        while expired.len() < limit
            && let Some((_, generation)) = self.deadlines.pop_due(now)
        {
            expired.extend(self.take(generation));
            self.totals.promotion_expired += 1;
        }
        expired
    }

    fn cancel_all(&mut self, which: impl Fn(&Promotion) -> bool) -> Vec<EndedPromotion> {
        let chosen: Vec<Generation> = self
            .known
            .iter()
            .filter(|(_, promotion)| which(promotion))
            .map(|(generation, _)| *generation)
            .collect();
        chosen.into_iter().filter_map(|generation| self.cancel(generation)).collect()
    }

    /// Why nothing can be queued for this client now.
    fn refusal(&mut self, owner: ClientId, room: bool) -> Option<Admission> {
        let limit = self.config.queue_limit;
        let waiting = self.waiting.get(&owner).map_or(0, |waiting| waiting.tasks);
        if !room {
            self.totals.promotion_no_room += 1;
            Some(Admission::NoRoom)
        } else if self.tasks() >= limit.max(1) || waiting >= (limit / CLIENT_PART).max(CLIENT_LEAST)
        {
            self.totals.promotion_queue_full += 1;
            Some(Admission::QueueFull)
        } else {
            None
        }
    }

    fn enqueue(&mut self, now: Time, owner: ClientId, job: TierJob) {
        let (generation, turn) = (job.generation, self.turns);
        self.turns += 1;
        let timer = self.deadlines.schedule(now + self.config.task_timeout, generation);
        self.queues.insert((owner, turn), generation);
        let waiting = self.waiting.entry(owner).or_insert_with(|| {
            self.owing.insert((now, owner));
            Waiting { tasks: 0, since: now }
        });
        waiting.tasks += 1;
        let stage = Stage::Queued(turn);
        self.known.insert(generation, Promotion { job, owner, timer, stage });
        self.totals.promotion_queued += 1;
    }

    /// Takes a task that is not fetched out of its client's queue.
    fn unqueue(&mut self, owner: ClientId, turn: u64) -> Option<Generation> {
        let generation = self.queues.remove(&(owner, turn))?;
        let waiting = self.waiting.get_mut(&owner).expect("its client is waited for");
        waiting.tasks -= 1;
        if waiting.tasks == 0 {
            self.owing.remove(&(waiting.since, owner));
            self.waiting.remove(&owner);
        }
        Some(generation)
    }

    /// The object if it is queued or on its way for this client.
    fn task(&self, client: ClientId, generation: Generation) -> Result<&Promotion, PromotionError> {
        let task = self.known.get(&generation);
        let task = task.filter(|task| !matches!(task.stage, Stage::Candidate { .. }));
        match task {
            None => Err(PromotionError::NoTask),
            Some(task) if task.owner != client => Err(PromotionError::IllegalClient),
            Some(task) => Ok(task),
        }
    }

    /// Moves a task on, with as much time again.
    fn advance(&mut self, now: Time, generation: Generation, stage: Stage) -> &Promotion {
        let task = self.known.get_mut(&generation).expect("queues name tasks that are known");
        self.deadlines.cancel(task.timer);
        task.timer = self.deadlines.schedule(now + self.config.task_timeout, generation);
        task.stage = stage;
        task
    }

    /// Takes an object out of every table.
    fn take(&mut self, generation: Generation) -> Option<EndedPromotion> {
        let Promotion { job, owner, timer, stage } = self.known.remove(&generation)?;
        match stage {
            Stage::Candidate { .. } => {
                self.retries.cancel(timer);
                self.candidates -= 1;
            }
            Stage::Queued(turn) => {
                self.deadlines.cancel(timer);
                self.unqueue(owner, turn);
            }
            Stage::Fetched | Stage::PendingPut => {
                self.deadlines.cancel(timer);
            }
        }
        Some(EndedPromotion { job, owner, begun: stage == Stage::PendingPut })
    }
}

/// How long a candidate waits after it was tried so often.
fn backoff(tries: u32) -> Duration {
    FIRST_BACKOFF.saturating_mul(1 << tries.min(MAX_TRIES)).min(LONGEST_BACKOFF)
}

/// Why a client is not to bring an object back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PromotionError {
    /// The client was not told to, or too long ago, or the object has gone.
    #[error("the object is not to be brought back, or not any more")]
    NoTask,
    /// Another client is.
    #[error("the object is on another client's disk")]
    IllegalClient,
    /// The object has been given memory already.
    #[error("memory has been given for this object already")]
    AlreadyBegun,
    /// The object has another length.
    #[error("the object has {len} bytes, not {given}")]
    WrongLength {
        /// The length that the client gave, in bytes.
        given: u64,
        /// The object's length in bytes.
        len: u64,
    },
}

impl PromotionError {
    /// The cause's number.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::NoTask => ErrorCode::ReplicaIsNotReady,
            Self::IllegalClient => ErrorCode::IllegalClient,
            Self::AlreadyBegun => ErrorCode::ObjectHasReplicationTask,
            Self::WrongLength { .. } => ErrorCode::InvalidParams,
        }
    }

    /// Returns whether the same call may succeed later.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        false
    }
}
