//! Copies and moves of replicas, which nodes make.
//!
//! The messages of a move are those of a copy, and the end's those of the revocation without
//! its last field: their fields have the same numbers. So one type reads and writes each pair.

use core::slice;
use core::time::Duration;

use bytes::BytesMut;
use mc_meta::{LateWrites, MAX_REPLICAS, Master, Slices, TransferFinishError, TransferHandle};
use mc_ticket::PutToken;
use mc_types::{ClientId, Generation, KeyRef, Time, TransferId};

use super::objects::{location, slices};
use super::promotion::{handle, late_writes};
use super::{
    BadField, CallContext, at_most, calls, client_id, message, millis, missing, reply,
    segment_name, segment_names, tenant_name, texts,
};
use crate::answer::{ReplicaLocation, read_done};
use crate::proto;
use crate::refusal::Refusal;
use crate::reply::{Names, Signer, put_placements, put_slices};
use crate::request::TenantKey;
use crate::wire::{put_fixed64, put_u64};

/// The source and the targets of a copy or move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferGrant {
    /// Names this copy or move among all those of the object, and proves that its holder
    /// began it: only this answer tells it.
    pub handle: TransferHandle,
    /// The put that the object came from.
    pub generation: Generation,
    /// The object's slices, with the checksums that the bytes must have.
    pub slices: Slices,
    /// The replica to read from.
    pub source: ReplicaLocation,
    /// Replicas to write, each as long as the object. Segments that hold one already have
    /// none here. A copy without any is over, and there is nothing to end; a move without
    /// any is still to be ended.
    pub targets: Vec<ReplicaLocation>,
    /// How long the targets may be written to, and the source is kept, counted from when
    /// the master wrote the answer: the client counts from before it asked.
    pub time_left: Duration,
}

calls! {
    /// Begins to copy an object from its replica in the segment named `source` to the
    /// segments named `targets`, between 1 and [`MAX_REPLICAS`](mc_meta::MAX_REPLICAS).
    /// No client removes or evicts the object until the copy is ended or revoked.
    fn copy_start(&self, client: ClientId, object: &TenantKey<'_>, source: &str, targets: &[&str]) -> TransferGrant {
        CopyStart "Refused with the codes of [`mc_meta::TransferError`].",
        message(start(client, object, source, targets)),
        reply(TransferGrant::from_proto),
    }

    /// Makes the targets of a copy readable.
    fn copy_end(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle) -> () {
        CopyEnd "Refused with the codes of [`mc_meta::TransferFinishError`].",
        message(finish(client, object, handle, LateWrites::Impossible)),
        read_done,
    }

    /// Gives a copy up. The client writes no more to the targets; where bytes that it sent
    /// may arrive late, their space is kept until the grant's end, or until the copy is
    /// revoked once more without them.
    fn copy_revoke(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle, late: LateWrites) -> () {
        CopyRevoke "As [`copy_end`](Self::copy_end).",
        message(finish(client, object, handle, late)),
        read_done,
    }

    /// Begins to move an object's replica from the segment named `source` to the one
    /// named `target`; as [`copy_start`](Self::copy_start).
    fn move_start(&self, client: ClientId, object: &TenantKey<'_>, source: &str, target: &str) -> TransferGrant {
        MoveStart "Refused with the codes of [`mc_meta::TransferError`].",
        message(start(client, object, source, &[target])),
        reply(TransferGrant::from_proto),
    }

    /// Makes the target of a move readable and gives the source up.
    fn move_end(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle) -> () {
        MoveEnd "As [`copy_end`](Self::copy_end).",
        message(finish(client, object, handle, LateWrites::Impossible)),
        read_done,
    }

    /// Gives a move up, as [`copy_revoke`](Self::copy_revoke) does a copy.
    fn move_revoke(&self, client: ClientId, object: &TenantKey<'_>, handle: TransferHandle, late: LateWrites) -> () {
        MoveRevoke "As [`copy_end`](Self::copy_end).",
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
        let key = self.stored(&request.key, &request.tenant_id)?;
        let client = client_id(&request.client_id)?;
        let source = segment_name(&request.source, "source")?;
        let targets: Vec<&str> = segment_names(&request.targets, MAX_REPLICAS, "targets")?;
        let grant = self.master.copy_start(self.now, client, key.as_ref(), source, &targets)?;
        write_transfer(out, &grant, self.signer);
        Ok(())
    }

    pub(crate) fn move_start(
        self,
        request: &proto::CopyStartRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let key = self.stored(&request.key, &request.tenant_id)?;
        let client = client_id(&request.client_id)?;
        let source = segment_name(&request.source, "source")?;
        // Where a field that is not repeated comes twice, the last one counts.
        let target = request.targets.last().ok_or(missing("target"))?;
        let target = segment_name(target, "target")?;
        let grant = self.master.move_start(self.now, client, key.as_ref(), source, target)?;
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
        let key = self.stored(&request.key, &request.tenant_id)?;
        Ok(end(self.master, self.now, client, key.as_ref(), handle)?)
    }

    fn revoke_transfer(
        self,
        request: &proto::CopyRevokeRequest,
        revoke: Revoke,
    ) -> Result<(), Refusal> {
        let (client, handle) = named(request)?;
        let key = self.stored(&request.key, &request.tenant_id)?;
        let late = late_writes(request.late_writes);
        Ok(revoke(self.master, self.now, client, key.as_ref(), handle, late)?)
    }
}

/// The client that ends a copy or a move, and which one it means.
fn named(request: &proto::CopyRevokeRequest) -> Result<(ClientId, TransferHandle), Refusal> {
    let missing = || Refusal::invalid("transfer is missing; it says which one is meant");
    let handle = handle(request.transfer, request.transfer_token).ok_or_else(missing)?;
    Ok((client_id(&request.client_id)?, handle))
}

/// `CopyStartResponse` and `MoveStartResponse`.
fn write_transfer(out: &mut BytesMut, grant: &mc_meta::TransferGrant, signer: Signer) {
    let left = grant.time_left;
    let source = slice::from_ref(&grant.source);
    put_placements(out, 5, source, signer.reading(left), |_| Names::Inline);
    put_placements(out, 6, &grant.targets, signer.writing(left), |_| Names::Inline);
    put_u64(out, 2, grant.handle.id.as_u64());
    put_u64(out, 3, grant.generation.as_u64());
    put_slices(out, 4, grant.slices.as_slice());
    put_u64(out, 7, millis(left));
    put_fixed64(out, 8, grant.handle.token.as_u64());
}

impl TransferGrant {
    fn from_proto(answer: &proto::CopyStartResponse) -> Result<Self, BadField> {
        let targets = at_most(&answer.targets, MAX_REPLICAS, "targets")?;
        let targets = targets.iter().map(location).collect::<Result<Vec<_>, _>>()?;
        let source = location(answer.source.as_ref().ok_or(missing("source"))?)?;
        let slices = slices(&answer.slices)?;
        let total = slices.total_len();
        if targets.iter().chain([&source]).any(|replica| replica.extent.len() != total) {
            let problem = "has a replica of another length than the slices";
            return Err(BadField::new("targets", problem));
        }
        Ok(Self {
            handle: TransferHandle {
                id: TransferId::new(answer.transfer),
                token: PutToken::from_u64(answer.transfer_token),
            },
            generation: Generation::new(answer.generation),
            slices,
            source,
            targets,
            time_left: Duration::from_millis(answer.grant_ttl_ms),
        })
    }
}
