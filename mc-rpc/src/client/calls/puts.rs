//! Calls of those who store.

use bytes::BytesMut;
use mc_meta::{LateWrites, PutEnd, PutHandle, PutStart, ReplicateConfig};
use mc_types::{ClientId, KeyRef};

use super::calls;
use crate::answer::{self, PutGrant};
use crate::error::Refusal;
use crate::request::{
    BatchPutFinishRequest, BatchPutStartRequest, PutFinishRequest, PutStartRequest,
};

/// One object of [`MasterClient::batch_put_start`](crate::MasterClient::batch_put_start).
#[derive(Clone, Copy, Debug)]
pub struct PutStartItem<'a> {
    /// The object's key.
    pub key: KeyRef<'a>,
    /// Lengths of its slices in bytes; the object is their concatenation.
    pub slice_lengths: &'a [u64],
    /// Whether it was refused for want of room before and waits: the master counts a refusal
    /// as a retry then.
    pub again: bool,
}

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
    /// Space to write an object into.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PutStartError`]; or any other
    /// [`RpcError`].
    fn put_start(&self, client: ClientId, put: &PutStart<'_>) -> PutGrant {
        PutStart,
        |out: &mut BytesMut| PutStartRequest::write(out, client, put),
        |message: &[u8]| answer::read_grant(message, total(put.slice_lengths)),
    }

    /// Says that every replica of an object is written; it can be read from
    /// then on.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PutFinishError`]; or any other
    /// [`RpcError`].
    fn put_end(&self, client: ClientId, end: &PutEnd<'_>) -> () {
        PutEnd,
        |out: &mut BytesMut| PutFinishRequest::write(out, client, end),
        answer::read_done,
    }

    /// Gives up a put and its space. Where bytes may arrive late the space is kept until
    /// the grant's end, or until the put is given up once more without them.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PutFinishError`]; or any other
    /// [`RpcError`].
    fn put_revoke(&self, client: ClientId, key: KeyRef<'_>, handle: PutHandle, late: LateWrites) -> () {
        PutRevoke,
        |out: &mut BytesMut| PutFinishRequest::write_revoke(out, client, key, handle, late),
        answer::read_done,
    }

    /// [`put_start`](Self::put_start) of many objects.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    fn batch_put_start(&self, client: ClientId, config: &ReplicateConfig, puts: &[PutStartItem<'_>]) -> Vec<Result<PutGrant, Refusal>> {
        BatchPutStart,
        |out: &mut BytesMut| { let puts = puts.iter().map(|put| (put.key, put.slice_lengths, put.again)); BatchPutStartRequest::write(out, client, config, puts); },
        |message: &[u8]| answer::read_grants(message, puts.iter().map(|put| total(put.slice_lengths))),
    }

    /// [`put_end`](Self::put_end) of many objects.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    fn batch_put_end(&self, client: ClientId, puts: &[PutEnd<'_>]) -> Vec<Result<(), Refusal>> {
        BatchPutEnd,
        |out: &mut BytesMut| BatchPutFinishRequest::write(out, client, puts.iter().copied()),
        |message: &[u8]| answer::read_all_done(message, puts.len()),
    }

    /// [`put_revoke`](Self::put_revoke) of many objects.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    fn batch_put_revoke(&self, client: ClientId, puts: &[PutRevokeItem<'_>]) -> Vec<Result<(), Refusal>> {
        BatchPutRevoke,
        |out: &mut BytesMut| { let puts = puts.iter().map(|put| (put.key, put.handle, put.late)); BatchPutFinishRequest::write_revokes(out, client, puts); },
        |message: &[u8]| answer::read_all_done(message, puts.len()),
    }
}

/// The object's length; a sum that does not fit is refused by the master.
pub(super) fn total(lengths: &[u64]) -> u64 {
    lengths.iter().fold(0, |sum, length| sum.saturating_add(*length))
}
