//! Upserts: a new value for a key that may have one.
//!
//! The new value is an object of its own, in a slot of its own, which the old one
//! names and which names the old one. The key leads to the old one until the new one
//! is written; whichever of them goes first, the other then has the key to itself. So
//! a replacement times out, is revoked, and loses its segments like any other
//! unfinished put.

use mc_lease::Terms;
use mc_types::{ClientId, Generation, MediaType, Time};

use crate::commands::error::PutStartError;
use crate::commands::reply::PutGrant;
use crate::effect::emit::Emit;
use crate::master::{Attempt, Master};
use crate::object::{Object, PendingPut};
use crate::shard::{Retired, Shard};
use crate::space::place::NoRoom;
use crate::space::replica::Replicas;
use crate::tenant::quota::Charge;
use crate::vocabulary::hash::HashedKey;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::request::{PutStart, ReplicateConfig, SoftPinAction};
use crate::vocabulary::slot::ObjectSlot;

impl Master {
    /// Grants space for a new value of a key, whether there is one or not.
    ///
    /// [`put_end`](Self::put_end) and [`put_revoke`](Self::put_revoke) end an upsert, too.
    ///
    /// A value that can be read stays readable until the end of the upsert,
    /// and the new one then takes its place at once; those who still read the old one
    /// under a lease may do so until it ends. Only when there is no room left without
    /// evicting, and the old value is as long as the new one, has no more replicas than
    /// are asked for, lies only where this put may, is under no lease and not being
    /// copied or moved, is the new one written in its place: then no client can read the key
    /// until the end, and the value is lost when the upsert fails. Otherwise room is
    /// made as for a put, and the old value may be among what is evicted.
    ///
    /// An unfinished put or upsert of the key, of any client, is preempted at once, and
    /// its space kept until its time-out because its writer may still be writing. A value whose
    /// holders are all away is replaced as one that can be read is: when the upsert ends.
    ///
    /// A copy or move of the old value is over when the new one takes its place.
    ///
    /// From the old value the new one inherits its hard pin, a soft pin that
    /// is in force, its group, and its parent when none is named.
    ///
    /// # Errors
    /// [`PutStartError`], never [`AlreadyExists`](PutStartError::AlreadyExists) nor
    /// [`InProgress`](PutStartError::InProgress). The old value stays as it
    /// is then, unless it was evicted. [`OtherGroup`](PutStartError::OtherGroup) when a
    /// group is named that it is not in.
    pub fn upsert_start(
        &self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, PutStartError> {
        self.upsert_start_as(now, client, put, Attempt::First)
    }

    /// [`upsert_start`](Self::upsert_start) once more of one that was refused for lack of space and
    /// waits for it: a refusal counts as a retry, not as one more.
    ///
    /// # Errors
    /// As there.
    pub fn upsert_start_again(
        &self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, PutStartError> {
        self.upsert_start_as(now, client, put, Attempt::Further)
    }

    fn upsert_start_as(
        &self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
        attempt: Attempt,
    ) -> Result<PutGrant, PutStartError> {
        self.begin_with_room(now, put, attempt, |shard, key, len, emit| {
            self.make_room_for_file(shard, key.key, len, emit);
            let old = self.old_value(shard, key, put.config, emit)?;
            let label = shard.next_label();
            let space = match self.place_charged(put.key, len, put.config, client, label) {
                Ok((replicas, charge)) => UpsertSpace { replicas, charge, reused: false },
                Err(no_room @ (NoRoom::NotNow { .. } | NoRoom::Quota(_)))
                    if old.is_some_and(|slot| {
                        let medium = self.segments.read().medium_for(put.config);
                        shard.can_rewrite(slot, len, put.config, medium, now)
                    }) =>
                {
                    // What is there is charged already.
                    let charge = self.quotas.charge_owner(put.key, 0).map_err(|_| no_room)?;
                    UpsertSpace { replicas: Replicas::default(), charge, reused: true }
                }
                Err(no_room) => return Err(no_room.into()),
            };
            Ok(self.begin_upsert(shard, key, client, put, old, space, emit))
        })
    }

    /// The slot of the value that can be read or whose holders are away, and nothing else of this
    /// key: unfinished puts are preempted.
    fn old_value(
        &self,
        shard: &mut Shard,
        key: HashedKey<'_>,
        config: &ReplicateConfig,
        emit: Emit<'_>,
    ) -> Result<Option<ObjectSlot>, PutStartError> {
        while let Some((slot, object)) = shard.find_live(key, emit) {
            if let Some(begun) = object.begun_at() {
                if object.is_in_tier() {
                    let until = self.config.grant_time().end(begun);
                    shard.leave_to_disk(slot, until, emit);
                    self.release_not_before(until);
                } else {
                    self.preempt(shard, slot, emit);
                }
                continue;
            }
            if !object.is_readable() && !object.is_away() {
                // Its memory is gone, and its file is not written yet.
                if let Retired::Kept { until } = shard.retire(slot, Removal::Replaced, emit) {
                    self.release_not_before(until);
                }
                continue;
            }
            if let Some(name) = &config.group {
                let name = self.scoped_group(key.key, name);
                if !object.group().is_some_and(|group| self.is_group(&name, group)) {
                    return Err(PutStartError::OtherGroup);
                }
            }
            if let Some(replacement) = shard.replacement(slot) {
                self.preempt(shard, replacement, emit);
            }
            return Ok(Some(slot));
        }
        Ok(None)
    }

    /// Gives an unfinished put up before its time. Its writer may still be writing.
    fn preempt(&self, shard: &mut Shard, slot: ObjectSlot, emit: Emit<'_>) {
        let Some(begun) = shard.object(slot).and_then(Object::begun_at) else { return };
        let until = self.config.grant_time().end(begun);
        shard.discard(slot, until, Removal::Replaced, emit);
        shard.totals_mut().puts_discarded += 1;
        self.release_not_before(until);
    }

    #[expect(clippy::too_many_arguments, reason = "all of them are parts of one upsert")]
    fn begin_upsert(
        &self,
        shard: &mut Shard,
        key: HashedKey<'_>,
        client: ClientId,
        put: &PutStart<'_>,
        old: Option<ObjectSlot>,
        space: UpsertSpace<'_>,
        emit: Emit<'_>,
    ) -> PutGrant {
        let len = put.slice_lengths.iter().sum();
        let file = self.plan_file(len, space.charge.slot());
        let handle = self.next_put(emit.now, client, len, file);
        let generation = handle.generation;
        let mut begun = self.begun(put, shard, generation, space.replicas, space.charge);
        if let Some(old) = old {
            shard.inherit(old, &mut begun, put.config.soft_pin, emit.now);
            if space.reused {
                begun.replicas = shard.take_out(old, Removal::Replaced, emit);
            } else {
                begun.replaces = Some(old);
            }
        }
        begun.file = file;
        let placements = begun.replicas.placements();
        shard.begin(key, client, begun, emit);
        self.release_not_before(self.config.grant_time().end(emit.now));
        PutGrant { handle, placements, file, time_left: self.config.put_start_release_timeout }
    }
}

/// Where a new value goes.
struct UpsertSpace<'a> {
    replicas: Replicas,
    charge: Charge<'a>,
    /// Into the space of the old one; there are no replicas yet then.
    reused: bool,
}

impl Shard {
    /// Returns the put of a key that a client means: the object in `slot`, or its
    /// replacement.
    pub(crate) fn put_meant(
        &mut self,
        slot: ObjectSlot,
        client: ClientId,
        generation: Generation,
        emit: Emit<'_>,
    ) -> ObjectSlot {
        let Some(replacement) = self.replacement(slot) else {
            return slot;
        };
        if !self.is_live(replacement, emit) {
            return slot;
        }
        let named = |slot| self.object(slot).is_some_and(|o| generation == o.generation);
        let own = self.object(replacement).is_some_and(|put| self.client(put) == client);
        if named(replacement) || (own && !named(slot)) { replacement } else { slot }
    }

    /// Takes out what the object in `slot` replaces. Says until when its space is kept
    /// for those who read it.
    pub(crate) fn supersede(&mut self, slot: ObjectSlot, emit: Emit<'_>) -> Option<Time> {
        let old = self.replaced(slot)?;
        self.retire(old, Removal::Replaced, emit).kept_until()
    }

    /// Returns whether a new value may be written over the one in `slot`.
    fn can_rewrite(
        &self,
        slot: ObjectSlot,
        len: u64,
        config: &ReplicateConfig,
        medium: MediaType,
        now: Time,
    ) -> bool {
        let terms = &self.config().terms;
        let object = self.object(slot);
        self.transfer(slot).is_none()
            && object.is_some_and(|object| object.can_be_rewritten(len, config, medium, terms, now))
    }

    /// Gives a put what it keeps of the object that it replaces.
    fn inherit(&self, old: ObjectSlot, begun: &mut PendingPut, action: SoftPinAction, now: Time) {
        let Some(object) = self.object(old) else { return };
        if object.protection().is_soft_pinned(&self.config().terms, now) {
            begun.soft_pin = action.apply(object.protection().soft_pin());
        }
        begun.hard_pin |= object.is_hard_pinned();
        begun.parent = begun.parent.or(object.parent());
        if begun.group.is_none() {
            // `None` if the group was condemned meanwhile: then the new value is in no group.
            let number = self.config().number;
            begun.group = object.group().and_then(|group| group.join(begun.generation, number));
        }
    }
}

impl Object {
    fn can_be_rewritten(
        &self,
        len: u64,
        config: &ReplicateConfig,
        medium: MediaType,
        terms: &Terms,
        now: Time,
    ) -> bool {
        let replicas = self.replicas().count();
        self.len() == len
            && (1..=config.replica_num as usize).contains(&replicas)
            && !self.protection().is_leased(terms, now)
            && self.replicas().all(|replica| {
                let spec = replica.segment.spec();
                replica.segment.is_allocatable()
                    && !config.excluded_segments.contains(&spec.name)
                    && !config.avoided_segments.contains(&spec.id)
                    && replica.segment.medium() == medium
            })
    }
}
