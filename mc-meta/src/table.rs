//! The segment table: which segments are mounted, by whom, and where the next
//! replica goes.

use std::collections::HashMap;
use std::sync::Arc;

use mc_alloc::strategy::{AllocationStrategy, RandomStrategy, Request};
use mc_types::{ClientId, SegmentId};
use smallvec::SmallVec;

use crate::command::ReplicateConfig;
use crate::object::{Replica, Replicas};
use crate::segment::Segment;

#[derive(Debug, Default)]
pub(crate) struct SegmentTable {
    segments: Vec<Arc<Segment>>,
    by_id: HashMap<SegmentId, usize>,
    by_name: HashMap<Box<str>, usize>,
    largest: u64,
    capacity: u64,
    view: u64,
}

/// Why no replica could be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoRoom {
    /// No segment is mounted, or every one that is was excluded.
    NoSegments { mounted: usize },
    /// The object is larger than the largest segment.
    TooLarge { largest_segment: u64 },
    /// Full or fragmented: making room may help. `best_free` is the largest
    /// number of free bytes seen in one segment.
    NotNow { best_free: u64 },
}

impl SegmentTable {
    pub(crate) fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    pub(crate) fn by_id(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        self.by_id.get(&id).map(|&at| &self.segments[at])
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Segment>> {
        self.by_name.get(name).map(|&at| &self.segments[at])
    }

    /// Changes whenever a segment comes or goes.
    pub(crate) const fn view(&self) -> u64 {
        self.view
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn used(&self) -> u64 {
        self.segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.used()))
    }

    /// Adds a segment whose id and name are free.
    pub(crate) fn add(&mut self, segment: Arc<Segment>) {
        let at = self.segments.len();
        self.by_id.insert(segment.spec().id, at);
        self.by_name.insert(segment.spec().name.clone(), at);
        self.segments.push(segment);
        self.recount();
    }

    /// Takes a segment out and retires it.
    pub(crate) fn remove(&mut self, id: SegmentId) -> Option<Arc<Segment>> {
        let at = self.by_id.remove(&id)?;
        let segment = self.segments.swap_remove(at);
        self.by_name.remove(&segment.spec().name);
        if let Some(moved) = self.segments.get(at) {
            self.by_id.insert(moved.spec().id, at);
            self.by_name.insert(moved.spec().name.clone(), at);
        }
        segment.retire();
        self.recount();
        Some(segment)
    }

    /// Ids of the segments that `client` contributes.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<SegmentId> {
        let own = self.segments.iter().filter(|segment| segment.client() == client);
        own.map(|segment| segment.spec().id).collect()
    }

    fn recount(&mut self) {
        let sizes = self.segments.iter().map(|segment| segment.spec().size);
        self.largest = sizes.clone().max().unwrap_or(0);
        self.capacity = sizes.fold(0, u64::saturating_add);
        self.view += 1;
    }

    /// Takes space for up to `config.replica_num` replicas of `len` bytes, each
    /// in a segment of its own.
    ///
    /// # Errors
    /// [`NoRoom`] when there is no room for a single one.
    pub(crate) fn place(
        &self,
        len: u64,
        config: &ReplicateConfig,
        strategy: &RandomStrategy,
        seed: u64,
    ) -> Result<Replicas, NoRoom> {
        let mounted = self.segments.len();
        let preferred = self.named(&config.preferred_segments);
        let excluded = self.named(&config.excluded_segments);
        if excluded.len() == mounted {
            return Err(NoRoom::NoSegments { mounted });
        }
        let allowed = || {
            let segments = self.segments.iter().enumerate();
            segments.filter(|(at, _)| !excluded.contains(at)).map(|(_, segment)| segment)
        };
        let largest_segment = if excluded.is_empty() {
            self.largest
        } else {
            allowed().map(|segment| segment.spec().size).max().unwrap_or(0)
        };
        if len > largest_segment {
            return Err(NoRoom::TooLarge { largest_segment });
        }
        let wanted = config.replica_num as usize;
        let mut replicas = Replicas::new();
        let mut tried = 0;
        let request = Request::new(mounted, seed).preferred(&preferred).excluded(&excluded);
        for at in strategy.candidates(request) {
            tried += 1;
            place_in(&self.segments[at], len, &mut replicas);
            if replicas.len() == wanted {
                return Ok(replicas);
            }
        }
        // The strategy tries a few. Before objects are evicted, or fewer replicas
        // made than asked for, the others are looked at as well.
        if tried < mounted - excluded.len() {
            let first = seed as usize % mounted;
            for at in (first..mounted).chain(0..first) {
                let segment = &self.segments[at];
                let holds = |replica: &Replica| Arc::ptr_eq(&replica.segment, segment);
                let passed_over = excluded.contains(&at) || replicas.iter().any(holds);
                if segment.free() >= len && !passed_over {
                    place_in(segment, len, &mut replicas);
                    if replicas.len() == wanted {
                        return Ok(replicas);
                    }
                }
            }
        }
        if replicas.is_empty() {
            let best_free = allowed().map(|segment| segment.free()).max().unwrap_or(0);
            return Err(NoRoom::NotNow { best_free });
        }
        Ok(replicas)
    }

    /// Where the segments of these names are, each once. Names of no segment name
    /// nothing: it may have gone since the writer learnt of it.
    fn named(&self, names: &[Box<str>]) -> SmallVec<[usize; 4]> {
        let mut places = SmallVec::new();
        for name in names {
            if let Some(&at) = self.by_name.get(name)
                && !places.contains(&at)
            {
                places.push(at);
            }
        }
        places
    }
}

/// Adds a replica in `segment`, if it has room.
fn place_in(segment: &Arc<Segment>, len: u64, replicas: &mut Replicas) {
    if let Ok(allocation) = segment.allocate(len) {
        replicas.push(Replica { segment: Arc::clone(segment), allocation });
    }
}
