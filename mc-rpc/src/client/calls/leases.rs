//! Calls of those who read for longer than a lease lasts.

use bytes::BytesMut;
use mc_types::{Generation, KeyRef};

use super::calls;
use crate::answer::{self, Renewed};
use crate::error::Refusal;
use crate::request::{BatchRenewRequest, write_renew};

calls! {
    /// Extends the lease under which the put of this generation is being read, and says
    /// how long it lasts and which replicas it protects. One that has ended is renewed as
    /// well, as long as the object is the same.
    ///
    /// # Errors
    /// Refused with `ObjectNotFound`, with `LeaseExpired` when the key has another value,
    /// or with `ReplicaIsNotReady`; or any other [`RpcError`].
    fn renew_lease(&self, key: KeyRef<'_>, generation: Generation) -> Renewed {
        RenewLease,
        |out: &mut BytesMut| write_renew(out, key, generation),
        answer::read_renewal,
    }

    /// [`renew_lease`](Self::renew_lease) of many reads: a key and the generation that is
    /// being read.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    fn batch_renew_lease(&self, reads: &[(KeyRef<'_>, Generation)]) -> Vec<Result<Renewed, Refusal>> {
        BatchRenewLease,
        |out: &mut BytesMut| BatchRenewRequest::write(out, reads),
        |message: &[u8]| answer::read_renewals(message, reads.len()),
    }
}
