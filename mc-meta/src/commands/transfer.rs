//! Commands of copies and moves, from their beginning to their end.

pub(crate) mod drain;
pub(crate) mod error;
pub(crate) mod tasks;

use std::sync::Arc;

use mc_alloc::Label;
use mc_types::{ClientId, KeyRef, Time};
use smallvec::SmallVec;

use crate::commands::transfer::error::{TransferError, TransferFinishError};
use crate::effect::emit::Emit;
use crate::master::Master;
use crate::object::Object;
use crate::shard::Shard;
use crate::side_tables::transfer::{Route, Transfer, TransferGrant, TransferKind, TransferRef};
use crate::space::replica::{Placement, Replica, Replicas};
use crate::space::segment::Segment;
use crate::space::table::SegmentTable;
use crate::vocabulary::hash::HashedKey;
use crate::vocabulary::request::{LateWrites, MAX_REPLICAS, TransferHandle};
use crate::vocabulary::slot::ObjectSlot;

impl Master {
    /// Begins to copy an object from its replica in the segment named `source` to the
    /// segments named `targets`, between 1 and [`MAX_REPLICAS`]. A target that holds a
    /// replica already, or is named twice, is skipped; when all are, the copy is over
    /// before it began.
    ///
    /// Until [`copy_end`](Self::copy_end) or [`copy_revoke`](Self::copy_revoke) no client
    /// removes or evicts the object. A target that has no room is not made any: who
    /// holds room there is not known without looking at every object.
    ///
    /// # Errors
    /// [`TransferError`]; nothing is changed then.
    pub fn copy_start(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        source: &str,
        targets: &[&str],
    ) -> Result<TransferGrant, TransferError> {
        self.start_transfer(now, client, key, Route { kind: TransferKind::Copy, source, targets })
    }

    /// Makes the targets of a copy readable.
    ///
    /// # Errors
    /// [`TransferFinishError`]. [`ReplicaIsGone`](TransferFinishError::ReplicaIsGone)
    /// ends the copy all the same: when the source is gone no target becomes a replica,
    /// otherwise those do that are still there. All others change nothing.
    pub fn copy_end(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        handle: TransferHandle,
    ) -> Result<(), TransferFinishError> {
        self.end_transfer(now, key, self.named(TransferKind::Copy, client, handle))
    }

    /// Gives a copy up. The targets' space comes back at once when no write can arrive
    /// there any more, otherwise when the [time of its grant](TransferGrant::time_left) is
    /// over; revoking it again when no write can arrive gives it back then.
    ///
    /// # Errors
    /// [`TransferFinishError`]; nothing is changed then.
    pub fn copy_revoke(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        handle: TransferHandle,
        late: LateWrites,
    ) -> Result<(), TransferFinishError> {
        self.revoke_transfer(now, key, self.named(TransferKind::Copy, client, handle), late)
    }

    /// Begins to move an object's replica from the segment named `source` to the one
    /// named `target`; as [`copy_start`](Self::copy_start). When the target holds a
    /// replica already there is nothing to write, and the source goes at the end.
    ///
    /// # Errors
    /// [`TransferError`]; nothing is changed then.
    pub fn move_start(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        source: &str,
        target: &str,
    ) -> Result<TransferGrant, TransferError> {
        if source == target {
            return Err(TransferError::SameSegment);
        }
        let route = Route { kind: TransferKind::Move, source, targets: &[target] };
        self.start_transfer(now, client, key, route)
    }

    /// Makes the target of a move readable and takes the source out of the replicas. Its
    /// space comes back when the object's lease is over.
    ///
    /// # Errors
    /// [`TransferFinishError`]. [`ReplicaIsGone`](TransferFinishError::ReplicaIsGone)
    /// ends the move all the same, and the replicas are what they were. All others change
    /// nothing.
    pub fn move_end(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        handle: TransferHandle,
    ) -> Result<(), TransferFinishError> {
        self.end_transfer(now, key, self.named(TransferKind::Move, client, handle))
    }

    /// Gives a move up; as [`copy_revoke`](Self::copy_revoke).
    ///
    /// # Errors
    /// [`TransferFinishError`]; nothing is changed then.
    pub fn move_revoke(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        handle: TransferHandle,
        late: LateWrites,
    ) -> Result<(), TransferFinishError> {
        self.revoke_transfer(now, key, self.named(TransferKind::Move, client, handle), late)
    }

    fn start_transfer(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        route: Route<'_>,
    ) -> Result<TransferGrant, TransferError> {
        let count = route.targets.len();
        if !(1..=MAX_REPLICAS).contains(&count) {
            return Err(TransferError::TargetCount { count });
        }
        let key = self.hashed(key);
        match self.try_start(now, client, key, route) {
            // What no client can use any more may make room.
            Err(error) if error.is_no_room() && self.reclaim_unfinished(now).0 > 0 => {
                self.try_start(now, client, key, route)
            }
            outcome => outcome,
        }
    }

    fn try_start(
        &self,
        now: Time,
        client: ClientId,
        key: HashedKey<'_>,
        route: Route<'_>,
    ) -> Result<TransferGrant, TransferError> {
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let (slot, object) = shard.find_live(key, emit).ok_or(TransferError::NotFound)?;
        if !object.is_complete() || !object.is_readable() {
            return Err(TransferError::NotReady);
        }
        if shard.transfer(slot).is_some() || shard.offload(slot).is_some() {
            return Err(TransferError::InTransfer);
        }
        let label = shard.label(slot);
        let object = shard.get_mut(slot);
        let (source, targets) = self.segments.read().reserve(object, label, route)?;
        let grant = TransferGrant {
            handle: self.next_transfer(),
            generation: object.generation,
            slices: object.slices(),
            source: source.clone(),
            targets: targets.placements(),
            time_left: self.config.put_start_release_timeout,
        };
        if targets.is_empty() && route.kind == TransferKind::Copy {
            return Ok(grant);
        }
        let tenant = shard.tenant(slot);
        match self.quotas.charge_more(tenant, targets.bytes()) {
            Ok(charge) => charge.keep(),
            Err(refused) => {
                targets.release_uncharged();
                return Err(TransferError::Quota(refused));
            }
        };
        let due = self.config.grant_time().end(now);
        let (id, kind, source) = (grant.handle.id, route.kind, source.segment);
        let transfer = Transfer { id, kind, client, source, targets, due, hold: None };
        // Its group may have been condemned a moment ago.
        if let Err(transfer) = shard.begin_transfer(slot, transfer, emit) {
            shard.give_back(tenant, transfer.targets);
            return Err(TransferError::NotFound);
        }
        self.release_not_before(due);
        Ok(grant)
    }

    fn end_transfer(
        &self,
        now: Time,
        key: KeyRef<'_>,
        named: TransferRef,
    ) -> Result<(), TransferFinishError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let slot = shard.find_transfer(key, named, emit)?;
        let source_free_at = shard.end_transfer(slot, emit)?;
        if let Some(time) = source_free_at {
            self.release_not_before(time);
        }
        Ok(())
    }

    fn named(&self, kind: TransferKind, client: ClientId, handle: TransferHandle) -> TransferRef {
        let TransferHandle { id, token } = handle;
        TransferRef { kind, client, id, is_genuine: self.is_genuine(id, token) }
    }

    fn revoke_transfer(
        &self,
        now: Time,
        key: KeyRef<'_>,
        named: TransferRef,
        late: LateWrites,
    ) -> Result<(), TransferFinishError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        match shard.find_transfer(key, named, emit) {
            Ok(slot) if late == LateWrites::Possible => {
                // When its space is due was noted when it began.
                shard.abandon_transfer(slot, emit);
                shard.emit_transfer(slot, emit);
                Ok(())
            }
            Ok(slot) => {
                shard.give_up_transfer(slot, emit);
                Ok(())
            }
            // It may have been revoked or cancelled before.
            Err(_)
                if named.is_genuine && shard.revoked_again(named.client, named.id, late, emit) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl SegmentTable {
    /// The segments of these names, all of which take new objects.
    fn targets(&self, names: &[&str]) -> Result<SmallVec<[&Arc<Segment>; 4]>, TransferError> {
        let target = |name: &&str| {
            let segment = self.named_segment(name)?;
            if segment.is_allocatable() { Ok(segment) } else { Err(unavailable(segment)) }
        };
        names.iter().map(target).collect()
    }

    fn named_segment(&self, name: &str) -> Result<&Arc<Segment>, TransferError> {
        self.by_name(name).ok_or_else(|| TransferError::SegmentNotFound { name: name.into() })
    }

    /// Takes space in every target that does not hold the object yet, or in none.
    fn reserve(
        &self,
        object: &Object,
        label: Option<Label>,
        route: Route<'_>,
    ) -> Result<(Placement, Replicas), TransferError> {
        let source = self.named_segment(route.source)?;
        let targets = self.targets(route.targets)?;
        let replica =
            object.replicas().find(|replica| is_in(replica, source)).ok_or_else(|| {
                TransferError::ReplicaNotFound { segment: source.spec().name.clone() }
            })?;
        if !source.is_readable() {
            return Err(unavailable(source));
        }
        let held = object.replicas().count();
        let mut taken = Replicas::default();
        for segment in targets {
            if object.replicas().chain(taken.iter()).any(|replica| is_in(replica, segment)) {
                continue;
            }
            let space = if held + taken.len() < MAX_REPLICAS {
                take_in(segment, object.len(), label)
            } else {
                Err(TransferError::TooManyReplicas)
            };
            match space {
                Ok(replica) => taken.push(replica),
                Err(error) => {
                    taken.release_uncharged();
                    return Err(error);
                }
            }
        }
        Ok((replica.placement(), taken))
    }
}

fn unavailable(segment: &Segment) -> TransferError {
    let (name, status) = (segment.spec().name.clone(), segment.status());
    TransferError::SegmentUnavailable { name, status }
}

fn is_in(replica: &Replica, segment: &Arc<Segment>) -> bool {
    Arc::ptr_eq(&replica.segment, segment)
}

fn take_in(
    segment: &Arc<Segment>,
    len: u64,
    label: Option<Label>,
) -> Result<Replica, TransferError> {
    let name = || segment.spec().name.clone();
    if len > segment.largest_object() {
        let largest_object = segment.largest_object();
        return Err(TransferError::TooLarge { segment: name(), len, largest_object });
    }
    match segment.allocate(len, label) {
        Ok(allocation) => Ok(Replica { segment: Arc::clone(segment), allocation }),
        Err(_) => Err(match segment.free() {
            free if free >= len => TransferError::Fragmented { segment: name(), len, free },
            free => TransferError::Full { segment: name(), len, free },
        }),
    }
}

impl Shard {
    /// Opens a transfer of a complete object that has none; gives it back when the
    /// object's group was condemned.
    fn begin_transfer(
        &mut self,
        slot: ObjectSlot,
        mut transfer: Transfer,
        emit: Emit<'_>,
    ) -> Result<(), Transfer> {
        if let Some(group) = self.get(slot).group() {
            transfer.hold = group.hold();
            if transfer.hold.is_none() {
                return Err(transfer);
            }
        }
        self.open_transfer(slot, transfer);
        self.emit_transfer(slot, emit);
        Ok(())
    }

    /// The object whose open transfer is the one that its client names.
    fn find_transfer(
        &mut self,
        key: HashedKey<'_>,
        named: TransferRef,
        emit: Emit<'_>,
    ) -> Result<ObjectSlot, TransferFinishError> {
        let (slot, _) = self.find_live(key, emit).ok_or(TransferFinishError::NotFound)?;
        let transfer = self.transfer(slot).ok_or(TransferFinishError::NotOpen)?;
        if !named.is_genuine || transfer.client != named.client {
            return Err(TransferFinishError::IllegalClient);
        }
        if named.id != transfer.id {
            return Err(TransferFinishError::NotOpen);
        }
        if transfer.kind != named.kind {
            return Err(TransferFinishError::WrongKind { kind: transfer.kind });
        }
        Ok(slot)
    }

    /// Makes what was written readable. When a move has left space that readers may still
    /// use, says when it comes back.
    fn end_transfer(
        &mut self,
        slot: ObjectSlot,
        emit: Emit<'_>,
    ) -> Result<Option<Time>, TransferFinishError> {
        let Some(Transfer { id, kind, source, targets, .. }) = self.close_transfer(slot) else {
            return Err(TransferFinishError::NotOpen);
        };
        let read = self.last_read(self.get(slot), emit.now);
        let object = self.get_mut(slot);
        let has_source = object.replicas().any(|replica| is_in(replica, &source));
        let (written, lost): (Vec<Replica>, Vec<Replica>) =
            targets.into_iter().partition(|r| has_source && r.segment.is_readable());
        let mut complete = has_source && lost.is_empty();
        if !written.is_empty() {
            let mut replicas = object.take_replicas();
            replicas.extend(written);
            object.set_replicas(replicas);
        }
        let mut free: Replicas = lost.into_iter().collect();
        let mut free_at = None;
        if kind == TransferKind::Move {
            // What is left must be readable, whatever happened meanwhile.
            let stays = |r: &Replica| !is_in(r, &source) && r.segment.is_readable();
            complete &= object.replicas().any(stays);
            if complete {
                let left = object.take_replicas_if(|replica| is_in(replica, &source));
                if let Some(read) = read {
                    self.keep_read(slot, id, left, read, emit);
                    free_at = Some(read.until);
                } else {
                    free.extend(left);
                }
            }
        }
        self.emit_changed(slot, emit);
        self.give_back(self.tenant(slot), free);
        if complete { Ok(free_at) } else { Err(TransferFinishError::ReplicaIsGone) }
    }

    /// Ends a transfer that its client gave up, and whose writes may still arrive. A later revoke of it
    /// gives the space back.
    fn abandon_transfer(&mut self, slot: ObjectSlot, emit: Emit<'_>) {
        if let Some(transfer) = self.close_transfer(slot) {
            let tenant = self.tenant(slot);
            self.linger(transfer.linger(tenant), emit);
        }
    }
}
