//! From noted places to segments whose space is divided, and objects that have it.

use core::time::Duration;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mc_types::{Generation, Time};

use super::space::{Claim, Claims, Holder, Layout, Mounting, MountingRecord, Place};
use super::{GAP, Rebuild, RebuildError, RebuildReport};
use crate::journal::emit::Emit;
use crate::master::Master;
use crate::object::replica::Replica;
use crate::object::slot::ObjectSlot;
use crate::shard::Shard;
use crate::shard::retained::RetainedSpace;
use crate::space::segment::{Segment, SegmentSpec};
use crate::tenant::id::{TenantId, unscoped};
use crate::tenant::quota::PolicyError;
use crate::tier::kinds::FileState;

/// The claims to each mounting.
type ByMounting = Vec<Vec<Claim>>;

/// The segments that came of the mountings.
type Segments = Vec<Option<Arc<Segment>>>;

/// What an object's places come to.
enum Places {
    Good,
    /// None of them is left.
    Lost,
    Unknown,
    OutOfRange,
}

impl Rebuild {
    /// The master that the records describe, and what became of them. From `now` on it
    /// waits for its clients to come back.
    ///
    /// # Errors
    /// [`RebuildError`] when a segment cannot be divided as it was for another reason
    /// than the records.
    pub fn finish(mut self, now: Time) -> Result<(Master, RebuildReport), RebuildError> {
        let mut report = RebuildReport::default();
        self.drop_namesakes();
        let counts = self.check_places(&mut report);
        let mut claims = self.collect(&counts);
        self.settle(&mut claims);
        let segments = self.divide(claims, now, &mut report)?;
        for number in 0..self.claims.len() {
            self.order_replicas(number, &segments);
            let mut shard = self.master.shards()[number].lock();
            let taken = shard.take_up(now);
            report.objects += taken.objects;
            report.unfinished += taken.unfinished;
            self.dropped.malformed += taken.dropped;
        }
        self.await_clients(&segments, now);
        self.set_policies();
        let Self { master, next_generation, dropped, .. } = self;
        if next_generation > 0 {
            master.generations.store(next_generation + GAP, Ordering::Relaxed);
        }
        if report.unfinished > 0 {
            master.release_not_before(now + master.config.put_start_release_timeout);
        }
        report.dropped = dropped;
        Ok((master, report))
    }

    /// A name belongs to the segment that was mounted last under it.
    fn drop_namesakes(&mut self) {
        let mut names = HashSet::new();
        for known in self.space.mountings.iter_mut().rev() {
            if let MountingRecord::Mounted(mounted) = known
                && !names.insert(mounted.0.name.clone())
            {
                *known = MountingRecord::Gone;
                self.dropped.namesakes += 1;
            }
        }
    }

    fn mounted(&self, mounting: Mounting) -> Option<&SegmentSpec> {
        match self.space.mountings.get(mounting as usize)? {
            MountingRecord::Mounted(mounted) => Some(&mounted.0),
            MountingRecord::Unheard | MountingRecord::Gone => None,
        }
    }

    /// Drops the objects that cannot be where they are said to be. Counts the claims to
    /// each mounting, at least.
    fn check_places(&mut self, report: &mut RebuildReport) -> Vec<usize> {
        let layout = Layout::of(self.master.config.memory_allocator);
        let mut counts = vec![0; self.space.mountings.len()];
        let mut reserved: Vec<(Place, u64)> = Vec::new();
        for (number, claims) in self.claims.iter().enumerate() {
            let mut shard = self.master.shards()[number].lock();
            for slot in ObjectSlot::range(0..shard.end()) {
                let (Some(object), Some(noted)) = (shard.object(slot), claims.get(slot)) else {
                    continue;
                };
                // Whatever becomes of the object, a client may be writing there.
                reserved.extend(noted.reserved());
                match self.places(noted, object.len(), &layout) {
                    Places::Good => {
                        for place in noted.replicas() {
                            counts[place.mounting as usize] += 1;
                        }
                        continue;
                    }
                    Places::Lost | Places::Unknown if object.outlives_memory() => continue,
                    Places::Lost => report.lost += 1,
                    Places::Unknown => self.dropped.unknown_segment += 1,
                    Places::OutOfRange => self.dropped.out_of_range += 1,
                }
                shard.detach(slot);
            }
        }
        let timeout = self.master.config.put_start_release_timeout;
        for (place, len) in reserved {
            self.space.keep_at(place, len, timeout);
        }
        for (mounting, _) in self.space.kept.keys() {
            counts[*mounting as usize] += 1;
        }
        counts
    }

    fn places(&self, claims: &Claims, len: u64, layout: &Layout) -> Places {
        // One that never had any was on its client's own disk, or had a file and there are
        // none any more.
        let (mut is_any_good, mut is_any_unheard, mut is_any_gone) = (false, false, false);
        for place in claims.replicas() {
            match &self.space.mountings[place.mounting as usize] {
                MountingRecord::Mounted(mounted)
                    if !layout.admits(mounted.0.size, place.offset, len) =>
                {
                    return Places::OutOfRange;
                }
                MountingRecord::Mounted(_) => is_any_good = true,
                MountingRecord::Gone => is_any_gone = true,
                MountingRecord::Unheard => is_any_unheard = true,
            }
        }
        match (is_any_good, is_any_unheard && !is_any_gone) {
            (true, _) => Places::Good,
            (false, true) => Places::Unknown,
            (false, false) => Places::Lost,
        }
    }

    /// Sorts the claims by what they are to.
    fn collect(&mut self, counts: &[usize]) -> ByMounting {
        let layout = Layout::of(self.master.config.memory_allocator);
        let mut all: ByMounting = counts.iter().map(|count| Vec::with_capacity(*count)).collect();
        for number in 0..self.claims.len() {
            let shard = self.master.shards()[number].lock();
            let mut has_many = false;
            for slot in ObjectSlot::range(0..shard.end()) {
                let (Some(object), Some(noted)) =
                    (shard.object(slot), self.claims[number].get(slot))
                else {
                    continue;
                };
                has_many |= matches!(noted, Claims::Many(_));
                let holder = Holder::Object { shard: number as u16, slot };
                for place in noted.replicas() {
                    if self.mounted(place.mounting).is_some() {
                        let claim = Claim { offset: place.offset, len: object.len(), holder };
                        all[place.mounting as usize].push(claim);
                    }
                }
            }
            // Only the order of several replicas is still to be looked up.
            if !has_many {
                self.claims[number] = crate::shard::objects::Objects::new();
            }
        }
        for (&(mounting, offset), &(len, _)) in &self.space.kept {
            if self.mounted(mounting).is_some_and(|spec| layout.admits(spec.size, offset, len)) {
                all[mounting as usize].push(Claim { offset, len, holder: Holder::Retained });
            }
        }
        all
    }

    /// Drops the objects that claim what belongs to later ones. Leaves claims in the
    /// order of their offsets that do not contradict each other.
    fn settle(&mut self, all: &mut ByMounting) {
        let layout = Layout::of(self.master.config.memory_allocator);
        let shards = self.master.shards();
        let generation = |claim: &Claim| match claim.holder {
            Holder::Retained => None,
            Holder::Object { shard, slot } => {
                shards[shard as usize].lock().object(slot).map(|object| object.generation)
            }
        };
        let mut is_any_dropped = false;
        for claims in &mut *all {
            claims.sort_unstable_by_key(|claim| (claim.offset, claim.holder));
            let mut losers = BTreeSet::new();
            layout.settle(claims, generation, |at| {
                losers.insert(at);
            });
            for &at in &losers {
                if let Holder::Object { shard, slot } = claims[at].holder {
                    let mut shard = shards[shard as usize].lock();
                    if shard.object(slot).is_some() {
                        shard.detach(slot);
                        self.dropped.overlapping += 1;
                        is_any_dropped = true;
                    }
                }
            }
            let mut at = 0;
            claims.retain(|_| {
                at += 1;
                !losers.contains(&(at - 1))
            });
        }
        if is_any_dropped {
            let stays =
                |claim: &Claim| claim.holder == Holder::Retained || generation(claim).is_some();
            all.iter_mut().for_each(|claims| claims.retain(stays));
        }
    }

    /// Divides each segment as its claims say and gives each holder its part.
    fn divide(
        &mut self,
        all: ByMounting,
        now: Time,
        report: &mut RebuildReport,
    ) -> Result<Segments, RebuildError> {
        let config = &self.master.config;
        let memory = config.memory_allocator;
        // Whatever a record says, no client was promised to be waited for longer.
        let longest = config.put_start_release_timeout.max(config.lease_ttl);
        let mut segments = Segments::new();
        for (number, claims) in (0..).zip(all) {
            let known = core::mem::replace(
                &mut self.space.mountings[number as usize],
                MountingRecord::Gone,
            );
            let MountingRecord::Mounted(mounted) = known else {
                segments.push(None);
                continue;
            };
            let (spec, client) = *mounted;
            let id = spec.id;
            // With the claims gone less is held at the moment when most is.
            let holders: Vec<Holder> = claims.iter().map(|claim| claim.holder).collect();
            let extents = claims.into_iter().map(|claim| claim.extent());
            let (segment, allocations) = Segment::restored(spec, client, memory, extents)
                .map_err(|source| RebuildError::Segment { segment: id, source })?;
            let segment = Arc::new(segment);
            self.master.segments.write().add(Arc::clone(&segment));
            report.segments += 1;
            for (holder, allocation) in holders.into_iter().zip(allocations) {
                let extent = allocation.extent();
                let replica = Replica { segment: Arc::clone(&segment), allocation };
                match holder {
                    Holder::Object { shard, slot } => {
                        let mut shard = self.master.shards()[shard as usize].lock();
                        if let Some(label) = shard.label(slot) {
                            segment.set_label(&replica.allocation, label);
                        }
                        shard.get_mut(slot).add_replica(replica);
                    }
                    Holder::Retained => {
                        report.kept_bytes = report.kept_bytes.saturating_add(extent.len());
                        let kept = self.space.kept.get(&(number, extent.offset()));
                        let left = kept.map_or(longest, |(_, left)| *left);
                        self.keep(replica, now, left.min(longest), report.kept_bytes);
                    }
                }
            }
            segments.push(Some(segment));
        }
        Ok(segments)
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

    /// Puts the replicas of objects that have several in the order of their records.
    fn order_replicas(&mut self, number: usize, segments: &Segments) {
        let mut shard = self.master.shards()[number].lock();
        for slot in ObjectSlot::range(0..self.claims[number].end()) {
            let Some(Claims::Many(many)) = self.claims[number].get(slot) else { continue };
            if shard.object(slot).is_none() {
                continue;
            }
            let object = shard.get_mut(slot);
            let place = |replica: &Replica| {
                many.replicas.iter().position(|place| {
                    let segment = segments.get(place.mounting as usize).and_then(Option::as_ref);
                    place.offset == replica.allocation.extent().offset()
                        && segment.is_some_and(|s| Arc::ptr_eq(s, &replica.segment))
                })
            };
            let mut replicas: Vec<Replica> = object.take_replicas().into_iter().collect();
            replicas.sort_by_key(place);
            object.set_replicas(replicas.into_iter().collect());
        }
        self.claims[number] = crate::shard::objects::Objects::new();
    }

    fn set_policies(&mut self) {
        for (tenant, bytes) in core::mem::take(&mut self.policies) {
            match self.master.quotas.set_policy(&tenant, bytes) {
                // Without tenants in the settings no tenant has a quota.
                Ok(()) | Err(PolicyError::Off) => {}
                Err(_) => self.dropped.malformed += 1,
            }
        }
    }

    /// Waits for the clients of the segments to return with them.
    fn await_clients(&self, segments: &Segments, now: Time) {
        let config = &self.master.config;
        // Even where silent clients are given up at once these have to notice first
        // that there is another master.
        let timeout = config.client_return_timeout.max(config.client_ttl);
        let mut clients = self.master.clients.lock();
        for segment in segments.iter().flatten() {
            clients.await_return(segment.client(), segment.spec().id, now, timeout);
        }
    }
}

/// What a shard took up.
#[derive(Default)]
struct TakenUp {
    objects: u64,
    unfinished: u64,
    dropped: u64,
}

impl Shard {
    /// Enters its objects, which are there already, in the queues and groups that they
    /// belong to.
    fn take_up(&mut self, now: Time) -> TakenUp {
        let mut complete: Vec<(Time, ObjectSlot)> = Vec::new();
        let mut open: Vec<(Generation, ObjectSlot)> = Vec::new();
        let mut taken = TakenUp::default();
        for slot in ObjectSlot::range(0..self.end()) {
            if self.object(slot).is_some() && self.charge(slot).is_err() {
                self.detach(slot).take_replicas().release_uncharged();
                taken.dropped += 1;
            }
            let Some(object) = self.object(slot) else { continue };
            if object.is_complete() {
                complete.push((object.protection().last_touched(), slot));
            } else {
                open.push((object.generation, slot));
            }
        }
        open.sort_unstable();
        open.dedup_by(|(later, slot), (generation, _)| {
            // A put is known by its generation alone.
            let is_double = later == generation;
            if is_double {
                let tenant = self.tenant(*slot);
                let replicas = self.detach(*slot).take_replicas();
                self.give_back(tenant, replicas);
                self.config().quotas.release(tenant, 0);
                taken.dropped += 1;
            }
            is_double
        });
        self.take_up_files(now);
        for &(generation, slot) in &open {
            self.reopen_put(slot, generation);
            self.renew(slot, now);
            self.note_lost_memory(slot, now);
        }
        complete.sort_unstable();
        for &(_, slot) in &complete {
            self.renew(slot, now);
            // A sink that needs the objects lists them.
            self.get_mut(slot).tell_kinds();
            let object = self.get(slot);
            if !object.has_memory() {
                self.note_lost_memory(slot, now);
                continue;
            }
            let item = self.item(object);
            self.eviction().insert(slot, item);
        }
        taken.unfinished = open.len() as u64;
        taken.objects = taken.unfinished + complete.len() as u64;
        taken
    }

    /// Charges the owner of an object's key with it, above the quota if need be.
    fn charge(&mut self, slot: ObjectSlot) -> Result<(), PolicyError> {
        if let Some(object) = self.object(slot)
            && self.config().quotas.is_on()
        {
            let bytes = object.replicas().fold(0, |sum: u64, r| sum.saturating_add(r.len()));
            let tenant = TenantId::new(unscoped(self.key(object)).0).unwrap_or_default();
            let tenant = self.config().quotas.restore(&tenant, bytes)?;
            self.assign(slot, tenant);
        }
        Ok(())
    }

    /// The client that writes a file has its whole time again.
    fn take_up_files(&mut self, now: Time) {
        for slot in ObjectSlot::range(0..self.end()) {
            if self.object(slot).is_some_and(|object| object.file() == FileState::Writing) {
                self.reopen_file(slot, now);
            }
        }
    }

    /// Counts an object's times from now on, and those of its group.
    fn renew(&mut self, slot: ObjectSlot, now: Time) {
        let lease_end = now + self.config().terms.lease;
        let object = self.get_mut(slot);
        let is_complete = object.is_complete();
        object.renew(now, is_complete);
        if !object.has_memory() {
            // It is not evicted, so it shares nothing with its group.
            object.leave_group();
        }
        if let Some(membership) = object.membership() {
            membership.settle(slot);
            membership.group().access(lease_end);
        }
        if is_complete {
            object.release_group();
        }
    }
}
