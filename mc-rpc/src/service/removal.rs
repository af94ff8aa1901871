//! Calls that remove objects.

use bytes::BytesMut;

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, BatchReply};
use crate::request::{self, ClearRequest};

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

    pub(super) fn batch_replica_clear(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let ClearRequest { keys, client, segment_name } = ClearRequest::parse(self.payload)?;
        // Asked before anything is taken back: at most, every key of the request is told.
        if self.payload.len() > self.max_reply {
            return Err(Refusal::invalid(format!(
                "the answer may have {} bytes, the caller accepts {}; send fewer keys at a time",
                self.payload.len(),
                self.max_reply
            )));
        }
        for key in keys.keys().flatten() {
            let stored = self.scoped(key);
            let is_cleared = stored.is_ok_and(|stored| {
                let keys = [stored.as_ref()];
                !self.master.batch_replica_clear(self.now, client, &keys, segment_name).is_empty()
            });
            if is_cleared {
                reply::write_cleared_key(out, key);
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
