//! The claims of the objects of a part.

use mc_types::{Generation, ObjectKey};
use smallvec::SmallVec;

use crate::object::Object;
use crate::rebuild::RebuildPart;
use crate::rebuild::layout::{Claim, Contradictions, Holder, Layout};
use crate::rebuild::space::{Claims, Fate, Mounted};
use crate::vocabulary::slot::ObjectSlot;

/// Segments and offsets.
type Places = SmallVec<[(u32, u64); 2]>;

/// The places of an object, taken together.
enum PlacesFound {
    Good,
    /// No place is left.
    Lost,
    Unknown,
    OutOfRange,
}

/// The claims of one part's objects.
#[derive(Default)]
pub(crate) struct Collected {
    /// The claims to each segment, in the order of the objects.
    pub(crate) claims: Vec<Vec<Claim>>,
    /// Space of what no client can end, by segment and offset, with its length.
    pub(crate) reserved: Vec<(u32, u64, u64)>,
    /// The objects that it was reserved for, by the numbers of their shards.
    pub(crate) reservers: Vec<(usize, ObjectSlot, Places)>,
    /// The segments and offsets of what was reserved for objects that cannot be.
    pub(crate) orphans: Vec<(u32, u64)>,
    pub(crate) removed: Vec<(ObjectKey, Generation)>,
    pub(crate) lost: u64,
}

impl RebuildPart<'_> {
    /// Sorts the claims of its objects by what they are to. Drops the objects that cannot be where
    /// they are said to be, and those that are lost unless more records may come: what is known of
    /// such an object decides about a record of it.
    pub(crate) fn collect(
        &mut self,
        segments: &[Mounted],
        layout: &Layout,
        contradictions: Contradictions,
    ) -> Collected {
        let Self { part, shards, .. } = self;
        let fates = &part.fates;
        let mut counts = vec![0; segments.len()];
        let all = part.claims.iter().flat_map(|claims| {
            ObjectSlot::range(0..claims.end()).filter_map(|slot| claims.get(slot))
        });
        for place in all.flat_map(Claims::replicas) {
            if let Fate::Segment(segment) = fates[place.mounting as usize] {
                counts[segment as usize] += 1;
            }
        }
        let mut collected = Collected {
            claims: counts.into_iter().map(Vec::with_capacity).collect(),
            ..Collected::default()
        };
        for (own, (lock, claims)) in shards.iter_mut().zip(&mut part.claims).enumerate() {
            let number = part.first_shard + own;
            let shard = lock.get_mut();
            for slot in ObjectSlot::range(0..claims.end()) {
                let (Some(object), Some(noted)) = (shard.object(slot), claims.get(slot)) else {
                    continue;
                };
                let mut reserved = Places::new();
                // Whatever becomes of the object, a client may be writing there.
                for &(place, len) in noted.reserved() {
                    if let Fate::Segment(segment) = fates[place.mounting as usize] {
                        collected.reserved.push((segment, place.offset, len));
                        reserved.push((segment, place.offset));
                    }
                }
                let (len, has_reserved) = (object.len(), !noted.reserved().is_empty());
                let dropped = &mut part.dropped;
                let places = places(noted, object, fates, segments, layout);
                let counter = match places {
                    PlacesFound::Good => None,
                    PlacesFound::Lost if contradictions == Contradictions::Wait => continue,
                    PlacesFound::Lost => Some(&mut collected.lost),
                    PlacesFound::Unknown => Some(&mut dropped.unknown_segment),
                    PlacesFound::OutOfRange => Some(&mut dropped.out_of_range),
                };
                let Some(counter) = counter else {
                    let holder = Holder::Object { shard: number as u16, slot };
                    for place in noted.replicas() {
                        if let Fate::Segment(segment) = fates[place.mounting as usize] {
                            let claim = Claim { offset: place.offset, len, holder };
                            collected.claims[segment as usize].push(claim);
                        }
                    }
                    if has_reserved {
                        collected.reservers.push((number, slot, reserved));
                    }
                    continue;
                };
                *counter += 1;
                // That an object is lost the records say, but not that its space is only kept.
                if has_reserved || !matches!(places, PlacesFound::Lost) {
                    collected.removed.push(shard.name_of(slot));
                }
                collected.orphans.extend(reserved);
                shard.detach(slot);
                claims.remove(slot);
            }
        }
        collected
    }

    /// Returns whether each of its objects can be where it is said to be, or is lost with its segments
    /// and nothing besides.
    pub(crate) fn is_consistent(&self, segments: &[Mounted], layout: &Layout) -> bool {
        let Self { part, shards, .. } = self;
        shards.iter().zip(&part.claims).all(|(lock, claims)| {
            let shard = lock.lock();
            ObjectSlot::range(0..claims.end()).all(|slot| {
                let (Some(object), Some(noted)) = (shard.object(slot), claims.get(slot)) else {
                    return true;
                };
                match places(noted, object, &part.fates, segments, layout) {
                    PlacesFound::Good => true,
                    PlacesFound::Lost => noted.reserved().is_empty(),
                    PlacesFound::Unknown | PlacesFound::OutOfRange => false,
                }
            })
        })
    }
}

fn places(
    claims: &Claims,
    object: &Object,
    fates: &[Fate],
    segments: &[Mounted],
    layout: &Layout,
) -> PlacesFound {
    // One that never had any was on clients' local disks, or had a file, and there are none of those
    // any more.
    let (mut is_any_good, mut is_any_unheard, mut is_any_gone) = (false, false, false);
    for place in claims.replicas() {
        match fates[place.mounting as usize] {
            Fate::Segment(segment)
                if !layout.admits(
                    segments[segment as usize].spec.size,
                    place.offset,
                    object.len(),
                ) =>
            {
                return PlacesFound::OutOfRange;
            }
            Fate::Segment(_) => is_any_good = true,
            Fate::Gone => is_any_gone = true,
            Fate::Unheard => is_any_unheard = true,
        }
    }
    match (is_any_good, is_any_unheard && !is_any_gone) {
        (true, _) => PlacesFound::Good,
        (false, _) if object.outlives_memory() => PlacesFound::Good,
        (false, true) => PlacesFound::Unknown,
        (false, false) => PlacesFound::Lost,
    }
}
