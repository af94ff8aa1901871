//! The segment table: which segments there are, whose, and on which hosts.
//!
//! Segments that take new objects have positions, which the allocation strategies
//! choose among. The others (suspended, draining, about to go) are parked: known by
//! id, and to the objects in them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mc_alloc::strategy::Segments;
use mc_types::{ClientId, SegmentId};

use crate::object::states::SegmentStatus;
use crate::space::segment::Segment;
use crate::tenant::quota::Quotas;

#[derive(Debug, Default)]
pub(crate) struct SegmentTable {
    segments: Vec<Arc<Segment>>,
    /// Where each of `segments` is.
    positions: HashMap<SegmentId, usize>,
    /// Those that take no new objects.
    parked: BTreeMap<SegmentId, Arc<Segment>>,
    by_name: HashMap<Box<str>, SegmentId>,
    /// The segments of each client, in the order in which they were mounted.
    by_client: HashMap<ClientId, Vec<SegmentId>>,
    by_host: HashMap<Box<str>, Host>,
    /// The number of each segment's host.
    host_numbers: Vec<u64>,
    hosts_seen: u64,
    /// How many of `segments` can hold an object of so many bytes, and no larger one.
    largest: BTreeMap<u64, usize>,
    /// Bytes of `segments`.
    capacity: u128,
    /// Bytes of `parked`.
    parked_bytes: u128,
    view: u64,
    /// Told how many bytes there are for tenants.
    quotas: Arc<Quotas>,
}

/// A host that serves segments.
#[derive(Debug)]
struct Host {
    /// Never given to another host, nor to the same one when it comes back.
    number: u64,
    /// Where its segments are in the table.
    segments: Vec<usize>,
}

impl SegmentTable {
    pub(crate) fn new(quotas: Arc<Quotas>) -> Self {
        Self { quotas, ..Self::default() }
    }

    /// The segments that take new objects.
    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Every segment, those that take new objects first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.segments.iter().chain(self.parked.values())
    }

    pub(crate) fn by_id(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        match self.positions.get(&id) {
            Some(&at) => Some(&self.segments[at]),
            None => self.parked.get(&id),
        }
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Segment>> {
        self.by_id(*self.by_name.get(name)?)
    }

    /// Changes whenever a segment comes, goes or changes its status.
    pub(crate) const fn view(&self) -> u64 {
        self.view
    }

    /// Bytes of the segments that take new objects.
    pub(crate) fn capacity(&self) -> u64 {
        saturated(self.capacity)
    }

    /// Bytes in use in the segments that take new objects.
    pub(crate) fn used(&self) -> u64 {
        self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.used()))
    }

    /// Where the segment of this name is, if it takes new objects.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(self.by_name.get(name)?).copied()
    }

    /// Bytes of the largest object that a segment can hold.
    pub(crate) fn largest(&self) -> u64 {
        self.largest.last_key_value().map_or(0, |(len, _)| *len)
    }

    /// Adds a segment whose id and name are free.
    pub(crate) fn add(&mut self, segment: Arc<Segment>) {
        let id = segment.spec().id;
        self.by_name.insert(segment.spec().name.clone(), id);
        self.by_client.entry(segment.client()).or_default().push(id);
        if segment.is_allocatable() {
            self.place_in(segment);
        } else {
            self.park(segment);
        }
        self.changed();
    }

    /// Takes a segment out and retires it.
    pub(crate) fn remove(&mut self, id: SegmentId) -> Option<Arc<Segment>> {
        let segment = self.take_out(id).or_else(|| self.unpark(id))?;
        self.by_name.remove(&segment.spec().name);
        self.leave_client(&segment);
        segment.set_status(SegmentStatus::Unmounted);
        self.changed();
        Some(segment)
    }

    /// Changes the status of a segment that stays; `None` when there is none or the
    /// status may not follow the one it has.
    pub(crate) fn set_status(
        &mut self,
        id: SegmentId,
        status: SegmentStatus,
    ) -> Option<Arc<Segment>> {
        let segment = Arc::clone(self.by_id(id)?);
        if status == SegmentStatus::Unmounted || !segment.set_status(status) {
            return None;
        }
        // It was heard of, or takes no new objects in any case.
        segment.set_suspect(false);
        if status.is_allocatable() {
            self.unpark(id);
            self.place_in(Arc::clone(&segment));
        } else if let Some(segment) = self.take_out(id) {
            self.park(segment);
        }
        self.changed();
        Some(segment)
    }

    /// Takes a segment out of those that take new objects because no client can reach it, or back
    /// among them; `None` when nothing changes.
    pub(crate) fn set_suspect(&mut self, id: SegmentId, is_suspect: bool) -> Option<Arc<Segment>> {
        let segment = Arc::clone(self.by_id(id)?);
        if segment.is_suspect() == is_suspect {
            return None;
        }
        segment.set_suspect(is_suspect);
        if is_suspect {
            if let Some(segment) = self.take_out(id) {
                self.park(segment);
            }
        } else if segment.is_allocatable() {
            self.unpark(id);
            self.place_in(Arc::clone(&segment));
        }
        self.changed();
        Some(segment)
    }

    /// Gives a segment a position.
    fn place_in(&mut self, segment: Arc<Segment>) {
        let at = self.segments.len();
        self.positions.insert(segment.spec().id, at);
        let hosts_seen = &mut self.hosts_seen;
        let host = self.by_host.entry(segment.host().into()).or_insert_with(|| {
            *hosts_seen += 1;
            Host { number: *hosts_seen, segments: Vec::new() }
        });
        host.segments.push(at);
        self.host_numbers.push(host.number);
        self.capacity += u128::from(segment.spec().size);
        *self.largest.entry(segment.largest_object()).or_default() += 1;
        self.segments.push(segment);
    }

    /// Takes the position of a segment away.
    fn take_out(&mut self, id: SegmentId) -> Option<Arc<Segment>> {
        let at = self.positions.remove(&id)?;
        let segment = self.segments.swap_remove(at);
        self.host_numbers.swap_remove(at);
        self.capacity -= u128::from(segment.spec().size);
        if let Entry::Occupied(mut count) = self.largest.entry(segment.largest_object()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        self.leave_host(&segment, at);
        if let Some(moved) = self.segments.get(at) {
            self.positions.insert(moved.spec().id, at);
            let last = self.segments.len();
            if let Some(host) = self.by_host.get_mut(moved.host()) {
                host.segments.iter_mut().filter(|place| **place == last).for_each(|p| *p = at);
            }
        }
        Some(segment)
    }

    fn leave_client(&mut self, segment: &Segment) {
        if let Some(own) = self.by_client.get_mut(&segment.client()) {
            own.retain(|id| *id != segment.spec().id);
            if own.is_empty() {
                self.by_client.remove(&segment.client());
            }
        }
    }

    fn leave_host(&mut self, segment: &Segment, at: usize) {
        if let Some(host) = self.by_host.get_mut(segment.host()) {
            host.segments.retain(|place| *place != at);
            if host.segments.is_empty() {
                self.by_host.remove(segment.host());
            }
        }
    }

    /// Ids of the segments that `client` contributes.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<SegmentId> {
        self.by_client.get(&client).cloned().unwrap_or_default()
    }

    /// What a strategy may know of the segments when `writer` puts.
    pub(crate) const fn seen_by(&self, writer: ClientId) -> SeenBy<'_> {
        SeenBy { table: self, writer }
    }

    /// Keeps a segment that takes no new objects.
    fn park(&mut self, segment: Arc<Segment>) {
        self.parked_bytes += u128::from(segment.spec().size);
        self.parked.insert(segment.spec().id, segment);
    }

    fn unpark(&mut self, id: SegmentId) -> Option<Arc<Segment>> {
        let segment = self.parked.remove(&id)?;
        self.parked_bytes -= u128::from(segment.spec().size);
        Some(segment)
    }

    /// A segment has come, gone or changed its status.
    fn changed(&mut self) {
        // What lies in parked segments is charged, too. If they did not count, a tenant
        // whose nodes are silent for a moment would have too much, and give up what it
        // has on the others.
        self.quotas.set_capacity(saturated(self.capacity + self.parked_bytes));
        self.view += 1;
    }
}

/// A sum of segments' lengths, or the most that there can be.
fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The table as the allocation strategies see it, with the distances from a writer.
pub(crate) struct SeenBy<'a> {
    table: &'a SegmentTable,
    writer: ClientId,
}

impl Segments for SeenBy<'_> {
    fn capacity(&self, at: usize) -> u64 {
        self.table.segments[at].spec().size
    }

    fn available(&self, at: usize) -> u64 {
        self.table.segments[at].free()
    }

    fn largest_free(&self, at: usize) -> u64 {
        self.table.segments[at].largest_free()
    }

    fn host(&self, at: usize) -> u64 {
        self.table.host_numbers[at]
    }

    /// Only the writer's host is known to be near: that of its oldest segment.
    fn near(&self, distance: u32) -> Option<&[usize]> {
        if distance > 0 {
            return None;
        }
        let own = self.table.by_client.get(&self.writer)?.first()?;
        let host = self.table.by_host.get(self.table.by_id(*own)?.host())?;
        Some(&host.segments)
    }
}
