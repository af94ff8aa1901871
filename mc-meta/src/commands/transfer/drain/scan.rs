//! The search of a drain job for objects in the shards, and for their targets.

use std::collections::BTreeMap;
use std::sync::Arc;

use mc_types::SegmentId;

use crate::master::Master;
use crate::shard::Shard;
use crate::side_tables::drain::{Cursor, Unit};
use crate::space::replica::Replica;
use crate::space::segment::Segment;
use crate::space::table::SegmentTable;
use crate::vocabulary::slot::ObjectSlot;

/// Slots that all jobs together look at in one tick.
pub(crate) const TICK_SLOTS: u32 = 8192;

/// Slots looked at while a shard stays locked.
const BATCH: u32 = 512;

/// The objects found in a few slots.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) units: Vec<Unit>,
    /// Objects that cannot be moved now.
    pub(crate) blocked: u64,
}

/// Where a unit can go.
#[derive(Debug)]
pub(crate) enum Pick {
    Target(Arc<Segment>),
    /// Nowhere now.
    NoRoom,
    /// Nowhere, however empty the targets are.
    TooLarge,
}

type Sources = BTreeMap<SegmentId, Arc<Segment>>;

impl Master {
    /// Looks at the next slots, for up to `limit` units and no longer than one shard may
    /// stay locked; `None` at the end.
    pub(crate) fn scan(
        &self,
        cursor: &mut Cursor,
        sources: &Sources,
        limit: usize,
        budget: &mut u32,
    ) -> Option<Found> {
        let shard = self.shards().get(cursor.shard)?.lock();
        let to = shard.end().min(cursor.slot.saturating_add(BATCH.min(*budget)));
        let mut found = Found::default();
        let from = cursor.slot;
        while cursor.slot < to && found.units.len() < limit {
            found.look_at(&shard, ObjectSlot::new(cursor.slot), sources);
            cursor.slot += 1;
        }
        // An empty shard costs something, too.
        *budget = budget.saturating_sub((cursor.slot - from).max(1));
        if cursor.slot >= shard.end() {
            *cursor = Cursor { shard: cursor.shard + 1, slot: 0 };
        }
        Some(found)
    }
}

impl Found {
    fn look_at(&mut self, shard: &Shard, slot: ObjectSlot, sources: &Sources) {
        let Some(object) = shard.object(slot) else { return };
        let lies_in = |replica: &&Replica| {
            let own = sources.get(&replica.segment.spec().id);
            own.is_some_and(|own| Arc::ptr_eq(own, &replica.segment))
        };
        // A copy that is under way to there will have to be moved from there.
        if let Some(transfer) = shard.transfer(slot) {
            let mut replicas = object.replicas().chain(transfer.targets.iter());
            self.blocked += u64::from(replicas.any(|replica| lies_in(&replica)));
            return;
        }
        let Some(replica) = object.replicas().find(lies_in) else { return };
        if !object.is_complete() || !replica.segment.is_readable() {
            self.blocked += u64::from(!replica.segment.is_gone());
            return;
        }
        self.units.push(Unit {
            key: shard.owned_key(slot),
            len: object.len(),
            source: Arc::clone(&replica.segment),
            holders: object.replicas().map(|replica| Arc::clone(&replica.segment)).collect(),
        });
    }
}

impl SegmentTable {
    /// The least used of the targets that have room and hold no replica of the object;
    /// one on a host without a replica before the others.
    pub(crate) fn pick(
        &self,
        unit: &Unit,
        targets: &[Box<str>],
        planned: &BTreeMap<SegmentId, u64>,
    ) -> Pick {
        let free = |segment: &Segment| {
            let planned = planned.get(&segment.spec().id).copied().unwrap_or(0);
            segment.free().saturating_sub(planned)
        };
        let shares_host = |segment: &Segment| {
            let mut others = unit.holders.iter().filter(|it| !Arc::ptr_eq(it, &unit.source));
            others.any(|other| other.host() == segment.host())
        };
        let mut fits = false;
        let mut best: Option<(bool, &Arc<Segment>)> = None;
        let mut consider = |segment| {
            let holds = unit.holders.iter().any(|holder| Arc::ptr_eq(holder, segment));
            fits |= !holds && segment.largest_object() >= unit.len;
            if holds || !segment.is_allocatable() || free(segment) < unit.len {
                return;
            }
            let host = shares_host(segment);
            let is_better = best.is_none_or(|(best_host, best)| {
                // Free parts of the whole, compared without rounding.
                let free_part =
                    |a: &Segment, b: &Segment| u128::from(free(a)) * u128::from(b.spec().size);
                match (host, best_host) {
                    (false, true) => true,
                    (true, false) => false,
                    _ => free_part(segment, best) > free_part(best, segment),
                }
            });
            if is_better {
                best = Some((host, segment));
            }
        };
        let same_medium = self.pool(unit.source.medium()).segments();
        if targets.is_empty() {
            same_medium.iter().for_each(&mut consider);
        } else {
            targets.iter().filter_map(|name| self.by_name(name)).for_each(&mut consider);
        }
        match best {
            Some((_, target)) => Pick::Target(Arc::clone(target)),
            // Without any target there may be one later.
            None if fits || same_medium.is_empty() => Pick::NoRoom,
            None => Pick::TooLarge,
        }
    }
}
