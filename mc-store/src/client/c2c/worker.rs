//! A worker: reads objects back, has them converted, and stores the results.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use mc_c2c::{ConvertError, Part, Projector};
use mc_meta::ReplicateConfig;
use mc_transport::{BufferPool, Memory};
use mc_types::KeyRef;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::compute::Failure;
use super::{C2cSkip, Conversions, Job};
use crate::client::core::Core;
use crate::client::put::{Put, PutMode, PutOutcome};
use crate::client::read::{Item, Target};
use crate::error::GetError;

/// Most objects that are read, converted and stored together.
const BATCH: usize = 32;

/// A conversion of a batch.
struct Task {
    key: Box<str>,
    source: Bytes,
    rule: usize,
    part: Part,
    target_key: String,
    replaces: bool,
    since: Instant,
}

/// A converted object.
struct Converted {
    target_key: String,
    value: Memory,
    source_len: usize,
    replaces: bool,
    since: Instant,
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
        let bytes = core.convert_batch(&conversions, jobs).await;
        conversions.counts.taken(count);
        // As many of this length as the worker's part of the buffers has room for.
        let room = conversions.config.buffer_size as usize / conversions.queues.len();
        if let Some(fit) = room.checked_div(bytes / number) {
            batch = fit.clamp(1, BATCH);
        }
    }
}

impl Core {
    /// Starts the workers; they end with the client.
    pub(crate) fn convert_objects(self: &Arc<Self>) {
        let Some(conversions) = &self.c2c else { return };
        for queue in conversions.take_queues() {
            let task = run(Arc::downgrade(self), queue);
            self.background.lock().spawn_on(task, &self.runtime);
        }
    }

    /// Returns the bytes that the batch took in memory, 0 if nothing had to be read.
    async fn convert_batch(
        self: &Arc<Self>,
        conversions: &Arc<Conversions>,
        jobs: Vec<Job>,
    ) -> usize {
        let jobs = self.leave_out_existing(conversions, jobs).await;
        let tasks = self.read_sources(conversions, jobs).await;
        if tasks.is_empty() {
            return 0;
        }
        let read: usize = tasks.iter().map(|task| task.source.len()).sum();
        let (count, first) = (tasks.len(), tasks[0].key.clone());
        let (own, pool) = (Arc::clone(conversions), self.pool.clone());
        let work = move || own.convert(tasks, &pool);
        let Some(Ok(converted)) = self.settings.environment.in_background(work).await else {
            conversions.skip(C2cSkip::NoMemory, count, &first, &"there is no thread for it");
            return read;
        };
        conversions.give_way().await;
        let stored: usize = converted.iter().map(|it| it.value.len()).sum();
        let (puts, upserts): (Vec<_>, Vec<_>) = converted.into_iter().partition(|it| !it.replaces);
        self.store_converted(conversions, puts, PutMode::Put).await;
        self.store_converted(conversions, upserts, PutMode::Upsert).await;
        read + stored
    }

    /// Leaves out what another client, or an earlier run, has converted.
    async fn leave_out_existing(&self, conversions: &Conversions, mut jobs: Vec<Job>) -> Vec<Job> {
        let puts = jobs.iter().filter(|job| !job.replaces);
        let targets = puts.flat_map(|job| &job.matches).map(|found| &*found.target_key);
        // An invalid one fails when it is stored.
        let targets: Vec<KeyRef<'_>> = targets.filter_map(|key| KeyRef::new(key).ok()).collect();
        // Without an answer all are converted.
        let Ok(answers) = self.master.batch_exist(&targets).await else { return jobs };
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
                conversions.skip(C2cSkip::Existing, skipped, job.key.as_str(), &"it is there");
            }
        }
        jobs.retain(|job| !job.matches.is_empty());
        jobs
    }

    /// Reads the objects into the pool.
    async fn read_sources(&self, conversions: &Conversions, jobs: Vec<Job>) -> Vec<Task> {
        let keys = jobs.iter().map(|job| job.key.as_str());
        let mut items: Vec<Item<'_>> =
            keys.map(|key| Item::new(key, None, None, Target::OWNED)).collect();
        self.get_all(&mut items).await;
        let values: Vec<_> = items.into_iter().map(Item::into_bytes).collect();
        let mut tasks = Vec::with_capacity(jobs.len());
        for (job, value) in jobs.into_iter().zip(values) {
            let key: Box<str> = job.key.as_str().into();
            match value {
                Ok(source) => tasks.extend(job.matches.into_iter().map(|found| Task {
                    key: key.clone(),
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
                    conversions.skip(cause, job.matches.len(), &key, &error);
                }
            }
        }
        tasks
    }

    async fn store_converted(
        self: &Arc<Self>,
        conversions: &Conversions,
        converted: Vec<Converted>,
        mode: PutMode,
    ) {
        if converted.is_empty() {
            return;
        }
        let puts = converted.iter().map(|it| Put::new(&it.target_key, it.value.whole())).collect();
        let outcomes = self.store_own(puts, &ReplicateConfig::default(), mode).await;
        for (it, outcome) in converted.iter().zip(outcomes) {
            match outcome {
                Ok(PutOutcome::Stored) => {
                    let (read, stored) = (it.source_len, it.value.len());
                    conversions.counts.converted(read, stored, it.since.elapsed());
                }
                Ok(PutOutcome::Existing | PutOutcome::Pending) => {
                    conversions.skip(C2cSkip::Existing, 1, &it.target_key, &"it is there");
                }
                Err(error) => conversions.skip(C2cSkip::PutFailed, 1, &it.target_key, &error),
            }
        }
    }
}

impl Conversions {
    /// Converts a batch, and counts what cannot be converted.
    fn convert(&self, tasks: Vec<Task>, pool: &BufferPool) -> Vec<Converted> {
        let mut scratch = Vec::new();
        let mut done = Vec::with_capacity(tasks.len());
        for Task { key, source, rule, part, target_key, replaces, since } in tasks {
            let converter = match self.converter(rule) {
                Ok(converter) => converter,
                Err(error) => {
                    self.skip(C2cSkip::Weights, 1, &key, &error);
                    continue;
                }
            };
            if matches!(**converter.projector(), Projector::Full(_)) {
                let why = "the projector needs the target model's object; call convert";
                self.skip(C2cSkip::NeedsTarget, 1, &key, &why);
                continue;
            }
            match self.compute(&converter, part, (&source, None), &mut scratch, pool) {
                Ok(value) => {
                    let source_len = source.len();
                    done.push(Converted { target_key, value, source_len, replaces, since });
                }
                Err(Failure::Memory(error)) => self.skip(C2cSkip::NoMemory, 1, &key, &error),
                Err(Failure::Convert(error)) => {
                    let cause = match error {
                        ConvertError::NotFinite { .. } | ConvertError::Overflow { .. } => {
                            C2cSkip::NotFinite
                        }
                        _ => C2cSkip::WrongLength,
                    };
                    self.skip(cause, 1, &key, &error);
                }
            }
        }
        done
    }
}
