//! Calls of those who store.

use bytes::BytesMut;
use mc_meta::{
    LateWrites, Master, PutEnd, PutFinishError, PutGrant, PutStart, PutStartError, ReplicateConfig,
};
use mc_types::{ClientId, Time};

use super::Turn;
use crate::error::Refusal;
use crate::reply::{self, BatchReply, PlacedReply};
use crate::request::{
    BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartRequest,
};

/// A command that begins a put.
type Start = fn(&Master, Time, ClientId, &PutStart<'_>) -> Result<PutGrant, PutStartError>;

/// A command that begins a put, and the one for a put that was refused before and waits.
pub(super) struct Starts {
    pub(super) first: Start,
    pub(super) again: Start,
}

impl Starts {
    const fn attempt(&self, again: bool) -> Start {
        if again { self.again } else { self.first }
    }
}

const START: Starts = Starts { first: Master::put_start, again: Master::put_start_again };

/// A command that ends or gives up a put; only the latter looks at what may arrive late.
pub(super) type Finish =
    fn(&Master, Time, ClientId, &PutEnd<'_>, LateWrites) -> Result<(), PutFinishError>;

const END: Finish = |master, now, client, put, _| master.put_end(now, client, put);

const REVOKE: Finish =
    |master, now, client, put, late| master.put_revoke(now, client, put.key, put.handle, late);

impl Turn<'_> {
    pub(super) fn put_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.start(out, &START)
    }

    pub(super) fn put_end(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish(END)
    }

    pub(super) fn put_revoke(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish(REVOKE)
    }

    pub(super) fn batch_put_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_start(out, &START)
    }

    pub(super) fn batch_put_end(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, END)
    }

    pub(super) fn batch_put_revoke(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, REVOKE)
    }

    /// Answers `PutStartRequest`, whatever begins the put.
    pub(super) fn start(self, out: &mut BytesMut, starts: &Starts) -> Result<(), Refusal> {
        let mut put = PutStartRequest::parse(self.payload)?;
        self.scope_parent(&mut put.config)?;
        let key = self.scoped(put.key)?;
        let command = PutStart { key: key.as_ref(), ..put.command() };
        let grant = starts.attempt(put.again)(self.master, self.now, put.client, &command)?;
        reply::write_grant(out, &grant, self.signer);
        Ok(())
    }

    /// Answers `PutEndRequest` and `PutRevokeRequest`.
    pub(super) fn finish(self, finish: Finish) -> Result<(), Refusal> {
        let put = PutFinishRequest::parse(self.payload)?;
        let key = self.scoped(put.key)?;
        let end = PutEnd { key: key.as_ref(), ..put.end() };
        Ok(finish(self.master, self.now, put.client, &end, put.late)?)
    }

    /// Answers `BatchPutStartRequest`.
    pub(super) fn batch_start(self, out: &mut BytesMut, starts: &Starts) -> Result<(), Refusal> {
        let mut batch = BatchPutStartRequest::parse(self.payload)?;
        self.scope_parent(&mut batch.config)?;
        let (puts, max_reply) = (batch.puts.len(), self.max_reply);
        let mut reply = PlacedReply::new(out, [2, 3], puts, max_reply, self.signer)?;
        batch.for_each(|put| {
            // Asked before space is taken: a grant that cannot be told would
            // block its key until the put is discarded.
            if !reply.has_room_for_grant(batch.config.replica_num) {
                return reply.full();
            }
            let grant = put.and_then(|(put, again)| {
                let key = self.scoped(put.key)?;
                let command = PutStart { key: key.as_ref(), ..put };
                Ok(starts.attempt(again)(self.master, self.now, batch.client, &command)?)
            });
            match grant {
                Ok(grant) => reply.grant(&grant),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }

    /// Answers `BatchPutEndRequest` and `BatchPutRevokeRequest`.
    pub(super) fn batch_finish(self, out: &mut BytesMut, finish: Finish) -> Result<(), Refusal> {
        let batch = BatchPutFinishRequest::parse(self.payload)?;
        let mut reply = BatchReply::new(out, 2, batch.puts.len(), self.max_reply)?;
        batch.for_each(|end| {
            let finished = end.and_then(|(end, late)| {
                let key = self.scoped(end.key)?;
                let end = PutEnd { key: key.as_ref(), ..end };
                Ok(finish(self.master, self.now, batch.client, &end, late)?)
            });
            match finished {
                Ok(()) => reply.done(),
                Err(refusal) => reply.refused(&refusal),
            }
        });
        Ok(())
    }

    /// Makes the key that a put names as its parent one of the caller's tenant.
    fn scope_parent(self, config: &mut ReplicateConfig) -> Result<(), Refusal> {
        if let Some(parent) = &config.parent {
            let scoped = self.scoped(parent.as_ref())?.as_ref().to_owned();
            config.parent = Some(scoped);
        }
        Ok(())
    }
}
