//! Drain jobs: segments are emptied by moving their objects elsewhere.
//!
//! A job takes its segments out of service for new objects at once. Then it goes through
//! all shards, a bounded number of slots in each tick, and has what it finds there moved
//! by tasks, a few at a time. It goes through them again until it finds nothing: objects
//! that were unfinished, or being copied by another client, have their turn then. So the
//! whole costs O(objects of the master) for each time through, and there is one more of
//! these than an object has to be tried. Objects stay readable throughout; leases,
//! soft and hard pins, and groups do not keep one from being moved.

pub(crate) mod job;

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
pub(crate) const MAX_RETRIES: u32 = 3;

/// Objects of one job whose moves may have failed before the whole job fails.
pub(crate) const MAX_TROUBLED: usize = 1024;

/// How long a job waits before it looks again at what it could not move.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Every job that is known. Locked before anything else.
#[derive(Debug, Default)]
pub(crate) struct DrainJobs {
    pub(crate) at_work: BTreeMap<JobId, Job>,
    /// In the order in which they ended.
    pub(crate) ended: VecDeque<DrainJobInfo>,
}

/// A job at work.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) info: DrainJobInfo,
    /// The segments that are still there.
    pub(crate) sources: BTreeMap<SegmentId, Arc<Segment>>,
    pub(crate) active: Vec<Move>,
    /// How often the moves of objects failed.
    pub(crate) failures: BTreeMap<ObjectKey, u32>,
    pub(crate) pass: Pass,
    /// Nothing is looked for before this time.
    pub(crate) resume_at: Time,
    /// When the last move was seen to be done.
    pub(crate) last_moved: Option<Time>,
    pub(crate) canceled: bool,
}

/// A move under way.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) task: TaskId,
    pub(crate) key: ObjectKey,
    pub(crate) len: u64,
    pub(crate) source: Arc<Segment>,
    pub(crate) target: SegmentId,
}

/// One time through all shards.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    pub(crate) cursor: Cursor,
    /// Moves begun.
    pub(crate) begun: u64,
    /// Begun moves that failed.
    pub(crate) troubled: u64,
    pub(crate) blocked: u64,
    /// Objects whose moves failed too often.
    pub(crate) failed: u64,
}

impl DrainJobs {
    pub(crate) fn at_work(&self) -> usize {
        self.at_work.len()
    }

    pub(crate) fn query(&self, id: JobId) -> Result<&DrainJobInfo, DrainError> {
        let ended = || self.ended.iter().find(|info| info.id == id);
        let info = self.at_work.get(&id).map(|job| &job.info).or_else(ended);
        info.ok_or(DrainError::NotFound)
    }

    pub(crate) fn empties(&self, segment: &Arc<Segment>) -> bool {
        self.at_work.values().any(|job| job.has_source(segment))
    }
}

impl Job {
    fn has_source(&self, segment: &Arc<Segment>) -> bool {
        let own = self.sources.get(&segment.spec().id);
        own.is_some_and(|own| Arc::ptr_eq(own, segment))
    }

    /// Adds to what there is to say.
    pub(crate) fn say(&mut self, text: &str) {
        let old = core::mem::take(&mut self.info.message);
        let parts = [&*old, text];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        self.info.message = parts.join("; ").into();
    }
}

impl Job {
    /// Bytes that moves under way will take in each target.
    pub(crate) fn planned(&self) -> BTreeMap<SegmentId, u64> {
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
pub(crate) struct Cursor {
    pub(crate) shard: usize,
    pub(crate) slot: u32,
}

/// One replica to be moved.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) key: ObjectKey,
    /// Its length in bytes.
    pub(crate) len: u64,
    pub(crate) source: Arc<Segment>,
    /// The segments of all replicas of the object.
    pub(crate) holders: SmallVec<[Arc<Segment>; 2]>,
}
