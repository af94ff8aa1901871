//! Upserts: new values of keys. Their messages are those of a put.

use bytes::BytesMut;
use mc_meta::{PutEnd, ReplicateConfig};
use mc_types::ClientId;

use super::puts::{Finish, PutRevokeItem, Starts, total, write_revokes};
use super::{CallContext, calls};
use crate::answer;
use crate::answer::PutGrant;
use crate::refusal::Refusal;
use crate::request::{BatchPutFinishRequest, BatchPutStartRequest, PutStartItem};

calls! {
    /// Grants space to write new values of keys into, whether they have one or not. A value
    /// that there is stays readable until [`batch_upsert_end`](Self::batch_upsert_end), unless there
    /// is no room beside it and no client reads it. No item is refused with `ObjectAlreadyExists`
    /// nor `PutInProgress`.
    fn batch_upsert_start(&self, client: ClientId, config: &ReplicateConfig, puts: &[PutStartItem<'_>]) -> Vec<Result<PutGrant, Refusal>> {
        BatchUpsertStart "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| BatchPutStartRequest::write(out, client, config, puts),
        |message: &[u8]| answer::read_grants(message, puts.iter().map(|put| total(put.slice_lengths))),
    }

    /// Reports that every replica of new values is written; they take the places of those
    /// that could be read until now.
    fn batch_upsert_end(&self, client: ClientId, puts: &[PutEnd<'_>]) -> Vec<Result<(), Refusal>> {
        BatchUpsertEnd "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| BatchPutFinishRequest::write(out, client, puts.iter().copied()),
        |message: &[u8]| answer::read_all_done(message, puts.len()),
    }

    /// Gives up upserts and their space; what they were to replace can still be read. As
    /// [`batch_put_revoke`](Self::batch_put_revoke).
    fn batch_upsert_revoke(&self, client: ClientId, puts: &[PutRevokeItem<'_>]) -> Vec<Result<(), Refusal>> {
        BatchUpsertRevoke "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| write_revokes(out, client, puts),
        |message: &[u8]| answer::read_all_done(message, puts.len()),
    }
}

const START: Starts = Starts {
    first: |batch, now, client, put| batch.master().upsert_start(now, client, put),
    again: |batch, now, client, put| batch.master().upsert_start_again(now, client, put),
    // No unfinished put stands in the way of an upsert.
    anew: |batch, now, client, put| batch.master().upsert_start_again(now, client, put),
};

const END: Finish = |batch, now, client, put, _| batch.put_end(now, client, put);

const REVOKE: Finish = |batch, now, client, put, late| {
    batch.master().put_revoke(now, client, put.key, put.handle, late)
};

impl CallContext<'_> {
    pub(crate) fn upsert_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.start(out, &START)
    }

    pub(crate) fn upsert_end(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish(END)
    }

    pub(crate) fn upsert_revoke(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish(REVOKE)
    }

    pub(crate) fn batch_upsert_start(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_start(out, &START)
    }

    pub(crate) fn batch_upsert_end(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, END)
    }

    pub(crate) fn batch_upsert_revoke(self, out: &mut BytesMut) -> Result<(), Refusal> {
        self.batch_finish(out, REVOKE)
    }
}
