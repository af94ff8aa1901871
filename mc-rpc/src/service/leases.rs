//! Calls of those who read for longer than a lease lasts.

use bytes::BytesMut;
use mc_meta::Renewed;
use mc_types::{Generation, KeyRef};

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, PlacedReply};
use crate::request::{BatchRenewRequest, parse_renew};

impl Turn<'_> {
    pub(super) fn renew_lease(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (key, generation) = parse_renew(self.payload)?;
        reply::write_renewal(out, &self.renew(key, generation)?, self.signer);
        Ok(())
    }

    pub(super) fn batch_renew_lease(self, out: &mut BytesMut) -> Result<(), Refusal> {
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

    fn renew(self, key: KeyRef<'_>, generation: Generation) -> Result<Renewed, Refusal> {
        let key = self.scoped(key)?;
        Ok(self.master.renew_lease(self.now, key.as_ref(), generation)?)
    }
}
