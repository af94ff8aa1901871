//! The space of one segment, divided among what lies in it.

use std::sync::Arc;

use mc_alloc::RestoreError;

use super::layout::{Claim, Holder, Layout};
use super::space::Mounted;
use crate::evict::room::Labels;
use crate::object::replica::Replica;
use crate::space::allocator::MemoryAllocator;
use crate::space::segment::Segment;

/// The claims to one segment.
pub(super) struct Plan {
    /// Those of objects, part after part and in the order of their slots, then those of none.
    claims: Vec<Claim>,
    /// How many of them are each part's.
    by_part: Vec<usize>,
    /// The claims in the order of their offsets.
    order: Vec<u32>,
    /// Whether all of them can be true.
    pub(super) agree: bool,
}

/// A segment that is divided.
pub(super) struct Divided {
    pub(super) segment: Arc<Segment>,
    /// The replicas of each part's objects, in the order of the claims.
    pub(super) by_part: Vec<Vec<Replica>>,
    /// Space of no object.
    pub(super) kept: Vec<Replica>,
}

impl Plan {
    pub(super) fn new(mut parts: Vec<Vec<Claim>>, kept: Vec<Claim>, layout: &Layout) -> Self {
        let by_part: Vec<usize> = parts.iter().map(Vec::len).collect();
        let all = by_part.iter().sum::<usize>() + kept.len();
        let mut claims = match &mut parts[..] {
            [only] => core::mem::take(only),
            _ => Vec::with_capacity(all),
        };
        // Each list goes as soon as it is copied.
        parts.into_iter().for_each(|part| claims.extend(part));
        claims.extend(kept);
        let mut plan = Self { claims, by_part, order: Vec::new(), agree: true };
        plan.sort(layout);
        plan
    }

    fn sort(&mut self, layout: &Layout) {
        self.order = by_offset(&self.claims);
        self.agree = layout.agree_all(self.sorted());
    }

    /// The claims in the order of their offsets.
    pub(super) fn sorted(&self) -> impl Iterator<Item = &Claim> {
        self.order.iter().map(|&at| &self.claims[at as usize])
    }

    /// Drops the claims for which `stays` does not say that they stay.
    pub(super) fn retain(&mut self, layout: &Layout, stays: impl Fn(&Claim) -> bool) {
        let mut from = 0;
        for count in &mut self.by_part {
            let own = &self.claims[from..from + *count];
            from += *count;
            *count = own.iter().filter(|claim| stays(claim)).count();
        }
        let all = self.claims.len();
        self.claims.retain(stays);
        if self.claims.len() < all {
            self.sort(layout);
        }
    }

    /// Divides the segment as the claims say.
    pub(super) fn divide(
        self,
        mounted: Mounted,
        memory: MemoryAllocator,
        labels: Labels,
    ) -> Result<Divided, RestoreError> {
        let Self { claims, by_part, order, .. } = self;
        let sorted = || order.iter().map(|&at| &claims[at as usize]);
        let label = |claim: &Claim| match claim.holder {
            Holder::Object { shard, slot } => labels.of(shard.into(), slot),
            Holder::Retained => None,
        };
        let Mounted { spec, client, .. } = mounted;
        let extents = sorted().map(Claim::extent);
        let (segment, allocations) =
            Segment::restored(spec, client, memory, extents, sorted().map(label))?;
        drop(claims);
        let segment = Arc::new(segment);
        let mut placed: Vec<Option<Replica>> = Vec::new();
        placed.resize_with(order.len(), || None);
        for (at, allocation) in order.into_iter().zip(allocations) {
            placed[at as usize] = Some(Replica { segment: Arc::clone(&segment), allocation });
        }
        let mut placed = placed.into_iter().flatten();
        let by_part = by_part.into_iter().map(|count| placed.by_ref().take(count).collect());
        let by_part = by_part.collect();
        Ok(Divided { segment, by_part, kept: placed.collect() })
    }
}

/// The numbers of the claims, in the order of their offsets.
fn by_offset(claims: &[Claim]) -> Vec<u32> {
    let numbers = 0..u32::try_from(claims.len()).expect("an allocator has fewer than 2^32 regions");
    let mut keyed: Vec<(u64, u32)> = claims.iter().map(|claim| claim.offset).zip(numbers).collect();
    if !keyed.is_sorted() {
        sort(&mut keyed);
    }
    keyed.into_iter().map(|(_, number)| number).collect()
}

/// Bits of a key by which one pass sorts.
const DIGIT: u32 = 11;

/// Keys from which on passes over all of them cost less than comparing.
const MANY: usize = 4096;

/// Sorts by the first, and by the second where that is equal; the second are in order.
///
/// Offsets are multiples of something and below a segment's size, so few of their bits differ: a
/// radix sort takes two or three passes over what is sorted by comparing in twenty.
fn sort(keyed: &mut Vec<(u64, u32)>) {
    if keyed.len() < MANY {
        return keyed.sort_unstable();
    }
    let first = keyed[0].0;
    let mut differ = keyed.iter().fold(0, |bits, (key, _)| bits | (key ^ first));
    let mut sorted = vec![(0, 0); keyed.len()];
    while differ != 0 {
        let shift = differ.trailing_zeros();
        let mask = (1 << DIGIT) - 1;
        let digit = |key: u64| ((key >> shift) & mask) as usize;
        let mut ends = [0usize; 1 << DIGIT];
        keyed.iter().for_each(|(key, _)| ends[digit(*key)] += 1);
        let mut sum = 0;
        for end in &mut ends {
            sum += core::mem::replace(end, sum);
        }
        for &entry in &*keyed {
            let end = &mut ends[digit(entry.0)];
            sorted[*end] = entry;
            *end += 1;
        }
        core::mem::swap(keyed, &mut sorted);
        differ &= !(mask << shift);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::sort;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_radix_sort_sorts(
            seed in any::<u64>(),
            len in 4000usize..9000,
            shift in 0u32..64,
            mask in prop_oneof![Just(u64::MAX), any::<u64>(), Just(0xff_ffff)],
        ) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut keyed: Vec<(u64, u32)> =
                (0..len as u32).map(|number| ((random.u64(..) & mask) << shift, number)).collect();
            let mut expected = keyed.clone();
            expected.sort_unstable();
            sort(&mut keyed);
            prop_assert_eq!(keyed, expected);
        }
    }
}
