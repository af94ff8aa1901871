//! Leases of reads that take longer than one lasts.

use bytes::BytesMut;
use mc_types::{Generation, KeyRef};

use super::{CallContext, calls};
use crate::answer::Renewed;
use crate::refusal::Refusal;
use crate::reply::PlacedReply;
use crate::request::{BatchRenewRequest, parse_renew, write_renew};
use crate::{answer, reply};

calls! {
    /// Extends the lease under which the put of this generation is being read, and says
    /// how long it lasts and which replicas it protects. One that has ended is renewed as
    /// well, as long as the object is the same.
    fn renew_lease(&self, key: KeyRef<'_>, generation: Generation) -> Renewed {
        RenewLease
            "Refused with `ObjectNotFound`, with `LeaseExpired` when the key has another value, \
             or with `ReplicaIsNotReady`.",
        |out: &mut BytesMut| write_renew(out, key, generation),
        answer::read_renewal,
    }

    /// [`renew_lease`](Self::renew_lease) of many reads: a key and the generation that is
    /// being read.
    fn batch_renew_lease(&self, reads: &[(KeyRef<'_>, Generation)]) -> Vec<Result<Renewed, Refusal>> {
        BatchRenewLease "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| BatchRenewRequest::write(out, reads),
        |message: &[u8]| answer::read_renewals(message, reads.len()),
    }
}

impl CallContext<'_> {
    pub(crate) fn renew_lease(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (key, generation) = parse_renew(self.payload)?;
        reply::write_renewal(out, &self.renew(key, generation)?, self.signer);
        Ok(())
    }

    pub(crate) fn batch_renew_lease(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let batch = BatchRenewRequest::parse(self.payload)?;
        let (reads, max_reply) = (batch.reads.len(), self.max_reply);
        let mut reply = PlacedReply::new(out, [3, 2], reads, max_reply, self.signer)?;
        batch.for_each(|read| {
            match read.and_then(|(key, generation)| self.renew(key, generation)) {
                Ok(renewed) => reply.renewed(&renewed),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }

    fn renew(self, key: KeyRef<'_>, generation: Generation) -> Result<mc_meta::Renewed, Refusal> {
        let key = self.scoped(key)?;
        Ok(self.reading().renew_lease(key.as_ref(), generation)?)
    }
}
