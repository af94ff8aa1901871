//! Puts: space is granted, written, and then the object becomes readable.

use mc_types::{Checksum, ClientId, Generation, KeyRef, Time};

use crate::command::{
    MAX_NAMED_SEGMENTS, MAX_REPLICAS, MAX_SLICES, PutEnd, PutGrant, PutStart, Slice, Slices,
};
use crate::effect::Removal;
use crate::error::{InvalidPut, PutFinishError, PutStartError};
use crate::hash::HashedKey;
use crate::master::{Master, count};
use crate::object::{Object, State};
use crate::place::NoRoom;
use crate::shard::{Emit, Evicted, Shard};

/// Rounds of making room before a put is refused. The amount evicted doubles
/// from round to round, so this many rounds reach any size.
const MAX_ROUNDS: u32 = 24;

impl Master {
    /// Grants space for an object that nobody can read until
    /// [`put_end`](Self::put_end). When no segment has room, the objects least
    /// worth keeping are evicted until one has.
    ///
    /// # Errors
    /// [`PutStartError`]; nothing is changed then, except that objects may have
    /// been evicted.
    pub fn put_start(
        &self,
        now: Time,
        client: ClientId,
        put: &PutStart<'_>,
    ) -> Result<PutGrant, PutStartError> {
        let len = validate(put).map_err(PutStartError::Invalid)?;
        let key = self.hashed(put.key);
        let emit = self.emit(now);
        let mut round = 0;
        loop {
            let no_room = {
                let mut shard = self.shard_of(key);
                self.clear_way(&mut shard, key, emit)?;
                match self.place(len, put.config, client) {
                    Ok(replicas) => {
                        let object = Object::begun(
                            now,
                            put.key.to_owned(),
                            self.next_generation(),
                            client,
                            put.config.with_soft_pin,
                            unverified(put.slice_lengths),
                            replicas,
                        );
                        let grant = PutGrant {
                            generation: object.generation,
                            placements: object.placements(),
                        };
                        shard.begin(key.hash, object);
                        self.release_not_before(now + self.config.put_start_release_timeout);
                        return Ok(grant);
                    }
                    Err(no_room) => no_room,
                }
            };
            // The shard is unlocked here: making room locks others.
            if let Some(error) = self.make_room_for(len, no_room, round, now) {
                count(&self.counters.put_start_no_room, 1);
                return Err(error);
            }
            round += 1;
        }
    }

    /// Takes space back for an object of `len` bytes; an error when none is left to
    /// take.
    fn make_room_for(
        &self,
        len: u64,
        no_room: NoRoom,
        round: u32,
        now: Time,
    ) -> Option<PutStartError> {
        let best_free = match no_room {
            NoRoom::NoSegments { mounted } => {
                return Some(PutStartError::TooFewSegments { mounted });
            }
            NoRoom::TooLarge { largest_object } => {
                return Some(PutStartError::TooLarge { len, largest_object });
            }
            NoRoom::NotNow { best_free } => best_free,
        };
        // What nobody can use goes before what somebody may want.
        if self.reclaim_unfinished(now).0 > 0 {
            return None;
        }
        let evicted = if round < MAX_ROUNDS {
            self.evict(now, len.saturating_mul(1 << round))
        } else {
            Evicted::default()
        };
        if evicted.objects > 0 {
            return None;
        }
        Some(if evicted.leased > 0 || self.any_aside() {
            PutStartError::AllLeased { len }
        } else if best_free >= len {
            PutStartError::Fragmented { len, free: best_free }
        } else {
            PutStartError::Full { len }
        })
    }

    /// Makes sure that no object stands where a put wants to begin.
    fn clear_way(
        &self,
        shard: &mut Shard,
        key: HashedKey<'_>,
        emit: Emit<'_>,
    ) -> Result<(), PutStartError> {
        let Some((slot, object)) = shard.find_live(key, emit) else { return Ok(()) };
        let begun = object.begun_at().ok_or(PutStartError::AlreadyExists)?;
        let age = emit.now - begun;
        if age < self.config.put_start_discard_timeout {
            return Err(PutStartError::InProgress { age });
        }
        shard.discard(slot, begun + self.config.put_start_release_timeout);
        Ok(())
    }

    /// Makes an object readable. Ending the same put twice is harmless.
    ///
    /// # Errors
    /// [`PutFinishError`] when the put is not open, or not this client's.
    pub fn put_end(
        &self,
        now: Time,
        client: ClientId,
        put: &PutEnd<'_>,
    ) -> Result<(), PutFinishError> {
        let key = self.hashed(put.key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let (slot, object) = shard.find_live(key, emit).ok_or(PutFinishError::NotFound)?;
        let open = owned_put(object, client, put.generation)?;
        if !open {
            // An ended put is ended again only by whoever can name it.
            return put.generation.map(|_| ()).ok_or(PutFinishError::NotOpen);
        }
        object.slices = verified(&object.slices, put)?;
        shard.complete(slot, emit);
        Ok(())
    }

    /// Gives a put up and takes its space back at once: its writer says that it
    /// writes no more.
    ///
    /// # Errors
    /// [`PutFinishError`] when the put is not open, or not this client's.
    pub fn put_revoke(
        &self,
        now: Time,
        client: ClientId,
        key: KeyRef<'_>,
        generation: Option<Generation>,
    ) -> Result<(), PutFinishError> {
        let key = self.hashed(key);
        let emit = self.emit(now);
        let mut shard = self.shard_of(key);
        let (slot, object) = shard.find_live(key, emit).ok_or(PutFinishError::NotFound)?;
        if !owned_put(object, client, generation)? {
            return Err(PutFinishError::NotOpen);
        }
        shard.remove(slot, Removal::Requested, emit);
        shard.totals.put_revokes += 1;
        Ok(())
    }
}

/// Whether `object` is an unfinished put of `client` with this generation;
/// `false` when it is that put, finished.
fn owned_put(
    object: &Object,
    client: ClientId,
    generation: Option<Generation>,
) -> Result<bool, PutFinishError> {
    if object.owner() != client {
        return Err(PutFinishError::IllegalClient);
    }
    if generation.is_some_and(|generation| generation != object.generation) {
        return Err(PutFinishError::NotOpen);
    }
    Ok(object.state == State::Processing)
}

/// Checks a put and adds its slices up.
fn validate(put: &PutStart<'_>) -> Result<u64, InvalidPut> {
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
    for names in [&config.preferred_segments, &config.excluded_segments] {
        if names.len() > MAX_NAMED_SEGMENTS {
            return Err(InvalidPut::TooManySegments { count: names.len() });
        }
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

fn verified(slices: &Slices, put: &PutEnd<'_>) -> Result<Slices, PutFinishError> {
    let lens = slices.as_slice();
    if put.checksums.is_empty() {
        return Ok(slices.clone());
    }
    if put.checksums.len() != lens.len() {
        return Err(PutFinishError::ChecksumCount {
            given: put.checksums.len(),
            slices: lens.len(),
        });
    }
    let with_checksum =
        |slice: &Slice, checksum: &Checksum| Slice { len: slice.len, checksum: Some(*checksum) };
    Ok(match slices {
        Slices::One(slice) => Slices::One(with_checksum(slice, &put.checksums[0])),
        Slices::Many(slices) => Slices::Many(
            slices
                .iter()
                .zip(put.checksums)
                .map(|(slice, sum)| with_checksum(slice, sum))
                .collect(),
        ),
    })
}
