//! Drain jobs: segments are emptied by moving their objects elsewhere.
//!
//! A job takes its segments out of service for new objects at once. Then it goes through
//! all shards, a bounded number of slots in each tick, and has what it finds there moved
//! by tasks, a few at a time. It goes through them again until it finds nothing: objects
//! that were unfinished, or being copied by another client, have their turn then. So the
//! whole costs O(objects of the master) for each time through, and there is one more of
//! these than an object has to be tried. Objects stay readable throughout; leases,
//! soft and hard pins, and groups do not keep one from being moved.

mod commands;
mod job;
mod scan;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mc_types::{JobId, ObjectKey, SegmentId, TaskId, Time};
use smallvec::SmallVec;

use crate::space::segment::Segment;

pub use job::{
    DEFAULT_DRAIN_CONCURRENCY, DrainError, DrainJobInfo, JobStatus, MAX_DRAIN_CONCURRENCY,
    MAX_DRAIN_JOBS, MAX_DRAIN_SEGMENTS, MAX_ENDED_DRAIN_JOBS,
};

/// How often the move of an object is tried again that failed.
const MAX_RETRIES: u32 = 3;

/// Objects of one job whose moves may have failed before it is given up as a whole.
const MAX_TROUBLED: usize = 1024;

/// How long a job waits before it looks again at what it could not move.
const PAUSE: Duration = Duration::from_secs(1);

/// Every job that is known. Locked before anything else.
#[derive(Debug, Default)]
pub(crate) struct DrainJobs {
    at_work: BTreeMap<JobId, Job>,
    /// In the order in which they ended.
    ended: VecDeque<DrainJobInfo>,
}

/// A job at work.
#[derive(Debug)]
struct Job {
    info: DrainJobInfo,
    /// The segments that are still there.
    sources: BTreeMap<SegmentId, Arc<Segment>>,
    active: Vec<Move>,
    /// How often the moves of objects failed.
    failures: BTreeMap<ObjectKey, u32>,
    pass: Pass,
    /// Nothing is looked for before this time.
    resume_at: Time,
    /// When the last move was seen to be done.
    last_moved: Option<Time>,
    canceled: bool,
}

/// A move under way.
#[derive(Debug)]
struct Move {
    task: TaskId,
    key: ObjectKey,
    len: u64,
    source: Arc<Segment>,
    target: SegmentId,
}

/// One time through all shards.
#[derive(Debug, Default)]
struct Pass {
    cursor: Cursor,
    /// Moves begun.
    begun: u64,
    /// Those of them that did not come to a good end.
    troubled: u64,
    blocked: u64,
    /// Objects whose moves failed too often.
    failed: u64,
}

impl DrainJobs {
    pub(crate) fn at_work(&self) -> usize {
        self.at_work.len()
    }

    fn query(&self, id: JobId) -> Result<&DrainJobInfo, DrainError> {
        let ended = || self.ended.iter().find(|info| info.id == id);
        let info = self.at_work.get(&id).map(|job| &job.info).or_else(ended);
        info.ok_or(DrainError::NotFound)
    }

    fn empties(&self, segment: &Arc<Segment>) -> bool {
        self.at_work.values().any(|job| job.has_source(segment))
    }
}

impl Job {
    fn has_source(&self, segment: &Arc<Segment>) -> bool {
        let own = self.sources.get(&segment.spec().id);
        own.is_some_and(|own| Arc::ptr_eq(own, segment))
    }

    /// Adds to what there is to say.
    fn say(&mut self, text: &str) {
        let old = core::mem::take(&mut self.info.message);
        let parts = [&*old, text];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        self.info.message = parts.join("; ").into();
    }
}

impl Job {
    /// Bytes that moves under way will take in each target.
    fn planned(&self) -> BTreeMap<SegmentId, u64> {
        let mut planned = BTreeMap::<SegmentId, u64>::new();
        for unit in &self.active {
            let bytes = planned.entry(unit.target).or_default();
            *bytes = bytes.saturating_add(unit.len);
        }
        planned
    }
}

/// The next slot to look at.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    shard: usize,
    slot: u32,
}

/// One replica to be moved.
#[derive(Debug)]
struct Unit {
    key: ObjectKey,
    /// Its length in bytes.
    len: u64,
    source: Arc<Segment>,
    /// The segments of all replicas of the object.
    holders: SmallVec<[Arc<Segment>; 2]>,
}
