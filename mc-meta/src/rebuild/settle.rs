//! From noted places to segments whose space is divided, and objects that have it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use mc_types::SegmentId;

use crate::eviction::common::Fresh;
use crate::eviction::room::Labels;
use crate::rebuild::collect::Collected;
use crate::rebuild::corrections::Corrections;
use crate::rebuild::divide::{Divided, Plan};
use crate::rebuild::executor::{Executor, for_each};
use crate::rebuild::layout::{Claim, Contradictions, Holder, Layout};
use crate::rebuild::settled::Settled;
use crate::rebuild::sort::sort;
use crate::rebuild::space::{Fate, Mounted, Mounting};
use crate::rebuild::take_up::Admitted;
use crate::rebuild::{Outcome, Rebuild, RebuildError, RebuildPart};
use crate::record::Location;
use crate::space::replica::{Replica, Replicas};
use crate::vocabulary::slot::ObjectSlot;

/// Objects that enter the orders of eviction at a time.
const ENTER: usize = 4096;

/// Space that belongs to no object, by segment and offset, with its length.
type Kept = BTreeMap<(u32, u64), u64>;

impl Rebuild {
    /// Gives each object its space, and says whether it did: not where records contradict each other
    /// and that is to be waited for.
    pub(crate) fn settle(
        &mut self,
        contradictions: Contradictions,
        executor: &Executor<'_>,
    ) -> Result<bool, RebuildError> {
        let waits = contradictions == Contradictions::Wait;
        let mut outcome = Outcome::default();
        let segments = self.settle_segments(&mut outcome);
        let memory = self.master.config.memory_allocator;
        let layout = Layout::of(memory);
        if waits {
            let is_consistent = |part: RebuildPart<'_>| part.is_consistent(&segments, &layout);
            let is_any_unclear = outcome.dropped.namesakes > 0
                || !outcome.corrections.gone.is_empty()
                || for_each(executor, self.parts(), is_consistent).contains(&false);
            if is_any_unclear {
                return Ok(false);
            }
        }
        let collect = |mut part: RebuildPart<'_>| part.collect(&segments, &layout, contradictions);
        let mut collected = for_each(executor, self.parts(), collect);
        let kept = self.all_kept(&collected, &segments, &layout);
        let lists = (0..).zip(&segments).map(|(number, _): (u32, _)| {
            let claims = collected.iter_mut().map(|part| &mut part.claims[number as usize]);
            let claims: Vec<Vec<Claim>> = claims.map(core::mem::take).collect();
            let kept = kept.range((number, 0)..=(number, u64::MAX));
            let kept =
                kept.map(|(&(_, offset), &len)| Claim { offset, len, holder: Holder::Retained });
            (claims, kept.collect())
        });
        let plan = |(claims, kept)| Plan::new(claims, kept, &layout);
        let mut plans = for_each(executor, lists.collect::<Vec<_>>(), plan);
        if waits && !plans.iter().all(|plan| plan.agree) {
            return Ok(false);
        }
        outcome.dropped.overlapping =
            self.settle_claims(&mut plans, &segments, &layout, &mut outcome.corrections);
        let numbers: Vec<Mounting> = self.mountings(&segments);
        let kept = self.divide(plans, segments, executor)?;
        for part in &mut collected {
            outcome.lost += part.lost;
            outcome.corrections.removed.append(&mut part.removed);
        }
        self.settled = Some(self.keep_all(kept, &collected, &numbers, layout));
        self.merge_parts();
        // What could not be charged.
        let uncharged = core::mem::take(&mut self.outcome);
        outcome.dropped.add(uncharged.dropped);
        outcome.corrections.removed.extend(uncharged.corrections.removed);
        self.outcome = outcome;
        Ok(true)
    }

    /// Divides the segments, and gives each object what it has in them. Returns what no object has.
    fn divide(
        &mut self,
        plans: Vec<Plan>,
        segments: Vec<Mounted>,
        executor: &Executor<'_>,
    ) -> Result<Vec<(u32, Replica)>, RebuildError> {
        let memory = self.master.config.memory_allocator;
        let labels = Labels::new(self.master.config.shards);
        let ids: Vec<SegmentId> = segments.iter().map(|mounted| mounted.spec.id).collect();
        let divide = |(plan, mounted): (Plan, _)| plan.divide(mounted, memory, labels);
        let divided = for_each(executor, plans.into_iter().zip(segments), divide);
        let mut by_part: Vec<_> = self.parts.iter().map(|_| Vec::new()).collect();
        let mut kept = Vec::new();
        for ((number, id), divided) in (0..).zip(ids).zip(divided) {
            let divided = divided.map_err(|source| RebuildError::Segment { segment: id, source });
            let Divided { segment, by_part: replicas, kept: of_none } = divided?;
            for (all, own) in by_part.iter_mut().zip(replicas) {
                all.push(own.into_iter());
            }
            kept.extend(of_none.into_iter().map(|replica| (number, replica)));
            self.master.segments.write().add(segment);
        }
        let attach = |(mut part, replicas): (RebuildPart<'_>, _)| part.attach(replicas);
        let parts = self.parts().into_iter().zip(by_part);
        let (mut fresh, mut used) = (Vec::new(), Vec::new());
        for admitted in for_each(executor, parts, attach) {
            fresh.extend(admitted.fresh);
            used.extend(admitted.used);
            self.outcome.dropped.malformed += admitted.dropped.len() as u64;
            self.outcome.corrections.removed.extend(admitted.dropped);
        }
        self.enter_orders(&fresh, &used);
        Ok(kept)
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

    /// The segments that stay, in the order in which they were mounted; a name belongs to the one
    /// that was mounted last under it.
    fn settle_segments(&mut self, outcome: &mut Outcome) -> Vec<Mounted> {
        let mut segments: Vec<Mounted> = Vec::new();
        let mut names = HashSet::new();
        // Every part knows the same ones.
        let mounted = self.parts.first().map(|part| part.space.mounted()).unwrap_or_default();
        for mounted in mounted.into_iter().rev() {
            if names.insert(&mounted.spec.name) {
                segments.push(mounted.clone());
            } else {
                outcome.dropped.namesakes += 1;
                outcome.corrections.gone.push(mounted.spec.id);
            }
        }
        segments.reverse();
        let unheard: BTreeSet<_> =
            self.parts.iter().flat_map(|part| part.space.unheard()).collect();
        outcome.corrections.gone.extend(unheard);
        for part in &mut self.parts {
            part.fates = part.space.fates(&segments);
        }
        segments
    }

    /// The numbers that the first part has given to the mountings of these segments.
    fn mountings(&self, segments: &[Mounted]) -> Vec<Mounting> {
        let space = self.parts.first().map(|part| &part.space);
        let number = |mounted: &Mounted| space.and_then(|space| space.current(mounted.spec.id));
        segments.iter().map(|mounted| number(mounted).unwrap_or(Mounting::MAX)).collect()
    }

    /// The space that is kept, reserved space included.
    fn all_kept(&self, collected: &[Collected], segments: &[Mounted], layout: &Layout) -> Kept {
        let mut kept = Kept::new();
        let mut keep = |segment: u32, offset, len: u64| {
            if layout.admits(segments[segment as usize].spec.size, offset, len) {
                let space = kept.entry((segment, offset)).or_default();
                *space = len.max(*space);
            }
        };
        for part in &self.parts {
            for (&(mounting, offset), &(len, _)) in &part.space.kept {
                if let Fate::Segment(segment) = part.fates[mounting as usize] {
                    keep(segment, offset, len);
                }
            }
        }
        for &(segment, offset, len) in collected.iter().flat_map(|part| &part.reserved) {
            keep(segment, offset, len);
        }
        kept
    }

    /// Drops the objects that claim what belongs to later ones, and says how many. Leaves claims
    /// that do not contradict each other.
    fn settle_claims(
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

    /// The space kept beside the objects from now on, by the grant that it is kept for.
    fn keep_all(
        &self,
        space: Vec<(u32, Replica)>,
        collected: &[Collected],
        numbers: &[Mounting],
        layout: Layout,
    ) -> Settled {
        let mut settled = Settled::new(layout, self.master.segments.read().all().cloned());
        let place = |segment: u32, offset| (numbers[segment as usize], offset);
        let first = self.parts.first();
        for (segment, replica) in space {
            settled.kept.insert(place(segment, replica.allocation.extent().offset()), replica);
        }
        for part in collected {
            for (number, slot, places) in &part.reservers {
                let is_there = self.master.shards()[*number].lock().object(*slot).is_some();
                let mut space = Replicas::default();
                for &(segment, offset) in places {
                    let at = place(segment, offset);
                    let Some(replica) = settled.kept.remove(&at) else { continue };
                    if !is_there {
                        settled.orphans.push(replica);
                        continue;
                    }
                    if first.is_some_and(|part| part.space.kept.contains_key(&at)) {
                        settled.passing.insert(at, replica.len());
                    }
                    space.push(replica);
                }
                // Also of one whose space others have: that it is not its own is to be told.
                if is_there {
                    settled.reserved.insert((*number as u32, *slot), space);
                }
            }
            for &(segment, offset) in &part.orphans {
                settled.orphans.extend(settled.kept.remove(&place(segment, offset)));
            }
        }
        settled
    }

    /// From now on one part has all shards: records are applied one after the other.
    fn merge_parts(&mut self) {
        let mut parts = core::mem::take(&mut self.parts).into_iter();
        let Some(mut first) = parts.next() else { return };
        first.claims = Vec::new();
        for other in parts {
            first.shards += other.shards;
            first.next_generation = first.next_generation.max(other.next_generation);
            first.applied = first.applied.max(other.applied);
            first.dropped.add(other.dropped);
        }
        self.parts = vec![first];
    }
}

impl RebuildPart<'_> {
    /// Gives its objects their replicas, which come in the order of the claims to each segment, and
    /// enters them in the queues that they belong to.
    fn attach(&mut self, mut replicas: Vec<std::vec::IntoIter<Replica>>) -> Admitted {
        let Self { part, shards, .. } = self;
        let mut admitted = Admitted::default();
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
            admitted.add(shard.admit_found());
        }
        admitted
    }
}
