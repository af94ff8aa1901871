//! The segment table: which segments there are, whose, and on which hosts.
//!
//! Segments that take new objects are in the pool of their medium and have positions there,
//! which the allocation strategies choose among. The others (suspended, draining, about to
//! go) are parked: known by id, and to the objects in them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mc_alloc::strategy::Segments;
use mc_types::{ClientId, MediaType, SegmentId};

use crate::space::pool::MediumPool;
use crate::space::segment::Segment;
use crate::tenant::quota::Quotas;
use crate::vocabulary::request::ReplicateConfig;
use crate::vocabulary::states::SegmentStatus;

#[derive(Debug, Default)]
pub(crate) struct SegmentTable {
    /// The segments that take new objects, by the numbers of their media.
    pools: [MediumPool; MediaType::ALL.len()],
    /// Where each of them is.
    positions: HashMap<SegmentId, Position>,
    /// Segments that take no new objects.
    parked: BTreeMap<SegmentId, Arc<Segment>>,
    by_name: HashMap<Box<str>, SegmentId>,
    /// The segments of each client, in the order in which they were mounted.
    by_client: HashMap<ClientId, Vec<SegmentId>>,
    /// Bytes of `parked`.
    parked_bytes: u128,
    view: u64,
    /// Told how many bytes there are for tenants.
    quotas: Arc<Quotas>,
}

/// Where a segment is that takes new objects.
#[derive(Clone, Copy, Debug)]
struct Position {
    medium: MediaType,
    at: usize,
}

impl SegmentTable {
    pub(crate) fn new(quotas: Arc<Quotas>) -> Self {
        Self { quotas, ..Self::default() }
    }

    /// The segments that take new objects, those of DRAM first.
    fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.pools.iter().flat_map(MediumPool::segments)
    }

    /// The segments of this medium that take new objects.
    pub(crate) const fn pool(&self, medium: MediaType) -> &MediumPool {
        &self.pools[medium as usize]
    }

    /// The medium that a put goes to: the one that it asks for, or else that of the first
    /// segment it prefers, or else DRAM. Without a segment of DRAM that takes new objects it
    /// is the next one that has any, so that a cluster of another medium can be used without
    /// naming it.
    pub(crate) fn medium_for(&self, config: &ReplicateConfig) -> MediaType {
        if let Some(medium) = config.medium {
            return medium;
        }
        let is_left_out = |name: &str| {
            config.excluded_segments.iter().any(|excluded| **excluded == *name)
                || self.by_name.get(name).is_some_and(|id| config.avoided_segments.contains(id))
        };
        let mut preferred = config.preferred_segments.iter().filter(|name| !is_left_out(name));
        if let Some(position) = preferred.find_map(|name| self.position(name)) {
            return position.medium;
        }
        self.default_medium()
    }

    /// The medium of puts that ask for nothing.
    pub(crate) fn default_medium(&self) -> MediaType {
        let mut media = MediaType::ALL.into_iter();
        media.find(|medium| !self.pool(*medium).is_empty()).unwrap_or_default()
    }

    /// Every segment, those that take new objects first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.segments().chain(self.parked.values())
    }

    pub(crate) fn by_id(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        match self.positions.get(&id) {
            Some(&Position { medium, at }) => Some(&self.pool(medium).segments()[at]),
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
        saturated(self.capacity_of_pools())
    }

    /// Bytes in use in the segments that take new objects.
    pub(crate) fn used(&self) -> u64 {
        self.segments().fold(0, |sum, segment| sum.saturating_add(segment.used()))
    }

    /// Where the segment of this name is in the pool of `medium`, if it takes new objects and
    /// is of that medium.
    pub(crate) fn position_in(&self, medium: MediaType, name: &str) -> Option<usize> {
        self.position(name).filter(|position| position.medium == medium).map(|position| position.at)
    }

    /// Where the segment of this id is in the pool of `medium`, as of
    /// [`position_in`](Self::position_in).
    pub(crate) fn position_of(&self, medium: MediaType, id: SegmentId) -> Option<usize> {
        let position = self.positions.get(&id).filter(|position| position.medium == medium);
        position.map(|position| position.at)
    }

    fn position(&self, name: &str) -> Option<Position> {
        self.positions.get(self.by_name.get(name)?).copied()
    }

    fn capacity_of_pools(&self) -> u128 {
        self.pools.iter().map(MediumPool::capacity).sum()
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

    /// Changes what a segment is there for: at once, or from its client's return on. `None` when there
    /// is none or the status may not follow.
    pub(crate) fn set_purpose(
        &mut self,
        id: SegmentId,
        status: SegmentStatus,
    ) -> Option<Arc<Segment>> {
        let segment = self.by_id(id)?;
        match segment.status() {
            SegmentStatus::Suspended => {
                segment.set_status_on_return(status).then(|| Arc::clone(segment))
            }
            _ => self.set_status(id, status),
        }
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
        let (id, medium) = (segment.spec().id, segment.medium());
        let at = self.pools[medium as usize].add(segment);
        self.positions.insert(id, Position { medium, at });
    }

    /// Takes the position of a segment away.
    fn take_out(&mut self, id: SegmentId) -> Option<Arc<Segment>> {
        let Position { medium, at } = self.positions.remove(&id)?;
        let pool = &mut self.pools[medium as usize];
        let segment = pool.remove(at);
        if let Some(moved) = pool.segments().get(at) {
            self.positions.insert(moved.spec().id, Position { medium, at });
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

    /// Ids of the segments that `client` contributes.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<SegmentId> {
        self.by_client.get(&client).cloned().unwrap_or_default()
    }

    /// The number of segments that `client` contributes and that are neither away nor to go.
    pub(crate) fn attached(&self, client: ClientId) -> usize {
        let own = self.by_client.get(&client).into_iter().flatten();
        own.filter_map(|id| self.by_id(*id)).filter(|it| it.status().is_attached()).count()
    }

    /// Returns the segments of a medium as a strategy may know them when `writer` puts.
    pub(crate) const fn seen_by(&self, writer: ClientId, medium: MediaType) -> SeenBy<'_> {
        SeenBy { table: self, pool: self.pool(medium), writer }
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
        self.quotas.set_capacity(saturated(self.capacity_of_pools() + self.parked_bytes));
        self.view += 1;
    }
}

/// A sum of segments' lengths, or the most that there can be.
fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// One medium's segments as the allocation strategies see them, with the distances from a
/// writer.
pub(crate) struct SeenBy<'a> {
    table: &'a SegmentTable,
    pool: &'a MediumPool,
    writer: ClientId,
}

impl Segments for SeenBy<'_> {
    fn capacity(&self, at: usize) -> u64 {
        self.pool.segments()[at].spec().size
    }

    fn available(&self, at: usize) -> u64 {
        self.pool.segments()[at].free()
    }

    fn largest_free(&self, at: usize) -> u64 {
        self.pool.segments()[at].largest_free()
    }

    fn host(&self, at: usize) -> u64 {
        self.pool.host_number(at)
    }

    /// Only the writer's host is known to be near: that of its oldest segment.
    fn near(&self, distance: u32) -> Option<&[usize]> {
        if distance > 0 {
            return None;
        }
        let own = self.table.by_client.get(&self.writer)?.first()?;
        self.pool.on_host(self.table.by_id(*own)?.host())
    }
}
