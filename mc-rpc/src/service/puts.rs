//! Calls of those who store.

use bytes::BytesMut;
use mc_meta::{PutEnd, PutStart};
use mc_types::ClientId;

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, BatchReply};
use crate::request::{
    BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartRequest,
};

impl Turn<'_> {
    pub(super) fn put_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let put = PutStartRequest::parse(self.payload)?;
        let key = self.scoped(put.key)?;
        let start = PutStart { key: key.as_ref(), ..put.command() };
        reply::write_grant(out, &self.master.put_start(self.now, put.client, &start)?);
        Ok(())
    }

    pub(super) fn put_end(self, _: &mut BytesMut) -> Result<(), Refusal> {
        let put = PutFinishRequest::parse(self.payload)?;
        let key = self.scoped(put.key)?;
        let end = PutEnd { key: key.as_ref(), ..put.end() };
        Ok(self.master.put_end(self.now, put.client, &end)?)
    }

    pub(super) fn put_revoke(self, _: &mut BytesMut) -> Result<(), Refusal> {
        let put = PutFinishRequest::parse(self.payload)?;
        let key = self.scoped(put.key)?;
        Ok(self.master.put_revoke(self.now, put.client, key.as_ref(), put.generation)?)
    }

    pub(super) fn batch_put_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let batch = BatchPutStartRequest::parse(self.payload)?;
        let mut reply = BatchReply::new(out, 3, batch.puts.len(), self.max_reply)?;
        batch.for_each(|put| {
            // Asked before space is taken: a grant that cannot be told would
            // block its key until the put is discarded.
            if !reply.has_room_for_grant(batch.config.replica_num) {
                return reply.full();
            }
            let grant = put.and_then(|put| {
                let key = self.scoped(put.key)?;
                let start = PutStart { key: key.as_ref(), ..put };
                Ok(self.master.put_start(self.now, batch.client, &start)?)
            });
            match grant {
                Ok(grant) => reply.grant(&grant),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }

    pub(super) fn batch_put_end(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, |client, end| Ok(self.master.put_end(self.now, client, &end)?))
    }

    pub(super) fn batch_put_revoke(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, |client, put| {
            Ok(self.master.put_revoke(self.now, client, put.key, put.generation)?)
        })
    }

    fn batch_finish(
        self,
        out: &mut BytesMut,
        finish: impl Fn(ClientId, PutEnd<'_>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let batch = BatchPutFinishRequest::parse(self.payload)?;
        let mut reply = BatchReply::new(out, 2, batch.puts.len(), self.max_reply)?;
        batch.for_each(|end| {
            let finished = end.and_then(|end| {
                let key = self.scoped(end.key)?;
                finish(batch.client, PutEnd { key: key.as_ref(), ..end })
            });
            match finished {
                Ok(()) => reply.done(),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }
}
