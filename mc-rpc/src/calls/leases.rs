//! Leases of reads that take longer than one lasts.

use bytes::BytesMut;
use mc_types::{Generation, KeyRef};

use super::CallContext;
use crate::refusal::Refusal;
use crate::reply::{self, PlacedReply};
use crate::request::{BatchRenewRequest, parse_renew};

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
