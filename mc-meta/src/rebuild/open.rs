//! From a settled rebuild to a master that clients can use.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::atomic::Ordering;

use mc_types::{Generation, Time};

use crate::effect::emit::Emit;
use crate::master::ShardsMut;
use crate::rebuild::executor::{Executor, for_each, one_by_one};
use crate::rebuild::layout::Contradictions;
use crate::rebuild::part::ShardLock;
use crate::rebuild::settled::Settled;
use crate::rebuild::space::{Place, Space};
use crate::rebuild::take_up::TakenUp;
use crate::rebuild::{GAP, Outcome, Rebuild, RebuildError, RebuildReport, Rebuilt};
use crate::record::Location;
use crate::side_tables::retained::RetainedSpace;
use crate::space::replica::Replica;
use crate::tenant::quota::PolicyError;

/// Runs of shards that are opened at a time.
const RUNS: usize = 16;

impl Rebuild {
    /// The master that the records describe, and what became of them. From `now` on it
    /// waits for its clients to come back.
    ///
    /// # Errors
    /// [`RebuildError`] when a segment cannot be divided as it was for another reason
    /// than the records.
    pub fn finish(self, now: Time) -> Result<Rebuilt, RebuildError> {
        self.finish_on(now, &one_by_one)
    }

    /// Does as [`finish`](Self::finish) on other threads, too: `executor` is called a few times, with
    /// a task for each part, segment, or some of the shards.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish).
    ///
    /// # Panics
    /// When a task has panicked and the executor did not.
    pub fn finish_on(
        mut self,
        now: Time,
        executor: &Executor<'_>,
    ) -> Result<Rebuilt, RebuildError> {
        if self.is_broken() {
            self = self.begin_anew();
        }
        if self.settled.is_none() {
            self.settle(Contradictions::Drop, executor)?;
        }
        Ok(self.open(now, executor))
    }

    /// Sets what depends on the time.
    fn open(mut self, now: Time, executor: &Executor<'_>) -> Rebuilt {
        let Outcome { dropped, mut corrections, lost } = core::mem::take(&mut self.outcome);
        let mut report = RebuildReport { dropped, lost, ..RebuildReport::default() };
        report.segments = self.await_clients(now);
        if let Some(settled) = self.settled.take() {
            report.kept_bytes = self.keep_settled(settled, now, &mut corrections);
        }
        let leased = self.parts.first_mut().and_then(|part| part.leased.take());
        let leased = leased.filter(|_| self.trusts_leases);
        let leased = leased.as_deref();
        let ShardsMut { shards, .. } = self.master.shards_mut();
        let run = shards.len().div_ceil(RUNS);
        let take_up = |run: &mut [ShardLock]| {
            let mut taken = TakenUp::default();
            run.iter_mut().for_each(|shard| taken.add(shard.get_mut().take_up(leased, now)));
            taken
        };
        for taken in for_each(executor, shards.chunks_mut(run), take_up) {
            report.objects += taken.objects;
            report.unfinished += taken.unfinished;
            report.lost += taken.lost;
            report.dropped.malformed += taken.dropped.len() as u64;
            corrections.removed.extend(taken.dropped);
        }
        report.dropped.malformed += self.set_policies();
        for part in &self.parts {
            report.dropped.add(part.dropped);
        }
        let Self { master, parts, .. } = self;
        let next = parts.iter().map(|part| part.next_generation).max().unwrap_or(0);
        if next > 0 {
            let first = (next + GAP).next_multiple_of(master.step);
            master.generations.store(first, Ordering::Relaxed);
            master.first_own.store(first, Ordering::Relaxed);
            corrections.next_generation = Some(Generation::new(first));
        }
        if let Some(disks) = master.local.config {
            master.local.book.lock().await_all(now + disks.return_timeout);
        }
        master.readers.follow_former(now);
        if report.unfinished > 0 {
            master.release_not_before(master.config.grant_time().end(now));
        }
        Rebuilt { master, report, corrections }
    }

    /// Waits for the clients of the segments to return with them, and says how many segments there are.
    fn await_clients(&self, now: Time) -> u64 {
        let config = &self.master.config;
        // Even where silent clients are discarded at once these have to notice first
        // that there is another master.
        let timeout = config.client_return_timeout.max(config.client_ttl);
        let segments: Vec<_> = self.master.segments.read().all().cloned().collect();
        let mut clients = self.master.clients.lock();
        for segment in &segments {
            let grace = segment.purpose().grace;
            clients.await_return(segment.client(), segment.spec().id, now, timeout, grace);
        }
        segments.len() as u64
    }

    /// Keeps the space of no object for as long as it is to be, and says how much it is.
    fn keep_settled(
        &self,
        settled: Settled,
        now: Time,
        corrections: &mut crate::rebuild::Corrections,
    ) -> u64 {
        let mut settled = settled;
        let space = self.parts.first().map(|part| &part.space);
        let locate = |((mounting, offset), len)| space?.locate(Place { offset, mounting }, len);
        let passing = core::mem::take(&mut settled.passing);
        let passing: Vec<_> = passing.into_iter().filter_map(locate).collect();
        // It is its object's still, which has it by a record that came later or not at all, unless that
        // had another place.
        let mut is_owned =
            |location: &Location| space.is_none_or(|space| !settled.keep_now(space, location));
        corrections.freed.extend(passing.into_iter().filter(|it| is_owned(it)));
        let Settled { kept, reserved, mut orphans, .. } = settled;
        let config = &self.master.config;
        // Whatever a record says, no client was promised to be waited for longer.
        let longest = config.put_start_release_timeout.max(config.lease_ttl);
        let mounted = space.map(Space::mounted).unwrap_or_default();
        let order: HashMap<_, _> = mounted.iter().map(|it| it.spec.id).zip(0usize..).collect();
        let order = |replica: &Replica| {
            let offset = replica.allocation.extent().offset();
            (order.get(&replica.segment.spec().id).copied(), offset)
        };
        // Parts number mountings as they come upon them.
        let mut kept: Vec<_> = kept.into_iter().collect();
        kept.sort_by_key(|(_, replica)| order(replica));
        orphans.sort_by_key(order);
        let mut bytes = 0u64;
        for (place, replica) in kept {
            let noted = space.and_then(|space| space.kept.get(&place));
            let left = noted.map_or(Duration::ZERO, |(_, left)| *left).min(longest);
            self.keep(replica, now, left, &mut bytes);
        }
        // No client can finish any more what that was for, but one may be writing there.
        let mut keep = |replica: Replica, left: Duration| {
            corrections.kept.push((location(&replica), left));
            self.keep(replica, now, left, &mut bytes);
        };
        let left = config.put_start_release_timeout.min(longest);
        for replica in orphans {
            keep(replica, left);
        }
        for ((number, slot), replicas) in reserved {
            let there = replicas.into_iter().filter(|replica| !replica.segment.is_gone());
            there.for_each(|replica| keep(replica, left));
            let shard = self.master.shards()[number as usize].lock();
            let Some(object) = shard.object(slot) else { continue };
            if object.has_memory() || object.outlives_memory() {
                corrections.objects.push(shard.view(slot).record(None).to_record());
            } else {
                // That it is lost the records say, but not that this space is only kept.
                corrections.removed.push(shard.name_of(slot));
            }
        }
        bytes
    }

    /// Has a shard, whichever, keep space that belongs to no object. The sum of the bytes tells it from
    /// other space.
    fn keep(&self, replica: Replica, now: Time, left: Duration, bytes: &mut u64) {
        *bytes = bytes.saturating_add(replica.len());
        let shards = self.master.shards();
        let mut shard = shards[(*bytes % shards.len() as u64) as usize].lock();
        let replicas = [replica].into_iter().collect();
        let space = RetainedSpace { tenant: None, replicas, writer: None, read_at: None };
        shard.keep_until(now + left, Generation::new(*bytes), space, Emit { now, effects: None });
        self.master.release_not_before(now + left);
    }

    /// Sets the tenants' quotas, and says how many cannot be.
    fn set_policies(&mut self) -> u64 {
        let mut malformed = 0;
        let policies = self.parts.first_mut().map(|part| core::mem::take(&mut part.policies));
        for (tenant, (requested, mode, below)) in policies.unwrap_or_default() {
            match self.master.quotas.set_policy_below(&tenant, requested, mode, below) {
                // Without tenants in the settings no tenant has a quota.
                Ok(()) | Err(PolicyError::Off) => {}
                Err(_) => malformed += 1,
            }
        }
        malformed
    }
}

fn location(replica: &Replica) -> Location {
    Location { segment: replica.segment.spec().id, extent: replica.allocation.extent() }
}
