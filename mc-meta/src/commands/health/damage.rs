//! Commands about damaged replicas: readers report them, owners check them, and they are dropped.

use std::sync::Arc;

use mc_types::{ClientId, Extent, Generation, SegmentId, Time};
use smallvec::smallvec;

use crate::effect::Effect;
use crate::effect::emit::Emit;
use crate::master::Master;
use crate::object::Object;
use crate::object::local_disk::OnLocalDisk;
use crate::shard::{Retired, Shard};
use crate::side_tables::damage::{
    AGAIN, Check, Damage, DamageReport, Dropped, FORGOTTEN, MAX_CHECKS, MAX_HANDED_BYTES,
    MAX_HANDED_CHECKS, MAX_HANDED_SLICES, MAX_WITNESSES, Owner, ReplicaCheck, ReplicaPlace,
    ReportOutcome, Verdict,
};
use crate::space::replica::{Replica, Replicas};
use crate::vocabulary::kinds::FileState;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::request::Slices;
use crate::vocabulary::slot::ObjectSlot;

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
        damage.totals.damage_reports += 1;
        let Some((owner, slices)) = found else {
            damage.totals.damage_dropped += 1;
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
            damage.totals.damage_dropped += 1;
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

    /// The owner of the reported replica, if it is a client's, and the checksums of the put; `None`
    /// when the object has no such replica that can be verified.
    fn find_reported(
        &self,
        now: Time,
        report: &DamageReport<'_>,
    ) -> Option<(Option<Owner>, Slices)> {
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
            let Some(Owner { extent, .. }) = check.owner else { continue };
            let segment = match check.place {
                ReplicaPlace::Memory { segment, .. } => Some(segment),
                ReplicaPlace::File | ReplicaPlace::LocalDisk(_) => None,
            };
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

    /// Takes the answer of the client that was asked about a replica. The answer of another client
    /// is ignored, and so is one to a question that is not open.
    pub fn checked(&self, now: Time, client: ClientId, id: u64, verdict: Verdict) {
        let mut damage = self.damage.lock();
        let is_asked = damage.checks.get(&id).is_some_and(|check| {
            check.owner.is_some_and(|owner| owner.client == client)
                && check.handed.is_some()
                && !check.confirmed
        });
        if !is_asked {
            return;
        }
        let check = damage.take(id).expect("looked at above");
        match verdict {
            Verdict::Intact => {
                damage.totals.damage_denied += 1;
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

    /// Drops what could not be dropped before, and forgets questions without answers.
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
            damage.totals.damage_confirmed += 1;
            check.witnesses.iter().for_each(|&source| damage.credits.give_back(source));
        }
        match dropped {
            Dropped::Yes(_) => damage.totals.damage_removed += 1,
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
            && object.owner_of(check.place).is_some_and(|owner| {
                // A disk has its objects elsewhere after it was mounted again.
                owner.map(|owner| owner.extent) == check.owner.map(|owner| owner.extent)
            });
        if !is_there {
            return Dropped::Before;
        }
        let segment = object.replica_at(check.place).map(|replica| Arc::clone(&replica.segment));
        if shard.transfer(slot).is_some() || shard.offload(slot).is_some() {
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

    /// Returns whether it has a replica there that can be read, and if so, the client that holds it.
    fn owner_of(&self, place: ReplicaPlace) -> Option<Option<Owner>> {
        match place {
            ReplicaPlace::Memory { extent, .. } => {
                let segment = &self.replica_at(place)?.segment;
                segment.is_readable().then(|| Some(Owner { client: segment.client(), extent }))
            }
            ReplicaPlace::File => (self.file() == FileState::Persisted).then_some(None),
            ReplicaPlace::LocalDisk(client) => {
                let mut there = self.local_disks().iter().filter_map(OnLocalDisk::placement);
                let there = there.find(|there| there.client == client)?;
                Some(Some(Owner { client, extent: there.extent }))
            }
        }
    }
}

fn is_at(replica: &Replica, segment: SegmentId, extent: Extent) -> bool {
    replica.segment.spec().id == segment && replica.allocation.extent() == extent
}

impl Shard {
    /// Takes a replica out of an object, and the object with its last one. A client may be
    /// reading there: its space is kept for as long as that may be.
    fn drop_damaged_memory(
        &mut self,
        slot: ObjectSlot,
        (segment, extent): (SegmentId, Extent),
        number: Generation,
        emit: Emit<'_>,
    ) -> Option<Time> {
        let object = self.get_mut(slot);
        let goes = |replica: &Replica| is_at(replica, segment, extent);
        let others = object.replicas().any(|r| !goes(r) && !r.segment.is_gone());
        if !others && !object.outlives_memory() {
            return match self.retire(slot, Removal::Damaged, emit) {
                Retired::Kept { until } => Some(until),
                Retired::Gone(_) => None,
            };
        }
        let gone = object.take_replicas_if(goes);
        let read = self.last_read(self.get(slot), emit.now);
        let mut free = Replicas::default();
        match read {
            Some(read) => self.keep_read(slot, number, gone, read, emit),
            None => free = gone,
        }
        self.note_lost_memory(slot, emit.now);
        self.emit_changed(slot, emit);
        self.give_back(self.tenant(slot), free);
        read.map(|read| read.until)
    }
}
