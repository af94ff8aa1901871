//! Calls of those who keep objects on the shared tier of files, and of those who delete
//! them from a disk.

use bytes::BytesMut;
use mc_meta::{LateWrites, PutHandle, ReplicaKind};
use mc_types::{ClientId, Generation, KeyRef};

use super::calls;
use crate::answer;
use crate::error::Refusal;
use crate::request::{BatchEvictRequest, EvictRequest, PutFinishRequest, TenantKey};

/// One object of [`MasterClient::batch_evict_disk_replica`](crate::MasterClient::batch_evict_disk_replica).
#[derive(Clone, Debug)]
pub struct EvictDiskItem<'a> {
    /// The object.
    pub object: TenantKey<'a>,
    /// What was deleted; `None` for whatever is there.
    pub generation: Option<Generation>,
}

calls! {
    /// Says that the file of an object on the shared tier is written; before or after
    /// [`put_end`](Self::put_end). The object can be read from it then.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PutFinishError`]: whoever wrote the file
    /// deletes it then; or any other [`RpcError`].
    fn disk_put_end(&self, client: ClientId, key: KeyRef<'_>, handle: PutHandle) -> () {
        DiskPutEnd,
        |out: &mut BytesMut| PutFinishRequest::write_revoke(out, client, key, handle, LateWrites::Impossible),
        answer::read_done,
    }

    /// Says that the file of an object on the shared tier will not be written.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PutFinishError`]; or any other
    /// [`RpcError`].
    fn disk_put_revoke(&self, client: ClientId, key: KeyRef<'_>, handle: PutHandle) -> () {
        DiskPutRevoke,
        |out: &mut BytesMut| PutFinishRequest::write_revoke(out, client, key, handle, LateWrites::Impossible),
        answer::read_done,
    }

    /// Gives up the memory of a put, and not the file: the object can be read when that is
    /// written.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::PutFinishError`]; or any other
    /// [`RpcError`].
    fn memory_put_revoke(&self, client: ClientId, key: KeyRef<'_>, handle: PutHandle, late: LateWrites) -> () {
        MemoryPutRevoke,
        |out: &mut BytesMut| PutFinishRequest::write_revoke(out, client, key, handle, late),
        answer::read_done,
    }

    /// Says that a client has deleted an object from a disk to make room there.
    ///
    /// # Errors
    /// Refused with the codes of [`mc_meta::DiskEvictError`]; or any other
    /// [`RpcError`].
    fn evict_disk_replica(&self, client: ClientId, object: &TenantKey<'_>, generation: Option<Generation>, kind: ReplicaKind) -> () {
        EvictDiskReplica,
        |out: &mut BytesMut| EvictRequest::write(out, client, object, generation, kind),
        answer::read_done,
    }

    /// [`evict_disk_replica`](Self::evict_disk_replica) of many objects.
    ///
    /// # Errors
    /// As [`batch_get_replica_list`](Self::batch_get_replica_list).
    fn batch_evict_disk_replica(&self, client: ClientId, items: &[EvictDiskItem<'_>], kind: ReplicaKind) -> Vec<Result<(), Refusal>> {
        BatchEvictDiskReplica,
        |out: &mut BytesMut| { let items = items.iter().map(|item| (&item.object, item.generation)); BatchEvictRequest::write(out, client, kind, items); },
        |message: &[u8]| answer::read_all_done(message, items.len()),
    }
}
