//! The memory of objects: replicas that own space in segments.

use std::sync::Arc;

use mc_alloc::Allocation;
use mc_types::Extent;
use smallvec::SmallVec;

use crate::space::segment::Segment;
use crate::tenant::ledger::TenantSlot;
use crate::tenant::quota::Quotas;

/// The place of one replica's bytes.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The segment that holds them.
    pub segment: Arc<Segment>,
    /// The range inside that segment.
    pub extent: Extent,
}

/// Placements of one object's replicas; no heap for a single replica.
pub type Placements = SmallVec<[Placement; 1]>;

/// Space that one replica owns. Not `Clone`: its holder gives it back.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) segment: Arc<Segment>,
    pub(crate) allocation: Allocation,
}

impl Replica {
    pub(crate) fn placement(&self) -> Placement {
        Placement { segment: Arc::clone(&self.segment), extent: self.allocation.extent() }
    }

    pub(crate) fn len(&self) -> u64 {
        self.allocation.extent().len()
    }

    fn release(self) {
        self.segment.release(self.allocation);
    }
}

/// The memory replicas of one object. A single one, the usual case, needs no heap.
#[derive(Debug, Default)]
#[must_use = "space that is dropped is lost"]
pub(crate) struct Replicas {
    pub(crate) first: Option<Replica>,
    /// Empty while there is no first one.
    pub(crate) more: Vec<Replica>,
}

impl Replicas {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Replica> {
        self.first.iter().chain(&self.more)
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn push(&mut self, replica: Replica) {
        match self.first {
            None => self.first = Some(replica),
            Some(_) => self.more.push(replica),
        }
    }

    pub(crate) fn placements(&self) -> Placements {
        let mut placements = Placements::new();
        for replica in self.iter() {
            placements.push(replica.placement());
        }
        placements
    }

    /// Their bytes, those in segments that are gone included.
    pub(crate) fn bytes(&self) -> u64 {
        self.iter().fold(0, |sum: u64, replica| sum.saturating_add(replica.len()))
    }

    /// Gives the space of every replica back, which no tenant was charged for, and says how
    /// many bytes that was in segments that take new objects.
    pub(crate) fn release_uncharged(self) -> u64 {
        let mut freed: u64 = 0;
        for replica in self.first.into_iter().chain(self.more) {
            let len = if replica.segment.is_allocatable() { replica.len() } else { 0 };
            replica.release();
            freed = freed.saturating_add(len);
        }
        freed
    }

    /// Gives the space of every replica back, and to the tenant that was charged for it
    /// what it was charged. Says how many bytes that was in segments that take new
    /// objects. Whatever was charged comes to its end here, so that it is enough to look
    /// at where space is taken.
    pub(crate) fn release(self, quotas: &Quotas, tenant: TenantSlot) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let charged = self.bytes();
        let freed = self.release_uncharged();
        quotas.refund(tenant, charged);
        freed
    }
}

impl IntoIterator for Replicas {
    type Item = Replica;
    type IntoIter = core::iter::Chain<core::option::IntoIter<Replica>, std::vec::IntoIter<Replica>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
}

impl Extend<Replica> for Replicas {
    fn extend<I: IntoIterator<Item = Replica>>(&mut self, replicas: I) {
        replicas.into_iter().for_each(|replica| self.push(replica));
    }
}

impl FromIterator<Replica> for Replicas {
    fn from_iter<I: IntoIterator<Item = Replica>>(replicas: I) -> Self {
        let mut all = Self::default();
        all.extend(replicas);
        all
    }
}
