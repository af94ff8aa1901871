//! Replicas whose bytes are not those that were put: readers report them, their owners look a
//! second time, and what is damaged goes.
//!
//! One reader that is wrong, by a fault of its own or on purpose, removes nothing. The client
//! that holds a replica in memory compares its bytes with the checksums of the put. Where that
//! client does not answer, and for replicas on disks, a report from another source counts
//! instead.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use mc_types::{ClientId, Extent, Generation, KeyRef, ObjectKey, SegmentId, Time};
use smallvec::{SmallVec, smallvec};

use crate::command::{MAX_SLICES, Slices};
use crate::health::credits::Credits;
use crate::journal::effect::{Effect, Removal};
use crate::journal::receipt::Emit;
use crate::master::Master;
use crate::object::{Object, Replica, Replicas};
use crate::shard::kept::Kept;
use crate::shard::objects::ObjectSlot;
use crate::shard::{Retired, Shard};
use crate::tier::kinds::FileState;

/// Most replicas whose second look is open.
const MAX_CHECKS: usize = 4096;

/// Most replicas about which an owner is asked at a time.
pub const MAX_HANDED_CHECKS: usize = 16;

/// Most slices that these have together: a question about any object fits into any answer.
const MAX_HANDED_SLICES: usize = 2 * MAX_SLICES;

/// Most bytes that it is to look at then, unless a single replica has more: it has other
/// things to do as well.
const MAX_HANDED_BYTES: u64 = 1 << 30;

/// Most reporters of one replica that are remembered.
const MAX_WITNESSES: usize = 4;

/// When an owner that has not answered is asked again.
const AGAIN: Duration = Duration::from_secs(3);

/// When the report of a second source counts instead of the owner's answer.
const UNANSWERED: Duration = Duration::from_secs(5);

/// When a check that got no answer is dropped.
const FORGOTTEN: Duration = Duration::from_secs(60);

/// Where a replica is.
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
    /// On the own disk of this client.
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

/// What became of a report.
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
    /// The segment.
    pub segment: SegmentId,
    /// The range inside it.
    pub extent: Extent,
    /// What the bytes must be: lengths and checksums.
    pub slices: Slices,
}

/// The answer to a [`ReplicaCheck`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The bytes are those that were put.
    Intact,
    /// They are others.
    Damaged,
    /// The client does not hold them.
    Unknown,
}

/// What became of reports since the master began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamageTotals {
    /// Reports of damaged replicas that came in.
    pub reports: u64,
    /// Those that were dropped: of replicas that are not there, or beyond the limits.
    pub dropped: u64,
    /// Replicas that a second look found to be intact.
    pub denied: u64,
    /// Replicas that a second look found to be damaged.
    pub confirmed: u64,
    /// Replicas that went because they were damaged.
    pub removed: u64,
}

/// A second look that is open.
#[derive(Debug)]
struct Check {
    key: ObjectKey,
    generation: Generation,
    place: ReplicaPlace,
    /// The client whose memory it is, and which can check it.
    owner: Option<ClientId>,
    slices: Slices,
    begun: Time,
    handed: Option<Time>,
    witnesses: SmallVec<[u64; 2]>,
    /// It is damaged, and goes as soon as it can.
    confirmed: bool,
}

impl Check {
    /// Whether the word of a second source is enough.
    fn is_outvoted(&self, now: Time) -> bool {
        self.witnesses.len() > 1 && (self.owner.is_none() || self.begun + UNANSWERED <= now)
    }
}

/// Everything about damaged replicas. Its lock is the last that a command takes.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    checks: BTreeMap<u64, Check>,
    places: HashMap<(Generation, ReplicaPlace), u64>,
    owners: HashMap<ClientId, BTreeSet<u64>>,
    last: u64,
    credits: Credits,
    totals: DamageTotals,
}

impl Damage {
    pub(crate) const fn totals(&self) -> DamageTotals {
        self.totals
    }

    fn add(&mut self, check: Check) -> u64 {
        self.last += 1;
        self.insert(self.last, check);
        self.last
    }

    fn insert(&mut self, id: u64, check: Check) {
        self.places.insert((check.generation, check.place), id);
        if let Some(owner) = check.owner {
            self.owners.entry(owner).or_default().insert(id);
        }
        self.checks.insert(id, check);
    }

    fn take(&mut self, id: u64) -> Option<Check> {
        let check = self.checks.remove(&id)?;
        self.places.remove(&(check.generation, check.place));
        if let Some(owner) = check.owner
            && let Some(own) = self.owners.get_mut(&owner)
        {
            own.remove(&id);
            if own.is_empty() {
                self.owners.remove(&owner);
            }
        }
        Some(check)
    }
}

/// What became of a replica that is damaged.
enum Dropped {
    /// It is gone, and its space is kept until then.
    Yes(Option<Time>),
    /// It was gone before.
    Before,
    /// Somebody copies, moves or writes it to a disk.
    Later,
}

impl Master {
    /// Notes that bytes of an object are not those that were put. `source` names the reporter by
    /// its credential and its host, because a client chooses its id itself.
    ///
    /// A report of another put or place than those that the object has now is ignored. The
    /// first one of a replica has its owner [asked](Self::checks_for).
    pub fn report_damage(
        &self,
        now: Time,
        source: u64,
        report: &DamageReport<'_>,
    ) -> ReportOutcome {
        let found = self.find_reported(now, report);
        let mut damage = self.damage.lock();
        damage.totals.reports += 1;
        let Some((owner, slices)) = found else {
            damage.totals.dropped += 1;
            return ReportOutcome::Stale;
        };
        let known = damage.places.get(&(report.generation, report.place)).copied();
        if let Some(check) = known.and_then(|id| damage.checks.get(&id))
            && (check.witnesses.contains(&source) || check.witnesses.len() == MAX_WITNESSES)
        {
            return ReportOutcome::Noted;
        }
        let is_full = known.is_none() && damage.checks.len() >= MAX_CHECKS;
        if is_full || !damage.credits.take(source, now) {
            damage.totals.dropped += 1;
            return ReportOutcome::Limited;
        }
        let id = known.unwrap_or_else(|| {
            damage.add(Check {
                key: report.key.to_owned(),
                generation: report.generation,
                place: report.place,
                owner,
                slices,
                begun: now,
                handed: None,
                witnesses: smallvec![],
                confirmed: false,
            })
        });
        let check = damage.checks.get_mut(&id).expect("added above");
        check.witnesses.push(source);
        if !check.is_outvoted(now) {
            return ReportOutcome::Noted;
        }
        let check = damage.take(id).expect("looked at above");
        drop(damage);
        self.confirm(now, id, check);
        ReportOutcome::Confirmed
    }

    /// The owner of the reported replica, if it is in a client's memory, and the checksums of the
    /// put; `None` when the object has no such replica that can be verified.
    fn find_reported(
        &self,
        now: Time,
        report: &DamageReport<'_>,
    ) -> Option<(Option<ClientId>, Slices)> {
        let key = self.hashed(report.key);
        let mut shard = self.shard_of(key);
        let (_, object) = shard.find_live(key, self.emit(now))?;
        if object.generation != report.generation || !object.is_complete() {
            return None;
        }
        let owner = object.owner_of(report.place)?;
        let slices = object.slices();
        let verified = slices.as_slice().iter().any(|slice| slice.checksum.is_some());
        verified.then_some((owner, slices))
    }

    /// Returns replicas that this client holds and is asked to check. What it does not answer is
    /// asked again after a while.
    pub fn checks_for(&self, now: Time, client: ClientId) -> Vec<ReplicaCheck> {
        let mut damage = self.damage.lock();
        let Damage { checks, owners, .. } = &mut *damage;
        let (mut handed, mut bytes, mut slices) = (Vec::new(), 0_u64, 0);
        for id in owners.get(&client).into_iter().flatten() {
            let Some(check) = checks.get_mut(id) else { continue };
            let ReplicaPlace::Memory { segment, extent } = check.place else { continue };
            let waits = check.handed.is_some_and(|at| now < at + AGAIN);
            if waits || check.confirmed {
                continue;
            }
            bytes = bytes.saturating_add(extent.len());
            slices += check.slices.as_slice().len();
            let too_much = bytes > MAX_HANDED_BYTES || slices > MAX_HANDED_SLICES;
            if handed.len() == MAX_HANDED_CHECKS || too_much && !handed.is_empty() {
                break;
            }
            check.handed = Some(now);
            handed.push(ReplicaCheck { id: *id, segment, extent, slices: check.slices.clone() });
        }
        handed
    }

    /// Takes the answer of the client that was asked about a replica. Anybody else's is
    /// ignored, and so is one to a question that is not open.
    pub fn checked(&self, now: Time, client: ClientId, id: u64, verdict: Verdict) {
        let mut damage = self.damage.lock();
        let is_asked = damage.checks.get(&id).is_some_and(|check| {
            check.owner == Some(client) && check.handed.is_some() && !check.confirmed
        });
        if !is_asked {
            return;
        }
        let check = damage.take(id).expect("looked at above");
        match verdict {
            Verdict::Intact => {
                damage.totals.denied += 1;
                check.witnesses.iter().for_each(|&source| damage.credits.penalize(source));
            }
            Verdict::Unknown => {
                check.witnesses.iter().for_each(|&source| damage.credits.give_back(source));
            }
            Verdict::Damaged => {
                drop(damage);
                self.confirm(now, id, check);
            }
        }
    }

    /// Drops what could not be dropped before, and forgets questions that nobody answers.
    pub(crate) fn run_checks(&self, now: Time) {
        let mut damage = self.damage.lock();
        if damage.checks.is_empty() {
            return;
        }
        let Damage { checks, .. } = &*damage;
        let is_over = |check: &Check| !check.confirmed && check.begun + FORGOTTEN <= now;
        let due = |check: &Check| check.confirmed || check.is_outvoted(now);
        let all = checks.iter().filter(|(_, check)| due(check) || is_over(check));
        let all: Vec<(u64, bool)> = all.map(|(&id, check)| (id, due(check))).collect();
        let mut confirmed = Vec::new();
        for (id, is_due) in all {
            let Some(check) = damage.take(id) else { continue };
            if is_due {
                confirmed.push((id, check));
            } else {
                check.witnesses.iter().for_each(|&source| damage.credits.give_back(source));
            }
        }
        drop(damage);
        for (id, check) in confirmed {
            self.confirm(now, id, check);
        }
    }

    /// Drops a replica that is damaged, or notes that it is to be dropped.
    fn confirm(&self, now: Time, id: u64, mut check: Check) {
        let dropped = self.drop_damaged(now, &check);
        if let Dropped::Yes(Some(until)) = dropped {
            self.release_not_before(until);
        }
        let mut damage = self.damage.lock();
        if !check.confirmed {
            damage.totals.confirmed += 1;
            check.witnesses.iter().for_each(|&source| damage.credits.give_back(source));
        }
        match dropped {
            Dropped::Yes(_) => damage.totals.removed += 1,
            Dropped::Before => {}
            Dropped::Later => {
                check.confirmed = true;
                damage.insert(id, check);
            }
        }
    }

    fn drop_damaged(&self, now: Time, check: &Check) -> Dropped {
        let key = self.hashed(check.key.as_ref());
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let Some((slot, object)) = shard.find_live(key, emit) else { return Dropped::Before };
        let is_there = object.generation == check.generation
            && object.is_complete()
            && object.owner_of(check.place).is_some();
        if !is_there {
            return Dropped::Before;
        }
        let segment = object.replica_at(check.place).map(|replica| Arc::clone(&replica.segment));
        if object.transfer().is_some() || object.offload().is_some() {
            // Its client may be reading there. Transfers and offloads have ends.
            return Dropped::Later;
        }
        emit.effect(&Effect::Damaged {
            key: check.key.as_ref(),
            generation: check.generation,
            place: check.place,
            segment: segment.as_deref(),
        });
        Dropped::Yes(match check.place {
            ReplicaPlace::Memory { segment, extent } => {
                // Not that of the put, whose other space may be kept until the same time.
                let number = self.next_generation();
                shard.drop_damaged_memory(slot, (segment, extent), number, emit)
            }
            ReplicaPlace::File => {
                shard.drop_damaged_from_disk(slot, None, emit);
                None
            }
            ReplicaPlace::LocalDisk(client) => {
                shard.drop_damaged_from_disk(slot, Some(client), emit);
                None
            }
        })
    }
}

impl Object {
    fn replica_at(&self, place: ReplicaPlace) -> Option<&Replica> {
        let ReplicaPlace::Memory { segment, extent } = place else { return None };
        self.replicas().find(|replica| is_at(replica, segment, extent))
    }

    /// Whether it has a replica there that can be read, and if so, the client whose memory
    /// that is.
    fn owner_of(&self, place: ReplicaPlace) -> Option<Option<ClientId>> {
        match place {
            ReplicaPlace::Memory { .. } => {
                let segment = &self.replica_at(place)?.segment;
                segment.is_readable().then(|| Some(segment.client()))
            }
            ReplicaPlace::File => (self.file() == FileState::Persisted).then_some(None),
            ReplicaPlace::LocalDisk(client) => {
                let mut there = self.local_disks().iter().filter(|disk| !disk.is_gone());
                there.any(|disk| disk.client() == client).then_some(None)
            }
        }
    }
}

fn is_at(replica: &Replica, segment: SegmentId, extent: Extent) -> bool {
    replica.segment.spec().id == segment && replica.allocation.extent() == extent
}

impl Shard {
    /// Takes a replica out of an object, and the object with its last one. Somebody may be
    /// reading there: its space is kept for as long as that may be.
    fn drop_damaged_memory(
        &mut self,
        slot: ObjectSlot,
        (segment, extent): (SegmentId, Extent),
        number: Generation,
        emit: Emit<'_>,
    ) -> Option<Time> {
        let terms = self.config.terms;
        let object = self.get_mut(slot);
        let goes = |replica: &Replica| is_at(replica, segment, extent);
        let others = object.replicas().any(|r| !goes(r) && !r.segment.is_gone());
        if !others && !object.outlives_memory() {
            return match self.retire(slot, Removal::Damaged, emit) {
                Retired::Kept { until } => Some(until),
                Retired::Gone(_) => None,
            };
        }
        let lease_end = object.protection().lease_end(&terms);
        let gone = object.take_replicas_if(goes);
        let mut kept = None;
        let mut free = Replicas::default();
        if lease_end > emit.now {
            let space = Kept { tenant: Some(self.tenant(slot)), replicas: gone, writer: None };
            self.keep_until(lease_end, number, space, emit);
            kept = Some(lease_end);
        } else {
            free = gone;
        }
        self.note_lost_memory(slot, emit.now);
        self.emit_changed(slot, emit);
        self.give_back(self.tenant(slot), free);
        kept
    }
}
