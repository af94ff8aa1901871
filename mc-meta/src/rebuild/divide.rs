//! The space of one segment, divided among what lies in it.

use std::sync::Arc;

use mc_alloc::{Allocation, RestoreError};

use crate::eviction::room::Labels;
use crate::rebuild::layout::{Claim, Holder, Layout};
use crate::rebuild::sort::sort;
use crate::rebuild::space::Mounted;
use crate::space::allocator::MemoryAllocator;
use crate::space::replica::Replica;
use crate::space::segment::Segment;

/// The claims to one segment.
pub(crate) struct Plan {
    /// Claims of objects, part after part and in the order of their slots, then those of no object.
    claims: Vec<Claim>,
    /// How many of them are each part's.
    by_part: Vec<usize>,
    /// The claims in the order of their offsets.
    order: Vec<u32>,
    /// Whether all of them can be true.
    pub(crate) agree: bool,
}

/// A segment that is divided.
pub(crate) struct Divided {
    pub(crate) segment: Arc<Segment>,
    /// The replicas of each part's objects, in the order of the claims.
    pub(crate) by_part: Vec<Vec<Replica>>,
    /// Space of no object.
    pub(crate) kept: Vec<Replica>,
}

impl Plan {
    pub(crate) fn new(mut parts: Vec<Vec<Claim>>, kept: Vec<Claim>, layout: &Layout) -> Self {
        let by_part: Vec<usize> = parts.iter().map(Vec::len).collect();
        let all = by_part.iter().sum::<usize>() + kept.len();
        // The first list grows where it is, and each other one goes as soon as it is copied.
        let mut claims = parts.first_mut().map(core::mem::take).unwrap_or_default();
        claims.reserve_exact(all - claims.len());
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
    pub(crate) fn sorted(&self) -> impl Iterator<Item = &Claim> {
        self.order.iter().map(|&at| &self.claims[at as usize])
    }

    /// Drops the claims for which `stays` does not say that they stay.
    pub(crate) fn retain(&mut self, layout: &Layout, stays: impl Fn(&Claim) -> bool) {
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
    pub(crate) fn divide(
        self,
        mounted: Mounted,
        memory: MemoryAllocator,
        labels: Labels,
    ) -> Result<Divided, RestoreError> {
        let Self { claims, by_part, order, .. } = self;
        let label = |claim: &Claim| match claim.holder {
            Holder::Object { shard, slot } => labels.of(shard.into(), slot),
            Holder::Retained => None,
        };
        let sorted = order.iter().map(|&at| &claims[at as usize]);
        let live = sorted.map(|claim| (claim.extent(), label(claim)));
        // Where each part's allocations begin, and those of no object.
        let mut begin = 0;
        let mut placed: Vec<(usize, Vec<Option<Allocation>>)> = Vec::new();
        let kept = claims.len() - by_part.iter().sum::<usize>();
        for count in by_part.into_iter().chain([kept]) {
            let mut all = Vec::new();
            all.resize_with(count, || None);
            placed.push((begin, all));
            begin += count;
        }
        let mut places = order.iter();
        let Mounted { spec, client, purpose, .. } = mounted;
        let segment = Segment::restored(spec, client, purpose, memory, live, |allocation| {
            let Some(&at) = places.next() else { return };
            let part = placed.iter_mut().rev().find(|(begin, _)| *begin <= at as usize);
            if let Some((begin, all)) = part {
                all[at as usize - *begin] = Some(allocation);
            }
        })?;
        drop((claims, order));
        // The references to a segment are counted in one place, for which threads would contend.
        let segment = Arc::new(segment);
        let replica = |allocation| Replica { segment: Arc::clone(&segment), allocation };
        let replicas = placed.into_iter().map(|(_, all)| {
            let mut replicas = Vec::with_capacity(all.len());
            replicas.extend(all.into_iter().flatten().map(replica));
            replicas
        });
        let mut by_part: Vec<Vec<Replica>> = replicas.collect();
        let kept = by_part.pop().unwrap_or_default();
        Ok(Divided { segment, by_part, kept })
    }
}

/// The numbers of the claims, in the order of their offsets.
fn by_offset(claims: &[Claim]) -> Vec<u32> {
    let numbers = 0..u32::try_from(claims.len()).expect("an allocator has fewer than 2^32 regions");
    let mut keyed: Vec<(u64, u32)> = claims.iter().map(|claim| claim.offset).zip(numbers).collect();
    sort(&mut keyed);
    keyed.into_iter().map(|(_, number)| number).collect()
}
