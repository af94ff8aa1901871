//! Replicas whose bytes are not those that were put: readers report them, their owners look a
//! second time, and what is damaged goes.
//!
//! One reader that is wrong, by a fault of its own or on purpose, removes nothing. The client
//! that holds a replica in memory or on its disk compares its bytes with the checksums of the put.
//! Where that client does not answer, and for files, a report from another source counts
//! instead.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use mc_types::{ClientId, Extent, Generation, KeyRef, ObjectKey, SegmentId, Time};
use smallvec::SmallVec;

use crate::side_tables::credits::Credits;
use crate::vocabulary::metrics::Totals;
use crate::vocabulary::request::{MAX_SLICES, Slices};

/// Most replicas whose second look is open.
pub(crate) const MAX_CHECKS: usize = 4096;

/// Most replicas about which an owner is asked at a time.
pub const MAX_HANDED_CHECKS: usize = 16;

/// Most slices that these have together: a question about any object fits into any answer.
pub(crate) const MAX_HANDED_SLICES: usize = 2 * MAX_SLICES;

/// Most bytes that it is to look at then, unless a single replica has more: it has other
/// things to do as well.
pub(crate) const MAX_HANDED_BYTES: u64 = 1 << 30;

/// Most reporters of one replica that are remembered.
pub(crate) const MAX_WITNESSES: usize = 4;

/// When an owner that has not answered is asked again.
pub(crate) const AGAIN: Duration = Duration::from_secs(3);

/// When the report of a second source counts instead of the owner's answer.
const UNANSWERED: Duration = Duration::from_secs(5);

/// When a check that got no answer is dropped.
pub(crate) const FORGOTTEN: Duration = Duration::from_secs(60);

/// The place of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaPlace {
    /// In a segment.
    Memory {
        /// The segment.
        segment: SegmentId,
        /// The range inside it.
        extent: Extent,
    },
    /// In a file of the shared tier.
    File,
    /// On the local disk of this client.
    LocalDisk(ClientId),
}

/// A replica whose bytes a reader found to be others than those that were put.
#[derive(Clone, Copy, Debug)]
pub struct DamageReport<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// The put that was read.
    pub generation: Generation,
    /// The replica.
    pub place: ReplicaPlace,
}

/// The outcome of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportOutcome {
    /// The replica's owner is asked, or a second reporter is waited for.
    Noted,
    /// The second look is done: the replica is gone.
    Confirmed,
    /// The object has no such replica (any more), or nothing verifies its bytes.
    Stale,
    /// Too many reports, of this source or of all.
    Limited,
}

/// A question to the client that holds a replica: whether its bytes are those that were put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaCheck {
    /// Names the question.
    pub id: u64,
    /// The segment; `None` for a replica on the client's local disk.
    pub segment: Option<SegmentId>,
    /// The range inside it, or inside the disk's region.
    pub extent: Extent,
    /// The lengths and checksums that the bytes must have.
    pub slices: Slices,
}

/// The answer to a [`ReplicaCheck`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The bytes are those that were put.
    Intact,
    /// The bytes differ from those that were put.
    Damaged,
    /// The client does not hold them.
    Unknown,
}

/// The client that holds a replica, and where in its segment or its disk's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) client: ClientId,
    pub(crate) extent: Extent,
}

/// A second look that is open.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) key: ObjectKey,
    pub(crate) generation: Generation,
    pub(crate) place: ReplicaPlace,
    /// The client that can check it.
    pub(crate) owner: Option<Owner>,
    pub(crate) slices: Slices,
    pub(crate) begun: Time,
    pub(crate) handed: Option<Time>,
    pub(crate) witnesses: SmallVec<[u64; 2]>,
    /// Whether it is damaged, and goes as soon as it can.
    pub(crate) confirmed: bool,
}

impl Check {
    /// Returns whether the word of a second source is enough.
    pub(crate) fn is_outvoted(&self, now: Time) -> bool {
        self.witnesses.len() > 1 && (self.owner.is_none() || self.begun + UNANSWERED <= now)
    }
}

/// Everything about damaged replicas. Its lock is the last that a command takes.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    pub(crate) checks: BTreeMap<u64, Check>,
    pub(crate) places: HashMap<(Generation, ReplicaPlace), u64>,
    pub(crate) owners: HashMap<ClientId, BTreeSet<u64>>,
    last: u64,
    pub(crate) credits: Credits,
    pub(crate) totals: Totals,
}

impl Damage {
    pub(crate) const fn totals(&self) -> Totals {
        self.totals
    }

    pub(crate) fn add(&mut self, check: Check) -> u64 {
        self.last += 1;
        self.insert(self.last, check);
        self.last
    }

    pub(crate) fn insert(&mut self, id: u64, check: Check) {
        self.places.insert((check.generation, check.place), id);
        if let Some(owner) = check.owner {
            self.owners.entry(owner.client).or_default().insert(id);
        }
        self.checks.insert(id, check);
    }

    pub(crate) fn take(&mut self, id: u64) -> Option<Check> {
        let check = self.checks.remove(&id)?;
        self.places.remove(&(check.generation, check.place));
        if let Some(Owner { client, .. }) = check.owner
            && let Some(own) = self.owners.get_mut(&client)
        {
            own.remove(&id);
            if own.is_empty() {
                self.owners.remove(&client);
            }
        }
        Some(check)
    }
}

/// The outcome for a replica that is damaged.
pub(crate) enum Dropped {
    /// The replica is gone, and its space is kept until then.
    Yes(Option<Time>),
    /// The replica was gone before.
    Before,
    /// A client copies, moves or writes it to a disk.
    Later,
}
