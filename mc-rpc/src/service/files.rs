//! Calls of those who keep objects on the shared tier of files, and of those who delete
//! them from a disk.

use bytes::BytesMut;
use mc_meta::{LateWrites, Master, PutFinishError, PutHandle, ReplicaKind};
use mc_types::{ClientId, KeyRef, Time};

use super::Turn;
use crate::error::Refusal;
use crate::reply::BatchReply;
use crate::request::{BatchEvictRequest, EvictItem, EvictRequest, PutFinishRequest};

/// One of the master's ways to end part of a put.
type FinishPart =
    fn(&Master, Time, ClientId, KeyRef<'_>, PutHandle, LateWrites) -> Result<(), PutFinishError>;

impl Turn<'_> {
    pub(super) fn disk_put_end(self) -> Result<(), Refusal> {
        self.finish_part(|master, now, client, key, handle, _| {
            master.disk_put_end(now, client, key, handle)
        })
    }

    pub(super) fn disk_put_revoke(self) -> Result<(), Refusal> {
        self.finish_part(|master, now, client, key, handle, _| {
            master.disk_put_revoke(now, client, key, handle)
        })
    }

    pub(super) fn memory_put_revoke(self) -> Result<(), Refusal> {
        self.finish_part(Master::memory_put_revoke)
    }

    fn finish_part(self, finish: FinishPart) -> Result<(), Refusal> {
        let PutFinishRequest { client, key, handle, late, .. } =
            PutFinishRequest::parse(self.payload)?;
        let key = self.scoped(key)?;
        Ok(finish(self.master, self.now, client, key.as_ref(), handle, late)?)
    }

    pub(super) fn evict_disk_replica(self) -> Result<(), Refusal> {
        let EvictRequest { client, kind, item } = EvictRequest::parse(self.payload)?;
        self.note_evicted(client, kind, &item)
    }

    pub(super) fn batch_evict_disk_replica(self, out: &mut BytesMut) -> Result<(), Refusal> {
        let batch = BatchEvictRequest::parse(self.payload)?;
        let mut reply = BatchReply::new(out, 2, batch.len(), self.max_reply)?;
        for item in batch.items() {
            match item.and_then(|item| self.note_evicted(batch.client, batch.kind, &item)) {
                Ok(()) => reply.done(),
                Err(refusal) => reply.refused(&refusal),
            }
        }
        Ok(())
    }

    fn note_evicted(
        &self,
        client: ClientId,
        kind: ReplicaKind,
        item: &EvictItem<'_>,
    ) -> Result<(), Refusal> {
        let key = self.scoped_of(&item.object)?;
        let (master, now, key) = (self.master, self.now, key.as_ref());
        Ok(master.evict_disk_replica(now, client, key, item.generation, kind)?)
    }
}
