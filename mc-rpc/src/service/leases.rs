//! Calls of those who read for longer than a lease lasts.

use core::time::Duration;

use bytes::BytesMut;
use mc_types::{Generation, KeyRef};

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, BatchReply};
use crate::request::{BatchRenewRequest, parse_renew};

impl Turn<'_> {
    pub(super) fn renew_lease(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (key, generation) = parse_renew(self.payload)?;
        reply::write_lease(out, self.renew(key, generation)?);
        Ok(())
    }

    pub(super) fn batch_renew_lease(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let batch = BatchRenewRequest::parse(self.payload)?;
        let mut reply = BatchReply::new(out, 2, batch.reads.len(), self.max_reply)?;
        batch.for_each(|read| {
            match read.and_then(|(key, generation)| self.renew(key, generation)) {
                Ok(lease) => reply.lease(lease),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }

    fn renew(self, key: KeyRef<'_>, generation: Generation) -> Result<Duration, Refusal> {
        let key = self.scoped(key)?;
        Ok(self.master.renew_lease(self.now, key.as_ref(), generation)?)
    }
}
