//! From noted places to segments whose space is divided, and objects that have it.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::Ordering;

use mc_types::{Generation, SegmentId, Time};

use super::collect::Collected;
use super::corrections::Corrections;
use super::divide::{Divided, Plan};
use super::executor::{Executor, for_each, one_by_one};
use super::layout::{Claim, Holder, Layout};
use super::sort::sort;
use super::space::{Fate, Mounted};
use super::take_up::TakenUp;
use super::{Dropped, GAP, Rebuild, RebuildError, RebuildPart, RebuildReport, Rebuilt};
use crate::evict::order::common::Fresh;
use crate::evict::room::Labels;
use crate::journal::emit::Emit;
use crate::journal::record::Location;
use crate::object::replica::Replica;
use crate::object::slot::ObjectSlot;
use crate::shard::retained::RetainedSpace;
use crate::tenant::quota::PolicyError;

/// Objects that enter the orders of eviction at a time.
const ENTER: usize = 4096;

/// Space that belongs to no object, by segment and offset.
type Kept = BTreeMap<(u32, u64), KeptSpace>;

#[derive(Clone, Copy, Default)]
struct KeptSpace {
    len: u64,
    left: Duration,
    /// The records do not say yet that it is kept.
    is_new: bool,
}

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
    /// a task for each part or segment.
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
        let mut report = RebuildReport::default();
        let mut corrections = Corrections::default();
        let segments = self.settle_segments(&mut report.dropped, &mut corrections);
        let memory = self.master.config.memory_allocator;
        let layout = Layout::of(memory);
        let collect = |mut part: RebuildPart<'_>| part.collect(&segments, &layout);
        let mut collected = for_each(executor, self.parts(), collect);
        let kept = self.keep_reserved(&collected, &segments, &layout);
        let lists = (0..).zip(&segments).map(|(number, _): (u32, _)| {
            let claims = collected.iter_mut().map(|part| &mut part.claims[number as usize]);
            let claims: Vec<Vec<Claim>> = claims.map(core::mem::take).collect();
            let kept = kept.range((number, 0)..=(number, u64::MAX));
            let kept = kept.map(|(&(_, offset), space)| Claim {
                offset,
                len: space.len,
                holder: Holder::Retained,
            });
            (claims, kept.collect())
        });
        let plan = |(claims, kept)| Plan::new(claims, kept, &layout);
        let mut plans = for_each(executor, lists.collect::<Vec<_>>(), plan);
        report.dropped.overlapping = self.settle(&mut plans, &segments, &layout, &mut corrections);

        let labels = Labels::new(self.master.config.shards);
        let ids: Vec<SegmentId> = segments.iter().map(|mounted| mounted.spec.id).collect();
        let divide = |(plan, mounted): (Plan, _)| plan.divide(mounted, memory, labels);
        let divided = for_each(executor, plans.into_iter().zip(segments), divide);
        let mut by_part: Vec<_> = self.parts.iter().map(|_| Vec::new()).collect();
        let mut space = Vec::new();
        for ((number, id), divided) in (0..).zip(ids).zip(divided) {
            let divided = divided.map_err(|source| RebuildError::Segment { segment: id, source });
            let Divided { segment, by_part: replicas, kept } = divided?;
            report.segments += 1;
            for (all, own) in by_part.iter_mut().zip(replicas) {
                all.push(own.into_iter());
            }
            space.extend(kept.into_iter().map(|replica| (number, replica)));
            self.await_client(&segment, now);
            self.master.segments.write().add(segment);
        }
        let take_up = |(mut part, replicas): (RebuildPart<'_>, _)| part.take_up(replicas, now);
        let parts = self.parts().into_iter().zip(by_part);
        let (mut fresh, mut used) = (Vec::new(), Vec::new());
        for taken in for_each(executor, parts, take_up) {
            fresh.extend(taken.fresh);
            used.extend(taken.used);
            report.objects += taken.objects;
            report.unfinished += taken.unfinished;
            report.dropped.malformed += taken.dropped.len() as u64;
            corrections.removed.extend(taken.dropped);
        }
        self.enter_orders(&fresh, &used);
        report.kept_bytes = self.keep_all(space, &kept, now, &mut corrections);
        for part in collected {
            report.lost += part.lost;
            corrections.removed.extend(part.removed);
            corrections.objects.extend(part.reservers.into_iter().filter_map(|(number, slot)| {
                let shard = self.master.shards()[number].lock();
                let object = shard.object(slot)?;
                Some(shard.view(object).record(None).to_record())
            }));
        }
        self.end(now, report, corrections)
    }

    /// Enters objects into the orders of eviction, those used last at the end.
    fn enter_orders(&self, fresh: &[Fresh], used: &[u64]) {
        let mut order: Vec<(u64, u32)> = used.iter().copied().zip(0..).collect();
        sort(&mut order);
        let mut some = Vec::with_capacity(ENTER);
        for run in order.chunks(ENTER) {
            some.clear();
            some.extend(run.iter().map(|(_, at)| fresh[*at as usize]));
            self.master.order.enter(&some);
        }
    }

    /// Sets what concerns no object.
    fn end(
        mut self,
        now: Time,
        mut report: RebuildReport,
        mut corrections: Corrections,
    ) -> Result<Rebuilt, RebuildError> {
        report.dropped.malformed += self.set_policies();
        for part in &self.parts {
            report.dropped.add(part.dropped);
        }
        let Self { master, parts } = self;
        let next = parts.iter().map(|part| part.next_generation).max().unwrap_or(0);
        if next > 0 {
            master.generations.store(next + GAP, Ordering::Relaxed);
            corrections.next_generation = Some(Generation::new(next + GAP));
        }
        if let Some(disks) = master.local.config {
            master.local.book.lock().await_all(now + disks.return_timeout);
        }
        if report.unfinished > 0 {
            master.release_not_before(now + master.config.put_start_release_timeout);
        }
        Ok(Rebuilt { master, report, corrections })
    }

    /// The segments that stay, in the order in which they were mounted; a name belongs to the one
    /// that was mounted last under it.
    fn settle_segments(
        &mut self,
        dropped: &mut Dropped,
        corrections: &mut Corrections,
    ) -> Vec<Mounted> {
        let mut segments: Vec<Mounted> = Vec::new();
        let mut names = HashSet::new();
        // Every part knows the same ones.
        let mounted = self.parts.first().map(|part| part.space.mounted()).unwrap_or_default();
        for mounted in mounted.into_iter().rev() {
            if names.insert(&mounted.spec.name) {
                segments.push(mounted.clone());
            } else {
                dropped.namesakes += 1;
                corrections.gone.push(mounted.spec.id);
            }
        }
        segments.reverse();
        let unheard: BTreeSet<_> =
            self.parts.iter().flat_map(|part| part.space.unheard()).collect();
        corrections.gone.extend(unheard);
        for part in &mut self.parts {
            part.fates = part.space.fates(&segments);
        }
        segments
    }

    /// The space that is kept, that which was reserved included.
    fn keep_reserved(
        &self,
        collected: &[Collected],
        segments: &[Mounted],
        layout: &Layout,
    ) -> Kept {
        let mut kept = Kept::new();
        let mut keep = |segment: u32, offset, more: KeptSpace| {
            if layout.admits(segments[segment as usize].spec.size, offset, more.len) {
                let space = kept.entry((segment, offset)).or_default();
                space.is_new |= more.is_new && (more.len > space.len || more.left > space.left);
                space.len = space.len.max(more.len);
                space.left = space.left.max(more.left);
            }
        };
        for part in &self.parts {
            for (&(mounting, offset), &(len, left)) in &part.space.kept {
                if let Fate::Segment(segment) = part.fates[mounting as usize] {
                    keep(segment, offset, KeptSpace { len, left, is_new: false });
                }
            }
        }
        let left = self.master.config.put_start_release_timeout;
        for &(segment, offset, len) in collected.iter().flat_map(|part| &part.reserved) {
            keep(segment, offset, KeptSpace { len, left, is_new: true });
        }
        kept
    }

    /// Drops the objects that claim what belongs to later ones, and says how many. Leaves claims
    /// that do not contradict each other.
    fn settle(
        &mut self,
        plans: &mut [Plan],
        segments: &[Mounted],
        layout: &Layout,
        corrections: &mut Corrections,
    ) -> u64 {
        if plans.iter().all(|plan| plan.agree) {
            return 0;
        }
        let shards = self.master.shards();
        let generation = |claim: &Claim| match claim.holder {
            Holder::Retained => None,
            Holder::Object { shard, slot } => {
                shards[shard as usize].lock().object(slot).map(|object| object.generation)
            }
        };
        let stays = |claim: &Claim| claim.holder == Holder::Retained || generation(claim).is_some();
        let mut overlapping = 0;
        for (plan, mounted) in plans.iter_mut().zip(segments) {
            if !plan.agree {
                // Objects that lost elsewhere claim nothing.
                plan.retain(layout, stays);
            }
            let sorted: Vec<Claim> = match plan.agree {
                true => continue,
                false => plan.sorted().copied().collect(),
            };
            let mut freed = BTreeSet::new();
            layout.settle(&sorted, generation, |at| match sorted[at].holder {
                Holder::Object { shard, slot } => {
                    let mut shard = shards[shard as usize].lock();
                    if shard.object(slot).is_some() {
                        corrections.removed.push(shard.name_of(slot));
                        shard.detach(slot);
                        overlapping += 1;
                    }
                }
                Holder::Retained => {
                    let (segment, extent) = (mounted.spec.id, sorted[at].extent());
                    corrections.freed.push(Location { segment, extent });
                    freed.insert(extent.offset());
                }
            });
            plan.retain(layout, |claim| match claim.holder {
                Holder::Retained => !freed.contains(&claim.offset),
                Holder::Object { .. } => true,
            });
        }
        plans.iter_mut().for_each(|plan| plan.retain(layout, stays));
        overlapping
    }

    /// Keeps the space of no object, and says how much it is.
    fn keep_all(
        &self,
        space: Vec<(u32, Replica)>,
        kept: &Kept,
        now: Time,
        corrections: &mut Corrections,
    ) -> u64 {
        let config = &self.master.config;
        // Whatever a record says, no client was promised to be waited for longer.
        let longest = config.put_start_release_timeout.max(config.lease_ttl);
        let mut bytes = 0u64;
        for (number, replica) in space {
            let extent = replica.allocation.extent();
            bytes = bytes.saturating_add(extent.len());
            let space = kept.get(&(number, extent.offset())).copied().unwrap_or_default();
            let left = space.left.min(longest);
            if space.is_new {
                let segment = replica.segment.spec().id;
                corrections.kept.push((Location { segment, extent }, left));
            }
            self.keep(replica, now, left, bytes);
        }
        bytes
    }

    /// Has a shard, whichever, keep space that belongs to no object. `number` tells it
    /// from other space.
    fn keep(&self, replica: Replica, now: Time, left: Duration, number: u64) {
        let shards = self.master.shards();
        let mut shard = shards[(number % shards.len() as u64) as usize].lock();
        let replicas = [replica].into_iter().collect();
        let space = RetainedSpace { tenant: None, replicas, writer: None };
        shard.keep_until(now + left, Generation::new(number), space, Emit { now, effects: None });
        self.master.release_not_before(now + left);
    }

    /// Sets the tenants' quotas, and says how many cannot be.
    fn set_policies(&mut self) -> u64 {
        let mut malformed = 0;
        let policies = self.parts.first_mut().map(|part| core::mem::take(&mut part.policies));
        for (tenant, bytes) in policies.unwrap_or_default() {
            match self.master.quotas.set_policy(&tenant, bytes) {
                // Without tenants in the settings no tenant has a quota.
                Ok(()) | Err(PolicyError::Off) => {}
                Err(_) => malformed += 1,
            }
        }
        malformed
    }

    /// Waits for the client of a segment to return with it.
    fn await_client(&self, segment: &crate::space::segment::Segment, now: Time) {
        let config = &self.master.config;
        // Even where silent clients are given up at once these have to notice first
        // that there is another master.
        let timeout = config.client_return_timeout.max(config.client_ttl);
        let mut clients = self.master.clients.lock();
        let grace = segment.purpose().grace;
        clients.await_return(segment.client(), segment.spec().id, now, timeout, grace);
    }
}

impl RebuildPart<'_> {
    /// Gives its objects their replicas, which come in the order of the claims to each segment,
    /// and takes them up.
    fn take_up(&mut self, mut replicas: Vec<std::vec::IntoIter<Replica>>, now: Time) -> TakenUp {
        let Self { part, shards, .. } = self;
        let mut taken = TakenUp::default();
        for (lock, claims) in shards.iter_mut().zip(core::mem::take(&mut part.claims)) {
            let shard = lock.get_mut();
            for slot in ObjectSlot::range(0..claims.end()) {
                let (Some(_), Some(noted)) = (shard.object(slot), claims.get(slot)) else {
                    continue;
                };
                for place in noted.replicas() {
                    if let Fate::Segment(segment) = part.fates[place.mounting as usize]
                        && let Some(replica) = replicas[segment as usize].next()
                    {
                        debug_assert_eq!(replica.allocation.extent().offset(), place.offset);
                        shard.get_mut(slot).add_replica(replica);
                    }
                }
            }
            drop(claims);
            let own = shard.take_up(now);
            taken.fresh.extend(own.fresh);
            taken.used.extend(own.used);
            taken.objects += own.objects;
            taken.unfinished += own.unfinished;
            taken.dropped.extend(own.dropped);
        }
        taken
    }
}
