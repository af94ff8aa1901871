//! A settled rebuild: its objects have their space while records still come.
//!
//! Records are applied one after the other, in the order of the changes: space is taken from a
//! segment's allocator where the record says, and given back when the object lets it go. So the
//! master is there at every moment but for what time decides, and taking over costs a look at each
//! object. Records of a healthy journal never contradict each other; when some do, the objects
//! concerned are without space until the rebuild is [settled](crate::rebuild::settle) anew.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mc_alloc::Label;
use mc_types::SegmentId;
use smallvec::SmallVec;

use crate::rebuild::layout::Layout;
use crate::rebuild::space::{Many, Mounting, Space};
use crate::record::Location;
use crate::shard::Shard;
use crate::space::allocator::MemoryAllocator;
use crate::space::replica::{Replica, Replicas};
use crate::space::segment::Segment;
use crate::space::table::SegmentTable;
use crate::vocabulary::slot::ObjectSlot;

/// An object, by the number of its shard and its slot there.
pub(crate) type ObjectAt = (u32, ObjectSlot);

/// Space that an object had before the record that is being applied.
pub(crate) type Before = SmallVec<[Replica; 4]>;

/// The space kept beside the objects.
#[derive(Debug)]
pub(crate) struct Settled {
    layout: Layout,
    segments: HashMap<SegmentId, Arc<Segment>>,
    /// Space of no object.
    pub(crate) kept: BTreeMap<(Mounting, u64), Replica>,
    /// Space that is kept as soon as its object lets it go.
    pub(crate) passing: BTreeMap<(Mounting, u64), u64>,
    /// Space that was reserved for these objects, by what no client can end after a takeover.
    pub(crate) reserved: BTreeMap<ObjectAt, Replicas>,
    /// Space that was reserved for objects that cannot be.
    pub(crate) orphans: Vec<Replica>,
    /// Where objects are said to be that have not all of that.
    pub(crate) contested: BTreeMap<ObjectAt, Many>,
    is_broken: bool,
}

impl Settled {
    pub(crate) fn new(layout: Layout, segments: impl Iterator<Item = Arc<Segment>>) -> Self {
        Self {
            layout,
            segments: segments.map(|segment| (segment.spec().id, segment)).collect(),
            kept: BTreeMap::new(),
            passing: BTreeMap::new(),
            reserved: BTreeMap::new(),
            orphans: Vec::new(),
            contested: BTreeMap::new(),
            is_broken: false,
        }
    }

    /// Returns whether records have contradicted each other.
    pub(crate) const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Takes an object out, and its space with what was reserved for it.
    pub(crate) fn take_out(&mut self, shard: &mut Shard, at: ObjectAt, before: &mut Before) {
        let tenant = shard.tenant(at.1);
        let replicas = shard.detach(at.1).take_replicas();
        shard.config().books.quotas.release(tenant, replicas.bytes());
        before.extend(replicas);
        before.extend(self.reserved.remove(&at).into_iter().flatten());
        self.contested.remove(&at);
    }

    /// Takes the space at these places: what the object had `before`, or else out of what is free.
    /// Where something cannot be taken, the object is contested.
    pub(crate) fn place(
        &mut self,
        locations: &[Location],
        label: Option<Label>,
        before: &mut Before,
        is_contested: &mut bool,
    ) -> Replicas {
        let mut replicas = Replicas::default();
        for location in locations {
            match self.place_one(location, label, before) {
                Some(replica) => replicas.push(replica),
                None => *is_contested = true,
            }
        }
        replicas
    }

    fn place_one(
        &self,
        location: &Location,
        label: Option<Label>,
        before: &mut Before,
    ) -> Option<Replica> {
        let segment = self.segments.get(&location.segment)?;
        let is_there = |replica: &Replica| {
            replica.allocation.extent() == location.extent && Arc::ptr_eq(&replica.segment, segment)
        };
        if let Some(at) = before.iter().position(is_there) {
            let replica = before.swap_remove(at);
            if let Some(label) = label {
                segment.relabel(&replica.allocation, label);
            }
            return Some(replica);
        }
        self.take(segment, location, label)
    }

    fn take(
        &self,
        segment: &Arc<Segment>,
        location: &Location,
        label: Option<Label>,
    ) -> Option<Replica> {
        let extent = location.extent;
        if !self.layout.admits(segment.spec().size, extent.offset(), extent.len()) {
            return None;
        }
        let allocation = segment.allocate_at(extent, label).ok()?;
        Some(Replica { segment: Arc::clone(segment), allocation })
    }

    /// Notes where an object is said to be that has not all of that.
    pub(crate) fn contest(&mut self, at: ObjectAt, places: Many) {
        self.is_broken = true;
        self.contested.insert(at, places);
    }

    /// Gives back what an object had before and has no more, or keeps it.
    pub(crate) fn let_go(&mut self, space: &Space, before: Before) {
        for replica in before {
            if let Some(place) = self.passes(space, &replica) {
                self.kept.insert(place, replica);
            } else {
                replica.segment.release(replica.allocation);
            }
        }
    }

    /// The place of space that is to be kept from now on, if it is.
    fn passes(&mut self, space: &Space, replica: &Replica) -> Option<(Mounting, u64)> {
        if self.passing.is_empty() || replica.segment.is_gone() {
            return None;
        }
        let extent = replica.allocation.extent();
        let place = (space.current(replica.segment.spec().id)?, extent.offset());
        let len = self.passing.remove(&place)?;
        self.is_broken |= len != extent.len();
        Some(place)
    }

    /// Keeps space: at once when it has no owner, or else as soon as its object lets it go.
    pub(crate) fn keep(&mut self, space: &Space, location: &Location) {
        let known = self.segments.get(&location.segment).zip(space.current(location.segment));
        let Some((segment, mounting)) = known else {
            self.is_broken = true;
            return;
        };
        let (place, len) = ((mounting, location.extent.offset()), location.extent.len());
        if let Some(kept) = self.kept.get(&place) {
            self.is_broken |= kept.len() != len;
        } else if let Some(replica) = self.take(segment, location, None) {
            self.kept.insert(place, replica);
            self.is_broken |= self.passing.contains_key(&place);
        } else {
            self.is_broken |= self.passing.insert(place, len).is_some_and(|before| before != len);
        }
    }

    /// Keeps space if it has no owner; returns whether it was kept.
    pub(crate) fn keep_now(&mut self, space: &Space, location: &Location) -> bool {
        self.keep(space, location);
        let mounting = space.current(location.segment);
        mounting.is_some_and(|at| self.kept.contains_key(&(at, location.extent.offset())))
    }

    /// Gives space back that was kept.
    pub(crate) fn free(&mut self, space: &Space, location: &Location) {
        let Some(mounting) = space.current(location.segment) else { return };
        let place = (mounting, location.extent.offset());
        self.passing.remove(&place);
        if let Some(Replica { segment, allocation }) = self.kept.remove(&place) {
            segment.release(allocation);
        }
    }

    /// A segment was mounted, or is there for something else than before.
    pub(crate) fn mount(
        &mut self,
        space: &Space,
        table: &mut SegmentTable,
        id: SegmentId,
        memory: MemoryAllocator,
    ) {
        let Some(mounted) = space.mounted_as(id) else { return };
        if let Some(segment) = self.segments.get(&id) {
            if *segment.spec() == mounted.spec && segment.client() == mounted.client {
                segment.set_purpose(mounted.purpose);
                return;
            }
            // Another one: the record of its end was lost.
            self.lose(table, id);
        }
        let restored = Segment::restored(
            mounted.spec.clone(),
            mounted.client,
            mounted.purpose,
            memory,
            [],
            drop,
        );
        match restored {
            Ok(segment) if table.by_name(&mounted.spec.name).is_none() => {
                let segment = Arc::new(segment);
                table.add(Arc::clone(&segment));
                self.segments.insert(id, segment);
            }
            _ => self.is_broken = true,
        }
    }

    /// A segment has gone, with all that was kept in it.
    pub(crate) fn lose(&mut self, table: &mut SegmentTable, id: SegmentId) {
        if self.segments.remove(&id).is_some() {
            table.remove(id);
            // No object is left to release the space that is kept there.
            self.kept.retain(|_, replica| replica.segment.spec().id != id);
        }
    }

    /// All records together decide what becomes of an object: the order in which it was used, or whether
    /// its owner can be charged.
    pub(crate) const fn needs_all(&mut self) {
        self.is_broken = true;
    }
}
