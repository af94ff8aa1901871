//! A worker: reads objects back, has them converted, and stores the results.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use mc_c2c::{ConvertError, Part, Projector};
use mc_meta::ReplicateConfig;
use mc_rpc::{Refusal, ReplicaList};
use mc_transport::{BufferPool, Memory};
use mc_types::{Generation, KeyRef, ObjectKey};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::conversions::{Conversions, Failure, Job};
use crate::client::core::Core;
use crate::client::metrics::C2cSkip;
use crate::client::put::{Put, PutMode, PutOutcome};
use crate::client::read::{Item, Target};
use crate::error::GetError;

/// Most objects that are read, converted and stored together.
const BATCH: usize = 32;

/// A conversion of a batch.
struct Task {
    key: ObjectKey,
    /// The put that the source is of.
    generation: Generation,
    source: Bytes,
    rule: usize,
    part: Part,
    target_key: String,
    replaces: bool,
    since: Instant,
}

/// A converted object.
struct Converted {
    /// The key of its source.
    key: ObjectKey,
    generation: Generation,
    target_key: String,
    value: Memory,
    source_len: usize,
    replaces: bool,
    since: Instant,
}

/// Starts the workers; they end with the client.
pub(in crate::client) fn start(core: &Arc<Core>) {
    let Some(conversions) = &core.c2c else { return };
    for queue in conversions.take_queues() {
        core.background.spawn(run(Arc::downgrade(core), queue));
    }
}

/// Converts what comes through the queue, until the client is gone.
async fn run(core: Weak<Core>, mut queue: mpsc::Receiver<Job>) {
    let mut batch = 1;
    while let Some(first) = queue.recv().await {
        let Some(core) = core.upgrade() else { return };
        let Some(conversions) = core.c2c.clone() else { return };
        conversions.give_way().await;
        let mut jobs = vec![first];
        jobs.extend(std::iter::from_fn(|| queue.try_recv().ok()).take(batch - 1));
        let count: usize = jobs.iter().map(|job| job.matches.len()).sum();
        let number = jobs.len();
        let worker = Worker { core: &core, conversions: &conversions };
        let bytes = worker.convert_batch(jobs).await;
        conversions.counts.taken(count);
        // As many of this length as the worker's part of the buffers has room for.
        let room = conversions.config.buffer_size as usize / conversions.queues.len();
        if let Some(fit) = room.checked_div(bytes / number) {
            batch = fit.clamp(1, BATCH);
        }
    }
}

/// A client that converts.
#[derive(Clone, Copy)]
struct Worker<'c> {
    core: &'c Arc<Core>,
    conversions: &'c Arc<Conversions>,
}

impl Worker<'_> {
    /// Returns the bytes that the batch took in memory, 0 if nothing had to be read.
    async fn convert_batch(&self, jobs: Vec<Job>) -> usize {
        let jobs = self.leave_out_existing(jobs).await;
        let tasks = self.read_sources(jobs).await;
        if tasks.is_empty() {
            return 0;
        }
        let read: usize = tasks.iter().map(|task| task.source.len()).sum();
        let (count, first) = (tasks.len(), tasks[0].key.as_str().to_owned());
        let (own, pool) = (Arc::clone(self.conversions), self.core.pool.clone());
        let work = move || own.convert(tasks, &pool);
        let Some(Ok(converted)) = self.core.tiers.environment.in_background(work).await else {
            self.conversions.skip(C2cSkip::NoMemory, count, &first, &"there is no thread for it");
            return read;
        };
        self.conversions.give_way().await;
        let converted = self.leave_out_replaced(converted).await;
        let stored: usize = converted.iter().map(|it| it.value.len()).sum();
        let (puts, upserts): (Vec<_>, Vec<_>) = converted.into_iter().partition(|it| !it.replaces);
        self.store_converted(puts, PutMode::Put).await;
        self.store_converted(upserts, PutMode::Upsert).await;
        read + stored
    }

    /// Leaves out what another client, or an earlier run, has converted.
    async fn leave_out_existing(&self, mut jobs: Vec<Job>) -> Vec<Job> {
        let puts = jobs.iter().filter(|job| !job.replaces);
        let targets = puts.flat_map(|job| &job.matches).map(|found| &*found.target_key);
        // An invalid one fails when it is stored.
        let targets: Vec<KeyRef<'_>> = targets.filter_map(|key| KeyRef::new(key).ok()).collect();
        // Without an answer all are converted.
        let Ok(answers) = self.core.link.master.batch_exist(&targets).await else { return jobs };
        let there: std::collections::HashSet<String> = targets
            .iter()
            .zip(answers)
            .filter(|(_, answer)| matches!(answer, Ok(true)))
            .map(|(key, _)| key.as_str().to_owned())
            .collect();
        for job in jobs.iter_mut().filter(|job| !job.replaces) {
            let before = job.matches.len();
            job.matches.retain(|found| !there.contains(&found.target_key));
            let skipped = before - job.matches.len();
            if skipped != 0 {
                self.conversions.skip(C2cSkip::Existing, skipped, job.key.as_str(), &"it is there");
            }
        }
        jobs.retain(|job| !job.matches.is_empty());
        jobs
    }

    /// Reads the objects into the pool.
    async fn read_sources(&self, jobs: Vec<Job>) -> Vec<Task> {
        let keys = jobs.iter().map(|job| job.key.as_str());
        let mut items: Vec<Item<'_>> =
            keys.map(|key| Item::new(key, None, None, Target::OWNED)).collect();
        self.core.reader().get_all(&mut items).await;
        let generation = |item: &Item<'_>| item.read_of().map(|(_, generation)| generation);
        let values: Vec<_> =
            items.into_iter().map(|item| (generation(&item), item.into_bytes())).collect();
        let mut tasks = Vec::with_capacity(jobs.len());
        for (job, (generation, value)) in jobs.into_iter().zip(values) {
            let key = job.key.clone();
            match value {
                Ok(source) => tasks.extend(job.matches.into_iter().map(|found| Task {
                    key: key.clone(),
                    generation: generation.expect("what was read is of a put"),
                    source: source.clone(),
                    rule: found.rule,
                    part: found.part,
                    target_key: found.target_key,
                    replaces: job.replaces,
                    since: job.since,
                })),
                Err(error) => {
                    let cause = match error {
                        GetError::NotFound | GetError::NotReady => C2cSkip::SourceGone,
                        GetError::Memory(_) => C2cSkip::NoMemory,
                        _ => C2cSkip::ReadFailed,
                    };
                    self.conversions.skip(cause, job.matches.len(), key.as_str(), &error);
                }
            }
        }
        tasks
    }

    /// Leaves out what was made from a value that another put has replaced: the newer value's own
    /// conversion may be stored already.
    async fn leave_out_replaced(&self, converted: Vec<Converted>) -> Vec<Converted> {
        let replaced = self.are_replaced(converted.iter()).await;
        let mut left = Vec::with_capacity(converted.len());
        for (it, is_replaced) in converted.into_iter().zip(replaced) {
            if is_replaced {
                let why = "another value has replaced it";
                self.conversions.skip(C2cSkip::SourceGone, 1, it.key.as_str(), &why);
            } else {
                left.push(it);
            }
        }
        left
    }

    /// Returns for each converted object whether its source has the value of another put now; no
    /// when there is no source any more, or no answer.
    async fn are_replaced(&self, converted: impl Iterator<Item = &Converted>) -> Vec<bool> {
        let (keys, made_from): (Vec<KeyRef<'_>>, Vec<Generation>) =
            converted.map(|it| (it.key.as_ref(), it.generation)).unzip();
        if keys.is_empty() {
            return Vec::new();
        }
        let Ok(mut answers) = self.core.link.master.batch_get_replica_list(&keys).await else {
            return vec![false; keys.len()];
        };
        self.core.tiers.find_unlisted(&keys, &mut answers).await;
        let is_replaced =
            |(answer, made_from): (Result<ReplicaList, Refusal>, Generation)| match answer {
                Ok(list) => list.generation != made_from,
                Err(_) => false,
            };
        answers.into_iter().zip(made_from).map(is_replaced).collect()
    }

    async fn store_converted(&self, converted: Vec<Converted>, mode: PutMode) {
        if converted.is_empty() {
            return;
        }
        let puts = converted.iter().map(|it| Put::new(&it.target_key, it.value.whole())).collect();
        let outcomes = self.core.store_own(puts, &ReplicateConfig::default(), mode).await;
        let is_stored = |outcome: &Result<_, _>| matches!(outcome, Ok(PutOutcome::Stored));
        let stored = converted.iter().zip(&outcomes).filter(|(_, outcome)| is_stored(outcome));
        let stored: Vec<&Converted> = stored.map(|(it, _)| it).collect();
        // Of two clients the one that stores last looks last, and converts what is there by then. So
        // the last conversion that is stored is one of the last value.
        for (it, is_replaced) in stored.iter().zip(self.are_replaced(stored.iter().copied()).await)
        {
            if is_replaced {
                self.conversions.stored(&it.key, true);
            }
        }
        for (it, outcome) in converted.iter().zip(outcomes) {
            match outcome {
                Ok(PutOutcome::Stored) => {
                    let (read, stored) = (it.source_len, it.value.len());
                    self.conversions.counts.converted(read, stored, it.since.elapsed());
                }
                Ok(PutOutcome::Existing | PutOutcome::Pending) => {
                    self.conversions.skip(C2cSkip::Existing, 1, &it.target_key, &"it is there");
                }
                Err(error) => self.conversions.skip(C2cSkip::PutFailed, 1, &it.target_key, &error),
            }
        }
    }
}

impl Conversions {
    /// Converts a batch, and counts what cannot be converted.
    fn convert(&self, tasks: Vec<Task>, pool: &BufferPool) -> Vec<Converted> {
        let mut scratch = Vec::new();
        let mut done = Vec::with_capacity(tasks.len());
        for task in tasks {
            let Task { key, generation, source, rule, part, target_key, replaces, since } = task;
            let converter = match self.converter(rule) {
                Ok(converter) => converter,
                Err(error) => {
                    self.skip(C2cSkip::Weights, 1, key.as_str(), &error);
                    continue;
                }
            };
            if matches!(**converter.projector(), Projector::Full(_)) {
                let why = "the projector needs the target model's object; call convert";
                self.skip(C2cSkip::NeedsTarget, 1, key.as_str(), &why);
                continue;
            }
            match self.compute(&converter, part, (&source, None), &mut scratch, pool) {
                Ok(value) => {
                    let source_len = source.len();
                    done.push(Converted {
                        key,
                        generation,
                        target_key,
                        value,
                        source_len,
                        replaces,
                        since,
                    });
                }
                Err(Failure::Memory(error)) => {
                    self.skip(C2cSkip::NoMemory, 1, key.as_str(), &error);
                }
                Err(Failure::Convert(error)) => {
                    let cause = match error {
                        ConvertError::NotFinite { .. } | ConvertError::Overflow { .. } => {
                            C2cSkip::NotFinite
                        }
                        _ => C2cSkip::WrongLength,
                    };
                    self.skip(cause, 1, key.as_str(), &error);
                }
            }
        }
        done
    }
}
