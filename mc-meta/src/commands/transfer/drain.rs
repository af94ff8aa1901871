//! Commands of drain jobs, and what a tick does for those at work.

pub(crate) mod scan;

use std::collections::BTreeMap;
use std::sync::Arc;

use mc_types::{JobId, SegmentId, Time};

use crate::commands::transfer::drain::scan::Pick;
use crate::commands::transfer::error::TransferError;
use crate::commands::transfer::tasks::CreateTaskError;
use crate::effect::Effect;
use crate::master::Master;
use crate::side_tables::drain::{
    DrainError, DrainJobInfo, DrainJobs, Job, JobStatus, MAX_DRAIN_CONCURRENCY, MAX_DRAIN_JOBS,
    MAX_DRAIN_SEGMENTS, MAX_ENDED_DRAIN_JOBS, MAX_RETRIES, MAX_TROUBLED, Move, PAUSE, Pass, Unit,
};
use crate::side_tables::tasks::TaskStatus;
use crate::space::segment::Segment;
use crate::space::table::SegmentTable;
use crate::vocabulary::states::SegmentStatus;

impl Master {
    /// Begins to empty the segments of these names into those named `targets`, or into
    /// any when none is named, with up to `max_concurrency` moves under way at a time.
    /// Nothing new is put into the segments from now on. [`tick`](Self::tick) advances
    /// the job, and the clients of the segments do the moves as tasks.
    ///
    /// When nothing is left in them, and every client that may still be reading there has had
    /// the time of a lease, the segments are [drained](SegmentStatus::Drained). An object
    /// whose move has failed four times is skipped; when only such are left, the
    /// job has failed, and the segments take new objects again.
    ///
    /// # Errors
    /// [`DrainError`]; nothing is changed then.
    pub fn create_drain_job(
        &self,
        now: Time,
        segments: &[&str],
        targets: &[&str],
        max_concurrency: usize,
    ) -> Result<JobId, DrainError> {
        for count in [segments.len(), targets.len().max(1)] {
            if !(1..=MAX_DRAIN_SEGMENTS).contains(&count) {
                return Err(DrainError::SegmentCount { count });
            }
        }
        if !(1..=MAX_DRAIN_CONCURRENCY).contains(&max_concurrency) {
            return Err(DrainError::Concurrency { given: max_concurrency });
        }
        let mut jobs = self.drain_jobs.lock();
        if jobs.at_work() == MAX_DRAIN_JOBS {
            return Err(DrainError::TooManyJobs);
        }
        let mut table = self.segments.write();
        let sources = sources(&table, &jobs, segments)?;
        check_targets(&table, &sources, targets)?;
        for (&id, segment) in &sources {
            if table.set_status(id, SegmentStatus::Draining).is_some() {
                self.emit_status(segment, now);
            }
        }
        drop(table);
        let id = loop {
            let id = JobId::from_u128(u128::from(self.draw()) << 64 | u128::from(self.draw()));
            if jobs.query(id).is_err() {
                break id;
            }
        };
        let owned = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
        let info = DrainJobInfo {
            id,
            status: JobStatus::Created,
            segments: owned(segments),
            targets: owned(targets),
            max_concurrency,
            created_at: now,
            last_updated_at: now,
            moved: 0,
            moved_bytes: 0,
            active: 0,
            blocked: 0,
            failed: 0,
            message: Box::default(),
        };
        self.emit(now).effect(&Effect::DrainJob { job: &info });
        jobs.at_work.insert(
            id,
            Job {
                info,
                sources,
                active: Vec::new(),
                failures: BTreeMap::new(),
                pass: Pass::default(),
                resume_at: now,
                last_moved: None,
                canceled: false,
            },
        );
        Ok(id)
    }

    /// Everything about a drain job.
    ///
    /// # Errors
    /// [`DrainError::NotFound`].
    pub fn query_drain_job(&self, id: JobId) -> Result<DrainJobInfo, DrainError> {
        self.drain_jobs.lock().query(id).cloned()
    }

    /// Every drain job that is known, those at work first.
    pub fn list_drain_jobs(&self) -> Vec<DrainJobInfo> {
        let jobs = self.drain_jobs.lock();
        let at_work = jobs.at_work.values().map(|job| &job.info);
        at_work.chain(&jobs.ended).cloned().collect()
    }

    /// Begins no more moves for a drain job. Those that a client has fetched come to
    /// their end; then the job is canceled, and its segments take new objects again.
    /// Canceling again changes nothing.
    ///
    /// # Errors
    /// [`DrainError::NotFound`], [`DrainError::Ended`].
    pub fn cancel_drain_job(&self, now: Time, id: JobId) -> Result<JobStatus, DrainError> {
        let mut jobs = self.drain_jobs.lock();
        let status = jobs.query(id)?.status;
        let Some(job) = jobs.at_work.get_mut(&id) else {
            return Err(DrainError::Ended { status });
        };
        job.canceled = true;
        for unit in &job.active {
            self.withdraw_task(now, unit.task, "the drain job was canceled");
        }
        self.step_job(&mut jobs, now, id, &mut 0);
        jobs.query(id).map(|info| info.status)
    }

    /// Takes new objects into a segment again that is drained, or is being drained by a
    /// job that is not known any more. One whose client is away takes them when it is back.
    ///
    /// # Errors
    /// [`DrainError::SegmentNotFound`], [`DrainError::SegmentUnavailable`].
    pub fn reopen_segment(&self, now: Time, name: &str) -> Result<(), DrainError> {
        let jobs = self.drain_jobs.lock();
        let mut table = self.segments.write();
        let segment = named(&table, name)?;
        let (id, busy) = (segment.spec().id, jobs.empties(segment));
        match segment.purpose().status {
            SegmentStatus::Ok if segment.status() == SegmentStatus::Ok => Ok(()),
            SegmentStatus::Draining | SegmentStatus::Drained if !busy => {
                if let Some(segment) = table.set_purpose(id, SegmentStatus::Ok) {
                    self.emit_status(&segment, now);
                }
                Ok(())
            }
            _ => {
                let status = segment.status();
                Err(DrainError::SegmentUnavailable { name: name.into(), status })
            }
        }
    }

    /// Goes on with every drain job; true when there is more to look at.
    pub(crate) fn run_drain_jobs(&self, now: Time) -> bool {
        // The client that holds it does the same, or is quickly done.
        let Some(mut jobs) = self.drain_jobs.try_lock() else { return false };
        let ids: Vec<JobId> = jobs.at_work.keys().copied().collect();
        let mut budget = scan::TICK_SLOTS;
        let mut more = false;
        for id in ids {
            more |= self.step_job(&mut jobs, now, id, &mut budget);
        }
        more
    }

    /// Goes on with one job; true when there is more to look at than `budget` slots.
    fn step_job(&self, jobs: &mut DrainJobs, now: Time, id: JobId, budget: &mut u32) -> bool {
        let Some(job) = jobs.at_work.get_mut(&id) else { return false };
        let before = job.info.clone();
        job.watch_sources();
        self.settle_moves(job, now);
        let end = self.advance(job, now, budget);
        job.info.active = job.active.len() as u64;
        if let Some(end) = end {
            job.info.status = end;
        }
        if job.info != before {
            job.info.last_updated_at = now.max(before.last_updated_at);
        }
        if job.info.status != before.status {
            self.emit(now).effect(&Effect::DrainJob { job: &job.info });
        }
        if end.is_none() {
            return *budget == 0
                && job.active.len() < job.info.max_concurrency
                && !job.canceled
                && job.resume_at <= now;
        }
        if let Some(job) = jobs.at_work.remove(&id) {
            self.close_sources(&job, now);
            jobs.ended.push_back(job.info);
            if jobs.ended.len() > MAX_ENDED_DRAIN_JOBS {
                jobs.ended.pop_front();
            }
        }
        false
    }

    /// Sees what became of the moves under way.
    fn settle_moves(&self, job: &mut Job, now: Time) {
        for unit in core::mem::take(&mut job.active) {
            let ended = self.query_task(unit.task);
            if ended.as_ref().is_ok_and(|info| !info.status.is_final()) {
                job.active.push(unit);
                continue;
            }
            // What counts is where the object is, not what was said of it.
            let stays = |holders: &[Arc<Segment>]| {
                holders.iter().any(|segment| Arc::ptr_eq(segment, &unit.source))
            };
            match self.holders(now, unit.key.as_ref()) {
                Ok(holders) if stays(&holders) => {
                    job.pass.troubled += 1;
                    *job.failures.entry(unit.key).or_default() += 1;
                }
                Ok(_) if ended.is_ok_and(|info| info.status == TaskStatus::Success) => {
                    job.info.moved += 1;
                    job.info.moved_bytes = job.info.moved_bytes.saturating_add(unit.len);
                    job.last_moved = Some(now);
                    job.failures.remove(&unit.key);
                }
                // It went, by whatever hand.
                _ => drop(job.failures.remove(&unit.key)),
            }
        }
    }

    /// Begins moves; says how the job ended when it has.
    fn advance(&self, job: &mut Job, now: Time, budget: &mut u32) -> Option<JobStatus> {
        if job.canceled {
            return job.active.is_empty().then_some(JobStatus::Canceled);
        }
        if job.sources.is_empty() {
            return Some(JobStatus::Failed);
        }
        if job.failures.len() > MAX_TROUBLED {
            job.say(&format!("moves of more than {MAX_TROUBLED} objects have failed"));
            job.info.failed = job.failures.len() as u64;
            return Some(JobStatus::Failed);
        }
        if now < job.resume_at {
            return None;
        }
        if job.info.status == JobStatus::Created {
            job.info.status = JobStatus::Planning;
        }
        let end = self.begin_moves(job, now, budget);
        if !end || !job.active.is_empty() {
            return None;
        }
        // Everything was looked at, and all that was begun is done.
        let pass = core::mem::take(&mut job.pass);
        (job.info.blocked, job.info.failed) = (pass.blocked, pass.failed);
        let away = |segment: &Arc<Segment>| !segment.is_readable();
        if pass.blocked > 0 || pass.troubled > 0 || job.sources.values().any(away) {
            job.resume_at = now + PAUSE;
            self.forget_gone(job, now);
            return None;
        }
        if pass.begun > 0 {
            return None;
        }
        if pass.failed > 0 {
            job.say(&format!("{} objects could not be moved", pass.failed));
            return Some(JobStatus::Failed);
        }
        // Readers that came before the last move was over may still be reading.
        let quiet_at = job.last_moved.map_or(now, |moved| moved + self.terms.lease);
        if now < quiet_at {
            job.resume_at = quiet_at;
            return None;
        }
        let lost = job.sources.len() < distinct(&job.info.segments);
        Some(if lost { JobStatus::Failed } else { JobStatus::Succeeded })
    }

    /// Forgets the failures of objects that have gone since.
    fn forget_gone(&self, job: &mut Job, now: Time) {
        let sources = &job.sources;
        job.failures.retain(|key, _| {
            let holders = self.holders(now, key.as_ref()).unwrap_or_default();
            let stays = |it: &Arc<Segment>| sources.contains_key(&it.spec().id);
            holders.iter().any(stays)
        });
    }

    /// Begins moves until as many are under way as may be; true when the last shard has
    /// been looked at.
    fn begin_moves(&self, job: &mut Job, now: Time, budget: &mut u32) -> bool {
        loop {
            let room = job.info.max_concurrency.saturating_sub(job.active.len());
            if room == 0 || *budget == 0 {
                return false;
            }
            let Some(found) = self.scan(&mut job.pass.cursor, &job.sources, room, budget) else {
                return true;
            };
            job.pass.blocked += found.blocked;
            for unit in found.units {
                self.begin_move(job, now, unit);
            }
        }
    }

    fn begin_move(&self, job: &mut Job, now: Time, unit: Unit) {
        if job.failures.get(&unit.key).is_some_and(|failures| *failures > MAX_RETRIES) {
            job.pass.failed += 1;
            return;
        }
        let planned = job.planned();
        let target = match self.segments.read().pick(&unit, &job.info.targets, &planned) {
            Pick::Target(target) => target,
            Pick::NoRoom => {
                job.pass.blocked += 1;
                return;
            }
            Pick::TooLarge => {
                job.failures.insert(unit.key, MAX_RETRIES + 1);
                job.pass.failed += 1;
                return;
            }
        };
        let (source, to) = (&unit.source.spec().name, &target.spec().name);
        match self.create_move_task(now, unit.key.as_ref(), source, to) {
            Ok(task) => {
                job.info.status = JobStatus::Running;
                job.pass.begun += 1;
                let target = target.spec().id;
                let Unit { key, len, source, .. } = unit;
                job.active.push(Move { task, key, len, source, target });
            }
            // It went a moment ago, from there or altogether.
            Err(CreateTaskError::Transfer(
                TransferError::NotFound | TransferError::ReplicaNotFound { .. },
            )) => {}
            Err(_) => job.pass.blocked += 1,
        }
    }

    /// Marks the segments of a job as drained, or as in use again.
    fn close_sources(&self, job: &Job, now: Time) {
        let emptied = matches!(job.info.status, JobStatus::Succeeded)
            || (job.info.status == JobStatus::Failed && job.info.failed == 0);
        let status = if emptied { SegmentStatus::Drained } else { SegmentStatus::Ok };
        let mut table = self.segments.write();
        for (&id, segment) in &job.sources {
            if segment.purpose().status == SegmentStatus::Draining
                && table.set_purpose(id, status).is_some()
            {
                self.emit_status(segment, now);
            }
        }
    }
}

impl Job {
    /// Forgets segments that are gone.
    fn watch_sources(&mut self) {
        if !self.sources.values().any(|segment| segment.is_gone()) {
            return;
        }
        let (gone, kept) = core::mem::take(&mut self.sources)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, segment)| segment.is_gone());
        self.sources = kept;
        for segment in gone.values() {
            self.say(&format!("segment {:?} went before it was drained", segment.spec().name));
        }
    }
}

fn distinct(names: &[Box<str>]) -> usize {
    names.iter().collect::<std::collections::BTreeSet<_>>().len()
}

fn named<'a>(table: &'a SegmentTable, name: &str) -> Result<&'a Arc<Segment>, DrainError> {
    table.by_name(name).ok_or_else(|| DrainError::SegmentNotFound { name: name.into() })
}

/// The segments of these names, each in use or left behind by a job that is forgotten.
fn sources(
    table: &SegmentTable,
    jobs: &DrainJobs,
    names: &[&str],
) -> Result<BTreeMap<SegmentId, Arc<Segment>>, DrainError> {
    let mut sources = BTreeMap::new();
    for &name in names {
        let segment = named(table, name)?;
        let status = segment.status();
        match status {
            SegmentStatus::Ok => {}
            SegmentStatus::Draining if !jobs.empties(segment) => {}
            _ => return Err(DrainError::SegmentUnavailable { name: name.into(), status }),
        }
        sources.insert(segment.spec().id, Arc::clone(segment));
    }
    Ok(sources)
}

fn check_targets(
    table: &SegmentTable,
    sources: &BTreeMap<SegmentId, Arc<Segment>>,
    targets: &[&str],
) -> Result<(), DrainError> {
    for &name in targets {
        let segment = named(table, name)?;
        if sources.contains_key(&segment.spec().id) {
            return Err(DrainError::SegmentIsTarget { name: name.into() });
        }
        let status = segment.status();
        if !status.is_allocatable() {
            return Err(DrainError::SegmentUnavailable { name: name.into(), status });
        }
    }
    if !targets.is_empty() {
        return Ok(());
    }
    // What is in one medium stays in it, unless targets are named.
    let is_left = |segment: &Arc<Segment>| !sources.contains_key(&segment.spec().id);
    let has_target =
        |source: &Arc<Segment>| table.pool(source.medium()).segments().iter().any(is_left);
    if sources.values().all(has_target) { Ok(()) } else { Err(DrainError::NoTarget) }
}
