//! The shared tier of files, and what is deleted from disks.

use bytes::BytesMut;
use mc_meta::{LateWrites, Master, PutFinishError, PutHandle, ReplicaKind};
use mc_types::{ClientId, Generation, KeyRef, Time};

use super::{CallContext, MAX_BATCH, at_most, calls, client_id, message, tenant_key, tenant_name};
use crate::answer::read_all_done;
use crate::proto::{self, evict_disk_replica_request::Kind};
use crate::refusal::Refusal;
use crate::reply::BatchReply;
use crate::request::{PutFinishRequest, TenantKey};

/// One object of
/// [`MasterClient::batch_evict_from_tier`](crate::MasterClient::batch_evict_from_tier).
#[derive(Clone, Debug)]
pub struct TierEviction<'a> {
    /// The object.
    pub object: TenantKey<'a>,
    /// The object that was deleted; `None` for any.
    pub generation: Option<Generation>,
}

calls! {
    /// Reports that a client has deleted objects from a disk to make room there.
    fn batch_evict_from_tier(&self, client: ClientId, items: &[TierEviction<'_>], kind: ReplicaKind) -> Vec<Result<(), Refusal>> {
        BatchEvictDiskReplica "As [`batch_get_replica_list`](Self::batch_get_replica_list).",
        message(proto::BatchEvictDiskReplicaRequest {
            client_id: client.to_bytes().into(),
            kind: kind as i32,
            items: items.iter().map(proto::EvictDiskItem::from).collect(),
        }),
        |message: &[u8]| read_all_done(message, items.len()),
    }
}

impl From<&TierEviction<'_>> for proto::EvictDiskItem {
    fn from(item: &TierEviction<'_>) -> Self {
        Self {
            key: item.object.key.as_str().into(),
            generation: item.generation.map(Generation::as_u64),
            tenant_id: tenant_name(&item.object),
        }
    }
}

/// One of the master's ways to end part of a put.
type FinishPart =
    fn(&Master, Time, ClientId, KeyRef<'_>, PutHandle, LateWrites) -> Result<(), PutFinishError>;

impl CallContext<'_> {
    pub(crate) fn file_put_end(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish_part(|master, now, client, key, handle, _| {
            master.file_put_end(now, client, key, handle)
        })
    }

    pub(crate) fn file_put_revoke(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish_part(|master, now, client, key, handle, _| {
            master.file_put_revoke(now, client, key, handle)
        })
    }

    pub(crate) fn memory_put_revoke(self, _: &mut BytesMut) -> Result<(), Refusal> {
        self.finish_part(Master::memory_put_revoke)
    }

    fn finish_part(self, finish: FinishPart) -> Result<(), Refusal> {
        let PutFinishRequest { client, key, handle, late, .. } =
            PutFinishRequest::parse(self.payload)?;
        let key = self.scoped(key)?;
        Ok(finish(self.master, self.now, client, key.as_ref(), handle, late)?)
    }

    pub(crate) fn evict_from_tier(
        self,
        request: &proto::EvictDiskReplicaRequest,
    ) -> Result<(), Refusal> {
        let (client, kind) = (client_id(&request.client_id)?, kind(request.kind)?);
        let object = tenant_key(&request.key, &request.tenant_id)?;
        self.note_evicted(client, kind, &object, request.generation)
    }

    pub(crate) fn batch_evict_from_tier(
        self,
        request: &proto::BatchEvictDiskReplicaRequest,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let (client, kind) = (client_id(&request.client_id)?, kind(request.kind)?);
        let items = at_most(&request.items, MAX_BATCH, "items")?;
        BatchReply::new(out, 2, items.len(), self.max_reply)?.all(items, |item| {
            let object = tenant_key(&item.key, &item.tenant_id)?;
            self.note_evicted(client, kind, &object, item.generation)
        });
        Ok(())
    }

    fn note_evicted(
        &self,
        client: ClientId,
        kind: ReplicaKind,
        object: &TenantKey<'_>,
        generation: Option<u64>,
    ) -> Result<(), Refusal> {
        let (key, generation) = (self.scoped_of(object)?, generation.map(Generation::new));
        let (master, now, key) = (self.master, self.now, key.as_ref());
        Ok(master.evict_from_tier(now, client, key, generation, kind)?)
    }
}

fn kind(number: i32) -> Result<ReplicaKind, Refusal> {
    match Kind::try_from(number) {
        Ok(Kind::Memory) => Ok(ReplicaKind::Memory),
        Ok(Kind::Disk) => Ok(ReplicaKind::SharedFile),
        Ok(Kind::LocalDisk) => Ok(ReplicaKind::LocalDisk),
        Err(_) => Err(Refusal::invalid(format!("kind is {number}; name DISK or LOCAL_DISK"))),
    }
}
