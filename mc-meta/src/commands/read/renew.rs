//! Leases of long reads.

use mc_types::{Generation, KeyRef, Time};

use crate::commands::error::RenewError;
use crate::commands::read::get::Reading;
use crate::commands::reply::Renewed;
use crate::master::Master;

impl Master {
    /// [`Reading::renew_lease`] of a client that says nothing of its reads.
    ///
    /// # Errors
    /// As there.
    pub fn renew_lease(
        &self,
        now: Time,
        key: KeyRef<'_>,
        generation: Generation,
    ) -> Result<Renewed, RenewError> {
        self.reading(now, None).renew_lease(key, generation)
    }

    /// [`renew_lease`](Self::renew_lease) for each of `reads`: a key and the generation
    /// that is being read.
    pub fn batch_renew_lease(
        &self,
        now: Time,
        reads: &[(KeyRef<'_>, Generation)],
    ) -> Vec<Result<Renewed, RenewError>> {
        self.reading(now, None).batch_renew_lease(reads)
    }
}

impl Reading<'_> {
    /// Extends the lease under which the put of this generation is being read. It counts as
    /// a use of the object but not as a read that found it.
    ///
    /// The answer says how long the lease lasts from now on and which memory it protects.
    /// That may be other memory than the one that is being read: a move may have ended
    /// meanwhile, or a replica may have gone after an earlier lease had ended. Such a
    /// reader has until the end of its own lease, like one whose lease is not renewed.
    ///
    /// # Errors
    /// [`RenewError`] when the key leads to that put no more, or no node that holds it is
    /// there.
    pub fn renew_lease(
        &self,
        key: KeyRef<'_>,
        generation: Generation,
    ) -> Result<Renewed, RenewError> {
        let Self { master, now, access } = *self;
        let key = master.hashed(key);
        let mut shard = master.shard_of(key);
        let found = shard.find_live(key, master.emit(now));
        let (slot, object) = found.ok_or(RenewError::NotFound)?;
        if object.generation != generation {
            return Err(RenewError::Replaced);
        }
        if !object.is_readable() {
            return Err(RenewError::NotReady);
        }
        if !shard.access(slot, access, now) {
            return Err(RenewError::NotFound);
        }
        let object = shard.object(slot).ok_or(RenewError::NotFound)?;
        Ok(Renewed { lease: master.terms.read(), placements: object.placements() })
    }

    /// [`renew_lease`](Self::renew_lease) for each of `reads`: a key and the generation
    /// that is being read.
    pub fn batch_renew_lease(
        &self,
        reads: &[(KeyRef<'_>, Generation)],
    ) -> Vec<Result<Renewed, RenewError>> {
        reads.iter().map(|&(key, generation)| self.renew_lease(key, generation)).collect()
    }
}
