//! The state as records.

use std::collections::BTreeMap;

use mc_meta::{ExportCursor, Location, ObjectRecord, Record};
use mc_types::{Extent, SegmentId};

use super::{Mounting, Object, Oracle};

/// Space in the order of where it is.
type Space = Vec<(SegmentId, u64, u64)>;

fn sorted(space: impl IntoIterator<Item = (SegmentId, Extent)>) -> Space {
    let place = |(id, extent): (SegmentId, Extent)| (id, extent.offset(), extent.len());
    let mut space: Space = space.into_iter().map(place).collect();
    space.sort_unstable();
    space
}

fn located(space: &[Location]) -> impl Iterator<Item = (SegmentId, Extent)> {
    space.iter().map(|location| (location.segment, location.extent))
}

impl Oracle {
    /// Checks that a master which starts from the records has the same state, and grants no
    /// space that is in use.
    pub(super) fn check_records(&self) {
        let mut segments = BTreeMap::new();
        let mut space = Vec::new();
        let mut objects = 0;
        let mut cursor = Some(ExportCursor::default());
        while let Some(at) = cursor {
            let page = self.master.export(self.now, at);
            for record in page.records {
                match record {
                    Record::Segment { spec, client, status, grace } => {
                        let old = segments.insert(spec.id, (spec, client, status, grace));
                        assert!(old.is_none(), "exported twice: {old:?}");
                    }
                    Record::Object(record) => {
                        objects += 1;
                        self.check_record(&record);
                        space.extend(located(&record.replicas).chain(located(&record.reserved)));
                    }
                    Record::SpaceKept { space: kept, .. } => space.extend(located(&kept)),
                    Record::Generations { next } => {
                        assert!(self.generations.iter().all(|used| *used < next));
                    }
                    other => panic!("{other:?} in an export"),
                }
            }
            cursor = page.next;
        }
        assert_eq!(objects, self.all().count());
        assert_eq!(segments.len(), self.segments.len());
        let mut taken = Vec::new();
        for (id, segment) in &self.segments {
            let (spec, client, status, grace) = &segments[id];
            assert_eq!((spec, client), (&segment.spec, &segment.client));
            assert_eq!((*status, *grace), (segment.status_on_return(), segment.grace));
            taken.extend(self.taken(segment.mounting).into_iter().map(|extent| (*id, extent)));
        }
        assert_eq!(sorted(space), sorted(taken), "no space is missing from the records");
    }

    fn check_record(&self, record: &ObjectRecord) {
        let key = record.key.as_str();
        let object: &Object = self.put_of(key, record.generation).expect("what is exported is");
        assert_eq!(record.owner, object.owner);
        assert_eq!(record.complete, object.complete);
        assert_eq!(record.slices.as_slice(), object.slices);
        assert_eq!((record.soft_pin, record.hard_pin), (object.soft_pin, object.hard_pin));
        let group = object.group.map(|group| self.groups[&group].name.as_str());
        assert_eq!(record.group.as_deref(), group);
        assert_eq!(record.idle, self.now - object.touched);
        let id = |(mounting, extent): &(Mounting, Extent)| {
            (self.segment(*mounting).unwrap().spec.id, *extent)
        };
        let replicas = sorted(object.replicas.iter().map(id));
        assert_eq!(sorted(located(&record.replicas)), replicas);
    }
}
