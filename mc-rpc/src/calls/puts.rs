//! Puts: space for an object, and that it is written or revoked.

use bytes::BytesMut;
use mc_meta::{
    Batch, LateWrites, PutEnd, PutFinishError, PutHandle, PutStart, PutStartError, ReplicateConfig,
};
use mc_types::{ClientId, KeyRef, Time};

use super::{CallContext, calls};
use crate::answer::PutGrant;
use crate::refusal::Refusal;
use crate::reply::{BatchReply, PlacedReply};
use crate::request::{
    BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartItem, PutStartRequest,
    Repeated,
};
use crate::{answer, reply};

/// One object of [`MasterClient::batch_put_revoke`](crate::MasterClient::batch_put_revoke).
#[derive(Clone, Copy, Debug)]
pub struct PutRevokeItem<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// The put, as [`PutGrant::handle`] named it.
    pub handle: PutHandle,
    /// Whether bytes that were sent for it may arrive later still.
    pub late: LateWrites,
}

calls! {
    /// Grants space to write an object into.
    fn put_start(&self, client: ClientId, put: &PutStart<'_>) -> PutGrant {
        PutStart "Refused with the codes of [`mc_meta::PutStartError`].",
        |out: &mut BytesMut| PutStartRequest::write(out, client, put),
        |message: &[u8]| answer::read_grant(message, total(put.slice_lengths)),
    }

    /// Reports that every replica of an object is written; it can be read from
    /// then on.
    fn put_end(&self, client: ClientId, end: &PutEnd<'_>) -> () {
        PutEnd "Refused with the codes of [`mc_meta::PutFinishError`].",
        |out: &mut BytesMut| PutFinishRequest::write(out, client, end),
        answer::read_done,
    }

    /// Gives up a put and its space. Where bytes may arrive late the space is kept until
    /// the grant's end, or until the put is revoked once more without them.
    fn put_revoke(&self, client: ClientId, key: KeyRef<'_>, handle: PutHandle, late: LateWrites) -> () {
        PutRevoke "Refused with the codes of [`mc_meta::PutFinishError`].",
        |out: &mut BytesMut| PutFinishRequest::write_revoke(out, client, key, handle, late),
        answer::read_done,
    }

    /// [`put_start`](Self::put_start) of many objects.
    fn batch_put_start(&self, client: ClientId, config: &ReplicateConfig, puts: &[PutStartItem<'_>]) -> Vec<Result<PutGrant, Refusal>> {
        BatchPutStart "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| BatchPutStartRequest::write(out, client, config, puts),
        |message: &[u8]| answer::read_grants(message, puts.iter().map(|put| total(put.slice_lengths))),
    }

    /// [`put_end`](Self::put_end) of many objects.
    fn batch_put_end(&self, client: ClientId, puts: &[PutEnd<'_>]) -> Vec<Result<(), Refusal>> {
        BatchPutEnd "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| BatchPutFinishRequest::write(out, client, puts.iter().copied()),
        |message: &[u8]| answer::read_all_done(message, puts.len()),
    }

    /// [`put_revoke`](Self::put_revoke) of many objects.
    fn batch_put_revoke(&self, client: ClientId, puts: &[PutRevokeItem<'_>]) -> Vec<Result<(), Refusal>> {
        BatchPutRevoke "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| write_revokes(out, client, puts),
        |message: &[u8]| answer::read_all_done(message, puts.len()),
    }
}

/// `BatchPutRevokeRequest`, and `BatchUpsertRevokeRequest`, which has the same fields.
pub(super) fn write_revokes(out: &mut BytesMut, client: ClientId, puts: &[PutRevokeItem<'_>]) {
    let puts = puts.iter().map(|put| (put.key, put.handle, put.late));
    BatchPutFinishRequest::write_revokes(out, client, puts);
}

/// The object's length; a sum that does not fit is refused by the master.
pub(super) fn total(lengths: &[u64]) -> u64 {
    lengths.iter().fold(0, |sum, length| sum.saturating_add(*length))
}

/// A command that begins a put.
type Start =
    fn(&mut Batch<'_>, Time, ClientId, &PutStart<'_>) -> Result<mc_meta::PutGrant, PutStartError>;

/// A command that begins a put, the one for a put that was refused before and waits, and the one for
/// a put that a former master may have begun.
pub(super) struct Starts {
    pub(super) first: Start,
    pub(super) again: Start,
    pub(super) anew: Start,
}

impl Starts {
    const fn attempt(&self, repeated: Repeated) -> Start {
        match repeated {
            Repeated { may_be_begun: true, .. } => self.anew,
            Repeated { again: true, .. } => self.again,
            _ => self.first,
        }
    }
}

const START: Starts = Starts {
    first: |batch, now, client, put| batch.put_start(now, client, put),
    again: |batch, now, client, put| batch.put_start_again(now, client, put),
    anew: |batch, now, client, put| batch.put_start_anew(now, client, put),
};

/// A command that ends or gives up a put; only the latter looks at what may arrive late.
pub(super) type Finish =
    fn(&mut Batch<'_>, Time, ClientId, &PutEnd<'_>, LateWrites) -> Result<(), PutFinishError>;

const END: Finish = |batch, now, client, put, _| batch.put_end(now, client, put);

const REVOKE: Finish = |batch, now, client, put, late| {
    batch.master().put_revoke(now, client, put.key, put.handle, late)
};

impl CallContext<'_> {
    pub(crate) fn put_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.start(out, &START)
    }

    pub(crate) fn put_end(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish(END)
    }

    pub(crate) fn put_revoke(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish(REVOKE)
    }

    pub(crate) fn batch_put_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_start(out, &START)
    }

    pub(crate) fn batch_put_end(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, END)
    }

    pub(crate) fn batch_put_revoke(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, REVOKE)
    }

    /// Answers `PutStartRequest`, whatever begins the put.
    pub(super) fn start(self, out: &mut BytesMut, starts: &Starts) -> Result<(), Refusal> {
        let mut put = PutStartRequest::parse(self.payload)?;
        if let Some(parent) = &put.config.parent {
            put.config.parent = Some(self.scoped(parent.as_ref())?.as_ref().to_owned());
        }
        let key = self.scoped(put.key)?;
        let command = PutStart { key: key.as_ref(), ..put.command() };
        let start = starts.attempt(put.repeated);
        let grant = start(&mut self.master.batch(), self.now, put.client, &command)?;
        reply::write_grant(out, &grant, self.signer);
        Ok(())
    }

    /// Answers `PutEndRequest` and `PutRevokeRequest`.
    pub(super) fn finish(self, finish: Finish) -> Result<(), Refusal> {
        let put = PutFinishRequest::parse(self.payload)?;
        let key = self.scoped(put.key)?;
        let end = PutEnd { key: key.as_ref(), ..put.end() };
        Ok(finish(&mut self.master.batch(), self.now, put.client, &end, put.late)?)
    }

    /// Answers `BatchPutStartRequest`.
    pub(super) fn batch_start(self, out: &mut BytesMut, starts: &Starts) -> Result<(), Refusal> {
        let mut batch = BatchPutStartRequest::parse(self.payload)?;
        let scoped = |parent: KeyRef<'_>| Ok(self.scoped(parent)?.as_ref().to_owned());
        if let Some(parent) = &batch.config.parent {
            batch.config.parent = Some(scoped(parent.as_ref())?);
        }
        let (count, max_reply) = (batch.puts.len(), self.max_reply);
        let mut reply = PlacedReply::new(out, [2, 3], count, max_reply, self.signer)?;
        let mut puts = self.master.batch();
        batch.for_each(scoped, |put| {
            // Asked before space is taken: a grant that cannot be told would
            // block its key until the put is discarded.
            if !reply.has_room_for_grant(batch.config.replica_num) {
                return reply.full();
            }
            let grant = put.and_then(|(put, repeated)| {
                let key = self.scoped(put.key)?;
                let command = PutStart { key: key.as_ref(), ..put };
                Ok(starts.attempt(repeated)(&mut puts, self.now, batch.client, &command)?)
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
        let mut puts = self.master.batch();
        batch.for_each(|end| {
            let finished = end.and_then(|(end, late)| {
                let key = self.scoped(end.key)?;
                let end = PutEnd { key: key.as_ref(), ..end };
                Ok(finish(&mut puts, self.now, batch.client, &end, late)?)
            });
            reply.item(finished);
        });
        Ok(())
    }
}
