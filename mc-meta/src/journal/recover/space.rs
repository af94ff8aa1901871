//! Where things are in the segments, before the segments' allocators are built again.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};

use mc_alloc::SizeClasses;
use mc_types::{ClientId, Extent, SegmentId};

use crate::journal::record::Location;
use crate::object::slot::ObjectSlot;
use crate::space::allocator::MemoryAllocator;
use crate::space::segment::SegmentSpec;

/// Slabs whose numbers reach beyond this many bytes are taken for damage: an allocator
/// keeps a few bytes for each slab below the last one in use, and this is more memory
/// than one segment has.
const END_OF_SLABS: u64 = 1 << 46;

/// One mounting of a segment. One that comes back after it was gone has another number,
/// so that what lay in it before is not taken for what lies in it then.
pub(super) type Mounting = u32;

/// Where one replica of an object is; how long it is, the object knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) mounting: Mounting,
}

/// What one object claims.
#[derive(Debug)]
pub(super) enum Claims {
    /// One replica, the usual case.
    One {
        offset: u64,
        mounting: Mounting,
    },
    Many(Box<Many>),
}

const _: () = assert!(size_of::<Option<Claims>>() == 16, "kept once per object meanwhile");

#[derive(Debug)]
pub(super) struct Many {
    pub(super) replicas: Box<[Place]>,
    /// Space of a put or transfer that no client can end; with its length.
    pub(super) reserved: Box<[(Place, u64)]>,
}

impl Claims {
    pub(super) fn one(Place { offset, mounting }: Place) -> Self {
        Self::One { offset, mounting }
    }

    pub(super) fn replicas(&self) -> impl Iterator<Item = Place> {
        let (one, many) = match *self {
            Self::One { offset, mounting } => (Some(Place { offset, mounting }), &[][..]),
            Self::Many(ref many) => (None, &many.replicas[..]),
        };
        one.into_iter().chain(many.iter().copied())
    }

    pub(super) fn reserved(&self) -> &[(Place, u64)] {
        match self {
            Self::One { .. } => &[],
            Self::Many(many) => &many.reserved,
        }
    }
}

/// What is known of a mounting.
#[derive(Debug)]
pub(super) enum MountingRecord {
    /// Its id only: nothing has said yet that it was mounted.
    Unheard,
    Mounted(Box<(SegmentSpec, ClientId)>),
    Gone,
}

/// Every mounting that records name, and the space in them that belongs to no object.
#[derive(Debug, Default)]
pub(super) struct Space {
    pub(super) mountings: Vec<MountingRecord>,
    /// The last mounting of each segment that is not gone.
    current: HashMap<SegmentId, Mounting>,
    /// Length, and for how long it is kept; ordered, so that rebuilding twice gives the
    /// same master.
    pub(super) kept: BTreeMap<(Mounting, u64), (u64, Duration)>,
}

impl Space {
    pub(super) fn mount(&mut self, spec: &SegmentSpec, client: ClientId) {
        let number = self.number(spec.id);
        let known = &mut self.mountings[number as usize];
        let is_new = match known {
            MountingRecord::Mounted(mounted) => mounted.0 != *spec || mounted.1 != client,
            _ => false,
        };
        if is_new {
            // The old one must have gone; its record was lost.
            self.lose(spec.id);
            return self.mount(spec, client);
        }
        *known = MountingRecord::Mounted(Box::new((spec.clone(), client)));
    }

    pub(super) fn lose(&mut self, id: SegmentId) {
        if let Some(number) = self.current.remove(&id) {
            self.mountings[number as usize] = MountingRecord::Gone;
            let kept = self.kept.range((number, 0)..=(number, u64::MAX));
            let kept: Vec<_> = kept.map(|(place, _)| *place).collect();
            for place in kept {
                self.kept.remove(&place);
            }
        }
    }

    /// The number of the segment's last mounting.
    fn number(&mut self, id: SegmentId) -> Mounting {
        let mountings = &mut self.mountings;
        *self.current.entry(id).or_insert_with(|| {
            mountings.push(MountingRecord::Unheard);
            Mounting::try_from(mountings.len() - 1).expect("2^32 mountings do not fit in memory")
        })
    }

    pub(super) fn place(&mut self, location: &Location) -> Place {
        Place { offset: location.extent.offset(), mounting: self.number(location.segment) }
    }

    pub(super) fn keep(&mut self, location: &Location, left: Duration) {
        let place = self.place(location);
        self.keep_at(place, location.extent.len(), left);
    }

    pub(super) fn keep_at(&mut self, place: Place, len: u64, left: Duration) {
        let kept = self.kept.entry((place.mounting, place.offset)).or_default();
        *kept = (kept.0.max(len), kept.1.max(left));
    }

    pub(super) fn free(&mut self, location: &Location) {
        if let Some(number) = self.current.get(&location.segment) {
            self.kept.remove(&(*number, location.extent.offset()));
        }
    }
}

/// The claimant of a range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Holder {
    /// No object: the space is retained until a grant or lease ends.
    Retained,
    Object {
        shard: u16,
        slot: ObjectSlot,
    },
}

/// A claim to a range of one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) holder: Holder,
}

const _: () = assert!(size_of::<Claim>() == 24, "kept once per replica meanwhile");

impl Claim {
    pub(super) fn extent(&self) -> Extent {
        Extent::new(self.offset, self.len).expect("a claim out of range is dropped")
    }

    const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// How a segment's bytes are divided, as far as it decides which ranges there can be.
#[derive(Debug)]
pub(super) enum Layout {
    Offset,
    Slab(SizeClasses),
}

impl Layout {
    pub(super) fn of(memory: MemoryAllocator) -> Self {
        match memory {
            MemoryAllocator::Offset => Self::Offset,
            MemoryAllocator::Slab => Self::Slab(SizeClasses::default()),
        }
    }

    /// Returns whether a segment of `size` bytes can have allocated this.
    pub(super) fn admits(&self, size: u64, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len).filter(|end| len > 0 && *end <= size) else {
            return false;
        };
        let Self::Slab(sizes) = self else { return true };
        let Some(class) = self.class(len) else { return false };
        let slab = sizes.slab_size();
        let start = offset % slab;
        let slots = slab / class;
        let whole = (offset - start).checked_add(slab).is_some_and(|end| end <= size);
        whole && end <= END_OF_SLABS && start.is_multiple_of(class) && start / class < slots
    }

    /// Bytes of the slot for `len` bytes.
    fn class(&self, len: u64) -> Option<u64> {
        let Self::Slab(sizes) = self else { return None };
        sizes.sizes().get(sizes.sizes().partition_point(|&size| size < len)).copied()
    }

    fn slab_of(&self, claim: &Claim) -> Option<u64> {
        let Self::Slab(sizes) = self else { return None };
        Some(claim.offset / sizes.slab_size())
    }

    /// Returns whether two ranges, the first of which does not begin later, can both be there.
    fn agree(&self, first: &Claim, second: &Claim) -> bool {
        let slab = self.slab_of(first);
        first.end() <= second.offset
            && (slab.is_none()
                || slab != self.slab_of(second)
                || self.class(first.len) == self.class(second.len))
    }

    /// Which claims of one segment, in the order of their offsets, are to be given up so
    /// that all others can be there: of those that contradict each other the one with
    /// the highest rank stays. Calls `loses` for each other one. O(n) when there is no
    /// contradiction, O(n log n) otherwise.
    pub(super) fn settle<R: Ord>(
        &self,
        claims: &[Claim],
        rank: impl Fn(&Claim) -> R,
        mut loses: impl FnMut(usize),
    ) {
        let mut from = 0;
        while from < claims.len() {
            let (mut to, mut end) = (from + 1, claims[from].end());
            let mut agree = true;
            // What touches neither the bytes nor the slab of those before begins anew.
            while let Some(next) = claims.get(to)
                && (next.offset < end
                    || (self.slab_of(next).is_some()
                        && self.slab_of(next) == self.slab_of(&claims[to - 1])))
            {
                agree &= self.agree(&claims[to - 1], next) && next.offset >= end;
                end = end.max(next.end());
                to += 1;
            }
            if !agree {
                self.award(&claims[from..to], &rank, |at| loses(from + at));
            }
            from = to;
        }
    }

    fn award<R: Ord>(
        &self,
        claims: &[Claim],
        rank: &impl Fn(&Claim) -> R,
        mut loses: impl FnMut(usize),
    ) {
        let mut order: Vec<usize> = (0..claims.len()).collect();
        order.sort_by_cached_key(|&at| core::cmp::Reverse(rank(&claims[at])));
        let mut awarded: BTreeMap<u64, &Claim> = BTreeMap::new();
        for at in order {
            let claim = &claims[at];
            let before = awarded.range(..=claim.offset).next_back();
            let after = awarded.range(claim.offset..).next();
            if before.is_none_or(|(_, before)| self.agree(before, claim))
                && after.is_none_or(|(_, after)| self.agree(claim, after))
            {
                awarded.insert(claim.offset, claim);
            } else {
                loses(at);
            }
        }
    }
}
