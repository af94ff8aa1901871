//! Puts: space is granted, written, and then the object becomes readable.
//!
//! [`upsert`]: the same for a key that may have a value. [`space`]: where the space of a put comes
//! from.

pub(crate) mod space;
pub(crate) mod upsert;

use core::time::Duration;

use mc_lease::SoftPin;
use mc_types::{Checksum, ClientId, Generation, KeyRef, Time};

use crate::commands::error::{InvalidPut, PutFinishError, PutStartError};
use crate::commands::reply::PutGrant;
use crate::effect::emit::Emit;
use crate::eviction::common::{Chain, Fresh};
use crate::master::{Attempt, Master};
use crate::object::spans::checkpoints;
use crate::object::{Object, PendingPut};
use crate::shard::Shard;
use crate::space::replica::Replicas;
use crate::tenant::quota::Charge;
use crate::vocabulary::hash::HashedKey;
use crate::vocabulary::removal::Removal;
use crate::vocabulary::request::{
    LateWrites, MAX_AVOIDED_SEGMENTS, MAX_GROUP_NAME_LEN, MAX_NAMED_SEGMENTS, MAX_REPLICAS,
    MAX_SLICES, PutEnd, PutHandle, PutStart, Slice, Slices, SoftPinAction,
};
use crate::vocabulary::slot::ObjectSlot;

impl Master {
    /// Grants space for an object that no client can read until
    /// [`put_end`](Self::put_end). When no segment has room, the objects least
    /// worth keeping are evicted until one has.
    ///
    /// A value whose holders are all away does not stand in its way: it is replaced when the put
    /// ends. A value that does was wanted again: it counts as used, without a lease,
    /// unless it is soft-pinned.
    ///
    /// # Errors
    /// [`PutStartError`]; nothing else is changed then, except that objects may have
    /// been evicted.
    pub fn put_start(
        &self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, PutStartError> {
        self.batch().put_start(now, client, put)
    }

    /// [`put_start`](Self::put_start) once more of one that was refused for lack of space and
    /// waits for it: a refusal counts as a retry, not as one more.
    ///
    /// # Errors
    /// As there.
    pub fn put_start_again(
        &self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, PutStartError> {
        self.batch().put_start_again(now, client, put)
    }

    /// [`put_start`](Self::put_start) of a put that a former master may have begun, whose answer
    /// did not arrive. An unfinished put of the key does not stand in its way when it is of the same
    /// client and was begun by a former master; its space is kept until the time of its grant is
    /// over, as that of every put that is preempted. A refusal for lack of space counts as a retry.
    ///
    /// Only for a client that has no other put of the key under way: otherwise it would lose that one.
    ///
    /// # Errors
    /// As there.
    pub fn put_start_anew(
        &self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, PutStartError> {
        self.batch().put_start_anew(now, client, put)
    }

    pub(crate) fn put_start_as(
        &self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
        attempt: Attempt,
    ) -> Result<PutGrant, PutStartError> {
        self.begin_with_room(now, put, attempt, |shard, key, len, emit| {
            self.make_room_for_file(shard, key.key, len, emit);
            let own = (attempt == Attempt::Anew).then_some(client);
            let old = self.clear_way(shard, key, own, emit)?;
            let label = shard.next_label();
            let (replicas, charge) = self.place_charged(put.key, len, put.config, client, label)?;
            let file = self.plan_file(len, charge.slot());
            let grant = PutGrant {
                handle: self.next_put(now, client, len, file),
                placements: replicas.placements(),
                file,
                time_left: self.config.put_start_release_timeout,
            };
            let generation = grant.handle.generation;
            let mut begun = self.begun(put, shard, generation, replicas, charge);
            (begun.file, begun.replaces) = (grant.file, old);
            shard.begin(key, client, begun, emit);
            self.release_not_before(self.config.grant_time().end(now));
            Ok(grant)
        })
    }

    /// Makes the pending put of a request and its space. Joins its group.
    fn begun(
        &self,
        put: &PutStart<'_>,
        shard: &Shard,
        generation: Generation,
        replicas: Replicas,
        charge: Charge<'_>,
    ) -> PendingPut {
        let config = put.config;
        let number = shard.config().number;
        let join = |name: &str| {
            let name = self.scoped_group(put.key, name);
            self.join_group(&name, generation, number)
        };
        PendingPut {
            generation,
            slices: unverified(put.slice_lengths),
            replicas,
            soft_pin: config.soft_pin.apply(SoftPin::NONE),
            hard_pin: config.with_hard_pin,
            group: config.group.as_deref().map(join),
            parent: config.parent.as_ref().and_then(|key| self.item_hash(key.as_ref())),
            replaces: None,
            file: false,
            tenant: charge.keep(),
        }
    }

    /// Makes sure that nothing stands where a put wants to begin, except a value whose holders are
    /// all away: the slot of that one. It stays until the new one is written, and comes back with
    /// its holders if that never is.
    ///
    /// An unfinished put of `own` that a former master began goes at once. Its client says that it has
    /// no grant for the key. A former master grants nothing any more, so that none is on its way
    /// either; a put that this master began may have one on its way, to another task of the client.
    fn clear_way(
        &self,
        shard: &mut Shard,
        key: HashedKey<'_>,
        own: Option<ClientId>,
        emit: Emit<'_>,
    ) -> Result<Option<ObjectSlot>, PutStartError> {
        while let Some((slot, object)) = shard.find_live(key, emit) {
            if object.is_readable() {
                return Err(PutStartError::AlreadyExists);
            }
            let unfinished = match (object.is_away(), shard.replacement(slot)) {
                (true, None) => return Ok(Some(slot)),
                (true, Some(replacement)) if !shard.is_live(replacement, emit) => continue,
                (true, Some(replacement)) => replacement,
                (false, _) => slot,
            };
            let begun = shard.object(unfinished).and_then(Object::begun_at);
            let begun = begun.or_else(|| shard.file_begun_at(unfinished)).unwrap_or(Time::ORIGIN);
            let age = emit.now - begun;
            let is_abandoned = own.is_some_and(|client| {
                shard.object(unfinished).is_some_and(|put| {
                    shard.client(put) == client && self.is_of_former_master(put.generation)
                })
            });
            if age < self.config.put_start_discard_timeout && !is_abandoned {
                return Err(PutStartError::InProgress { age });
            }
            let until = self.config.grant_time().end(begun);
            shard.discard(unfinished, until, Removal::Replaced, emit);
            shard.totals_mut().puts_discarded += 1;
            self.release_not_before(until);
        }
        Ok(None)
    }

    /// Makes an object readable: its memory is written. Ending the same put twice is
    /// harmless, also when another master answered first. Its file, if it is to have one, ends with
    /// [`file_put_end`](Self::file_put_end). One that was begun by
    /// [`upsert_start`](Self::upsert_start) takes the place of the object that could be
    /// read until now.
    ///
    /// # Errors
    /// [`PutFinishError`] when the put is not open, or not this client's, or the number of
    /// checksums or prefixes is wrong.
    pub fn put_end(
        &self,
        now: Time,
        client: ClientId,
        put: &PutEnd<'_>,
    ) -> Result<(), PutFinishError> {
        self.batch().put_end(now, client, put)
    }

    /// [`put_end`](Self::put_end) in the shard of the key. An object that was made readable and
    /// belongs into an order of eviction is left to be entered there by the caller.
    pub(crate) fn end_in(
        &self,
        shard: &mut Shard,
        key: HashedKey<'_>,
        now: Time,
        client: ClientId,
        put: &PutEnd<'_>,
    ) -> Result<Option<(Fresh, Chain)>, PutFinishError> {
        let emit = self.emit(now);
        let putter = self.putter(client, put.handle);
        let (slot, open) = shard.find_put(key, putter, emit)?;
        if !open {
            return Ok(None);
        }
        let object = shard.get_mut(slot);
        if !object.has_memory() {
            return Err(PutFinishError::NotOpen);
        }
        let slices = verified(&object.slices(), put.checksums)?;
        let checkpoints = slices.as_ref().map_or(0, checkpoints);
        let given = put.prefixes.len();
        if given != 0 && given as u64 != checkpoints {
            return Err(PutFinishError::PrefixCount { given, checkpoints });
        }
        if let Some(slices) = slices {
            object.set_slices(slices);
            object.set_prefixes(put.prefixes.into());
        }
        if let Some(until) = shard.supersede(slot, emit) {
            self.release_not_before(until);
        }
        Ok(shard.complete(slot, key.hash, put.event_info, emit))
    }

    /// Gives up what is not finished of a put, memory and file. A file that is written
    /// already stays, and the object with it. What it was to replace can still be read.
    ///
    /// When no write of the put can arrive any more its space comes back at once, otherwise
    /// when the [time of its grant](PutGrant::time_left) is over. A put that was revoked
    /// while writes were possible can be revoked again when they are not, which gives its
    /// space back then; repeating that is harmless.
    ///
    /// # Errors
    /// [`PutFinishError`] when the put is not open, or not this client's.
    pub fn put_revoke(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        handle: PutHandle,
        late: LateWrites,
    ) -> Result<(), PutFinishError> {
        self.revoke_part(now, (client, key, handle), late, PutPart::Everything)
    }

    /// Gives up a part of the open put `(client, key, handle)`.
    pub(crate) fn revoke_part(
        &self,
        now: Time,
        (client, key, handle): (ClientId, KeyRef<'_>, PutHandle),
        late: LateWrites,
        part: PutPart,
    ) -> Result<(), PutFinishError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let putter = self.putter(client, handle);
        let error = match shard.find_put(key, putter, emit) {
            Ok((slot, true)) if part.is_there(shard.get(slot)) => {
                let until = self.kept_until(&shard, slot, late);
                match part {
                    PutPart::Everything => _ = shard.give_up_put(slot, until, emit),
                    PutPart::Memory => shard.revoke_memory(slot, until, emit),
                }
                shard.totals_mut().put_revokes += 1;
                if let Some(until) = until {
                    self.release_not_before(until);
                }
                return Ok(());
            }
            Ok(_) => PutFinishError::NotOpen,
            Err(error) => error,
        };
        // It may have been revoked or discarded before.
        if putter.is_genuine && shard.revoked_again(client, handle.generation, late, emit) {
            return Ok(());
        }
        Err(error)
    }

    /// A put as its client names it. Called before its shard is locked or after: it takes
    /// no lock.
    pub(crate) fn putter(&self, client: ClientId, handle: PutHandle) -> Putter {
        let PutHandle { generation, token } = handle;
        Putter { client, generation, is_genuine: self.is_genuine(generation, token) }
    }

    /// The time until which the space of an unfinished put is retained if the put ends now.
    fn kept_until(&self, shard: &Shard, slot: ObjectSlot, late: LateWrites) -> Option<Time> {
        let begun = shard.object(slot)?.begun_at()?;
        match late {
            LateWrites::Impossible => None,
            LateWrites::Possible => Some(self.config.grant_time().end(begun)),
        }
    }
}

/// The part of an open put that is revoked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PutPart {
    /// Memory and file, whatever is not finished of them.
    Everything,
    /// Its memory alone.
    Memory,
}

impl PutPart {
    fn is_there(self, object: &Object) -> bool {
        match self {
            Self::Everything => true,
            Self::Memory => object.has_memory(),
        }
    }
}

impl Shard {
    /// The object of this key, if it comes from this put.
    pub(crate) fn find_of_put(
        &mut self,
        key: HashedKey<'_>,
        generation: Generation,
        emit: Emit<'_>,
    ) -> Option<ObjectSlot> {
        let (slot, object) = self.find_live(key, emit)?;
        (object.generation == generation).then_some(slot)
    }

    /// The put that its client names, and whether it is still open.
    pub(crate) fn find_put(
        &mut self,
        key: HashedKey<'_>,
        putter: Putter,
        emit: Emit<'_>,
    ) -> Result<(ObjectSlot, bool), PutFinishError> {
        let Putter { client, generation, is_genuine } = putter;
        let (slot, _) = self.find_live(key, emit).ok_or(PutFinishError::NotFound)?;
        let slot = self.put_meant(slot, client, generation, emit);
        let object = self.object(slot).ok_or(PutFinishError::NotFound)?;
        // Who the client is it says itself; that it began the put it proves.
        if !is_genuine || self.client(object) != client {
            return Err(PutFinishError::IllegalClient);
        }
        if generation != object.generation {
            return Err(PutFinishError::NotOpen);
        }
        Ok((slot, !object.is_complete()))
    }
}

/// A put as its client names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Putter {
    client: ClientId,
    generation: Generation,
    /// Whether the client knows what only the put's start told.
    is_genuine: bool,
}

/// Checks a put and adds its slices up.
pub(crate) fn validate(put: &PutStart<'_>, max_soft_pin: Duration) -> Result<u64, InvalidPut> {
    let (slices, config) = (put.slice_lengths, put.config);
    if slices.is_empty() || slices.contains(&0) {
        return Err(InvalidPut::EmptySlice);
    }
    if slices.len() > MAX_SLICES {
        return Err(InvalidPut::TooManySlices { count: slices.len() });
    }
    if !(1..=MAX_REPLICAS as u32).contains(&config.replica_num) {
        return Err(InvalidPut::ReplicaCount { replica_num: config.replica_num });
    }
    if let SoftPinAction::Enable { ttl: Some(ttl) } = config.soft_pin
        && ttl > max_soft_pin
    {
        return Err(InvalidPut::SoftPinTtl { ttl, max: max_soft_pin });
    }
    if let Some(group) = &config.group
        && !(1..=MAX_GROUP_NAME_LEN).contains(&group.len())
    {
        return Err(InvalidPut::GroupName { len: group.len() });
    }
    for names in [&config.preferred_segments, &config.excluded_segments] {
        if names.len() > MAX_NAMED_SEGMENTS {
            return Err(InvalidPut::TooManySegments { count: names.len() });
        }
    }
    let avoided = config.avoided_segments.len();
    if avoided > MAX_AVOIDED_SEGMENTS {
        return Err(InvalidPut::TooManyAvoided { count: avoided });
    }
    slices
        .iter()
        .try_fold(0u64, |sum, len| sum.checked_add(*len))
        .filter(|total| *total <= i64::MAX as u64)
        .ok_or(InvalidPut::LengthOverflow)
}

fn unverified(lengths: &[u64]) -> Slices {
    let slice = |len: &u64| Slice { len: *len, checksum: None };
    match lengths {
        [len] => Slices::One(slice(len)),
        lengths => Slices::Many(lengths.iter().map(slice).collect()),
    }
}

/// The slices with their checksums; `None` when the writer has none to give.
fn verified(slices: &Slices, checksums: &[Checksum]) -> Result<Option<Slices>, PutFinishError> {
    let count = slices.as_slice().len();
    if checksums.is_empty() {
        return Ok(None);
    }
    if checksums.len() != count {
        return Err(PutFinishError::ChecksumCount { given: checksums.len(), slices: count });
    }
    let with_checksum =
        |slice: &Slice, checksum: &Checksum| Slice { len: slice.len, checksum: Some(*checksum) };
    Ok(Some(match slices {
        Slices::One(slice) => Slices::One(with_checksum(slice, &checksums[0])),
        Slices::Many(slices) => Slices::Many(
            slices.iter().zip(checksums).map(|(slice, sum)| with_checksum(slice, sum)).collect(),
        ),
    }))
}
