//! Upserts: new values of keys. Their messages are those of a put.

use bytes::BytesMut;
use mc_meta::{LateWrites, PutEnd, PutHandle, PutStart, ReplicateConfig};
use mc_types::{ClientId, KeyRef};

use super::puts::{Finish, PutRevokeItem, Starts, total, write_revokes};
use super::{CallContext, calls};
use crate::answer;
use crate::answer::PutGrant;
use crate::refusal::Refusal;
use crate::request::{
    BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartItem, PutStartRequest,
};

calls! {
    /// Grants space to write a new value of a key into, whether it has one or not. The value
    /// that there is stays readable until [`upsert_end`](Self::upsert_end), unless there
    /// is no room beside it and no client reads it.
    fn upsert_start(&self, client: ClientId, put: &PutStart<'_>) -> PutGrant {
        UpsertStart
            "Refused with the codes of [`mc_meta::PutStartError`], never with \
             `ObjectAlreadyExists` nor `PutInProgress`.",
        |out: &mut BytesMut| PutStartRequest::write(out, client, put),
        |message: &[u8]| answer::read_grant(message, total(put.slice_lengths)),
    }

    /// Reports that every replica of a new value is written; it takes the place of the one
    /// that could be read until now.
    fn upsert_end(&self, client: ClientId, end: &PutEnd<'_>) -> () {
        UpsertEnd "Refused with the codes of [`mc_meta::PutFinishError`].",
        |out: &mut BytesMut| PutFinishRequest::write(out, client, end),
        answer::read_done,
    }

    /// Gives up an upsert and its space; what it was to replace can still be read. As
    /// [`put_revoke`](Self::put_revoke).
    fn upsert_revoke(&self, client: ClientId, key: KeyRef<'_>, handle: PutHandle, late: LateWrites) -> () {
        UpsertRevoke "Refused with the codes of [`mc_meta::PutFinishError`].",
        |out: &mut BytesMut| PutFinishRequest::write_revoke(out, client, key, handle, late),
        answer::read_done,
    }

    /// [`upsert_start`](Self::upsert_start) of many objects.
    fn batch_upsert_start(&self, client: ClientId, config: &ReplicateConfig, puts: &[PutStartItem<'_>]) -> Vec<Result<PutGrant, Refusal>> {
        BatchUpsertStart "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| BatchPutStartRequest::write(out, client, config, puts),
        |message: &[u8]| answer::read_grants(message, puts.iter().map(|put| total(put.slice_lengths))),
    }

    /// [`upsert_end`](Self::upsert_end) of many objects.
    fn batch_upsert_end(&self, client: ClientId, puts: &[PutEnd<'_>]) -> Vec<Result<(), Refusal>> {
        BatchUpsertEnd "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        |out: &mut BytesMut| BatchPutFinishRequest::write(out, client, puts.iter().copied()),
        |message: &[u8]| answer::read_all_done(message, puts.len()),
    }

    /// [`upsert_revoke`](Self::upsert_revoke) of many objects.
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
    batch.master().upsert_revoke(now, client, put.key, put.handle, late)
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
