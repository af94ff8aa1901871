//! Where the replicas of an object go.

use std::sync::Arc;

use mc_alloc::Label;
use mc_alloc::strategy::{
    AllocationStrategy as Strategy, DynAllocationStrategy, FreeRatioFirst, LeastFragmented,
    LocalFirst, RandomStrategy, Request, RoundRobin, place,
};
use mc_types::{ClientId, MediaType};
use smallvec::SmallVec;

use crate::space::pool::MediumPool;
use crate::space::replica::{Replica, Replicas};
use crate::space::segment::Segment;
use crate::space::strategy::AllocationStrategy;
use crate::space::table::SegmentTable;
use crate::tenant::quota::QuotaError;
use crate::vocabulary::request::ReplicateConfig;

/// Why no replica could be placed.
#[derive(Clone, Debug)]
pub(crate) enum NoRoom {
    /// No segment is mounted, or every one that is was excluded.
    NoSegments { mounted: usize },
    /// No segment of the medium that was asked for is mounted, or every one that is was
    /// excluded.
    NoMedium { medium: MediaType, mounted: usize },
    /// The object is larger than any segment can hold.
    TooLarge { largest_object: u64 },
    /// Full or fragmented: making room may help. `best_free` is the largest
    /// number of free bytes seen in one segment.
    NotNow { best_free: u64 },
    /// Its tenant may not have it, or not so much.
    Quota(QuotaError),
}

/// One placement.
pub(crate) struct PlacementRequest<'a> {
    /// Bytes of each replica.
    pub(crate) len: u64,
    pub(crate) config: &'a ReplicateConfig,
    pub(crate) writer: ClientId,
    /// The label of the space.
    pub(crate) label: Option<Label>,
    pub(crate) strategy: AllocationStrategy,
    /// The strategy that takes the place of that.
    pub(crate) own: Option<&'a dyn DynAllocationStrategy>,
    /// Placements before this one.
    pub(crate) turn: u64,
    pub(crate) seed: u64,
}

/// Positions in the pool of a medium.
type Positions = SmallVec<[usize; 4]>;

impl SegmentTable {
    /// Takes space for up to as many replicas as the demand's, each in a segment of its
    /// own and, when possible, on a host of its own.
    ///
    /// # Errors
    /// [`NoRoom`] when there is no room for a single one.
    pub(crate) fn place(&self, demand: &PlacementRequest<'_>) -> Result<Replicas, NoRoom> {
        let config = demand.config;
        let medium = self.medium_for(config);
        let pool = self.pool(medium);
        let mounted = pool.segments().len();
        let preferred = self.named(medium, &config.preferred_segments);
        let excluded = self.left_out(medium, config);
        check(pool, demand.len, config, &excluded)?;
        let wanted = config.replica_num as usize;
        let view = self.seen_by(demand.writer, medium);
        let request = Request::new(mounted, demand.seed)
            .view(&view)
            .size(demand.len)
            .wanted(wanted)
            .preferred(&preferred)
            .excluded(&excluded)
            .turn(demand.turn);
        let mut placed = match (demand.own, demand.strategy) {
            (Some(own), _) => take_from(pool, demand, request, own.candidates_boxed(request)),
            (None, AllocationStrategy::Random) => {
                take(pool, demand, request, &RandomStrategy::default())
            }
            (None, AllocationStrategy::RoundRobin) => {
                take(pool, demand, request, &RoundRobin::default())
            }
            (None, AllocationStrategy::FreeRatioFirst) => {
                take(pool, demand, request, &FreeRatioFirst::default())
            }
            (None, AllocationStrategy::LeastFragmented) => {
                take(pool, demand, request, &LeastFragmented::default())
            }
            (None, AllocationStrategy::LocalFirst) => {
                take(pool, demand, request, &LocalFirst::default())
            }
        };
        if placed.replicas.len() < wanted && placed.offered < mounted - excluded.len() {
            take_more(pool, demand, request, &mut placed);
        }
        if placed.replicas.is_empty() {
            let free = others(pool, &excluded).map(|segment| segment.free());
            let best_free = free.max().unwrap_or(0);
            return Err(NoRoom::NotNow { best_free });
        }
        Ok(placed.replicas)
    }

    /// Returns the number of segments of the medium that an object of `len` bytes would be
    /// placed in if they were empty.
    ///
    /// # Errors
    /// [`NoRoom::NoSegments`], [`NoRoom::NoMedium`] or [`NoRoom::TooLarge`] when there is none.
    pub(crate) fn could_place(&self, len: u64, config: &ReplicateConfig) -> Result<usize, NoRoom> {
        let medium = self.medium_for(config);
        let pool = self.pool(medium);
        check(pool, len, config, &self.left_out(medium, config))?;
        Ok(pool.segments().len())
    }

    /// Where the segments of these names are, each once. Names of no segment, or of one of
    /// another medium, name nothing: it may have gone since the writer learnt of it.
    #[inline]
    fn named(&self, medium: MediaType, names: &[Box<str>]) -> Positions {
        let mut places = Positions::new();
        for name in names {
            if let Some(at) = self.position_in(medium, name)
                && !places.contains(&at)
            {
                places.push(at);
            }
        }
        places
    }

    /// Where the segments are that a put leaves out, by name or by id, in their order and each
    /// once.
    fn left_out(&self, medium: MediaType, config: &ReplicateConfig) -> Positions {
        if config.excluded_segments.is_empty() && config.avoided_segments.is_empty() {
            return Positions::new();
        }
        let mut places = self.named(medium, &config.excluded_segments);
        let avoided = config.avoided_segments.iter();
        places.extend(avoided.filter_map(|id| self.position_of(medium, *id)));
        places.sort_unstable();
        places.dedup();
        places
    }
}

fn check(
    pool: &MediumPool,
    len: u64,
    config: &ReplicateConfig,
    excluded: &Positions,
) -> Result<(), NoRoom> {
    let mounted = pool.segments().len();
    if excluded.len() == mounted {
        return Err(match config.medium {
            Some(medium) => NoRoom::NoMedium { medium, mounted },
            None => NoRoom::NoSegments { mounted },
        });
    }
    let largest_object = if excluded.is_empty() {
        pool.largest()
    } else {
        others(pool, excluded).map(|segment| segment.largest_object()).max().unwrap_or(0)
    };
    if len > largest_object {
        return Err(NoRoom::TooLarge { largest_object });
    }
    Ok(())
}

/// The segments that are not excluded.
fn others<'a>(
    pool: &'a MediumPool,
    excluded: &Positions,
) -> impl Iterator<Item = &'a Arc<Segment>> {
    let segments = pool.segments().iter().enumerate();
    segments.filter(|(at, _)| excluded.binary_search(at).is_err()).map(|(_, segment)| segment)
}

/// Takes space from the segments that `strategy` offers.
fn take(
    pool: &MediumPool,
    demand: &PlacementRequest<'_>,
    request: Request<'_>,
    strategy: &impl Strategy,
) -> Placed {
    take_from(pool, demand, request, strategy.candidates(request))
}

/// Takes space from the segments that are offered.
fn take_from(
    pool: &MediumPool,
    demand: &PlacementRequest<'_>,
    request: Request<'_>,
    candidates: impl Iterator<Item = usize>,
) -> Placed {
    let mut placed = Placed::default();
    let candidates = candidates.inspect(|_| placed.offered += 1);
    for (at, replica) in place(request, candidates, |at| take_in(pool, at, demand)) {
        placed.holders.push(at);
        placed.replicas.push(replica);
    }
    placed
}

/// Looks at every segment. A strategy offers a few; before objects are evicted, or
/// fewer replicas made than asked for, the others have their turn.
fn take_more(
    pool: &MediumPool,
    demand: &PlacementRequest<'_>,
    request: Request<'_>,
    placed: &mut Placed,
) {
    let first = request.seed as usize % request.segments;
    let from_first = (first..request.segments).chain(0..first);
    let with_room = from_first.filter(|at| pool.segments()[*at].free() >= request.size);
    let missing = request.wanted - placed.replicas.len();
    let request = request.holders(&placed.holders).wanted(missing);
    let more = place(request, with_room, |at| take_in(pool, at, demand));
    placed.replicas.extend(more.map(|(_, replica)| replica));
}

fn take_in(pool: &MediumPool, at: usize, demand: &PlacementRequest<'_>) -> Option<Replica> {
    let segment = &pool.segments()[at];
    // A full one is not locked.
    if segment.free() < demand.len {
        return None;
    }
    let allocation = segment.allocate(demand.len, demand.label).ok()?;
    Some(Replica { segment: Arc::clone(segment), allocation })
}

/// The offers of a strategy's candidates.
#[derive(Default)]
struct Placed {
    replicas: Replicas,
    /// The segments of the replicas.
    holders: Positions,
    /// Candidates that were looked at.
    offered: usize,
}
