//! Calls of those who copy and move replicas.

use bytes::BytesMut;
use mc_meta::{LateWrites, TransferHandle};
use mc_types::ClientId;

use super::calls;
use crate::answer::{self, TransferGrant};
use crate::request::{TenantKey, TransferFinishRequest, TransferStartRequest};

calls! {
    /// Begins to copy an object from its replica in the segment named `source` to the
    /// segments named `targets`, between 1 and [`MAX_REPLICAS`](mc_meta::MAX_REPLICAS).
    /// Nobody removes or evicts the object until the copy is ended or revoked.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::TransferError`]; or any other
    /// [`RpcError`].
    fn copy_start(&self, client: ClientId, object: &TenantKey<'_>, source: &str, targets: &[&str]) -> TransferGrant {
        CopyStart,
        |out: &mut BytesMut| TransferStartRequest::write(out, client, object, source, targets),
        answer::read_transfer,
    }

    /// Makes the targets of a copy readable.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::TransferFinishError`]; or any other
    /// [`RpcError`].
    fn copy_end(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle) -> () {
        CopyEnd,
        |out: &mut BytesMut| TransferFinishRequest::write(out, client, object, handle, LateWrites::Impossible),
        answer::read_done,
    }

    /// Gives a copy up. The client writes no more to the targets; where bytes that it sent
    /// may arrive late, their space is kept until the grant's end, or until the copy is
    /// given up once more without them.
    ///
    /// # Errors
    /// As [`copy_end`](Self::copy_end).
    fn copy_revoke(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle, late: LateWrites) -> () {
        CopyRevoke,
        |out: &mut BytesMut| TransferFinishRequest::write(out, client, object, handle, late),
        answer::read_done,
    }

    /// Begins to move an object's replica from the segment named `source` to the one
    /// named `target`; as [`copy_start`](Self::copy_start).
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::TransferError`]; or any other
    /// [`RpcError`].
    fn move_start(&self, client: ClientId, object: &TenantKey<'_>, source: &str, target: &str) -> TransferGrant {
        MoveStart,
        |out: &mut BytesMut| TransferStartRequest::write(out, client, object, source, &[target]),
        answer::read_transfer,
    }

    /// Makes the target of a move readable and gives the source up.
    ///
    /// # Errors
    /// As [`copy_end`](Self::copy_end).
    fn move_end(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle) -> () {
        MoveEnd,
        |out: &mut BytesMut| TransferFinishRequest::write(out, client, object, handle, LateWrites::Impossible),
        answer::read_done,
    }

    /// Gives a move up, as [`copy_revoke`](Self::copy_revoke) does a copy.
    ///
    /// # Errors
    /// As [`copy_end`](Self::copy_end).
    fn move_revoke(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle, late: LateWrites) -> () {
        MoveRevoke,
        |out: &mut BytesMut| TransferFinishRequest::write(out, client, object, handle, late),
        answer::read_done,
    }
}
