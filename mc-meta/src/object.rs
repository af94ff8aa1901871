//! One object's record.

use mc_alloc::Allocation;
use mc_lease::Protection;
use mc_types::{ClientId, Generation, ObjectKey, Time};
use smallvec::SmallVec;
use std::sync::Arc;

use crate::command::{Placement, Placements, Slices};
use crate::segment::Segment;

/// Space that one replica owns. Not `Clone`: whoever holds it gives it back.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) segment: Arc<Segment>,
    pub(crate) allocation: Allocation,
}

impl Replica {
    pub(crate) fn placement(&self) -> Placement {
        Placement { segment: Arc::clone(&self.segment), extent: self.allocation.extent() }
    }

    pub(crate) fn release(self) {
        self.segment.release(self.allocation);
    }
}

/// An object's replicas; no heap for a single one.
pub(crate) type Replicas = SmallVec<[Replica; 1]>;

/// Gives the space of every replica back and says how many bytes that was.
pub(crate) fn release_all(replicas: Replicas) -> u64 {
    replicas.into_iter().fold(0, |freed: u64, replica| {
        let len = replica.allocation.extent().len();
        replica.release();
        freed.saturating_add(len)
    })
}

/// Where an object is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Granted and being written; since when is what its protection was touched.
    Processing,
    /// Readable.
    Complete,
}

/// Which order of eviction holds an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// None: it is not complete.
    None,
    /// Ordinary objects.
    Main,
    /// Objects under a soft pin.
    Pinned,
    /// Offered as a victim while leased; it comes back when the lease ends.
    Aside,
}

#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) key: ObjectKey,
    pub(crate) generation: Generation,
    /// A [`ClientId`] as bytes: aligned as it is, it would cost eight bytes more.
    owner: [u8; 16],
    pub(crate) state: State,
    pub(crate) queue: Queue,
    pub(crate) protection: Protection,
    pub(crate) slices: Slices,
    pub(crate) replicas: Replicas,
}

const _: () = assert!(size_of::<Option<Object>>() == 128, "kept once per object");

impl Object {
    /// An object whose put begins.
    pub(crate) fn begun(
        now: Time,
        key: ObjectKey,
        generation: Generation,
        owner: ClientId,
        soft_pin: bool,
        slices: Slices,
        replicas: Replicas,
    ) -> Self {
        Self {
            key,
            generation,
            owner: owner.to_bytes(),
            state: State::Processing,
            queue: Queue::None,
            protection: Protection::committed(now, soft_pin),
            slices,
            replicas,
        }
    }

    /// Who put it.
    pub(crate) fn owner(&self) -> ClientId {
        ClientId::from_bytes(self.owner)
    }

    /// When its put began, while it is unfinished.
    pub(crate) fn begun_at(&self) -> Option<Time> {
        (self.state == State::Processing).then(|| self.protection.last_touched())
    }

    /// Forgets replicas whose segment is gone; true when at least one is left.
    pub(crate) fn drop_dead_replicas(&mut self) -> bool {
        // Every command comes by here, and segments hardly ever go.
        if self.replicas.iter().all(|replica| replica.segment.is_live()) {
            return !self.replicas.is_empty();
        }
        self.replicas.retain(|replica| replica.segment.is_live());
        !self.replicas.is_empty()
    }

    pub(crate) fn placements(&self) -> Placements {
        self.replicas.iter().map(Replica::placement).collect()
    }
}
