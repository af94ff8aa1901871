//! Claims to ranges of a segment, and which of them can be true together.

use std::collections::BTreeMap;

use mc_alloc::SizeClasses;
use mc_types::Extent;

use crate::space::allocator::MemoryAllocator;
use crate::vocabulary::slot::ObjectSlot;

/// Slabs whose numbers reach beyond this many bytes are taken for damage: an allocator
/// keeps a few bytes for each slab below the last one in use, and this is more memory
/// than one segment has.
const END_OF_SLABS: u64 = 1 << 46;

/// The treatment of records that contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contradictions {
    /// More records may resolve them: nothing is settled.
    Wait,
    /// Records that cannot be true are dropped.
    Drop,
}

/// The claimant of a range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// No object: the space is retained until a grant or lease ends.
    Retained,
    Object {
        shard: u16,
        slot: ObjectSlot,
    },
}

/// A claim to a range of one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) holder: Holder,
}

const _: () = assert!(size_of::<Claim>() == 24, "kept once per replica meanwhile");

impl Claim {
    pub(crate) fn extent(&self) -> Extent {
        Extent::new(self.offset, self.len).expect("a claim out of range is dropped")
    }

    const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// How a segment's bytes are divided, as far as it decides which ranges there can be.
#[derive(Debug)]
pub(crate) enum Layout {
    Offset,
    Slab(SizeClasses),
}

impl Layout {
    pub(crate) fn of(memory: MemoryAllocator) -> Self {
        match memory {
            MemoryAllocator::Offset => Self::Offset,
            MemoryAllocator::Slab => Self::Slab(SizeClasses::default()),
        }
    }

    /// Returns whether a segment of `size` bytes can have allocated this.
    pub(crate) fn admits(&self, size: u64, offset: u64, len: u64) -> bool {
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

    /// Returns whether all of these, in the order of their offsets, can be there.
    pub(crate) fn agree_all<'a>(&self, mut claims: impl Iterator<Item = &'a Claim>) -> bool {
        let Some(mut last) = claims.next() else { return true };
        claims.all(|next| self.agree(core::mem::replace(&mut last, next), next))
    }

    /// The claims of one segment, in the order of their offsets, that are dropped so that all
    /// others can be there: of those that contradict each other the one with
    /// the highest rank stays. Calls `loses` for each other one. O(n) when there is no
    /// contradiction, O(n log n) otherwise.
    pub(crate) fn settle<R: Ord>(
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
