//! Leases of long reads.

use core::time::Duration;

use mc_types::{Generation, KeyRef, Time};

use crate::error::RenewError;
use crate::master::Master;

impl Master {
    /// Extends the lease under which the put of this generation is being read, and says
    /// how long it lasts from now on. It counts as a use of the object but not as a read
    /// that found it.
    ///
    /// A lease that has ended is renewed as well: as long as the object is the same, so
    /// are its bytes. A reader whose lease is not renewed has until its end, as far as it
    /// was granted.
    ///
    /// # Errors
    /// [`RenewError`] when the key leads to that put no more, or nobody who holds it is
    /// there.
    pub fn renew_lease(
        &self,
        now: Time,
        key: KeyRef<'_>,
        generation: Generation,
    ) -> Result<Duration, RenewError> {
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
        Ok(self.terms.lease)
    }

    /// [`renew_lease`](Self::renew_lease) for each of `reads`: a key and the generation
    /// that is being read.
    pub fn batch_renew_lease(
        &self,
        now: Time,
        reads: &[(KeyRef<'_>, Generation)],
    ) -> Vec<Result<Duration, RenewError>> {
        reads.iter().map(|&(key, generation)| self.renew_lease(now, key, generation)).collect()
    }
}
