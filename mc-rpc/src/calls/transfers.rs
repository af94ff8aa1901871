//! Copies and moves of replicas, which nodes make.
//!
//! The messages of a move are those of a copy, and the end's those of the revocation without
//! its last field: their fields have the same numbers. So one type reads and writes each pair.

use bytes::BytesMut;
use mc_meta::{LateWrites, MAX_REPLICAS, Master, ScopedKey, TransferFinishError, TransferHandle};
use mc_types::{ClientId, KeyRef, Time};

use super::promotion::{handle, late_writes};
use super::{
    CallContext, calls, client_id, message, missing, segment_name, segment_names, tenant_key,
    tenant_name, texts,
};
use crate::answer::{TransferGrant, read_done, read_transfer};
use crate::proto;
use crate::refusal::Refusal;
use crate::reply::write_transfer;
use crate::request::TenantKey;

calls! {
    /// Begins to copy an object from its replica in the segment named `source` to the
    /// segments named `targets`, between 1 and [`MAX_REPLICAS`](mc_meta::MAX_REPLICAS).
    /// No client removes or evicts the object until the copy is ended or revoked.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::TransferError`]; or any other
    /// [`RpcError`].
    fn copy_start(&self, client: ClientId, object: &TenantKey<'_>, source: &str, targets: &[&str]) -> TransferGrant {
        CopyStart,
        message(start(client, object, source, targets)),
        read_transfer,
    }

    /// Makes the targets of a copy readable.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::TransferFinishError`]; or any other
    /// [`RpcError`].
    fn copy_end(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle) -> () {
        CopyEnd,
        message(finish(client, object, handle, LateWrites::Impossible)),
        read_done,
    }

    /// Gives a copy up. The client writes no more to the targets; where bytes that it sent
    /// may arrive late, their space is kept until the grant's end, or until the copy is
    /// given up once more without them.
    ///
    /// # Errors
    /// As [`copy_end`](Self::copy_end).
    fn copy_revoke(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle, late: LateWrites) -> () {
        CopyRevoke,
        message(finish(client, object, handle, late)),
        read_done,
    }

    /// Begins to move an object's replica from the segment named `source` to the one
    /// named `target`; as [`copy_start`](Self::copy_start).
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::TransferError`]; or any other
    /// [`RpcError`].
    fn move_start(&self, client: ClientId, object: &TenantKey<'_>, source: &str, target: &str) -> TransferGrant {
        MoveStart,
        message(start(client, object, source, &[target])),
        read_transfer,
    }

    /// Makes the target of a move readable and gives the source up.
    ///
    /// # Errors
    /// As [`copy_end`](Self::copy_end).
    fn move_end(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle) -> () {
        MoveEnd,
        message(finish(client, object, handle, LateWrites::Impossible)),
        read_done,
    }

    /// Gives a move up, as [`copy_revoke`](Self::copy_revoke) does a copy.
    ///
    /// # Errors
    /// As [`copy_end`](Self::copy_end).
    fn move_revoke(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle, late: LateWrites) -> () {
        MoveRevoke,
        message(finish(client, object, handle, late)),
        read_done,
    }
}

fn start(
    client: ClientId,
    object: &TenantKey<'_>,
    source: &str,
    targets: &[&str],
) -> proto::CopyStartRequest {
    proto::CopyStartRequest {
        key: object.key.as_str().into(),
        client_id: client.to_bytes().into(),
        source: source.into(),
        targets: texts(targets),
        tenant_id: tenant_name(object),
    }
}

fn finish(
    client: ClientId,
    object: &TenantKey<'_>,
    handle: TransferHandle,
    late: LateWrites,
) -> proto::CopyRevokeRequest {
    proto::CopyRevokeRequest {
        key: object.key.as_str().into(),
        client_id: client.to_bytes().into(),
        transfer: Some(handle.id.as_u64()),
        tenant_id: tenant_name(object),
        transfer_token: handle.token.as_u64(),
        late_writes: late == LateWrites::Possible,
    }
}

/// One of the master's two ways to end a copy or a move.
type End =
    fn(&Master, Time, ClientId, KeyRef<'_>, TransferHandle) -> Result<(), TransferFinishError>;

/// One of its two ways to give one up.
type Revoke = fn(
    &Master,
    Time,
    ClientId,
    KeyRef<'_>,
    TransferHandle,
    LateWrites,
) -> Result<(), TransferFinishError>;

impl CallContext<'_> {
    pub(crate) fn copy_start(
        self,
        request: &proto::CopyStartRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let key = self.scoped_of(&tenant_key(&request.key, &request.tenant_id)?)?;
        let (now, client, key) =
            (self.now, client_id(&request.client_id)?, ScopedKey::as_ref(&key));
        let source = segment_name(&request.source, "source")?;
        let targets: Vec<&str> = segment_names(&request.targets, MAX_REPLICAS, "targets")?;
        let grant = self.master.copy_start(now, client, key, source, &targets)?;
        write_transfer(out, &grant, self.signer);
        Ok(())
    }

    pub(crate) fn move_start(
        self,
        request: &proto::CopyStartRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let key = self.scoped_of(&tenant_key(&request.key, &request.tenant_id)?)?;
        let (now, client, key) =
            (self.now, client_id(&request.client_id)?, ScopedKey::as_ref(&key));
        let source = segment_name(&request.source, "source")?;
        // Of a field that is not repeated the last one counts.
        let target = request.targets.last().ok_or(missing("target"))?;
        let target = segment_name(target, "target")?;
        let grant = self.master.move_start(now, client, key, source, target)?;
        write_transfer(out, &grant, self.signer);
        Ok(())
    }

    pub(crate) fn copy_end(self, request: &proto::CopyRevokeRequest) -> Result<(), Refusal> {
        self.end_transfer(request, Master::copy_end)
    }

    pub(crate) fn copy_revoke(self, request: &proto::CopyRevokeRequest) -> Result<(), Refusal> {
        self.revoke_transfer(request, Master::copy_revoke)
    }

    pub(crate) fn move_end(self, request: &proto::CopyRevokeRequest) -> Result<(), Refusal> {
        self.end_transfer(request, Master::move_end)
    }

    pub(crate) fn move_revoke(self, request: &proto::CopyRevokeRequest) -> Result<(), Refusal> {
        self.revoke_transfer(request, Master::move_revoke)
    }

    fn end_transfer(self, request: &proto::CopyRevokeRequest, end: End) -> Result<(), Refusal> {
        let (client, handle) = named(request)?;
        let key = self.scoped_of(&tenant_key(&request.key, &request.tenant_id)?)?;
        Ok(end(self.master, self.now, client, key.as_ref(), handle)?)
    }

    fn revoke_transfer(
        self,
        request: &proto::CopyRevokeRequest,
        revoke: Revoke,
    ) -> Result<(), Refusal> {
        let (client, handle) = named(request)?;
        let (key, late) = (
            self.scoped_of(&tenant_key(&request.key, &request.tenant_id)?)?,
            late_writes(request.late_writes),
        );
        Ok(revoke(self.master, self.now, client, key.as_ref(), handle, late)?)
    }
}

/// The client that ends a copy or a move, and which one it means.
fn named(request: &proto::CopyRevokeRequest) -> Result<(ClientId, TransferHandle), Refusal> {
    let missing = || Refusal::invalid("transfer is missing; it says which one is meant");
    let handle = handle(request.transfer, request.transfer_token).ok_or_else(missing)?;
    Ok((client_id(&request.client_id)?, handle))
}
