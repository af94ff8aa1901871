//! Calls of those who read for longer than a lease lasts.

use core::time::Duration;

use bytes::BytesMut;
use mc_types::{Generation, KeyRef};

use super::calls;
use crate::answer;
use crate::error::Refusal;
use crate::request::{BatchRenewRequest, write_renew};

calls! {
    /// Extends the lease under which the put of this generation is being read, and says
    /// how long it lasts, counted from when the master wrote the answer. One that has ended
    /// is renewed as well, as long as the object is the same.
    ///
    /// # Errors
    /// Refused with `ObjectNotFound`, with `LeaseExpired` when the key has another value,
    /// or with `ReplicaIsNotReady`; or any other [`RpcError`].
    fn renew_lease(&self, key: KeyRef<'_>, generation: Generation) -> Duration {
        RenewLease,
        |out: &mut BytesMut| write_renew(out, key, generation),
        answer::read_lease,
    }

    /// [`renew_lease`](Self::renew_lease) of many reads: a key and the generation that is
    /// being read.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    fn batch_renew_lease(&self, reads: &[(KeyRef<'_>, Generation)]) -> Vec<Result<Duration, Refusal>> {
        BatchRenewLease,
        |out: &mut BytesMut| BatchRenewRequest::write(out, reads),
        |message: &[u8]| answer::read_leases(message, reads.len()),
    }
}
