//! Calls that remove objects.

use bytes::BytesMut;

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, BatchReply};
use crate::request;

impl Turn<'_> {
    pub(super) fn remove(self, _: &mut BytesMut) -> Result<(), Refusal> {
        let (key, force) = request::parse_remove(self.payload)?;
        Ok(self.master.remove(self.now, self.scoped(key)?.as_ref(), force)?)
    }

    pub(super) fn batch_remove(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let (keys, force) = request::parse_batch_remove(self.payload)?;
        let mut reply = BatchReply::new(out, 2, keys.len(), self.max_reply)?;
        for key in keys.keys() {
            let removed = key.and_then(|key| {
                Ok(self.master.remove(self.now, self.scoped(key)?.as_ref(), force)?)
            });
            match removed {
                Ok(()) => reply.done(),
                Err(refusal) => reply.refused(&refusal),
            }
        }
        Ok(())
    }

    pub(super) fn remove_all(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let force = request::parse_remove_all(self.payload)?;
        reply::write_count(out, self.master.remove_all_of(self.now, self.tenant, force));
        Ok(())
    }
}
