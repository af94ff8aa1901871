//! Leases of long reads.

use mc_types::{Generation, KeyRef, Time};

use crate::command::Renewed;
use crate::error::RenewError;
use crate::master::Master;

impl Master {
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
        now: Time,
        key: KeyRef<'_>,
        generation: Generation,
    ) -> Result<Renewed, RenewError> {
        let key = self.hashed(key);
        let mut shard = self.shard_of(key);
        let found = shard.find_live(key, self.emit(now));
        let (slot, object) = found.ok_or(RenewError::NotFound)?;
        if object.generation != generation {
            return Err(RenewError::Replaced);
        }
        if !object.is_readable() {
            return Err(RenewError::NotReady);
        }
        if !shard.access(slot, now) {
            return Err(RenewError::NotFound);
        }
        let object = shard.object(slot).ok_or(RenewError::NotFound)?;
        Ok(Renewed { lease: self.terms.lease, placements: object.placements() })
    }

    /// [`renew_lease`](Self::renew_lease) for each of `reads`: a key and the generation
    /// that is being read.
    pub fn batch_renew_lease(
        &self,
        now: Time,
        reads: &[(KeyRef<'_>, Generation)],
    ) -> Vec<Result<Renewed, RenewError>> {
        reads.iter().map(|&(key, generation)| self.renew_lease(now, key, generation)).collect()
    }
}
