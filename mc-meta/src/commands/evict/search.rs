//! The search for a run of neighbours, and its eviction.

use std::sync::Arc;

use mc_alloc::{Content, Direction, Neighbour, Place, Room};
use mc_types::Time;

use crate::eviction::choice::{Aim, Evicted};
use crate::eviction::common::List;
use crate::eviction::room::run::{Piece, Run, Stake, Victim};
use crate::eviction::room::{HOPELESS, Hopeless, Labels, Wanted, bytes_of};
use crate::eviction::{Class, Pool, class_of};
use crate::master::Master;
use crate::object::Queue;
use crate::shard::Shard;
use crate::space::replica::Replica;
use crate::space::segment::Segment;
use crate::tenant::ledger::TenantSlot;
use crate::vocabulary::hash::mix;
use crate::vocabulary::request::ReplicateConfig;
use crate::vocabulary::slot::ObjectSlot;

/// Shards of which runs are looked for around a cold object, and objects of each that are compared.
const COLD: usize = 8;
const COMPARED: u64 = 32;

/// Places drawn at random around which runs are looked for: at least, and as long as that is
/// little work.
const RANDOM: u64 = 8;

const MORE_RANDOM: u64 = 32;

/// Neighbours looked at that are little work.
const LITTLE: usize = 1 << 11;

/// Neighbours looked at before a run that costs too much is taken all the same, and no better
/// one looked for.
const ENOUGH: usize = 1 << 14;

/// Neighbours looked at before the search for any run ends without a result.
const MOST: usize = 1 << 17;

/// Objects that wait for a disk and are dropped at a time, at most.
const DROPPED: usize = 64;

/// Neighbours seen under one hold of an allocator's lock.
const CHUNK: usize = 256;

/// The condition under which an object may be part of a run.
#[derive(Clone, Copy, Debug)]
struct Terms {
    now: Time,
    /// Soft-pinned objects as well, or ordinary ones only.
    class: Class,
    /// The tenant that has more than it may, and loses first.
    over_quota: Option<TenantSlot>,
}

/// A search for a run, and its best result so far.
#[derive(Debug)]
struct Search<'a> {
    wanted: &'a Wanted<'a>,
    terms: Terms,
    best: Option<Run>,
    /// Neighbours looked at.
    seen: usize,
    /// Whether an object could not be part of a run only because of a lease or a transfer, which
    /// ends.
    met_passing: bool,
}

impl Search<'_> {
    fn is_good(&self) -> bool {
        self.best.as_ref().is_some_and(|run| run.loss <= self.wanted.most_lost())
    }

    /// Returns whether looking through more segments is worth its time.
    fn is_worth_more(&self) -> bool {
        let most = if self.best.is_some() { ENOUGH } else { MOST };
        !self.is_good() && self.seen < most
    }
}

impl Master {
    /// Evicts objects so that one of `len` bytes fits, and none when it cannot be made to fit.
    /// At most twice the bytes of the put are lost, unless every run that may go is longer (of
    /// groups, the length is estimated from the members seen). Soft-pinned objects go only when
    /// the settings allow it and no others make room.
    ///
    /// A tenant that has more than it may, because its quota has shrunk, gives its
    /// excess up before others lose anything.
    pub(crate) fn evict_to_fit(&self, now: Time, len: u64, config: &ReplicateConfig) -> Evicted {
        let medium = self.segments.read().medium_for(config);
        let wanted = Wanted::new(len, config, medium);
        if let Some(outcome) = self.room_from_disks(now, &wanted) {
            return outcome;
        }
        let over_quota = self.quotas.over_quota();
        let over_quota = over_quota
            .filter(|&(tenant, excess)| excess > self.quotas.leaving(tenant))
            .map(|(tenant, _)| tenant);
        let mut outcome = Evicted::default();
        let mut is_searched = false;
        for &class in self.config.evictable() {
            outcome.unfit = false;
            for tenant in over_quota.map(Some).into_iter().chain([None]) {
                outcome += self.evict_pool(Pool { class, tenant }, now, Aim::Room(&wanted));
                if outcome.taken() > 0 || outcome.cut_short {
                    return outcome;
                }
            }
            if !outcome.unfit {
                continue;
            }
            if let Some(met_passing) = self.is_hopeless(&wanted, now) {
                outcome.leased += u64::from(met_passing);
                return outcome;
            }
            is_searched = true;
            outcome += self.evict_cheapest_run(&wanted, Terms { now, class, over_quota });
            if outcome.taken() > 0 {
                return outcome;
            }
        }
        // With exclusions less was searched, which says nothing of other puts.
        if is_searched && !config.leaves_out_any() {
            let (met_passing, until) = (outcome.leased > 0, now + HOPELESS);
            *self.hopeless.lock() = Some(Hopeless { len, medium, met_passing, until });
        }
        outcome
    }

    /// Some may be on their way out already, and go when they are on a disk. A disk that keeps up is
    /// waited for; what waits for another one goes without it.
    fn room_from_disks(&self, now: Time, wanted: &Wanted<'_>) -> Option<Evicted> {
        self.local.writes_at_eviction()?;
        let late = {
            let book = self.local.book.lock();
            if book.offloads.promises_soon(now, wanted.len) {
                return Some(Evicted { leased: 1, ..Evicted::default() });
            }
            book.offloads.late(now, wanted.len, DROPPED)
        };
        let mut outcome = Evicted::default();
        let emit = self.emit(now);
        for job in late {
            let key = self.hashed(job.key.as_ref());
            let mut shard = self.shard_of(key);
            let Some(slot) = shard.find_of_put(key, job.generation, emit) else { continue };
            let is_usable = |replica: &Replica| wanted.is_usable(&replica.segment);
            if shard.get(slot).replicas().any(is_usable) {
                let bytes = shard.drop_waiting(slot, emit);
                outcome.bytes += bytes;
                outcome.objects += u64::from(bytes > 0);
            }
        }
        (outcome.bytes > 0).then_some(outcome)
    }

    /// `Some` when a search for no more room found none just now, and then whether leases or
    /// transfers were in the way.
    fn is_hopeless(&self, wanted: &Wanted<'_>, now: Time) -> Option<bool> {
        let hopeless = self.hopeless.lock();
        let last = hopeless.as_ref()?;
        let is_like_it = wanted.medium == last.medium && wanted.len >= last.len;
        (is_like_it && now < last.until).then_some(last.met_passing)
    }

    /// Evicts the run of neighbours that is worth least, of those that a bounded search
    /// finds.
    fn evict_cheapest_run(&self, wanted: &Wanted<'_>, terms: Terms) -> Evicted {
        let mut outcome = Evicted::default();
        let mut search = Search { wanted, terms, best: None, seen: 0, met_passing: false };
        self.search(&mut search);
        let Some(mut run) = search.best else {
            outcome.leased += u64::from(search.met_passing);
            return outcome;
        };
        run.victims.sort_unstable_by_key(|victim| (victim.worth >= PINNED, victim.touched));
        for Victim { shard, slot, generation, .. } in run.victims {
            let Some(shard) = self.shards().get(shard) else { continue };
            let one = shard.lock().evict_chosen(slot, generation, self.emit(terms.now));
            // It is in use since it was looked at, and the run is of no use any more.
            let is_broken = one.leased > 0 && one.promised == 0;
            outcome += one;
            self.evict_condemned(terms.now, &mut outcome);
            if is_broken {
                break;
            }
        }
        outcome
    }

    fn search(&self, search: &mut Search<'_>) {
        let draw = self.draw();
        for (segment, place) in &self.cold_places(search, draw) {
            self.look_around(search, segment, *place);
        }
        for n in 0..MORE_RANDOM {
            let draw = mix(draw ^ mix(n));
            let enough = if n < RANDOM { ENOUGH } else { LITTLE };
            if search.seen >= enough && search.best.is_some() {
                break;
            }
            let Some(segment) = self.usable_segment(search.wanted, draw) else { return };
            if let Some(place) = segment.place_near(mix(draw)) {
                self.look_around(search, &segment, place);
            }
        }
        if search.is_worth_more() {
            self.search_everywhere(search, draw);
        }
    }

    /// The places of cold objects of a few shards, in segments that the put can use.
    fn cold_places(&self, search: &Search<'_>, draw: u64) -> Vec<(Arc<Segment>, Place)> {
        let shards = self.shards().len();
        let mut places: Vec<(Arc<Segment>, Place)> = Vec::new();
        for n in 0..shards.min(COLD) {
            let at = if shards <= COLD { n } else { mix(draw ^ n as u64) as usize % shards };
            let mut shard = self.shards()[at].lock();
            for class in [Class::Ordinary, Class::SoftPinned] {
                if class > search.terms.class {
                    continue;
                }
                let cold = match search.terms.over_quota {
                    Some(tenant) => shard.coldest_of(tenant, class),
                    None => shard.cold_one(class, mix(draw ^ at as u64)),
                };
                let Some(object) = cold.and_then(|slot| shard.object(slot)) else { continue };
                let usable = object.replicas().filter(|it| search.wanted.is_usable(&it.segment));
                for replica in usable {
                    let place = (Arc::clone(&replica.segment), replica.allocation.place());
                    if !places.iter().any(|(it, at)| Arc::ptr_eq(it, &place.0) && *at == place.1) {
                        places.push(place);
                    }
                }
            }
        }
        places
    }

    /// A segment that the put can use, drawn at random.
    fn usable_segment(&self, wanted: &Wanted<'_>, draw: u64) -> Option<Arc<Segment>> {
        let table = self.segments.read();
        let segments = table.pool(wanted.medium).segments();
        let first = draw.checked_rem(segments.len() as u64)? as usize;
        let from_first = segments[first..].iter().chain(&segments[..first]);
        from_first.into_iter().find(|segment| wanted.is_usable(segment)).cloned()
    }

    /// Looks through all segments, one after the other, until a good run is found or enough
    /// was seen.
    fn search_everywhere(&self, search: &mut Search<'_>, draw: u64) {
        let wanted = search.wanted;
        let segments: Vec<_> = {
            let table = self.segments.read();
            let segments = table.pool(wanted.medium).segments();
            segments.iter().filter(|it| wanted.is_usable(it)).cloned().collect()
        };
        let first = draw.checked_rem(segments.len() as u64).unwrap_or(0) as usize;
        for segment in segments[first..].iter().chain(&segments[..first]) {
            let Some(start) = segment.place_near(mix(draw)) else { continue };
            for direction in [Direction::Up, Direction::Down] {
                let mut place = Some(start);
                while let Some(at) = place
                    && search.is_worth_more()
                {
                    let seen = self.look_around(search, segment, at);
                    let edge = match direction {
                        Direction::Up => seen.map(|(_, last)| last),
                        Direction::Down => seen.map(|(first, _)| first),
                    };
                    place = beyond(segment, edge.unwrap_or(at), direction);
                }
            }
        }
    }

    /// Looks for the best run around a place. Returns the lowest and the highest place seen.
    fn look_around(
        &self,
        search: &mut Search<'_>,
        segment: &Arc<Segment>,
        place: Place,
    ) -> Option<(Place, Place)> {
        let len = search.wanted.len;
        let (needed, from, to) = match segment.room_at(place, len) {
            Room::Nowhere => return None,
            Room::Anywhere => (len, 0, u64::MAX),
            Room::Exactly(extent) => (extent.len(), extent.offset(), extent.end()),
        };
        let is_inside = |it: &Neighbour| it.extent.offset() >= from && it.extent.end() <= to;
        let most = MOST.saturating_sub(search.seen);
        let mut neighbours = neighbours(segment, place, Direction::Down, needed, most, is_inside);
        neighbours.reverse();
        neighbours.pop();
        neighbours.extend(neighbours_up(segment, place, needed, most, is_inside));
        let (first, last) = (neighbours.first()?.place, neighbours.last()?.place);
        search.seen += neighbours.len();
        let pieces: Vec<Piece> =
            neighbours.iter().map(|it| self.piece(search, segment, it)).collect();
        let most_lost = search.wanted.most_lost();
        if let Some(run) = Run::cheapest(&pieces, needed, most_lost)
            && search.best.as_ref().is_none_or(|best| run.is_better_than(best, most_lost))
        {
            search.best = Some(run);
        }
        Some((first, last))
    }

    /// A neighbour as a part of a run.
    fn piece(&self, search: &mut Search<'_>, segment: &Arc<Segment>, it: &Neighbour) -> Piece {
        let stake = match it.content {
            Content::Free => Ok(Stake::Nothing),
            Content::Live(None) => Err(Obstacle::Lasting),
            Content::Live(Some(label)) => {
                let (shard, slot) = Labels::new(self.shards().len()).split(label);
                let shard = self.shards().get(shard).ok_or(Obstacle::Lasting);
                let victim = shard.and_then(|shard| {
                    shard.lock().victim(slot, segment, it.extent.offset(), search.terms)
                });
                victim.map(Stake::Object)
            }
        };
        search.met_passing |= stake == Err(Obstacle::Passing);
        Piece { len: it.extent.len(), stake: stake.ok() }
    }
}

/// Why a neighbour cannot be part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Obstacle {
    /// A lease, a transfer, or a member of its group that may not go now.
    Passing,
    /// Anything else.
    Lasting,
}

impl Shard {
    /// The object of a class that was not used for the longest time, among some drawn at random.
    fn cold_one(&self, class: Class, draw: u64) -> Option<ObjectSlot> {
        let drawn = (0..COMPARED).filter_map(|n| {
            let slot = mix(draw ^ n).checked_rem(self.end().into())?;
            let slot = ObjectSlot::new(slot as u32); // below the end, which is one
            let list = List::of(self.object(slot)?.queue())?;
            (class_of(list) == class).then_some((self.last_touched(slot)?, slot))
        });
        drawn.min().map(|(_, slot)| slot)
    }

    /// The object in a slot as part of a run, if it has the space at this place and may be
    /// evicted.
    fn victim(
        &mut self,
        slot: ObjectSlot,
        segment: &Arc<Segment>,
        offset: u64,
        terms: Terms,
    ) -> Result<Victim, Obstacle> {
        self.totals_mut().eviction_offers += 1;
        let object = self.object(slot).ok_or(Obstacle::Lasting)?;
        let lies_here = object.replicas().any(|replica| {
            replica.allocation.extent().offset() == offset && Arc::ptr_eq(&replica.segment, segment)
        });
        let Terms { now, class, over_quota } = terms;
        let is_pinned = object.protection().is_soft_pinned(&self.config().terms, now);
        let is_listed = match object.queue() {
            Queue::Main | Queue::Lapsed | Queue::Aside | Queue::Held => true,
            Queue::Pinned | Queue::Timed => class == Class::SoftPinned,
            Queue::None | Queue::OnLocalDisk | Queue::Offloading => false,
        };
        let may_go = lies_here
            && is_listed
            && object.is_complete()
            && !object.is_hard_pinned()
            && (!is_pinned || class == Class::SoftPinned)
            && object.is_live();
        if !may_go {
            return Err(Obstacle::Lasting);
        }
        let is_busy = self.is_busy(slot, now);
        if is_busy || object.protection().is_leased(&self.config().terms, now) {
            return Err(Obstacle::Passing);
        }
        let (group, members) = match object.group() {
            None => (0, 1),
            Some(group) => {
                let members = group.at_stake(now).ok_or(Obstacle::Passing)?;
                (Arc::as_ptr(group).addr(), members.max(1) as u64)
            }
        };
        let touched = object.protection().last_touched();
        let idle = now.as_millis().saturating_sub(touched.as_millis());
        let mut worth = worth_of(idle);
        if over_quota.is_some_and(|tenant| self.tenant(slot) == tenant) {
            worth >>= 16;
        }
        if is_pinned {
            worth += PINNED;
        }
        Ok(Victim {
            shard: self.config().number as usize,
            slot,
            generation: object.generation,
            touched,
            bytes: bytes_of(object),
            worth,
            group,
            members,
        })
    }
}

/// The worth of an object that was last used `idle` milliseconds ago: the rate at which it is
/// used, estimated as once in so much time (the rule of succession).
const fn worth_of(idle: u64) -> u64 {
    (1 << 32) / idle.saturating_add(1) + 1
}

/// More than the worth of any run of ordinary objects.
const PINNED: u64 = 1 << 44;

/// The neighbour at a place and those above it.
fn neighbours_up(
    segment: &Segment,
    place: Place,
    bytes: u64,
    most: usize,
    is_inside: impl Fn(&Neighbour) -> bool,
) -> Vec<Neighbour> {
    neighbours(segment, place, Direction::Up, bytes, most, is_inside)
}

/// The neighbour at a place and those beyond it, without gaps, up to so many bytes. Other threads
/// may change the segment meanwhile: the list ends where that shows.
fn neighbours(
    segment: &Segment,
    place: Place,
    direction: Direction,
    bytes: u64,
    most: usize,
    is_inside: impl Fn(&Neighbour) -> bool,
) -> Vec<Neighbour> {
    let mut found: Vec<Neighbour> = Vec::new();
    let mut beyond: u64 = 0;
    let mut at = place;
    loop {
        let known = found.len();
        let mut is_over = true;
        segment.walk(at, direction, |it| {
            if found.last().is_some_and(|last| *last == it) {
                return true;
            }
            let touches = found.last().is_none_or(|last| match direction {
                Direction::Up => last.extent.end() == it.extent.offset(),
                Direction::Down => it.extent.end() == last.extent.offset(),
            });
            if !touches || !is_inside(&it) {
                return false;
            }
            if !found.is_empty() {
                beyond += it.extent.len();
            }
            found.push(it);
            let is_enough = beyond >= bytes || found.len() >= most;
            is_over = is_enough;
            !is_enough && found.len() - known < CHUNK
        });
        match found.last() {
            Some(last) if !is_over && found.len() - known >= CHUNK => at = last.place,
            _ => return found,
        }
    }
}

/// The place next to another.
fn beyond(segment: &Segment, place: Place, direction: Direction) -> Option<Place> {
    let mut next = None;
    segment.walk(place, direction, |it| {
        if it.place != place {
            next = Some(it.place);
        }
        next.is_none()
    });
    next
}
