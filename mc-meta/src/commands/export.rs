//! The state as records, a page at a time.

use core::iter;
use core::ops::Bound;
use core::time::Duration;
use std::sync::atomic::Ordering;

use mc_types::{Generation, SegmentId, Time};

use crate::master::Master;
use crate::rebuild::page::{At, ExportCursor, ExportPage, PAGE, SLOTS};
use crate::record::record_ref::RecordRef;
use crate::record::{Record, located};
use crate::shard::Shard;
use crate::side_tables::retained::GrantId;
use crate::tenant::quota::TenantUsage;
use crate::vocabulary::slot::ObjectSlot;

impl Master {
    /// The state as [`Record`]s, from `cursor` on: segments first, then objects and
    /// space that is kept, one shard after the other. A page holds one lock, for a few
    /// hundred records, so commands go on meanwhile.
    ///
    /// The pages together are a fuzzy snapshot: each shows its part as it was at a
    /// moment of its own. With the records of all effects since before the first page
    /// was asked for applied after them, in order, they give the state as it is after
    /// the last of these effects; on a master that no client uses meanwhile the pages alone
    /// do.
    ///
    /// Takes O(segments) for a page of segments and O(1) for each other. The quotas of
    /// all tenants are on the first page.
    pub fn export(&self, now: Time, cursor: ExportCursor) -> ExportPage {
        match cursor.0 {
            At::Start => {
                let next = Generation::new(self.generations.load(Ordering::Relaxed));
                let mut page = self.export_segments(None);
                let first = iter::once(Record::Generations { next }).chain(self.export_policies());
                page.records.splice(..0, first);
                page
            }
            At::Segments { after } => self.export_segments(Some(after)),
            At::Noted { .. } => self.export_objects(now, 0, 0),
            At::Objects { shard, slot } => self.export_objects(now, shard, slot),
            At::Kept { shard, after } => self.export_kept(now, shard, after),
        }
    }

    fn export_policies(&self) -> impl Iterator<Item = Record> {
        let tenants = self.tenant_quotas().map_or_else(Vec::new, |report| report.tenants);
        tenants.into_iter().filter(TenantUsage::has_policy).map(|row| Record::TenantPolicy {
            below: row.below(),
            tenant: row.tenant,
            requested: row.requested,
            mode: row.mode,
        })
    }

    fn export_segments(&self, after: Option<SegmentId>) -> ExportPage {
        let table = self.segments.read();
        let mut following: Vec<_> =
            table.all().filter(|segment| Some(segment.spec().id) > after).collect();
        following.sort_unstable_by_key(|segment| segment.spec().id);
        let last = following.get(PAGE - 1).map(|segment| segment.spec().id);
        let records = following
            .into_iter()
            .take(PAGE)
            .map(|s| RecordRef::of_segment(s).to_record())
            .collect();
        let next = last.map_or(At::Objects { shard: 0, slot: 0 }, |after| At::Segments { after });
        ExportPage { records, shard: None, next: Some(ExportCursor(next)) }
    }

    fn export_objects(&self, now: Time, number: u32, from: u32) -> ExportPage {
        let Some(shard) = self.shards().get(number as usize) else { return ExportPage::END };
        let shard = shard.lock();
        let to = from.saturating_add(SLOTS).min(shard.end());
        let records =
            ObjectSlot::range(from..to).filter_map(|slot| shard.export(slot, now)).collect();
        let next = if to < shard.end() {
            At::Objects { shard: number, slot: to }
        } else {
            At::Kept { shard: number, after: None }
        };
        ExportPage { records, shard: Some(number), next: Some(ExportCursor(next)) }
    }

    fn export_kept(&self, now: Time, number: u32, after: Option<(Time, GrantId)>) -> ExportPage {
        let Some(shard) = self.shards().get(number as usize) else { return ExportPage::END };
        let shard = shard.lock();
        let mut last = None;
        let mut records = Vec::new();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        for (entry, space) in shard.retained().range((from, Bound::Unbounded)).take(PAGE) {
            last = Some(*entry);
            let (space, left) = (located(space.replicas.iter()), entry.0 - now);
            if !space.is_empty() {
                records.push(Record::SpaceKept { space, left });
            }
        }
        let next = match last {
            Some(_) => At::Kept { shard: number, after: last },
            None => At::Objects { shard: number + 1, slot: 0 },
        };
        let is_end = last.is_none() && number as usize + 1 >= self.shards().len();
        ExportPage { records, shard: None, next: (!is_end).then_some(ExportCursor(next)) }
    }
}

impl Shard {
    /// The object of a slot. Of one of which nothing outlasts a restart, what remains is
    /// space that a client may still be copying it to.
    fn export(&self, slot: ObjectSlot, now: Time) -> Option<Record> {
        let object = self.object(slot)?;
        if object.is_live() {
            return Some(Record::Object(self.view(slot).record(Some(now)).to_record()));
        }
        let space = self.view(slot).reserved();
        let left = self.transfer(slot).map_or(Duration::MAX, |transfer| transfer.due - now);
        (!space.is_empty()).then_some(Record::SpaceKept { space, left })
    }
}
