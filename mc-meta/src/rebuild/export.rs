//! The state of a rebuild as records, a page at a time: a standby's snapshot.

use mc_types::{Extent, Generation, Time};
use smallvec::SmallVec;

use crate::rebuild::Rebuild;
use crate::rebuild::page::{At, ExportCursor, ExportPage, PAGE, SLOTS};
use crate::rebuild::part::{Part, RECENT};
use crate::rebuild::settled::{ObjectAt, Settled};
use crate::rebuild::space::Place;
use crate::record::{Location, Locations, Record, located};
use crate::shard::Shard;
use crate::space::replica::Replicas;
use crate::vocabulary::slot::ObjectSlot;

impl Rebuild {
    /// Returns a page of the records that make this state again, as [`Master::export`] does of a
    /// master's: with the records that were applied since before the first page, in order, after them.
    /// What is only noted until the end is in them, too: which objects contradict each other shows when
    /// their rebuild is finished.
    ///
    /// Segments and quotas are on the first page; space that is kept follows, and then the objects, one
    /// shard after the other.
    ///
    /// [`Master::export`]: crate::Master::export
    #[must_use]
    pub fn export(&self, cursor: ExportCursor) -> ExportPage {
        match cursor.0 {
            At::Start | At::Segments { .. } => self.export_segments(),
            At::Noted { after } => self.export_noted(after),
            At::Objects { shard, slot } => self.export_objects(shard, slot),
            At::Kept { shard, .. } => self.export_objects(shard + 1, 0),
        }
    }

    /// Returns the number of the shards of the master that is to be.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.master.shards().len()
    }

    /// Every part has what concerns no object; the first one is asked.
    fn first(&self) -> &Part {
        self.parts.first().expect("there is one at least")
    }

    fn export_segments(&self) -> ExportPage {
        let first = self.first();
        let next = self.parts.iter().map(|part| part.next_generation).max().unwrap_or(0);
        let generations = Record::Generations { next: Generation::new(next) };
        let policies = first.policies.iter().map(|(tenant, &(requested, mode, below))| {
            let tenant = tenant.clone();
            Record::TenantPolicy { tenant, requested, mode, below }
        });
        let segments = first.space.mounted().into_iter().map(|mounted| mounted.record());
        let records = core::iter::once(generations).chain(policies).chain(segments).collect();
        ExportPage { records, shard: None, next: Some(ExportCursor(At::Noted { after: None })) }
    }

    fn export_noted(&self, after: Option<(u32, u64)>) -> ExportPage {
        use core::ops::Bound;
        let space = &self.first().space;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        let mut records = Vec::new();
        for (&(mounting, offset), &(len, left)) in
            space.kept.range((from, Bound::Unbounded)).take(PAGE)
        {
            last = Some((mounting, offset));
            let location = space.locate(Place { offset, mounting }, len);
            records
                .extend(location.map(|at| Record::SpaceKept { space: SmallVec::from([at]), left }));
        }
        let next = match last {
            Some(_) => At::Noted { after: last },
            None => At::Objects { shard: 0, slot: 0 },
        };
        ExportPage { records, shard: None, next: Some(ExportCursor(next)) }
    }

    fn export_objects(&self, number: u32, from: u32) -> ExportPage {
        let Some(lock) = self.master.shards().get(number as usize) else { return ExportPage::END };
        let is_there = |part: &&Part| {
            (part.first_shard..part.first_shard + part.shards).contains(&(number as usize))
        };
        let Some(part) = self.parts.iter().find(is_there) else { return ExportPage::END };
        let shard = lock.lock();
        let to = from.saturating_add(SLOTS).min(shard.end());
        let slots = ObjectSlot::range(from..to);
        let record = |slot| match &self.settled {
            Some(settled) => part.export_settled(&shard, (number, slot), settled),
            None => {
                let noted = part.claims[number as usize - part.first_shard].get(slot)?;
                part.export_claims(&shard, slot, noted.replicas(), noted.reserved())
            }
        };
        let records = slots.filter_map(record).collect();
        let next = match to < shard.end() {
            true => At::Objects { shard: number, slot: to },
            false => At::Objects { shard: number + 1, slot: 0 },
        };
        let is_end = to >= shard.end() && number as usize + 1 >= self.master.shards().len();
        ExportPage { records, shard: Some(number), next: (!is_end).then_some(ExportCursor(next)) }
    }
}

impl Part {
    /// The object of a slot, with the space that it has, or where it is said to be.
    fn export_settled(&self, shard: &Shard, at: ObjectAt, settled: &Settled) -> Option<Record> {
        if let Some(contested) = settled.contested.get(&at) {
            return self.export_claims(
                shard,
                at.1,
                contested.replicas.iter().copied(),
                &contested.reserved,
            );
        }
        let reserved = settled.reserved.get(&at);
        let reserved = located(reserved.into_iter().flat_map(Replicas::iter));
        self.export(shard, at.1, located(shard.object(at.1)?.replicas()), reserved)
    }

    fn export_claims(
        &self,
        shard: &Shard,
        slot: ObjectSlot,
        replicas: impl Iterator<Item = Place>,
        reserved: &[(Place, u64)],
    ) -> Option<Record> {
        let len = shard.object(slot)?.len();
        let locate = |place, len| self.space.locate(place, len);
        let replicas = replicas.filter_map(|at| locate(at, len)).collect();
        let reserved = reserved.iter().filter_map(|&(at, len)| locate(at, len)).collect();
        self.export(shard, slot, replicas, reserved)
    }

    /// The object of a slot. One that has lost all of its places is there as long as space is reserved
    /// for it, to which a client may still be writing, so that no other object gets that space.
    fn export(
        &self,
        shard: &Shard,
        slot: ObjectSlot,
        replicas: Locations,
        reserved: Locations,
    ) -> Option<Record> {
        let object = shard.object(slot)?;
        if replicas.is_empty() && reserved.is_empty() && !object.outlives_memory() {
            return None;
        }
        // Later than all of them: what counts is their order.
        let now = Time::from_millis(RECENT.as_millis() + self.applied + 1);
        let mut record = shard.view(slot).record(Some(now));
        (record.replicas, record.reserved) = (replicas, reserved);
        Some(Record::Object(record.to_record()))
    }
}

impl crate::rebuild::space::Space {
    /// A place by the id of its segment; `None` when the segment is gone.
    pub(crate) fn locate(&self, place: Place, len: u64) -> Option<Location> {
        let extent = Extent::new(place.offset, len)?;
        Some(Location { segment: self.segment_of(place.mounting)?, extent })
    }
}
